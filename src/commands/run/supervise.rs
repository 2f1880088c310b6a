//! While the command runs: one loop over signals, the guardian's events and the keeper's events.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::start_error::start_error;
use crate::child::signals::{ReceivedSignal, Signals, suspend_self};
use crate::child::{self, ExitReason, GuardianEvent, Limits, ProcView, Supervisor};
use crate::clock::BootTime;
use crate::exit::{self, Exit, Failure};
use crate::keeper::{Keeper, KeeperEvent};
use crate::report::{self, LossCause, Report};
use crate::settings::{OnLost, RunSettings};

/// Several requests to stop within this time are one: `timeout` signals its child and then the child's whole group,
/// and a wrapper passes on what has reached us already.
const ONE_WISH: Duration = Duration::from_millis(200);

/// How much later than it should a guardian may act on --max-hold before it is stopped itself.
const GUARDIAN_DELAY: Duration = Duration::from_secs(1);

/// Delay before starting ctrlc's thread; short commands end before.
const CTRLC_DELAY: Duration = Duration::from_millis(10);

/// How the command ended.
pub(super) struct Outcome {
    pub result: Result<Exit, Failure>,
    pub keeper: Keeper,
    /// The command was stopped by us, and the reason was reported.
    pub was_stopped: bool,
    /// Whether the command was started.
    pub has_run: bool,
}

impl Outcome {
    pub(super) fn not_started(keeper: Keeper, message: String) -> Self {
        let result = Err(Failure::new(exit::INTERNAL, message));
        Self { result, keeper, was_stopped: false, has_run: false }
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
    proc_view: ProcView,
    keeper: Keeper,
    signals: &'a mut Signals,
    report: &'a mut Report,
    /// When a process first told us to stop.
    told_to_stop_at: Option<BootTime>,
    /// The command with which we stopped ourselves, until we are continued.
    suspended_with: Option<Pid>,
    /// The loss of the lock was reported.
    is_lost: bool,
    stop_reason: Option<StopReason>,
    /// Not at once: most commands have ended before they could be interrupted.
    take_interrupts_at: Option<BootTime>,
    has_run: bool,
    /// When the command must be gone, as far as we know.
    deadline: Option<BootTime>,
    /// When a guardian has let it run for too long.
    end_overdue_at: Option<BootTime>,
}

impl<'a> Supervision<'a> {
    /// `limits`: as the guardian knows them.
    #[allow(clippy::too_many_arguments, reason = "each is one thing that the loop looks after")]
    pub(super) fn new(
        settings: &'a RunSettings,
        on_terminal: bool,
        supervisor: &'a Supervisor,
        proc_view: ProcView,
        keeper: Keeper,
        limits: Limits,
        signals: &'a mut Signals,
        report: &'a mut Report,
    ) -> Self {
        Self {
            settings,
            on_terminal,
            supervisor,
            proc_view,
            keeper,
            signals,
            report,
            told_to_stop_at: None,
            suspended_with: None,
            is_lost: false,
            stop_reason: None,
            take_interrupts_at: Some(BootTime::now() + CTRLC_DELAY),
            has_run: true,
            deadline: limits.deadline,
            end_overdue_at: limits.end.map(|end| end + settings.kill_after + GUARDIAN_DELAY),
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
            if !ready.guardian {
                self.check_guardian();
            }
            if ready.signals {
                while let Some(received) = self.signals.next() {
                    self.on_signal(received);
                }
            }
            report::flush();
        };
        let was_stopped = self.is_lost || self.stop_reason.is_some();
        Outcome { result, keeper: self.keeper, was_stopped, has_run: self.has_run }
    }

    /// A guardian that has not acted in time is stopped itself: if it dies, the command dies with it.
    fn check_guardian(&mut self) {
        if self.guardian_deadline().is_some_and(BootTime::has_passed) {
            self.deadline = None;
            self.supervisor.guardian().kill_guardian();
            self.report_loss(LossCause::Overdue);
        }
        if self.end_overdue_at.take_if(|moment| moment.has_passed()).is_some() {
            self.supervisor.guardian().kill_guardian();
            self.on_time_up();
        }
    }

    fn wait(&self) -> Ready {
        let guardian_moments = [self.guardian_deadline(), self.end_overdue_at];
        let next = [self.keeper.starts_at(), self.take_interrupts_at].into_iter().chain(guardian_moments);
        let (signal_fds, unwritten) = (self.signals.wake_fds(), report::unwritten());
        let mut fds: Vec<PollFd<'_>> = [self.supervisor.wake_fd(), self.keeper.wake_fd()]
            .into_iter()
            .chain(signal_fds.iter().map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .chain(unwritten.iter().map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLOUT)))
            .collect();
        let timeout = next.flatten().min().map_or(PollTimeout::NONE, BootTime::poll_timeout);
        // A failed poll is an interrupted one: nothing is readable, and we come back.
        let _ = poll(&mut fds, timeout);
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let (guardian, keeper) = (ready.next() == Some(true), ready.next() == Some(true));
        Ready { guardian, keeper, signals: ready.take(signal_fds.len()).any(|is_ready| is_ready) }
    }

    /// When a guardian has not acted on the end of the lease.
    fn guardian_deadline(&self) -> Option<BootTime> {
        self.deadline.map(|moment| moment.minus(self.settings.margin() / 2))
    }

    /// `Some` when the command has ended, or was never started.
    fn on_guardian_event(&mut self, event: GuardianEvent) -> Option<Result<Exit, Failure>> {
        match event {
            GuardianEvent::Paused(command) => {
                // The shell waits for us, not for the command: only if we stop as well does it take over.
                // Unless both were continued in the meantime.
                if self.on_terminal && self.proc_view.is_stopped(command) {
                    self.suspended_with = Some(command);
                    suspend_self();
                }
            }
            GuardianEvent::Overdue => self.report_loss(LossCause::Overdue),
            GuardianEvent::TimeUp => self.on_time_up(),
            GuardianEvent::Ended(exit_reason) => return Some(Ok(self.exit(exit_reason))),
            GuardianEvent::TooLate => {
                self.has_run = false;
                self.report_loss(LossCause::Overdue);
                return Some(Ok(Exit::Code(exit::LOST)));
            }
            GuardianEvent::NotStarted(errno) => {
                self.has_run = false;
                return Some(Err(start_error(&self.settings.argv, errno)));
            }
            GuardianEvent::Vanished => {
                self.supervisor.kill_what_is_left();
                let message = "the guardian process was killed; the command was stopped";
                return Some(match self.stop_reason {
                    Some(StopReason::Lost) => Ok(Exit::Code(exit::LOST)),
                    Some(StopReason::MaxHold) => Ok(Exit::Code(exit::TIME_UP)),
                    None => Err(Failure::new(exit::INTERNAL, message)),
                });
            }
        }
        None
    }

    fn on_time_up(&mut self) {
        if self.stop_reason.is_none() {
            self.stop_reason = Some(StopReason::MaxHold);
            self.report.max_hold_over(self.settings.max_hold.unwrap_or_default());
        }
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

    fn on_signal(&mut self, ReceivedSignal { signal, typed }: ReceivedSignal) {
        if signal == Signal::SIGCHLD {
            return child::look_after_children();
        }
        // `fg` continues the whole job. A second time might undo a ^Z that was typed in between.
        if signal == Signal::SIGCONT
            && self.suspended_with.take().is_some_and(|command| !self.proc_view.is_stopped(command))
        {
            return;
        }
        // A typed signal has reached the command by itself, which decides what to make of it.
        if typed {
            return;
        }
        let guardian = self.supervisor.guardian();
        let is_stop_request = matches!(signal, Signal::SIGINT | Signal::SIGTERM);
        match self.told_to_stop_at {
            Some(first) if is_stop_request && !(first + ONE_WISH).has_passed() => {}
            Some(_) if is_stop_request => guardian.kill_tree(),
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
