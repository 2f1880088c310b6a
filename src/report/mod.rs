//! Everything that redlock prints, for people and for machines, and the only way to stderr.
//!
//! It prints nothing when all is well, because cron mails every line. Text is sanitized first: a
//! key or a server's reply may contain anything. No line waits for its reader: see writer.rs.

mod break_lock;
mod events;
mod format;
mod history;
mod json;
mod list;
mod live_line;
mod openmetrics;
mod problem;
mod screen;
mod status;
mod stderr;
mod text;
mod tls;
mod token;
mod wait;
mod writer;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::clock::BootTime;
use crate::duration::format;
use crate::exit::{Exit, Failure, INTERNAL, UNFIT, code_of};
use crate::lock::{BackendError, Grant, HolderInfo, Loss, Outcome};
use crate::secrets::without_passwords;
use events::{EventsResult, events};
use live_line::LiveLine;
use problem::votes;
use wait::WaitReport;

pub(crate) use break_lock::BreakReport;
pub(crate) use events::EventSink;
#[cfg(fuzzing)]
pub(crate) use format::blocker;
pub(crate) use format::{GivenUp, LocalTime, cannot_see_processes, config_files, hook_failed, quoted};
pub(crate) use history::{Clock, Rows, Style, histories_text, history_json, history_svg, history_text};
pub(crate) use json::Object;
pub(crate) use list::{incomplete_list, list_keys, list_table};
pub(crate) use openmetrics::openmetrics;
pub(crate) use problem::{backend_error, grouped, io_error, problem};
pub(crate) use screen::{Content, Size, draw_screen, enter_screen, leave_screen};
pub(crate) use status::{
    failed_look, gave_up_waiting, looking_at, only_on_this_host, status_json, status_text, still_taken,
    watch_heading,
};
pub(crate) use stderr::{finish, log, print, print_text};
pub(crate) use text::{labelled, sanitize};
pub(crate) use tls::setup_problem as tls_setup_problem;
pub(crate) use token::{
    Rest, cannot_print_token, cannot_stop, cannot_watch, extended, handed_out, keeper_title, kept,
    no_longer_ours, released, shell_exports, token_json, token_printed_too_late, watched_has_ended,
};
pub(crate) use wait::{SILENT_WAIT, WAIT_LINE_EVERY};
pub(crate) use writer::allow_threads;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Errors only.
    Quiet,
    Normal,
    /// Every step.
    Verbose,
}

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LossCause {
    /// A server reported it.
    Reported(Loss),
    /// The lock could not be renewed in time.
    Overdue,
}

/// The consequence of a lost lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consequence {
    CommandStops,
    CommandRunsOn,
    /// The process that a keeper watched.
    Signalled(i32, Signal),
    ProcessRunsOn(i32),
    /// There was none.
    KeeperEnds,
}

/// With -v, between two lines about failed renewals, which are repeated several times a second.
const FAILURE_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Report {
    verbosity: Verbosity,
    keys: Vec<String>,
    local_time: LocalTime,
    live_line: LiveLine,
    wait: WaitReport,
    /// The failure of servers is printed once, until they have recovered.
    failure_printed: bool,
    /// When a failed renewal was last printed.
    failure_printed_at: Option<BootTime>,
    last_failure: Option<String>,
    /// Servers whose misconfiguration was reported.
    mentioned_servers: HashSet<String>,
    /// Processes that cannot be stopped, by what their life means for the lock: both the guardian and
    /// this process find them.
    mentioned_processes: HashSet<(Pid, bool)>,
}

impl Report {
    /// `events`: the file and the hook for events; `run`: this run, as waiters see it; `width`: the terminal's, for
    /// the line that is erased.
    pub(crate) fn new(
        verbosity: Verbosity,
        keys: &[Vec<u8>],
        events: (Option<&Path>, Option<Box<dyn EventSink>>),
        run: &HolderInfo,
        width: Option<usize>,
        local_time: LocalTime,
    ) -> Result<Self, Failure> {
        let keys: Vec<String> = keys.iter().map(sanitize).collect();
        let (path, hook) = events;
        events::open(path, hook, &keys, run).map_err(|error| {
            let (path, error) = (path.unwrap_or(Path::new("")).display(), problem::io_error(&error));
            Failure::new(UNFIT, format!("--events: cannot open {path}: {error}"))
        })?;
        Ok(Self {
            verbosity,
            live_line: LiveLine::new(width),
            keys,
            local_time,
            wait: WaitReport::default(),
            failure_printed: false,
            failure_printed_at: None,
            last_failure: None,
            mentioned_servers: HashSet::new(),
            mentioned_processes: HashSet::new(),
        })
    }

    /// Printed in spite of -q: other hosts may run the same command.
    pub(crate) fn only_on_this_host(&mut self) {
        let lock = self.lock();
        self.error(&format::no_server_configured(&format!(
            "{lock} is locked on this host only, other hosts are not kept out"
        )));
    }

    /// The config files that were read, and where the lock is.
    pub(crate) fn location(&mut self, config_files: &[PathBuf], location: &str, meaningless: &[String]) {
        let files = format::config_files(config_files);
        self.verbose(|report| format!("{files}; lock {} on {location}", report.lock()));
        if !meaningless.is_empty() {
            let options = meaningless.join(", ");
            self.verbose(|_| format!("{options}: ignored for a lock on this host"));
        }
    }

    /// Questionable settings that can be used all the same.
    pub(crate) fn warnings(&mut self, warnings: &[String]) {
        for warning in warnings {
            self.info(warning);
        }
    }

    pub(crate) fn even_number_of_servers(&mut self, servers: usize) {
        let fewer = servers - 1;
        self.info(&format!("{servers} servers tolerate no more failures than {fewer}: use an odd number"));
    }

    pub(crate) fn directory_is_on_a_network(&mut self, directory: &Path) {
        let directory = directory.display();
        self.info(&format!(
            "{directory} is on a network file system: other hosts may not see this lock, or not in time"
        ));
    }

    pub(crate) fn cannot_see_processes(&mut self) {
        self.info(&format!("warning: {}", cannot_see_processes()));
    }

    pub(crate) fn directory_is_private(&mut self, directory: &Path) {
        let directory = directory.display();
        self.info(&format!(
            "warning: {directory} is private to this service (systemd PrivateTmp): other services on this host \
             are not kept out; choose another with --local-dir"
        ));
    }

    pub(crate) fn acquired(&mut self, grant: &Grant) {
        self.erase_live_line();
        events(|events| events.acquired(grant));
        self.misconfigured_servers(&grant.votes.failures);
        self.announce_acquired(grant.waited);
        let fences: Vec<String> = grant.fences.iter().map(u64::to_string).collect();
        let (fences, waited) = (fences.join(" "), format(grant.waited));
        if !grant.outer.is_empty() {
            self.verbose(|report| {
                format!("runs under the outer run's lock {}, fence {fences}", report.lock())
            });
            return;
        }
        let votes = votes(&grant.votes);
        self.verbose(|report| format!("acquired {}{votes}, fence {fences}, after {waited}", report.lock()));
    }

    /// A server that is down may come back by itself. One that refuses us, or can never vote, is
    /// misconfigured: it is reported once, even if the majority serves.
    pub(crate) fn misconfigured_servers(&mut self, failures: &[BackendError]) {
        for error in failures.iter().filter(|error| error.is_misconfiguration()) {
            if let Some(server) = &error.at
                && self.mentioned_servers.insert(server.clone())
            {
                self.info(&format!(
                    "warning: this server does not vote: {} (the others are enough)",
                    backend_error(error)
                ));
            }
        }
    }

    pub(crate) fn refreshed(&mut self, grant: &Grant) {
        (self.failure_printed, self.last_failure) = (false, None);
        events(|events| events.refreshed(grant));
        self.misconfigured_servers(&grant.votes.failures);
        let votes = votes(&grant.votes);
        self.verbose(|report| format!("renewed {}{votes}", report.lock()));
    }

    pub(crate) fn cannot_refresh(&mut self, error: &BackendError, left: Duration) {
        let error = backend_error(error);
        self.failure(&format!(
            "cannot renew {}: {error}; the lease is valid for another {}",
            self.lock(),
            format(left)
        ));
        self.last_failure = Some(error);
    }

    pub(crate) fn cannot_start_keeper(&mut self, error: &std::io::Error) {
        let error = format!("no thread can be started: {}", problem::io_error(error));
        self.failure(&format!("cannot renew {}: {error}; trying again", self.lock()));
        self.last_failure = Some(error);
    }

    pub(crate) fn lost(&mut self, cause: &LossCause, consequence: Consequence) {
        let why = match cause {
            LossCause::Reported(loss) => format::loss(loss),
            LossCause::Overdue => match &self.last_failure {
                Some(failure) => format!("it could not be renewed in time: {failure}"),
                None => "it could not be renewed in time (was this machine or this process stopped?)".into(),
            },
        };
        let (then, is_stopped) = match consequence {
            Consequence::CommandStops => ("stopping the command".into(), true),
            Consequence::CommandRunsOn => ("the command runs on without it".into(), false),
            Consequence::Signalled(pid, signal) => (format!("process {pid} was sent {signal}"), true),
            Consequence::ProcessRunsOn(pid) => (format!("process {pid} runs on without it"), false),
            Consequence::KeeperEnds => ("its keeper ends".into(), false),
        };
        self.error(&format!("lost the lock {}: {why}; {then}", self.lock()));
        let (cause, by) = match cause {
            LossCause::Reported(Loss::Expired | Loss::FileReplaced) => ("expired", None),
            LossCause::Reported(Loss::Foreign) => ("foreign", None),
            LossCause::Reported(Loss::Broken { by }) => ("broken", Some(("broken_by", &**by))),
            LossCause::Reported(Loss::Superseded { by }) => ("superseded", Some(("superseded_by", &**by))),
            LossCause::Reported(Loss::Released { by }) => ("released", Some(("released_by", &**by))),
            LossCause::Overdue => ("overdue", None),
        };
        events(|events| events.lost(cause, by, is_stopped));
    }

    /// `is_released`: false if the lock had been lost, `None` if that is not known.
    pub(crate) fn released(&mut self, held: Duration, is_released: Option<bool>) {
        events(|events| events.released(held, is_released));
        if is_released == Some(true) {
            self.verbose(|report| format!("released {}, held for {}", report.lock(), format(held)));
        }
    }

    pub(crate) fn was_no_longer_ours(&mut self, loss: &Loss) {
        self.info(&format!(
            "the lock {} was lost before the command ended: {}; another command may have run at the same time",
            self.lock(),
            format::loss(loss)
        ));
    }

    /// `expires_in`: `None` if it never does.
    pub(crate) fn cannot_release(&mut self, error: &BackendError, expires_in: Option<Duration>) {
        let then = match expires_in {
            Some(time) => format!("it expires by itself within {}", format(time)),
            None => "it never expires: redlock break frees it".into(),
        };
        self.info(&format!("cannot release {}: {}; {then}", self.lock(), backend_error(error)));
    }

    pub(crate) fn incomplete_release(&mut self, error: &BackendError) {
        self.info(&format!(
            "released {}, but its mark (--once) or its --min-hold could not be written: {}",
            self.lock(),
            backend_error(error)
        ));
    }

    pub(crate) fn never_expires(&mut self) {
        self.info(&format!(
            "--ttl none: if this run is killed, {} stays locked until `redlock break --now`",
            self.lock()
        ));
    }

    /// `is_held`: the lock is ours.
    pub(crate) fn cannot_signal(&mut self, pid: Pid, user: Option<&str>, is_held: bool) {
        if !self.mentioned_processes.insert((pid, is_held)) {
            return;
        }
        let user = user.map_or_else(|| "another user".into(), |user| format!("user {user}"));
        let consequence = if is_held {
            "the lock is not released before it exits"
        } else {
            "it continues without the lock"
        };
        self.error(&format!(
            "{}: process {pid} of the command cannot be stopped, as it belongs to {user}: {consequence} \
             (use sudo redlock run ..., not redlock run ... sudo)",
            self.lock()
        ));
    }

    pub(crate) fn max_hold_over(&mut self, max_hold: Duration) {
        self.error(&format!(
            "{}: --max-hold {} has passed; stopping the command",
            self.lock(),
            format(max_hold)
        ));
        events(|events| events.suggest(Outcome::MaxHold));
    }

    /// Printed at every verbosity: a reader of the log must not take this run for a locked one.
    pub(crate) fn runs_without_lock(&mut self, error: &BackendError) {
        let error = backend_error(error);
        self.error(&format!(
            "WARNING: cannot take {}: {error}; running the command WITHOUT the lock (--on-unavailable run)",
            self.lock()
        ));
        events(|events| events.cause = Some(error));
    }

    pub(crate) fn skips(&mut self, error: &BackendError) {
        let error = backend_error(error);
        self.info(&format!(
            "cannot take {}: {error}; the command is skipped (--on-unavailable skip)",
            self.lock()
        ));
        events(|events| {
            events.not_acquired(Outcome::Unavailable, None);
            events.cause = Some(error);
        });
    }

    /// The reason for the exit code, printed at every verbosity.
    pub(crate) fn error(&mut self, message: &str) {
        self.erase_live_line();
        print(message);
    }

    fn info(&mut self, message: &str) {
        if self.verbosity != Verbosity::Quiet {
            self.error(message);
        }
    }

    fn verbose(&mut self, message: impl FnOnce(&Self) -> String) {
        if self.verbosity == Verbosity::Verbose {
            let message = message(self);
            self.error(&message);
        }
    }

    /// The name of the lock.
    pub(crate) fn lock(&self) -> String {
        quoted(&self.keys)
    }

    fn failure(&mut self, message: &str) {
        let is_due = self.failure_printed_at.is_none_or(|at| at.elapsed() >= FAILURE_EVERY);
        if !self.failure_printed || (is_due && self.verbosity == Verbosity::Verbose) {
            (self.failure_printed, self.failure_printed_at) = (true, Some(BootTime::now()));
            self.info(message);
        }
    }

    pub(crate) fn erase_live_line(&mut self) {
        self.live_line.erase();
    }

    /// How the run ended: its last line, and its last event. Returns the exit.
    pub(crate) fn ended(&mut self, result: anyhow::Result<Exit>) -> Exit {
        self.erase_live_line();
        let (exit, failure) = match result {
            Ok(exit) => (exit, None),
            Err(error) => {
                let message = without_passwords(&format!("{error:#}"));
                (Exit::Code(code_of(&error)), Some(message))
            }
        };
        if let Some(message) = &failure {
            print(message);
        }
        let EventsResult { file, hook_failure } = events::end(exit, failure.as_deref());
        if let Some((path, lost @ 1.., why)) = file {
            let lines = if lost == 1 { "a line".to_owned() } else { format!("{lost} lines") };
            let why = why.as_ref().map_or_else(|| "it has no reader".into(), problem::io_error);
            self.info(&format!("--events {}: {lines} could not be written: {why}", path.display()));
        }
        if let Some(failure) = hook_failure {
            self.info(&format::hook_failed(&failure));
        }
        exit
    }
}

/// The number of attempts to acquire the lock, successful or not.
pub(crate) fn asked(attempts: u32) {
    events(|events| events.attempts = attempts);
}

/// From here on the command runs, unless it cannot be executed.
pub(crate) fn command_starts() {
    events(|events| events.command_was_started = true);
}

/// From the panic hook: the last line and the last event.
pub(crate) fn panicked(message: &str) {
    screen::leave_screen_in_panic();
    print(message);
    events::end(Exit::Code(INTERNAL), Some(message));
    finish();
}
