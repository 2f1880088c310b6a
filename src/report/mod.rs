//! Everything that redlock prints, for people and for machines. Takes plain data; the only gate to stderr.
//!
//! Nothing when all is well: cron mails every line. Text is sanitized first (a key or a server's text may
//! contain anything). No line waits for its reader: see stream.rs.

mod events;
mod format;
mod live_line;
mod stream;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use crate::duration::{format, format_seconds};
use crate::exit::{Exit, Failure, UNFIT};
use crate::lock::{BackendError, Blocked, Grant, Loss};
use events::Events;
use live_line::LiveLine;
use stream::{Descriptor, Stream};

pub(crate) use format::{backend_error, blocker, io_error, quoted, sanitize};

/// A wait shorter than this is not mentioned.
const SILENT_WAIT: Duration = Duration::from_secs(2);
/// Between two wait lines in a log, so that it shows that the job is alive.
const WAIT_LINE_EVERY: Duration = Duration::from_secs(30);

/// Between two updates of the line on a terminal.
const LIVE_LINE_EVERY: Duration = Duration::from_secs(1);

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossCause {
    /// A server's clear answer.
    Reported(Loss),
    /// It could not be renewed in time.
    Overdue,
}

pub(crate) struct Report {
    verbosity: Verbosity,
    keys: Vec<String>,
    events: Events,
    live_line: LiveLine,
    /// How long the wait had lasted when it was last mentioned.
    mentioned_at: Option<Duration>,
    /// The failure of servers is printed once, until they have recovered.
    failure_printed: bool,
    /// How long the wait had lasted when that was last printed.
    unavailable_at: Option<Duration>,
    last_failure: Option<String>,
    /// Servers whose misconfiguration was mentioned.
    mentioned_servers: HashSet<String>,
}

impl Report {
    /// `width` of the terminal, for a line that must be erased again.
    pub(crate) fn new(
        verbosity: Verbosity,
        keys: &[Vec<u8>],
        events: Option<&Path>,
        width: Option<usize>,
    ) -> Result<Self, Failure> {
        let keys: Vec<String> = keys.iter().map(|key| sanitize(key)).collect();
        let cannot_open = |error| {
            let path = events.unwrap_or(Path::new("")).display();
            Failure::new(UNFIT, format!("--events: cannot open {path}: {error}"))
        };
        Ok(Self {
            verbosity,
            events: Events::open(events, &keys).map_err(cannot_open)?,
            live_line: LiveLine::new(width),
            keys,
            mentioned_at: None,
            failure_printed: false,
            unavailable_at: None,
            last_failure: None,
            mentioned_servers: HashSet::new(),
        })
    }

    pub(crate) fn waiting(&mut self, blocked: &Blocked, waited: Duration) {
        let is_first = self.mentioned_at.is_none() && waited < SILENT_WAIT && !self.events.has_waited();
        if is_first {
            self.events.waiting(blocked, waited);
            self.verbose(|report| format::waiting(&report.keys, blocked, waited));
        }
        self.failure_printed = false;
        if waited < SILENT_WAIT {
            return;
        }
        if self.has_live_line() {
            let line = format::live_line_text(&self.keys, blocked, waited);
            self.live_line.show(&sanitize(line.as_bytes()));
        } else if self.mentioned_at.is_none_or(|mentioned| waited >= mentioned + WAIT_LINE_EVERY) {
            self.mentioned_at = Some(waited);
            self.info(&format::waiting(&self.keys, blocked, waited));
            self.events.waiting(blocked, waited);
        }
    }

    /// After a wait of this length: how long until the next line is due.
    pub(crate) fn next_wait_line(&self, waited: Duration) -> Duration {
        match (self.has_live_line(), self.mentioned_at) {
            _ if waited < SILENT_WAIT => SILENT_WAIT.saturating_sub(waited),
            (true, _) => LIVE_LINE_EVERY,
            (false, mentioned) => (mentioned.unwrap_or(waited) + WAIT_LINE_EVERY).saturating_sub(waited),
        }
    }

    fn has_live_line(&self) -> bool {
        self.verbosity != Verbosity::Quiet && self.live_line.is_available()
    }

    /// Not silenced by -q: the lock may not be where it is believed to be.
    pub(crate) fn only_on_this_host(&mut self) {
        let message = format!(
            "warning: no Redis server configured, so {} is locked on this host only: other hosts are not kept out \
             (give --redis URL or set REDLOCK_REDIS; --local if that is what you want)",
            self.lock()
        );
        self.error(&message);
    }

    /// Where the settings came from, and where the lock is.
    pub(crate) fn location(&mut self, config_files: &[PathBuf], location: &str, meaningless: &[String]) {
        let files: Vec<String> = config_files.iter().map(|path| path.display().to_string()).collect();
        let files =
            if files.is_empty() { "no config file".into() } else { format!("config {}", files.join(", ")) };
        self.verbose(|report| format!("{files}; lock {} on {location}", report.lock()));
        if !meaningless.is_empty() {
            let options = meaningless.join(", ");
            self.verbose(|_| format!("{options}: of no effect for a lock on this host"));
        }
    }

    /// What is wrong with the settings without making them unusable.
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

    /// Printed at once, and then as often as any wait is.
    pub(crate) fn directory_is_private(&mut self, directory: &Path) {
        let directory = directory.display();
        self.info(&format!(
            "warning: {directory} is private to this service (systemd PrivateTmp): other services of this host are not \
             kept out; name another with --local-dir"
        ));
    }

    pub(crate) fn servers_unavailable(&mut self, error: &BackendError, waited: Duration) {
        let error = backend_error(error);
        if !self.failure_printed || self.verbosity == Verbosity::Verbose {
            self.unavailable_at = Some(waited);
            self.failure(&format!("waiting for {}: {error}; trying again", self.lock()));
        } else if self.has_live_line() {
            let line = format::unavailable_live_line(&self.keys, &error, waited);
            self.live_line.show(&sanitize(line.as_bytes()));
        } else if self.unavailable_at.is_none_or(|mentioned| waited >= mentioned + WAIT_LINE_EVERY) {
            self.unavailable_at = Some(waited);
            let waited = format_seconds(waited);
            self.info(&format!("waiting for {}: {error}; trying again, waited {waited}", self.lock()));
        }
    }

    pub(crate) fn acquired(&mut self, grant: &Grant) {
        self.erase_live_line();
        self.events.acquired(grant);
        self.misconfigured_servers(&grant.votes.failures);
        let fences: Vec<String> = grant.fences.iter().map(u64::to_string).collect();
        let (fences, waited) = (fences.join(" "), format(grant.waited));
        if !grant.outer.is_empty() {
            self.verbose(|report| {
                format!("runs under the outer run's lock {}, fence {fences}", report.lock())
            });
            return;
        }
        let votes = format::votes(&grant.votes);
        self.verbose(|report| format!("acquired {}{votes}, fence {fences}, after {waited}", report.lock()));
    }

    /// A server that is down may come back by itself. One that refuses us, or can never vote, is a mistake in the
    /// configuration: it is mentioned once, even if the majority serves.
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
        self.events.refreshed(grant);
        self.misconfigured_servers(&grant.votes.failures);
        let votes = format::votes(&grant.votes);
        self.verbose(|report| format!("renewed {}{votes}", report.lock()));
    }

    pub(crate) fn cannot_refresh(&mut self, error: &BackendError, left: Duration) {
        let error = backend_error(error);
        self.failure(&format!(
            "cannot renew {}: {error}; it is ours for another {}",
            self.lock(),
            format(left)
        ));
        self.last_failure = Some(error);
    }

    pub(crate) fn cannot_start_keeper(&mut self, error: &std::io::Error) {
        self.last_failure = Some(format!("no thread could be started: {error}"));
        self.failure(&format!(
            "cannot renew {}: no thread can be started: {error}; trying again",
            self.lock()
        ));
    }

    /// `consequence`: what becomes of the command.
    pub(crate) fn lost(&mut self, cause: LossCause, consequence: &str) {
        let why = match cause {
            LossCause::Reported(Loss::Expired) => {
                "it was deleted, evicted or flushed on the server, or has expired".into()
            }
            LossCause::Reported(Loss::Foreign) => "another client holds it now".into(),
            LossCause::Overdue => match &self.last_failure {
                Some(failure) => format!("it could not be renewed in time: {failure}"),
                None => "it could not be renewed in time (was this machine or this process stopped?)".into(),
            },
        };
        self.error(&format!("lost the lock {}: {why}; {consequence}", self.lock()));
        self.events.lost(match cause {
            LossCause::Reported(Loss::Expired) => "expired",
            LossCause::Reported(Loss::Foreign) => "foreign",
            LossCause::Overdue => "overdue",
        });
    }

    pub(crate) fn released(&mut self, grant: &Grant, held: Duration, exit: Exit) {
        self.events.released(grant, held, exit);
        self.verbose(|report| format!("released {}, held for {}", report.lock(), format(held)));
    }

    pub(crate) fn was_no_longer_ours(&mut self, loss: Loss) {
        let who = match loss {
            Loss::Expired => "it had been deleted, evicted or flushed on the server, or had expired",
            Loss::Foreign => "another client holds it now",
        };
        self.info(&format!(
            "the lock {} was no longer ours when the command ended: {who}; another command may have run at the same time",
            self.lock()
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

    pub(crate) fn never_expires(&mut self) {
        self.info(&format!(
            "--ttl none: if this run is killed, {} stays locked until `redlock break`",
            self.lock()
        ));
    }

    pub(crate) fn max_hold_over(&mut self, max_hold: Duration) {
        self.error(&format!(
            "held {} for {} (--max-hold); stopping the command",
            self.lock(),
            format(max_hold)
        ));
        self.events.max_hold_over();
    }

    /// Not silenced by anything: a reader of the log must not take this run for a locked one.
    pub(crate) fn runs_without_lock(&mut self, error: &BackendError) {
        let error = backend_error(error);
        self.error(&format!(
            "WARNING: cannot take {}: {error}; running the command WITHOUT the lock (--on-unavailable run)",
            self.lock()
        ));
        self.events.unavailable(&error, "run");
    }

    pub(crate) fn skips(&mut self, error: &BackendError) {
        let error = backend_error(error);
        self.info(&format!(
            "cannot take {}: {error}; the command is skipped (--on-unavailable skip)",
            self.lock()
        ));
        self.events.unavailable(&error, "skip");
    }

    /// At every verbosity: the reason why redlock exits as it does.
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
    fn lock(&self) -> String {
        quoted(&self.keys)
    }

    fn failure(&mut self, message: &str) {
        if !self.failure_printed || self.verbosity == Verbosity::Verbose {
            self.failure_printed = true;
            self.info(message);
        }
    }

    pub(crate) fn erase_live_line(&mut self) {
        self.live_line.erase();
    }

    /// Descriptors with a backlog: to be polled for writing, and then [`Report::flush`] to be called.
    pub(crate) fn unwritten(&self) -> Vec<Descriptor> {
        let mut unwritten = Vec::new();
        stderr_stream(|stderr| unwritten.extend(stderr.unwritten()));
        unwritten.extend(self.events.stream.as_ref().and_then(Stream::unwritten));
        unwritten
    }

    pub(crate) fn flush(&mut self) {
        stderr_stream(Stream::flush_ready);
        self.events.stream.iter_mut().for_each(Stream::flush_ready);
    }

    /// After the last event: says if some could not be written.
    pub(crate) fn finish_events(&mut self, path: &Path) {
        let Some(stream) = &mut self.events.stream else { return };
        let lost = stream.finish();
        if lost > 0 {
            let lines = if lost == 1 { "a line".to_owned() } else { format!("{lost} lines") };
            let why = stream.last_error.as_ref().map_or_else(|| "nobody reads it".into(), format::io_error);
            self.info(&format!("--events {}: {lines} could not be written: {why}", path.display()));
        }
    }
}

/// Opened with the first word: most runs say nothing. One for the whole program, as every line goes the same way.
static STDERR: Mutex<Option<Stream>> = Mutex::new(None);

/// Not if it is in use: that is a panic in the middle of a line.
fn stderr_stream(write: impl FnOnce(&mut Stream)) {
    let stderr = STDERR.try_lock().or_else(|error| match error {
        TryLockError::Poisoned(error) => Ok(PoisonError::into_inner(error)),
        TryLockError::WouldBlock => Err(()),
    });
    if let Ok(mut stderr) = stderr {
        write(stderr.get_or_insert_with(Stream::to_stderr));
    }
}

/// One line on stderr, in one piece, so that lines of several processes do not mix.
pub(crate) fn print(message: &str) {
    let line = format!("redlock: {}\n", sanitize(message.as_bytes()));
    stderr_stream(|stderr| {
        stderr.push(|dropped| match dropped {
            0 => line.into_bytes(),
            1 => format!("redlock: a line is missing here: it could not be written\n{line}").into_bytes(),
            _ => format!("redlock: {dropped} lines are missing here: they could not be written\n{line}")
                .into_bytes(),
        });
    });
}

/// Before the exit: the last chance for lines whose reader was away.
pub(crate) fn finish() {
    stderr_stream(|stderr| {
        stderr.finish();
    });
}

/// Lines of our own, such as a help text, as they are.
pub(crate) fn print_text(text: &str) {
    stderr_stream(|stderr| stderr.push(|_| text.as_bytes().to_vec()));
}
