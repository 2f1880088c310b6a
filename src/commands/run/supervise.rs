//! While the command runs: one loop over signals, the guardian's events and the keeper's events.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::start_error::start_error;
use crate::child::signals::{ReceivedSignal, Signals, suspend_self};
use crate::child::{self, ExitReason, GuardianEvent, Supervisor};
use crate::clock::BootTime;
use crate::exit::{self, Exit, Failure};
use crate::keeper::{Keeper, KeeperEvent};
use crate::report::{self, LossCause, Report};
use crate::settings::{OnLost, RunSettings};

/// `timeout` signals its child, and then the child's whole group: that is one request to stop, not two.
const REPEATED_SIGNAL_WINDOW: Duration = Duration::from_millis(200);

/// Delay before starting ctrlc's thread; short commands end before.
const CTRLC_DELAY: Duration = Duration::from_millis(10);

/// How the command ended.
pub(super) struct Outcome {
    pub result: Result<Exit, Failure>,
    pub keeper: Keeper,
    /// The command was stopped by us, and the reason was reported.
    pub was_stopped: bool,
}

impl Outcome {
    pub(super) fn not_started(keeper: Keeper, message: String) -> Self {
        Self { result: Err(Failure::new(exit::INTERNAL, message)), keeper, was_stopped: false }
    }
}

/// Why the command is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    Lost,
    MaxHold,
}

/// Which descriptors are readable.
struct Ready {
    guardian: bool,
    keeper: bool,
    signals: bool,
}

pub(super) struct Supervision<'a> {
    settings: &'a RunSettings,
    on_terminal: bool,
    supervisor: &'a Supervisor,
    keeper: Keeper,
    signals: &'a mut Signals,
    report: &'a mut Report,
    /// When a process first told us to stop.
    told_to_stop_at: Option<BootTime>,
    /// The loss of the lock was reported.
    is_lost: bool,
    stop_reason: Option<StopReason>,
    /// Not at once: most commands have ended before they could be interrupted.
    take_interrupts_at: Option<BootTime>,
    /// When the command must be gone, as far as we know.
    deadline: Option<BootTime>,
}

impl<'a> Supervision<'a> {
    /// `deadline`: when the command must be gone, unless the lease is renewed.
    pub(super) fn new(
        settings: &'a RunSettings,
        on_terminal: bool,
        supervisor: &'a Supervisor,
        keeper: Keeper,
        deadline: Option<BootTime>,
        signals: &'a mut Signals,
        report: &'a mut Report,
    ) -> Self {
        Self {
            settings,
            on_terminal,
            supervisor,
            keeper,
            signals,
            report,
            told_to_stop_at: None,
            is_lost: false,
            stop_reason: None,
            take_interrupts_at: Some(BootTime::now() + CTRLC_DELAY),
            deadline,
        }
    }

    /// Returns when the command has ended.
    pub(super) fn run(mut self) -> Outcome {
        let result = loop {
            let ready = self.wait();
            if ready.guardian
                && let Some(result) = self.on_guardian_event(self.supervisor.next_event())
            {
                break result;
            }
            if self.take_interrupts_at.take_if(|moment| moment.has_passed()).is_some() {
                self.signals.take_interrupts();
            }
            if self.keeper.starts_at().is_some_and(BootTime::has_passed)
                && let Err(error) = self.keeper.start()
            {
                self.report.cannot_start_keeper(&error);
            }
            // A renewal before the clock: we may have been held up, and the lease not.
            if ready.keeper {
                self.keeper.take_events().into_iter().for_each(|event| self.on_keeper_event(event));
            }
            if !ready.guardian && self.guardian_deadline().is_some_and(BootTime::has_passed) {
                self.deadline = None;
                self.supervisor.guardian().kill_guardian();
                self.report_loss(LossCause::Overdue);
            }
            if ready.signals {
                while let Some(received) = self.signals.next() {
                    self.forward_signal(received);
                }
            }
            report::flush();
        };
        Outcome { result, keeper: self.keeper, was_stopped: self.is_lost || self.stop_reason.is_some() }
    }

    fn wait(&self) -> Ready {
        let next = [self.keeper.starts_at(), self.take_interrupts_at, self.guardian_deadline()];
        let (signal_fds, unwritten) = (self.signals.wake_fds(), report::unwritten());
        let mut fds: Vec<PollFd<'_>> = [self.supervisor.wake_fd(), self.keeper.wake_fd()]
            .into_iter()
            .chain(signal_fds.iter().map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .chain(unwritten.iter().map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLOUT)))
            .collect();
        let timeout = next.into_iter().flatten().min().map_or(PollTimeout::NONE, BootTime::poll_timeout);
        // A failed poll is an interrupted one: nothing is readable, and we come back.
        let _ = poll(&mut fds, timeout);
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let (guardian, keeper) = (ready.next() == Some(true), ready.next() == Some(true));
        Ready { guardian, keeper, signals: ready.take(signal_fds.len()).any(|is_ready| is_ready) }
    }

    /// When a guardian that has not acted must be stopped itself: if it dies, the command dies with it.
    fn guardian_deadline(&self) -> Option<BootTime> {
        self.deadline.map(|moment| moment.minus(self.settings.margin() / 2))
    }

    /// `Some` when the command has ended, or was never started.
    fn on_guardian_event(&mut self, event: GuardianEvent) -> Option<Result<Exit, Failure>> {
        match event {
            GuardianEvent::Paused(command) => {
                // The shell waits for us, not for the command: only if we stop as well does it take over.
                // Unless both were continued in the meantime.
                if self.on_terminal && child::is_stopped(command) {
                    suspend_self();
                }
            }
            GuardianEvent::Overdue => self.report_loss(LossCause::Overdue),
            GuardianEvent::TimeUp => {
                self.stop_reason.get_or_insert(StopReason::MaxHold);
                self.report.max_hold_over(self.settings.max_hold.unwrap_or_default());
            }
            GuardianEvent::Ended(exit_reason) => return Some(Ok(self.exit(exit_reason))),
            GuardianEvent::TooLate => {
                self.report_loss(LossCause::Overdue);
                return Some(Ok(Exit::Code(exit::LOST)));
            }
            GuardianEvent::NotStarted(errno) => {
                return Some(Err(start_error(&self.settings.argv, errno)));
            }
            GuardianEvent::Vanished => {
                child::kill_what_is_left();
                if self.stop_reason == Some(StopReason::Lost) {
                    return Some(Ok(Exit::Code(exit::LOST)));
                }
                let message = "the guardian process was killed; the command was stopped";
                return Some(Err(Failure::new(exit::INTERNAL, message)));
            }
        }
        None
    }

    fn on_keeper_event(&mut self, event: KeeperEvent) {
        match event {
            KeeperEvent::Refreshed(grant) => {
                if self.deadline.is_some() {
                    self.deadline = self.settings.on_lost.deadline(&grant);
                }
                self.report.refreshed(&grant);
            }
            KeeperEvent::Failed(error, lease) => {
                let left = lease.map_or(Duration::MAX, |lease| lease.deadline().remaining());
                self.report.cannot_refresh(&error, left);
            }
            KeeperEvent::Overdue => self.on_loss(LossCause::Overdue),
            KeeperEvent::Lost(loss) => self.on_loss(LossCause::Reported(loss)),
        }
    }

    /// The command is stopped first: printing may have to wait for a reader.
    fn on_loss(&mut self, cause: LossCause) {
        if self.settings.on_lost == OnLost::Stop {
            self.supervisor.guardian().stop_tree();
        }
        self.report_loss(cause);
    }

    fn report_loss(&mut self, cause: LossCause) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        let is_stopped = self.settings.on_lost == OnLost::Stop;
        if is_stopped {
            // Whatever else was about to stop the command: the loss decides the exit code.
            self.stop_reason = Some(StopReason::Lost);
        }
        self.report.lost(cause, is_stopped);
    }

    fn forward_signal(&mut self, ReceivedSignal { signal, typed, by_our_group }: ReceivedSignal) {
        // A typed signal has reached the command by itself, which decides what to make of it.
        if typed {
            return;
        }
        let guardian = self.supervisor.guardian();
        let is_stop_request = matches!(signal, Signal::SIGINT | Signal::SIGTERM);
        match self.told_to_stop_at {
            Some(first)
                if is_stop_request && (!by_our_group || (first + REPEATED_SIGNAL_WINDOW).has_passed()) =>
            {
                guardian.kill_tree();
            }
            Some(_) => guardian.forward(signal),
            None => {
                self.told_to_stop_at = is_stop_request.then(BootTime::now);
                guardian.forward(signal);
            }
        }
    }

    fn exit(&self, exit_reason: ExitReason) -> Exit {
        match (self.stop_reason, exit_reason) {
            (Some(StopReason::Lost), _) => Exit::Code(exit::LOST),
            (Some(StopReason::MaxHold), _) => Exit::Code(exit::TIME_UP),
            (None, ExitReason::Code(code)) => Exit::Code(code),
            (None, ExitReason::Signal(number)) => Exit::Signal(number),
        }
    }
}
