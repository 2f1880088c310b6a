//! While the command runs: one loop over signals, the guardian's events and the keeper's events.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::start_error::start_error;
use crate::child::signals::{ReceivedSignal, Signals, suspend_self};
use crate::child::{self, GuardianEvent, LONG_COMMAND, Limits, ProcView, Supervisor, forget_code};
use crate::clock::BootTime;
use crate::exit::{self, Exit, Failure};
use crate::keeper::{Keeper, KeeperEvent};
use crate::lock::{BreakWatch, Broken, HolderInfo, Loss, Notice, Outcome};
use crate::report::{self, Consequence, LossCause, Report};
use crate::settings::{OnLost, RunSettings};

/// Several requests to stop within this time are one: `timeout` signals its child and then the child's whole group,
/// and a wrapper passes on what has reached us already.
const REPEATED_SIGNAL_WINDOW: Duration = Duration::from_millis(200);

/// How much later than it should a guardian may act on --max-hold before it is stopped itself.
const GUARDIAN_DELAY: Duration = Duration::from_secs(1);

/// How the command ended.
pub(super) struct Finished {
    pub result: Result<Exit, Failure>,
    pub keeper: Keeper,
    /// The command was stopped by us, and the reason was reported.
    pub was_stopped: bool,
    /// For the history.
    pub how: Outcome,
}

impl Finished {
    pub(super) fn not_started(keeper: Keeper, message: String) -> Self {
        let result = Err(Failure::new(exit::INTERNAL, message));
        Self { result, keeper, was_stopped: false, how: Outcome::NotStarted }
    }
}

/// Why the command is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    Lost,
    MaxHold,
}

/// Which descriptors are ready.
#[allow(clippy::struct_excessive_bools, reason = "one for each thing that the loop waits for")]
struct Ready {
    guardian: bool,
    keeper: bool,
    signals: bool,
    watch: bool,
}

pub(super) struct Supervision<'a> {
    settings: &'a RunSettings,
    on_terminal: bool,
    supervisor: &'a Supervisor,
    proc_view: ProcView,
    keeper: Keeper,
    /// Tells that the lock is being taken away.
    watch: Option<Box<dyn BreakWatch>>,
    signals: &'a mut Signals,
    report: &'a mut Report,
    /// When a process first told us to stop.
    told_to_stop_at: Option<BootTime>,
    /// The command with which we stopped ourselves, until we are continued.
    suspended_with: Option<Pid>,
    /// The loss of the lock was reported.
    is_lost: bool,
    /// Who took it away, if that was the loss.
    broken_by: Option<Box<HolderInfo>>,
    stop_reason: Option<StopReason>,
    has_run: bool,
    /// When the command must be gone, as far as we know.
    deadline: Option<BootTime>,
    /// When a guardian has let it run for too long.
    end_overdue_at: Option<BootTime>,
    /// From then on the command is none that ends in a moment.
    idle_from: BootTime,
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
        watch: Option<Box<dyn BreakWatch>>,
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
            watch,
            signals,
            report,
            told_to_stop_at: None,
            suspended_with: None,
            is_lost: false,
            broken_by: None,
            stop_reason: None,
            has_run: true,
            deadline: limits.deadline,
            end_overdue_at: limits.end.map(|end| end + settings.kill_after + GUARDIAN_DELAY),
            idle_from: BootTime::now() + LONG_COMMAND,
        }
    }

    /// Returns when the command has ended.
    pub(super) fn run(mut self) -> Finished {
        let result = loop {
            let ready = self.wait();
            if ready.guardian
                && let Some(result) = self.on_guardian_event(self.supervisor.next_event())
            {
                break result;
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
            if ready.watch
                && let Some(notice) = self.watch.as_mut().and_then(|watch| watch.advance())
            {
                self.on_notice(notice);
            }
            if !ready.guardian {
                self.check_guardian();
            }
            if ready.signals {
                while let Some(received) = self.signals.next() {
                    self.on_signal(received);
                }
                while let Some(number) = self.signals.next_asked() {
                    if let Some(notice) = self.watch.as_mut().and_then(|watch| watch.asked(number)) {
                        self.on_notice(notice);
                    }
                }
            }
            report::flush();
        };
        let was_stopped = self.is_lost || self.stop_reason.is_some();
        Finished { result, was_stopped, how: self.how_ended(), keeper: self.keeper }
    }

    fn how_ended(&self) -> Outcome {
        match self.stop_reason {
            _ if !self.has_run => Outcome::NotStarted,
            _ if self.is_lost => match &self.broken_by {
                Some(by) => Outcome::Broken { by: by.clone() },
                None => Outcome::Lost,
            },
            Some(StopReason::Lost) => Outcome::Lost,
            Some(StopReason::MaxHold) => Outcome::MaxHold,
            None => Outcome::Released,
        }
    }

    /// A guardian that has not acted in time is stopped itself: if it dies, the command dies with it.
    fn check_guardian(&mut self) {
        if self.guardian_deadline().is_some_and(BootTime::has_passed) {
            self.deadline = None;
            self.supervisor.guardian().kill_guardian();
            self.report_loss(&LossCause::Overdue);
        }
        if self.end_overdue_at.take_if(|moment| moment.has_passed()).is_some() {
            self.supervisor.guardian().kill_guardian();
            self.on_time_up();
        }
    }

    fn wait(&self) -> Ready {
        let guardian_moments = [self.guardian_deadline(), self.end_overdue_at];
        let watch_moment = self.watch.as_ref().and_then(|watch| watch.next_moment());
        let is_idle = self.idle_from.has_passed();
        let next = [self.keeper.starts_at(), watch_moment, (!is_idle).then_some(self.idle_from)];
        let next = next.into_iter().chain(guardian_moments);
        let (signal_fds, unwritten) = (self.signals.wake_fds(), report::unwritten());
        let watched = self.watch.as_ref().map_or_else(Vec::new, |watch| watch.poll_for());
        let mut fds: Vec<PollFd<'_>> = [self.supervisor.wake_fd(), self.keeper.wake_fd()]
            .into_iter()
            .chain(signal_fds.iter().map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .chain(watched.iter().map(|&(fd, flags)| PollFd::new(fd, flags)))
            .chain(unwritten.iter().map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLOUT)))
            .collect();
        let timeout = next.flatten().min().map_or(PollTimeout::NONE, BootTime::poll_timeout);
        if is_idle {
            forget_code();
        }
        // A failed poll is an interrupted one: nothing is readable, and we come back.
        let _ = poll(&mut fds, timeout);
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let (guardian, keeper) = (ready.next() == Some(true), ready.next() == Some(true));
        let signals = ready.by_ref().take(signal_fds.len()).filter(|is_ready| *is_ready).count() > 0;
        let is_watch_ready = ready.take(watched.len()).any(|is_ready| is_ready);
        let watch = is_watch_ready || watch_moment.is_some_and(BootTime::has_passed);
        Ready { guardian, keeper, signals, watch }
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
            GuardianEvent::Overdue => self.report_loss(&LossCause::Overdue),
            GuardianEvent::TimeUp => self.on_time_up(),
            GuardianEvent::Ended(command) => return Some(Ok(self.exit(command))),
            GuardianEvent::TooLate => {
                self.has_run = false;
                self.report_loss(&LossCause::Overdue);
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
            KeeperEvent::Overdue => self.on_loss(&LossCause::Overdue),
            KeeperEvent::Lost(loss) => self.on_loss(&LossCause::Reported(loss)),
        }
    }

    fn on_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Broken(broken) => self.on_broken(broken),
            // The command runs, and the lock is gone: another client has taken it away from us.
            Notice::Released { by } => {
                self.on_loss(&LossCause::Reported(Loss::Released { by: Box::new(by) }));
            }
            // We renew the lease ourselves.
            Notice::Extended { .. } => {}
        }
    }

    fn on_broken(&mut self, broken: Broken) {
        let cause = LossCause::Reported(Loss::Broken { by: Box::new(broken.by) });
        if broken.at_once {
            // Whatever --on-lost says: on this host there is no other way to free the lock.
            self.supervisor.guardian().kill_tree();
            self.stop_reason = Some(StopReason::Lost);
        }
        self.on_loss(&cause);
    }

    /// The command is stopped first: printing may have to wait for a reader.
    fn on_loss(&mut self, cause: &LossCause) {
        if self.settings.on_lost == OnLost::Stop {
            self.supervisor.guardian().stop_tree();
        }
        self.report_loss(cause);
    }

    fn report_loss(&mut self, cause: &LossCause) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        if let LossCause::Reported(Loss::Broken { by }) = cause {
            self.broken_by = Some(by.clone());
        }
        let is_stopped = self.settings.on_lost == OnLost::Stop || self.stop_reason == Some(StopReason::Lost);
        if is_stopped {
            // Whatever else was about to stop the command: the loss decides the exit code.
            self.stop_reason = Some(StopReason::Lost);
        }
        let consequence = if is_stopped { Consequence::CommandStops } else { Consequence::CommandRunsOn };
        self.report.lost(cause, consequence);
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
            Some(first) if is_stop_request && !(first + REPEATED_SIGNAL_WINDOW).has_passed() => {}
            Some(_) if is_stop_request => guardian.kill_tree(),
            Some(_) => guardian.forward(signal),
            None => {
                self.told_to_stop_at = is_stop_request.then(BootTime::now);
                guardian.forward(signal);
            }
        }
    }

    fn exit(&self, command: Exit) -> Exit {
        match self.stop_reason {
            Some(StopReason::Lost) => Exit::Code(exit::LOST),
            Some(StopReason::MaxHold) => Exit::Code(exit::TIME_UP),
            None => command,
        }
    }
}
