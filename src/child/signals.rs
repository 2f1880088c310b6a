//! Signals as events: which one came, and whether it was typed at the terminal or sent by a process.
//!
//! They are blocked and read from a descriptor, so no code of ours ever runs in a handler. Off a terminal
//! SIGINT comes through ctrlc, which keeps an inherited SIG_IGN; on a terminal only the kernel's siginfo
//! tells ^C, which the command has received as well, from a SIGINT that a process sent to us alone.

use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::signal_state::is_ignored;
use crate::memory;

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
    interrupts: Option<PipeReader>,
    /// What is blocked and read from the descriptor.
    handled: SigSet,
    /// SIGINT is still to be taken through ctrlc.
    through_ctrlc: bool,
}

impl Signals {
    /// Block the signals we handle: whatever arrives from here on waits until we look. Before any thread
    /// is started, as threads inherit the mask. Signals that were ignored when we were started stay so.
    pub(crate) fn block(on_terminal: bool) -> nix::Result<Self> {
        let handled = HANDLED.into_iter().filter(|&signal| !is_ignored(signal)).collect::<SigSet>();
        handled.thread_block()?;
        let descriptor = SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { descriptor, handled, interrupts: None, through_ctrlc: !on_terminal })
    }

    /// Off a terminal: take SIGINT from ctrlc from now on. It starts a thread, so it is left until there is time
    /// for that; where no thread can be started, signalfd keeps handling SIGINT.
    pub(crate) fn take_interrupts(&mut self) {
        if std::mem::take(&mut self.through_ctrlc) && self.handled.contains(Signal::SIGINT) {
            let _ = self.try_ctrlc();
        }
    }

    fn try_ctrlc(&mut self) -> anyhow::Result<()> {
        memory::suffices_for_thread()?;
        let (reader, mut writer) = std::io::pipe()?;
        ctrlc::try_set_handler(move || {
            // The reader is gone only when the program is about to end.
            let _ = writer.write(&[1]);
        })?;
        self.interrupts = Some(reader);
        self.handled.remove(Signal::SIGINT);
        self.descriptor.set_mask(&self.handled)?;
        // The handler only wakes ctrlc's thread; that it interrupts our poll does no harm.
        Ok(SigSet::from(Signal::SIGINT).thread_unblock()?)
    }

    /// Readable when a signal has arrived.
    pub(crate) fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let interrupts = self.interrupts.as_ref().map(AsFd::as_fd);
        [self.descriptor.as_fd()].into_iter().chain(interrupts).collect()
    }

    /// The next signal that has arrived, if any. Never blocks.
    pub(crate) fn next(&mut self) -> Option<ReceivedSignal> {
        if let Some(pipe) = &mut self.interrupts
            && is_readable(pipe.as_fd())
            && pipe.read(&mut [0; 1]).is_ok_and(|length| length == 1)
        {
            return Some(ReceivedSignal { signal: Signal::SIGINT, typed: false });
        }
        let info = self.descriptor.read_signal().ok().flatten()?;
        let signal = i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok())?;
        let typed = info.ssi_code == libc::SI_KERNEL;
        Some(ReceivedSignal { signal, typed })
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
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
    if let Ok(signal) = Signal::try_from(number) {
        let _ = SigSet::from(signal).thread_unblock();
    }
    // SAFETY: SIG_DFL is valid for every signal (SIGKILL refuses it, which is as good) and replaces no
    // handler that is still needed; raise() takes any number.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
    // A signal that does not kill: exit as a shell would report it.
    std::process::exit(128 + number)
}
