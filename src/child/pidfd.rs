//! Signals to a process, not to a number: what a number stands for may end at any moment, and the number be given
//! to another process.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

pub(super) struct PidFd(OwnedFd);

impl PidFd {
    /// Of the process that has this number now.
    pub(super) fn open(pid: Pid) -> nix::Result<Self> {
        // SAFETY: takes two numbers and returns a new descriptor, or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        let fd = Errno::result(fd)?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
        // SAFETY: the descriptor is new, so nothing else closes it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn send(&self, signal: Signal) -> nix::Result<()> {
        let (fd, no_info) = (self.0.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // SAFETY: the descriptor is open, and without information of ours the kernel fills it in as for kill.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal as i32, no_info, 0) };
        Errno::result(sent).map(drop)
    }
}
