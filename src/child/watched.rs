//! A process that the keeper watches until it exits: named by its process ID, or the shell that
//! called redlock.
//!
//! A descriptor pins the process before anything else is done. Afterwards it does not matter if its
//! ID is given to another process.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use super::pidfd::PidFd;
use super::proc_entry::{Process, open_files};

#[derive(Clone, Debug)]
pub(crate) struct WatchedProcess {
    pid: Pid,
    pidfd: Arc<PidFd>,
}

impl WatchedProcess {
    /// The process with this ID; an error if it has exited, reaped or not.
    pub(crate) fn open(pid: Pid) -> nix::Result<Self> {
        let watched = Self { pid, pidfd: Arc::new(PidFd::open(pid)?) };
        if watched.has_ended() { Err(nix::errno::Errno::ESRCH) } else { Ok(watched) }
    }

    /// The shell that called redlock.
    pub(crate) fn calling_shell() -> nix::Result<Self> {
        loop {
            let (parent, shell) = (getppid(), calling_shell());
            let watched = Self::open(shell)?;
            // If neither has changed, the process that was opened is the right one.
            if getppid() == parent && calling_shell() == shell {
                return Ok(watched);
            }
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    pub(crate) fn send(&self, signal: Signal) -> nix::Result<()> {
        self.pidfd.send(signal)
    }

    /// Whether this process may send it signals: it may belong to another user.
    pub(crate) fn may_be_signalled(&self) -> bool {
        self.pidfd.may_send()
    }

    /// Its arguments, as far as /proc shows them.
    pub(crate) fn argv(&self) -> Vec<std::ffi::OsString> {
        use std::os::unix::ffi::OsStringExt;
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let arguments = line.split(|&byte| byte == 0).filter(|argument| !argument.is_empty());
        arguments.map(|argument| std::ffi::OsString::from_vec(argument.to_vec())).collect()
    }
}

/// Readable when the process has exited.
impl AsFd for WatchedProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// The parent of this process. A shell runs $(redlock ...) in a copy of itself, which exits with
/// redlock; then the shell that reads the output is meant.
fn calling_shell() -> Pid {
    let mut shell = getppid();
    while let Some(reader) = reader_of_substitution(shell) {
        shell = reader;
    }
    shell
}

/// The parent of this shell, if the shell is its copy and the parent reads its output.
fn reader_of_substitution(shell: Pid) -> Option<Pid> {
    let stdout = |pid: Pid| fs::read_link(format!("/proc/{pid}/fd/1")).ok();
    let written = stdout(shell).filter(|link| link.to_string_lossy().starts_with("pipe:"))?;
    let parent = Process::read(shell)?.parent;
    let is_read =
        stdout(parent).as_ref() != Some(&written) && open_files(parent).any(|(_, open)| open == written);
    (is_read && is_copy(shell, parent)).then_some(parent)
}

/// Whether a process has not called exec since its parent forked it: its program is at the same
/// addresses.
fn is_copy(child: Pid, parent: Pid) -> bool {
    let image = |pid: Pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        // Fields 26 and 28: the start of code and stack. The first field here is the third of the
        // line. Both are zero without permission.
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let addresses = [*fields.get(26 - 3)?, *fields.get(28 - 3)?].map(str::to_owned);
        addresses.iter().all(|address| address != "0").then_some(addresses)
    };
    image(child).is_some_and(|of_child| image(parent) == Some(of_child))
}
