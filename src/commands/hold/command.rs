//! The lock of `redlock run`: held until the command has ended.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgrp};

use super::{End, Hold, Source, Subject, outcome_of_loss};
use crate::child::signals::{ReceivedSignal, is_job, suspend_self, undo_stop};
use crate::child::{self, GuardianEvent, LONG_COMMAND, Limits, ProcView, Supervisor};
use crate::clock::BootTime;
use crate::commands::identity;
use crate::exit::{self, Exit, Failure};
use crate::lock::{Ended, Grant, Loss, Outcome};
use crate::poll::Poll;
use crate::report::{Consequence, LossCause, Report};
use crate::settings::{OnLost, RunSettings};

/// Requests to stop within this time count as one: `timeout` signals its child and then the child's
/// whole group, and a wrapper forwards what has reached us already.
const REPEATED_SIGNAL_WINDOW: Duration = Duration::from_millis(200);

/// A guardian that acts on --max-hold later than this is stopped itself.
const GUARDIAN_DELAY: Duration = Duration::from_secs(1);

/// The lock of a running command.
enum CommandState {
    Held,
    /// --max-hold is over, and the command is being stopped.
    TimeUp,
    /// `exit`: with what redlock exits, unless that is the command's own code.
    Lost {
        how: Outcome,
        exit: Option<u8>,
    },
}

pub(in crate::commands) struct RunningCommand<'a> {
    settings: &'a RunSettings,
    on_terminal: bool,
    supervisor: &'a Supervisor,
    proc_view: ProcView,
    state: CommandState,
    /// When a process first asked us to stop.
    first_stop_request: Option<BootTime>,
    /// The command with which we stopped ourselves, until we are continued.
    suspended_with: Option<Pid>,
    /// When the command must be gone, as far as we know.
    deadline: Option<BootTime>,
    margin: Duration,
    /// From then on the guardian has let it run for too long.
    end_overdue_at: Option<BootTime>,
    /// From then on the command counts as a long one.
    idle_from: BootTime,
    result: Result<Exit, Failure>,
}

impl<'a> RunningCommand<'a> {
    /// `limits`: as the guardian knows them.
    pub(in crate::commands) fn new(
        settings: &'a RunSettings,
        on_terminal: bool,
        supervisor: &'a Supervisor,
        proc_view: ProcView,
        limits: Limits,
    ) -> Self {
        Self {
            settings,
            on_terminal,
            supervisor,
            proc_view,
            state: CommandState::Held,
            first_stop_request: None,
            suspended_with: None,
            deadline: limits.deadline,
            margin: limits.margin,
            end_overdue_at: limits.end.map(|end| end + settings.kill_after + GUARDIAN_DELAY),
            idle_from: BootTime::now() + LONG_COMMAND,
            result: Ok(Exit::Code(0)),
        }
    }

    pub(in crate::commands) fn into_result(self) -> Result<Exit, Failure> {
        self.result
    }

    /// The command has not run.
    pub(in crate::commands) fn not_started(&mut self, result: Result<Exit, Failure>) -> End {
        self.end(Outcome::NotStarted, result)
    }

    fn end(&mut self, how: Outcome, result: Result<Exit, Failure>) -> End {
        let exit = result.as_ref().map_or_else(|failure| Exit::Code(failure.code), |exit| *exit);
        self.result = result;
        let ended = Ended { how, exit: Some(exit) };
        match self.state {
            CommandState::Held => End::Release(ended),
            CommandState::TimeUp | CommandState::Lost { .. } => End::Stopped(ended),
        }
    }

    fn outcome(&self) -> Outcome {
        match &self.state {
            CommandState::Held => Outcome::Released,
            CommandState::TimeUp => Outcome::MaxHold,
            CommandState::Lost { how, .. } => how.clone(),
        }
    }

    /// The exit code that overrides the command's own.
    fn exit_code(&self) -> Option<u8> {
        match self.state {
            CommandState::Held => None,
            CommandState::TimeUp => Some(exit::TIME_UP),
            CommandState::Lost { exit, .. } => exit,
        }
    }

    fn on_time_up(&mut self, report: &mut Report) {
        match &mut self.state {
            CommandState::Held => self.state = CommandState::TimeUp,
            CommandState::Lost { exit: exit @ None, .. } => *exit = Some(exit::TIME_UP),
            CommandState::TimeUp | CommandState::Lost { .. } => return,
        }
        report.max_hold_over(self.settings.max_hold.unwrap_or_default());
    }

    /// `is_stopped`: the command, because of it. Then the loss decides the exit code, whatever else
    /// was about to stop the command.
    fn lose(&mut self, cause: &LossCause, is_stopped: bool, report: &mut Report) {
        if let CommandState::Lost { exit, .. } = &mut self.state {
            if is_stopped {
                *exit = Some(exit::LOST);
            }
            return;
        }
        let exit = if is_stopped { Some(exit::LOST) } else { self.exit_code() };
        self.state = CommandState::Lost { how: outcome_of_loss(cause), exit };
        let consequence = if is_stopped { Consequence::CommandStops } else { Consequence::CommandRunsOn };
        report.lost(cause, consequence);
    }

    /// A process of the command belongs to another user, so that it cannot be signalled.
    fn forbidden(&self, pid: Pid, user: Option<u32>, report: &mut Report) {
        let is_held = match self.state {
            CommandState::Held | CommandState::TimeUp => true,
            CommandState::Lost { .. } => false,
        };
        let user = user.map(identity::name_of_user);
        report.cannot_signal(pid, user.as_deref(), is_held);
    }

    fn stops_on_loss(&self) -> bool {
        self.settings.on_lost == OnLost::Stop
    }

    /// When a guardian has failed to act on the end of the lease.
    fn guardian_deadline(&self) -> Option<BootTime> {
        self.deadline.map(|moment| moment.minus(self.margin / 2))
    }
}

impl Subject for RunningCommand<'_> {
    fn register<'fd>(&'fd self, poll: &mut Poll<'fd, Source>) {
        poll.readable(self.supervisor.wake_fd(), Source::Subject);
        poll.until(self.guardian_deadline());
        poll.until(self.end_overdue_at);
        poll.until((!self.is_idle()).then_some(self.idle_from));
    }

    fn is_idle(&self) -> bool {
        self.idle_from.has_passed()
    }

    fn on_ready(&mut self, hold: &mut Hold<'_>) -> Option<End> {
        match self.supervisor.next_event() {
            GuardianEvent::Paused(command) => {
                // The shell waits for us, not for the command: it takes over only if we stop as
                // well. Unless both were continued in the meantime.
                if self.on_terminal && self.proc_view.is_stopped(command) {
                    self.suspended_with = Some(command);
                    suspend_self();
                }
                None
            }
            GuardianEvent::Overdue => {
                self.lose(&LossCause::Overdue, self.stops_on_loss(), hold.report);
                None
            }
            GuardianEvent::TimeUp => {
                self.on_time_up(hold.report);
                None
            }
            GuardianEvent::Forbidden { pid, user } => {
                self.forbidden(pid, user, hold.report);
                None
            }
            GuardianEvent::Ended(command) => {
                let exit = self.exit_code().map_or(command, Exit::Code);
                Some(self.end(self.outcome(), Ok(exit)))
            }
            GuardianEvent::TooLate => {
                self.lose(&LossCause::Overdue, self.stops_on_loss(), hold.report);
                Some(self.not_started(Ok(Exit::Code(exit::LOST))))
            }
            GuardianEvent::NotStarted(errno) => {
                let failure = start_error(&self.settings.argv, errno);
                Some(self.not_started(Err(failure)))
            }
            GuardianEvent::Vanished => {
                let spared_until = match self.state {
                    CommandState::Held | CommandState::TimeUp => self.guardian_deadline(),
                    CommandState::Lost { .. } => Some(BootTime::now()),
                };
                let forbidden = |pid, user| self.forbidden(pid, user, hold.report);
                self.supervisor.kill_what_is_left(spared_until, forbidden);
                let message = "the guardian process was killed; the command was stopped";
                let failure = || Failure::new(exit::INTERNAL, message);
                let result = self.exit_code().map(Exit::Code).ok_or_else(failure);
                Some(self.end(self.outcome(), result))
            }
        }
    }

    fn on_renewal(&mut self, grant: &Grant) {
        if self.deadline.is_some() {
            self.deadline = self.settings.on_lost.deadline(grant);
        }
    }

    /// The command is stopped before anything is printed, which may block. To free a lock on this
    /// host at once there is no other way than to kill it, whatever --on-lost says.
    fn on_loss(&mut self, cause: LossCause, at_once: bool, hold: &mut Hold<'_>) -> Option<End> {
        // A run that may be superseded has agreed to be stopped.
        let is_superseded = matches!(cause, LossCause::Reported(Loss::Superseded { .. }));
        let is_stopped = is_superseded || self.stops_on_loss();
        if at_once {
            self.supervisor.guardian().kill_tree();
        } else if is_stopped {
            self.supervisor.guardian().stop_tree();
        }
        self.lose(&cause, at_once || is_stopped, hold.report);
        None
    }

    fn on_signal(&mut self, ReceivedSignal { signal, typed }: ReceivedSignal) -> Option<End> {
        if signal == Signal::SIGCHLD {
            child::look_after_children();
            return None;
        }
        // `fg` continues the whole job. A second SIGCONT might undo a ^Z that was typed in between.
        if signal == Signal::SIGCONT
            && self.suspended_with.take().is_some_and(|command| !self.proc_view.is_stopped(command))
        {
            return None;
        }
        let group = getpgrp();
        if signal == Signal::SIGTSTP && self.on_terminal && !is_job(group) {
            undo_stop(group);
            return None;
        }
        let guardian = self.supervisor.guardian();
        // The command decides what to do with a typed signal, so it does not count as a request.
        if typed {
            guardian.forward_typed(signal);
            return None;
        }
        let is_stop_request = matches!(signal, Signal::SIGINT | Signal::SIGTERM);
        match self.first_stop_request {
            Some(first) if is_stop_request && !(first + REPEATED_SIGNAL_WINDOW).has_passed() => {}
            Some(_) if is_stop_request => guardian.kill_tree(),
            Some(_) => guardian.forward(signal),
            None => {
                self.first_stop_request = is_stop_request.then(BootTime::now);
                guardian.forward(signal);
            }
        }
        None
    }

    /// A guardian that has not acted in time is killed: the command dies with it.
    fn check(&mut self, is_ready: bool, hold: &mut Hold<'_>) -> Option<End> {
        if is_ready {
            return None;
        }
        if self.guardian_deadline().is_some_and(BootTime::has_passed) {
            self.deadline = None;
            self.supervisor.guardian().kill_guardian();
            self.lose(&LossCause::Overdue, self.stops_on_loss(), hold.report);
        }
        if self.end_overdue_at.take_if(|moment| moment.has_passed()).is_some() {
            self.supervisor.guardian().kill_guardian();
            self.on_time_up(hold.report);
        }
        None
    }

    fn gone_at_release(&self, loss: &Loss, report: &mut Report) {
        report.was_no_longer_ours(loss);
    }
}

/// 127 if there is no such command; 126 if there is, but it cannot be run. A script whose
/// interpreter is missing gives the same error as a missing script.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn start_error(argv: &[OsString], errno: i32) -> Failure {
    let (why, program) = (Errno::from_raw(errno), argv[0].as_os_str());
    let (name, found) = (program.to_string_lossy(), find(program));
    let cannot = |why: &str| Failure::new(exit::CANNOT_EXECUTE, format!("{name}: cannot execute: {why}"));
    match (why, found) {
        (Errno::ENOENT, Some(_)) => cannot("its interpreter was not found"),
        // EACCES: a directory in PATH that we may not search.
        (Errno::ENOENT | Errno::EACCES, None) => Failure::new(exit::NOT_FOUND, not_found(argv)),
        (Errno::EACCES, Some(path)) if path.is_dir() => cannot("is a directory"),
        (Errno::EACCES, Some(_)) => cannot("permission denied (chmod +x?)"),
        (why, _) => cannot(why.desc()),
    }
}

fn not_found(argv: &[OsString]) -> String {
    let name = argv[0].to_string_lossy();
    if argv.len() == 1 && name.contains(' ') {
        return format!("{name:?}: command not found (for a shell line use -c)");
    }
    if name.contains('/') { format!("{name}: no such file") } else { format!("{name}: command not found") }
}

fn find(program: &OsStr) -> Option<PathBuf> {
    if program.is_empty() {
        return None;
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.exists())
}
