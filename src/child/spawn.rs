//! Starting the command.
//!
//! Not with std's Command: anything that is to happen between fork and exec (the parent-death signal first of
//! all) makes it copy the whole process, and that copy is a tenth of the time that a short command takes. Here
//! the new process borrows our memory until it executes the command, as posix_spawn does it.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid, getppid, setpgid};

use super::messages::Environment;
use super::signal_state::SignalState;

/// Which process group the command runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessGroup {
    Own,
    /// That of redlock itself, which the terminal and the shell know as the job.
    Join(Pid),
}

/// For the path that execvpe puts together.
const STACK: usize = 64 * 1024;

/// What the new process needs; it only reads, but for the error.
struct Job<'a> {
    argv: &'a [*const c_char],
    environment: &'a [*const c_char],
    group: Pid,
    keep_open: &'a [Arc<File>],
    signal_state: SignalState,
    guardian: Pid,
    error: AtomicI32,
}

/// What is known of the command before it is started: made ready while the lock is asked for.
pub(super) struct Prepared {
    argv: Vec<CString>,
    /// By name: our own, to which some are added.
    environment: BTreeMap<OsString, CString>,
    /// Aligned as stacks must be. Not zeroed: of most of it no page is ever touched.
    stack: Vec<u128>,
}

impl Prepared {
    pub(super) fn new(argv: &[OsString]) -> Result<Self, Errno> {
        let argv: Vec<CString> = argv.iter().map(|arg| c_string(arg)).collect::<Result<_, _>>()?;
        let environment = std::env::vars_os().map(variable).collect::<Result<_, _>>()?;
        // A script without an interpreter line is run by sh, with one argument more.
        let pointers = 2 * size_of::<*const c_char>() * (argv.len() + 1);
        Ok(Self { argv, environment, stack: Vec::with_capacity((STACK + pointers) / size_of::<u128>()) })
    }
}

/// Start the command. From a process with one thread that blocks all signals. It is killed when that process
/// dies, and gets the signal mask and dispositions that redlock was started with.
pub(super) fn spawn(
    prepared: &mut Prepared,
    added: &Environment,
    group: ProcessGroup,
    keep_open: &[Arc<File>],
    signal_state: SignalState,
) -> Result<Pid, Errno> {
    let Prepared { argv, environment, stack } = prepared;
    for added in added {
        let (name, text) = variable(added.clone())?;
        environment.insert(name, text);
    }
    let job = Job {
        argv: &pointers(argv.iter()),
        environment: &pointers(environment.values()),
        group: match group {
            ProcessGroup::Own => Pid::from_raw(0),
            ProcessGroup::Join(group) => group,
        },
        keep_open,
        signal_state,
        guardian: getpid(),
        error: AtomicI32::new(0),
    };
    // SAFETY: the stack grows down from its end and is not used otherwise until clone returns, which, with
    // CLONE_VFORK, is when the new process has executed the command or ended; `job` lives as long. Until
    // then this thread, the only one, sleeps. `run` makes only calls that are allowed after fork, and with
    // all signals blocked nothing else runs on that stack.
    let pid = unsafe {
        let top = stack.spare_capacity_mut().as_mut_ptr_range().end.cast::<c_void>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(run, top, flags, (&raw const job).cast_mut().cast())
    };
    let pid = Errno::result(pid).map(Pid::from_raw)?;
    match job.error.load(Ordering::Relaxed) {
        0 => Ok(pid),
        error => {
            let _ = waitpid(pid, None);
            Err(Errno::from_raw(error))
        }
    }
}

/// In the new process. Returns only if the command could not be executed.
extern "C" fn run(job: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its `Job`, which lives until this process is gone or has executed.
    let job = unsafe { &*job.cast::<Job<'_>>() };
    let error = execute(job);
    job.error.store(error as i32, Ordering::Relaxed);
    127
}

/// System calls only: nothing is allocated, no lock is taken.
fn execute(job: &Job<'_>) -> Errno {
    let prepare = || {
        setpgid(Pid::from_raw(0), job.group)?;
        set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != job.guardian {
            // It died before the parent-death signal was set.
            return Err(Errno::ESRCH);
        }
        for file in job.keep_open {
            fcntl(&**file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        job.signal_state.restore()
    };
    if let Err(error) = prepare() {
        return error;
    }
    // SAFETY: both lists end with a null pointer, and what they point to lives in `spawn`.
    unsafe { libc::execvpe(job.argv[0], job.argv.as_ptr(), job.environment.as_ptr()) };
    Errno::last()
}

/// `NAME=value`, by its name.
fn variable((name, value): (OsString, OsString)) -> Result<(OsString, CString), Errno> {
    let text = c_string(&[name.as_os_str(), &value].join(OsStr::new("=")))?;
    Ok((name, text))
}

fn c_string(text: &OsStr) -> Result<CString, Errno> {
    CString::new(OsStrExt::as_bytes(text)).map_err(|_| Errno::EINVAL)
}

fn pointers<'a>(list: impl Iterator<Item = &'a CString>) -> Vec<*const c_char> {
    list.map(|text| text.as_ptr()).chain([null()]).collect()
}
