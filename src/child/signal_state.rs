//! How this process was started: signal dispositions, signal mask and standard output. The command
//! is started in the same state.

use std::mem::MaybeUninit;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::{SigSet, Signal};

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static SIGXFSZ_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The C library calls this function before `main`. There the standard library sets SIGPIPE to
/// ignored and opens /dev/null in place of closed standard descriptors; the original state would be
/// lost, and without /dev the process would be aborted.
// SAFETY: the section holds pointers to functions that take C's `main` arguments, which `observe`
// may ignore.
#[used]
#[unsafe(link_section = ".init_array")]
static OBSERVE: extern "C" fn() = observe;

extern "C" fn observe() {
    SIGPIPE_WAS_IGNORED.store(is_ignored(Signal::SIGPIPE), Ordering::Relaxed);
    // A file that reaches `ulimit -f` must cost a line, not the lock.
    SIGXFSZ_WAS_IGNORED.store(is_ignored(Signal::SIGXFSZ), Ordering::Relaxed);
    set(Signal::SIGXFSZ, libc::SIG_IGN);
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: F_GETFD only reads, and fails for a closed descriptor.
        let is_closed = unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1;
        if is_closed {
            occupy();
        }
        if fd == libc::STDOUT_FILENO {
            STDOUT_WAS_CLOSED.store(is_closed, Ordering::Relaxed);
        }
    }
}

/// Take the lowest free descriptor, so that no file of ours becomes a standard stream. Where there is
/// no /dev/null the root directory serves: it can be neither read nor written.
fn occupy() {
    // SAFETY: the paths are C strings, and nothing owns the new descriptor, which stays open.
    unsafe {
        if libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) == -1 {
            libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        }
    }
}

/// Whether this process was started without stdout, so that nothing written there can reach a
/// reader.
pub(crate) fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}

/// Whether the signal was ignored when this process was started, as by nohup.
pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut current = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action sigaction only fills in `current`, which is read only if the
    // call succeeded.
    unsafe {
        libc::sigaction(signal as i32, null(), current.as_mut_ptr()) == 0
            && current.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// The signal mask from before any signal was blocked, and the one disposition that had to be
/// changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalState {
    mask: SigSet,
    sigchld_was_ignored: bool,
}

impl SignalState {
    /// Call before the first signal is blocked. After this, children leave an exit status even if
    /// the parent of this process ignored SIGCHLD.
    pub(crate) fn remember() -> nix::Result<Self> {
        let sigchld_was_ignored = is_ignored(Signal::SIGCHLD);
        set(Signal::SIGCHLD, libc::SIG_DFL);
        Ok(Self { mask: SigSet::thread_get_mask()?, sigchld_was_ignored })
    }

    /// For the new process, before it calls exec: system calls only.
    pub(crate) fn restore(&self) -> nix::Result<()> {
        let disposition = |was_ignored| if was_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        set(Signal::SIGPIPE, disposition(SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed)));
        set(Signal::SIGXFSZ, disposition(SIGXFSZ_WAS_IGNORED.load(Ordering::Relaxed)));
        set(Signal::SIGCHLD, disposition(self.sigchld_was_ignored));
        self.mask.thread_set_mask()
    }
}

/// Stop ignoring a signal.
pub(super) fn set_default(signal: Signal) {
    set(signal, libc::SIG_DFL);
}

/// `disposition` is SIG_DFL or SIG_IGN.
fn set(signal: Signal, disposition: libc::sighandler_t) {
    // SAFETY: both are valid for every signal that this is called with, and no handler is replaced.
    unsafe { libc::signal(signal as i32, disposition) };
}
