//! A process that keeps running in the background after its caller has got its result.
//!
//! The caller's child is the front: it stays in the foreground, forwards signals and prints the
//! result. Its own child, the worker, does the work, and detaches when the result has been printed.
//! Until then the worker dies with the front.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, fork, getppid, setsid};

use super::channel::{Channel, tagged};
use super::host::nowhere;
use super::messages::{moment_from_bytes, moment_to_bytes, number_from_bytes};
use super::signal_state::set_default;
use super::signals::ENDING;
use super::watched::WatchedProcess;
use crate::arguments;
use crate::clock::BootTime;

/// The process name in `ps`, beside the title.
pub(super) const NAME: &std::ffi::CStr = c"redlock-keeper";

pub(crate) enum Side {
    Front(Front),
    Worker(FrontLink),
}

/// The front's end of the channel, and its worker.
pub(crate) struct Front {
    worker: Pid,
    channel: Channel,
}

/// A message from the worker.
pub(crate) enum FromWorker {
    /// Print this text, before the deadline if there is one.
    Print { text: Vec<u8>, deadline: Option<BootTime> },
    /// The worker has detached.
    Detached,
    /// The worker has exited, or is about to.
    Ended,
}

/// Whether the text was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Printed {
    Done,
    Cancelled(i32),
    TooLate,
    /// The error's number.
    Failed(i32),
}

/// The worker's end of the channel, and a file that leads nowhere, which might not open later.
pub(crate) struct FrontLink {
    channel: Channel,
    null: File,
}

/// Fork. The process must have one thread, and must not have opened anything but `watched`: the
/// worker closes the descriptors that it inherited from the caller.
pub(crate) fn split(watched: Option<&WatchedProcess>) -> io::Result<Side> {
    let (front, worker) = Channel::pair()?;
    let us = nix::unistd::getpid();
    // SAFETY: there is one thread, so the child may run any code.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Side::Front(Front { worker: child, channel: front })),
        ForkResult::Child => {
            drop(front);
            set_pdeathsig(Signal::SIGTERM)?;
            if getppid() != us {
                return Err(Errno::ESRCH.into());
            }
            let null = nowhere()?;
            dup2_stdin(&null)?;
            dup2_stdout(&null)?;
            let mut kept = vec![worker.as_fd().as_raw_fd(), null.as_raw_fd()];
            kept.extend(watched.map(|watched| watched.as_fd().as_raw_fd()));
            close_all_but(&kept);
            Ok(Side::Worker(FrontLink { channel: worker, null }))
        }
    }
}

/// Close the caller's descriptors, from 3 on.
pub(super) fn close_all_but(kept: &[RawFd]) {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)) {
        // SAFETY: this process does not use it: the callers require that nothing was opened. The
        // descriptor of the listing above is already closed; closing it again is a harmless error
        // while there is one thread.
        unsafe { nix::libc::close(fd) };
    }
}

impl FromWorker {
    fn from_bytes(message: &[u8]) -> Option<Self> {
        match message.split_first()? {
            (b't', payload) => {
                let (deadline, text) = payload.split_first_chunk()?;
                Some(Self::Print { text: text.to_vec(), deadline: moment_from_bytes(*deadline) })
            }
            (b'd', _) => Some(Self::Detached),
            _ => None,
        }
    }
}

impl Printed {
    fn to_bytes(self) -> Vec<u8> {
        let (tag, number) = match self {
            Self::Done => (b'd', 0),
            Self::Cancelled(signal) => (b'c', signal),
            Self::TooLate => (b'l', 0),
            Self::Failed(error) => (b'f', error),
        };
        tagged(tag, &number.to_ne_bytes())
    }

    fn from_bytes(message: &[u8]) -> Option<Self> {
        let (tag, payload) = message.split_first()?;
        let number = number_from_bytes(payload)?;
        match tag {
            b'd' => Some(Self::Done),
            b'c' => Some(Self::Cancelled(number)),
            b'l' => Some(Self::TooLate),
            b'f' => Some(Self::Failed(number)),
            _ => None,
        }
    }
}

impl Front {
    /// Call when the channel is readable.
    pub(crate) fn receive(&self) -> FromWorker {
        let message = self.channel.receive().ok().flatten();
        message.and_then(|message| FromWorker::from_bytes(&message)).unwrap_or(FromWorker::Ended)
    }

    pub(crate) fn reply(&self, printed: Printed) {
        let _ = self.channel.send(&printed.to_bytes());
    }

    pub(crate) fn forward(&self, signal: Signal) {
        let _ = kill(self.worker, signal);
    }

    /// The worker's exit code, or the signal that killed it.
    pub(crate) fn wait_for_end(&self) -> Result<i32, i32> {
        loop {
            match waitpid(self.worker, None) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Err(signal as i32),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return Ok(crate::exit::INTERNAL.into()),
            }
        }
    }
}

impl AsFd for Front {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl FrontLink {
    /// Have the front print this, and wait for the result. A front that has exited has failed.
    pub(crate) fn print(&self, text: &[u8], deadline: Option<BootTime>) -> Printed {
        let message = tagged(b't', &[&moment_to_bytes(deadline)[..], text].concat());
        let reply = self.channel.send_until(&message, None).and_then(|()| self.channel.receive());
        let printed = reply.ok().flatten().and_then(|reply| Printed::from_bytes(&reply));
        printed.unwrap_or(Printed::Failed(Errno::EPIPE as i32))
    }

    /// Leave the caller's session, directory and descriptors.
    pub(crate) fn leave_session(&self, title: &[u8]) {
        // None of these can fail here; if one did, the lock would still be kept.
        let _ = set_pdeathsig(None);
        let _ = setsid();
        let _ = chdir("/");
        umask(Mode::from_bits_truncate(0o077));
        let _ = dup2_stderr(&self.null);
        set_name(NAME).ok();
        // On failure (a hardened /proc) the process name must do.
        let _ = arguments::set_title(title);
    }

    /// The front exits, and its caller continues.
    pub(crate) fn end_front(self) {
        let _ = self.channel.send(&tagged(b'd', &[]));
    }
}

/// Stop ignoring the signals that the caller ignored, as shells do for background jobs. Call before
/// [`Signals::block`](super::signals::Signals::block).
pub(crate) fn restore_default_signals() {
    for signal in ENDING {
        set_default(signal);
    }
}
