//! Starting the command.
//!
//! Not with std's Command: any work between fork and exec (above all the parent-death signal) makes
//! it copy the whole process, which takes a tenth of a short command's time. Here the new process
//! borrows this process's memory until it calls exec, as posix_spawn does.

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
    /// redlock's own, which the terminal and the shell know as the job.
    Join(Pid),
}

/// Room for the path that execvpe builds.
const STACK: usize = 64 * 1024;

/// What the new process needs. It writes only the error.
struct Job<'a> {
    argv: &'a [*const c_char],
    environment: &'a [*const c_char],
    group: Pid,
    keep_open: &'a [Arc<File>],
    signal_state: SignalState,
    guardian: Pid,
    error: AtomicI32,
}

/// The parts of the command that are known beforehand, prepared while the lock is requested.
pub(super) struct Prepared {
    argv: Vec<CString>,
    /// By name: this process's variables, to which others are added.
    environment: BTreeMap<OsString, CString>,
    /// Aligned as stacks must be. Not zeroed, as most of its pages are never touched.
    stack: Vec<u128>,
}

impl Prepared {
    pub(super) fn new(argv: &[OsString]) -> Result<Self, Errno> {
        let argv: Vec<CString> = argv.iter().map(|arg| c_string(arg)).collect::<Result<_, _>>()?;
        let environment = std::env::vars_os().map(variable).collect::<Result<_, _>>()?;
        // A script without an interpreter line is run by sh, with one more argument.
        let pointers = 2 * size_of::<*const c_char>() * (argv.len() + 1);
        Ok(Self { argv, environment, stack: Vec::with_capacity((STACK + pointers) / size_of::<u128>()) })
    }
}

/// Start the command. The calling process must have one thread and block all signals. The command
/// is killed when that process dies, and gets the signal mask and dispositions that redlock was
/// started with.
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
    // SAFETY: the stack grows down from its end and is not used otherwise until clone returns. With
    // CLONE_VFORK that is when the new process has called exec or exited; `job` lives that long,
    // and this thread, the only one, sleeps until then. `run` makes only calls that are allowed
    // after fork, and with all signals blocked nothing else runs on that stack.
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

/// Runs in the new process. Returns only if exec failed.
extern "C" fn run(job: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its `Job`, which lives until this process exits or calls
    // exec.
    let job = unsafe { &*job.cast::<Job<'_>>() };
    let error = execute(job);
    job.error.store(error as i32, Ordering::Relaxed);
    127
}

/// System calls only: no allocation, no lock.
fn execute(job: &Job<'_>) -> Errno {
    let prepare = || {
        setpgid(Pid::from_raw(0), job.group)?;
        set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != job.guardian {
            // The guardian died before the parent-death signal was set.
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
    // SAFETY: both lists end with a null pointer, and the strings live in `spawn`.
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
