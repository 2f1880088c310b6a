//! Signals as events: which signal arrived, and whether it was typed at the terminal or sent by a
//! process.
//!
//! They are blocked and read from a descriptor, so no code runs in a handler. The kernel's siginfo
//! distinguishes ^C, which the command has received as well, from a SIGINT that a process sent to
//! redlock alone. A terminal that goes away is reported to the session leader alone. A loop that
//! SIGINT must end at once, whatever it waits for, gets that signal through ctrlc.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, raise, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpgrp, getpid, getsid};

use super::lock_holder::ASK;
use super::signal_state::is_ignored;
use super::watched::WatchedProcess;
use crate::clock::BootTime;
use crate::poll::Poll;

/// The signals that ask a process to exit.
pub(super) const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

const HANDLED: [Signal; 10] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGCHLD,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    pub signal: Signal,
    /// From the terminal to the process group: the command, if it is in it, has received it too.
    pub typed: bool,
}

pub(crate) struct Signals {
    descriptor: SignalFd,
    /// The numbers of requests to release the lock (see lock_holder.rs).
    asked: VecDeque<u64>,
    /// Its exit counts as SIGHUP.
    watched: Option<WatchedProcess>,
}

impl Signals {
    /// Block the handled signals: from now on they wait until they are read. Call before any thread
    /// is started, as threads inherit the mask. Signals that were ignored at the start stay
    /// ignored.
    pub(crate) fn block() -> nix::Result<Self> {
        Self::block_these(&HANDLED)
    }

    /// The same, but SIGINT calls this function at once, on a separate thread.
    pub(crate) fn block_and_interrupt_with(handler: impl FnMut() + Send + 'static) -> anyhow::Result<Self> {
        let others: Vec<Signal> = HANDLED.into_iter().filter(|&signal| signal != Signal::SIGINT).collect();
        let signals = Self::block_these(&others)?;
        if !is_ignored(Signal::SIGINT) {
            ctrlc::try_set_handler(handler)?;
        }
        Ok(signals)
    }

    fn block_these(signals: &[Signal]) -> nix::Result<Self> {
        let handled = signals.iter().copied().filter(|&signal| !is_ignored(signal)).collect::<SigSet>();
        let handled = with_number(handled, ASK);
        handled.thread_block()?;
        let descriptor = SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { descriptor, asked: VecDeque::new(), watched: None })
    }

    /// Readable when a signal has arrived.
    pub(crate) fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let watched = self.watched.as_ref().map(AsFd::as_fd);
        [self.descriptor.as_fd()].into_iter().chain(watched).collect()
    }

    /// The exit of this process counts as SIGHUP, once.
    pub(crate) fn hang_up_with(&mut self, watched: Option<WatchedProcess>) {
        self.watched = watched;
    }

    /// The next signal that has arrived, if any. Never blocks.
    pub(crate) fn next(&mut self) -> Option<ReceivedSignal> {
        if self.watched.take_if(|watched| watched.has_ended()).is_some() {
            return Some(ReceivedSignal { signal: Signal::SIGHUP, typed: false });
        }
        loop {
            let info = self.descriptor.read_signal().ok().flatten()?;
            let number = i32::try_from(info.ssi_signo).ok()?;
            if number == ASK {
                self.asked.push_back(info.ssi_ptr);
            } else if let Ok(signal) = Signal::try_from(number) {
                let typed = info.ssi_code == libc::SI_KERNEL && !is_hangup(signal);
                return Some(ReceivedSignal { signal, typed });
            }
        }
    }

    /// The next signal that asks redlock to exit, if one has arrived. Others are dropped.
    pub(crate) fn next_that_ends(&mut self) -> Option<Signal> {
        std::iter::from_fn(|| self.next()).map(|received| received.signal).find(|signal| ends(*signal))
    }

    /// The number of the next request to release the lock. Call after [`Signals::next`].
    pub(crate) fn next_asked(&mut self) -> Option<u64> {
        self.asked.pop_front()
    }

    /// Whether there is such a request that was received among other signals.
    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The next signal, if one arrives before this moment.
    pub(crate) fn next_until(&mut self, until: Option<BootTime>) -> Option<ReceivedSignal> {
        loop {
            match self.next() {
                None if until.is_none_or(|until| !until.has_passed()) => {
                    let mut poll = Poll::new();
                    poll.readable(self.descriptor.as_fd(), ());
                    poll.until(until);
                    poll.wait();
                }
                signal => return signal,
            }
        }
    }
}

/// Whether a signal asks redlock to exit.
pub(crate) fn ends(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// Whether the kernel sends this signal to the session leader alone, and this process is one: its
/// terminal has gone away.
fn is_hangup(signal: Signal) -> bool {
    matches!(signal, Signal::SIGHUP | Signal::SIGCONT) && getsid(None) == Ok(getpid())
}

/// By number, as nix has no real-time signals.
fn with_number(signals: SigSet, number: libc::c_int) -> SigSet {
    let mut set = *signals.as_ref();
    // SAFETY: the set is initialized, and an invalid signal number is refused.
    unsafe {
        libc::sigaddset(&raw mut set, number);
        SigSet::from_sigset_t_unchecked(set)
    }
}

/// From now on this signal interrupts a system call in which a thread sleeps, and does nothing
/// else. Call after the guardian is forked: the command must inherit the original disposition.
pub(crate) fn install_noop_handler(signal: Signal) -> nix::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: an empty handler may run at any moment, and no other handler is installed for this
    // signal.
    unsafe { sigaction(signal, &action) }.map(drop)
}

/// Whether a shell can continue this process group. It gives each job a group of its own, so the
/// session leader's is none, and the kernel discards ^Z there. A group without a number is in
/// another PID namespace, and may be a job.
pub(crate) fn is_job(group: Pid) -> bool {
    group.as_raw() == 0 || getsid(None) != Ok(group)
}

/// Stop this process, as ^Z does; returns when it is continued. Does nothing if no shell can
/// continue it.
pub(crate) fn suspend_self() {
    if is_job(getpgrp()) {
        let _ = raise(Signal::SIGSTOP);
    }
}

/// The kernel has stopped the processes of this group although it is no job: the command's parent,
/// the guardian, is in another group, as a shell is.
pub(crate) fn undo_stop(group: Pid) {
    let _ = killpg(group, Signal::SIGCONT);
}

/// Die by the command's signal, so that the parent sees it (128+n in a shell). By number, as
/// real-time signals have no name.
pub(crate) fn exit_by_signal(number: i32) -> ! {
    // The command has dumped its core, if at all; a second dump would only overwrite it.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let _ = with_number(SigSet::empty(), number).thread_unblock();
    // SAFETY: SIG_DFL is valid for every signal (SIGKILL refuses it, which does no harm) and
    // replaces no handler that is still needed; raise() accepts any number.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
    // The signal does not kill: exit with the code that a shell would report.
    std::process::exit(128 + number)
}
