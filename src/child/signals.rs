//! Signals as events: which one came, and whether it was typed at the terminal or sent by a process.
//!
//! They are blocked and read from a descriptor, so no code of ours ever runs in a handler. The kernel's siginfo tells
//! ^C, which the command has received as well, from a SIGINT that a process sent to us alone. A loop that SIGINT ends
//! at once, whatever it is waiting for, takes that one through ctrlc.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::lock_holder::ASK;
use super::signal_state::is_ignored;
use super::watched::WatchedProcess;
use crate::clock::BootTime;

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
    /// From the terminal: the command, in the same process group, has received it too.
    pub typed: bool,
}

pub(crate) struct Signals {
    descriptor: SignalFd,
    /// The numbers with which processes have asked for our lock.
    asked: VecDeque<u64>,
    /// Its end is a hang-up.
    watched: Option<WatchedProcess>,
}

impl Signals {
    /// Block the signals we handle: whatever arrives from here on waits until we look. Before any thread
    /// is started, as threads inherit the mask. Signals that were ignored when we were started stay so.
    pub(crate) fn block() -> nix::Result<Self> {
        Self::block_these(&HANDLED)
    }

    /// The same, but SIGINT calls this function, at whatever moment, on a thread of its own.
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

    /// The end of this process counts as SIGHUP, once.
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
                return Some(ReceivedSignal { signal, typed: info.ssi_code == libc::SI_KERNEL });
            }
        }
    }

    /// The next signal that asks us to end, if one has arrived. Others are dropped.
    pub(crate) fn next_that_ends(&mut self) -> Option<Signal> {
        let ends = |signal: &Signal| {
            matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)
        };
        std::iter::from_fn(|| self.next()).map(|received| received.signal).find(ends)
    }

    /// The number that came with a signal by which a process asks for our lock. After [`Signals::next`].
    pub(crate) fn next_asked(&mut self) -> Option<u64> {
        self.asked.pop_front()
    }

    /// The next signal, if one comes before this moment.
    pub(crate) fn next_until(&mut self, until: BootTime) -> Option<ReceivedSignal> {
        loop {
            match self.next() {
                None if !until.has_passed() => {
                    let mut fds = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
                    // A failed poll is an interrupted one.
                    let _ = poll(&mut fds, until.poll_timeout());
                }
                signal => return signal,
            }
        }
    }
}

/// By number: nix knows no real-time signals.
fn with_number(signals: SigSet, number: libc::c_int) -> SigSet {
    let mut set = *signals.as_ref();
    // SAFETY: the set is initialized; a number that is no signal's is refused.
    unsafe {
        libc::sigaddset(&raw mut set, number);
        SigSet::from_sigset_t_unchecked(set)
    }
}

/// From now on this signal ends a system call in which a thread sleeps, and does nothing else. Not before the
/// guardian is forked: the command is to find the signal as we did.
pub(crate) fn install_noop_handler(signal: Signal) -> nix::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: a handler that does nothing may run at any moment, and no other is installed for this signal.
    unsafe { sigaction(signal, &action) }.map(drop)
}

/// Stop, as ^Z does; returns when we are continued.
pub(crate) fn suspend_self() {
    let _ = raise(Signal::SIGSTOP);
}

/// End the way the command did, so that our parent sees that signal (128+n in a shell). By number: real-time
/// signals have no name.
pub(crate) fn exit_by_signal(number: i32) -> ! {
    // The command has left its core, if it was to leave one; ours would only overwrite it.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let _ = with_number(SigSet::empty(), number).thread_unblock();
    // SAFETY: SIG_DFL is valid for every signal (SIGKILL refuses it, which is as good) and replaces no
    // handler that is still needed; raise() takes any number.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
    // A signal that does not kill: exit as a shell would report it.
    std::process::exit(128 + number)
}
