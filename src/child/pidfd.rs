//! Signals to a process instead of a process ID, which the kernel may give to another process at
//! any moment.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getuid};

#[derive(Debug)]
pub(super) struct PidFd(OwnedFd);

/// Readable when the process has exited.
impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PidFd {
    /// The process that has this ID now.
    pub(super) fn open(pid: Pid) -> nix::Result<Self> {
        // SAFETY: the call takes two numbers and returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        let fd = Errno::result(fd)?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
        // SAFETY: the descriptor is new, so nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn send(&self, signal: Signal) -> nix::Result<()> {
        self.send_with(signal as i32, None)
    }

    /// Whether this process may send it signals.
    pub(super) fn may_send(&self) -> bool {
        self.send_with(0, None) != Err(Errno::EPERM)
    }

    /// Send a signal by number, with a value that the receiver finds in its siginfo.
    pub(super) fn send_number(&self, signal: libc::c_int, number: u32) -> nix::Result<()> {
        self.send_with(signal, Some(&queued_signal(signal, number)))
    }

    /// Signal 0 only checks the permission. Without `info` the kernel fills it in as for kill.
    fn send_with(&self, signal: libc::c_int, info: Option<&SignalInfo>) -> nix::Result<()> {
        let info = info.map_or(std::ptr::null(), |info| &raw const *info);
        // SAFETY: the descriptor is open, and the pointer is null or points to a whole siginfo_t.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, info, 0) };
        Errno::result(sent).map(drop)
    }
}

#[repr(C)]
union SignalInfo {
    whole: libc::siginfo_t,
    queued: QueuedSignal,
}

/// The fields of a siginfo_t that sigqueue(3) fills in, which libc keeps private.
#[repr(C)]
#[derive(Clone, Copy)]
struct QueuedSignal {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    sender: Sender,
}

/// Aligned like a pointer, as the union in siginfo_t is.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sender {
    pid: libc::pid_t,
    user: libc::uid_t,
    value: usize,
}

const _: () = assert!(size_of::<QueuedSignal>() <= size_of::<libc::siginfo_t>());

fn queued_signal(signal: libc::c_int, number: u32) -> SignalInfo {
    // SAFETY: a siginfo_t consists of numbers and pointers, for which zero is a valid value.
    let mut info = SignalInfo { whole: unsafe { std::mem::zeroed() } };
    let (pid, user) = (getpid().as_raw(), getuid().as_raw());
    // 32 bits fit into a pointer on every platform of Linux.
    let sender = Sender { pid, user, value: usize::try_from(number).unwrap_or_default() };
    info.queued = QueuedSignal { signal, error: 0, code: libc::SI_QUEUE, sender };
    info
}
