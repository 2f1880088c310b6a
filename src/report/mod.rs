//! Every word of ours, for people and for machines. Takes plain data; the only gate to stderr.
//!
//! Nothing when all is well: cron mails every line. What goes out is made harmless first (a key or a
//! server's text may hold anything), and a stderr that cannot be written to is nobody's problem.

mod events;
mod text;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

pub use text::{holder, human, plain, quoted};

use crate::exit::{Exit, Failure, UNFIT};
use crate::lock::{Busy, Grant, Loss, NodeError};
use events::Events;

/// A wait shorter than this is not worth a word.
const SILENT_WAIT: Duration = Duration::from_secs(2);
/// Between two wait lines in a log, so that it shows that the job is alive.
const WAIT_LINE_EVERY: Duration = Duration::from_secs(30);

/// Between two looks of the line on a terminal.
const LIVE_LINE_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// Errors only.
    Quiet,
    Normal,
    /// Every step.
    Verbose,
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A server's clear answer.
    Told(Loss),
    /// It could not be renewed in time.
    Overdue,
}

pub struct Report {
    voice: Voice,
    keys: Vec<String>,
    events: Events,
    /// stderr is a terminal: the wait is one line that changes.
    live: bool,
    live_line_shown: bool,
    width: usize,
    /// How long the wait had lasted when it was last spoken of.
    spoken_at: Option<Duration>,
    /// A word about servers in trouble is said once until they have recovered.
    trouble_told: bool,
    last_trouble: Option<String>,
}

impl Report {
    /// `width` of the terminal, for a line that must be erased again.
    pub fn new(
        voice: Voice,
        keys: &[Vec<u8>],
        events: Option<&Path>,
        width: Option<usize>,
    ) -> Result<Self, Failure> {
        let keys: Vec<String> = keys.iter().map(|key| plain(key)).collect();
        let cannot_open = |error| {
            let path = events.unwrap_or(Path::new("")).display();
            Failure::new(UNFIT, format!("--events: cannot open {path}: {error}"))
        };
        Ok(Self {
            voice,
            events: Events::open(events, &keys).map_err(cannot_open)?,
            width: width.unwrap_or(80),
            keys,
            live: voice != Voice::Quiet && std::io::stderr().is_terminal(),
            live_line_shown: false,
            spoken_at: None,
            trouble_told: false,
            last_trouble: None,
        })
    }

    pub fn waiting(&mut self, busy: &Busy, waited: Duration) {
        let first = self.spoken_at.is_none() && waited < SILENT_WAIT && !self.events.told_of_wait();
        if first {
            self.events.waiting(busy, waited);
            self.narrate(|report| text::waiting(&report.keys, busy, waited));
        }
        self.trouble_told = false;
        if waited < SILENT_WAIT {
            return;
        }
        if self.live {
            self.live_line(&text::waiting_in_short(&self.keys, busy, waited));
        } else if self.spoken_at.is_none_or(|spoken| waited - spoken >= WAIT_LINE_EVERY) {
            self.spoken_at = Some(waited);
            self.say(&text::waiting(&self.keys, busy, waited));
            self.events.waiting(busy, waited);
        }
    }

    /// After having waited so long: how long until it is time for another word.
    pub fn next_wait_line(&self, waited: Duration) -> Duration {
        match (self.live, self.spoken_at) {
            _ if waited < SILENT_WAIT => SILENT_WAIT - waited,
            (true, _) => LIVE_LINE_EVERY,
            (false, spoken) => (spoken.unwrap_or(waited) + WAIT_LINE_EVERY).saturating_sub(waited),
        }
    }

    pub fn only_on_this_host(&mut self) {
        self.say(
            "no server configured: locking on this host only (set --redis or REDLOCK_REDIS, or say --local)",
        );
    }

    pub fn even_number_of_servers(&mut self, servers: usize) {
        let fewer = servers - 1;
        self.say(&format!("{servers} servers bear no more failures than {fewer}: give an odd number"));
    }

    pub fn folder_is_on_a_network(&mut self, folder: &Path) {
        let folder = folder.display();
        self.say(&format!(
            "{folder} is on a network file system: other hosts may not see this lock, or not in time"
        ));
    }

    pub fn servers_gone(&mut self, error: &NodeError) {
        self.trouble(format!("waiting for {}: {error}; trying again", self.lock()));
    }

    pub fn acquired(&mut self, grant: &Grant) {
        self.erase_live_line();
        self.events.acquired(grant);
        let fences: Vec<String> = grant.fences.iter().map(u64::to_string).collect();
        let (fences, waited) = (fences.join(" "), human(grant.waited));
        self.narrate(|report| format!("have {}, fence {fences}, after {waited}", report.lock()));
    }

    pub fn refreshed(&mut self, grant: &Grant) {
        (self.trouble_told, self.last_trouble) = (false, None);
        self.events.refreshed(grant);
        self.narrate(|report| format!("renewed {}", report.lock()));
    }

    pub fn cannot_refresh(&mut self, error: &NodeError, left: Duration) {
        self.last_trouble = Some(error.to_string());
        self.trouble(format!(
            "cannot renew {}: {error}; it is ours for another {}",
            self.lock(),
            human(left)
        ));
    }

    pub fn cannot_start_keeper(&mut self, error: &std::io::Error) {
        self.last_trouble = Some(format!("no thread could be started: {error}"));
        self.trouble(format!(
            "cannot renew {}: no thread can be started: {error}; trying again",
            self.lock()
        ));
    }

    /// `consequence`: what becomes of the command.
    pub fn lost(&mut self, cause: Cause, consequence: &str) {
        let why = match cause {
            Cause::Told(Loss::Expired) => {
                "it was deleted, evicted or flushed on the server, or has expired".into()
            }
            Cause::Told(Loss::Foreign) => "somebody else holds it now".into(),
            Cause::Overdue => match &self.last_trouble {
                Some(trouble) => format!("it could not be renewed in time: {trouble}"),
                None => "it could not be renewed in time (was this machine or this process stopped?)".into(),
            },
        };
        self.error(&format!("lost the lock {}: {why}; {consequence}", self.lock()));
        self.events.lost(match cause {
            Cause::Told(Loss::Expired) => "expired",
            Cause::Told(Loss::Foreign) => "foreign",
            Cause::Overdue => "overdue",
        });
    }

    pub fn released(&mut self, grant: &Grant, held: Duration, exit: Exit) {
        self.events.released(grant, held, exit);
        self.narrate(|report| format!("released {}, held for {}", report.lock(), human(held)));
    }

    pub fn was_no_longer_ours(&mut self, loss: Loss) {
        let who = match loss {
            Loss::Expired => "it had been deleted, evicted or flushed on the server, or had expired",
            Loss::Foreign => "somebody else holds it now",
        };
        self.say(&format!(
            "the lock {} was no longer ours when the command ended: {who}; another command may have run beside it",
            self.lock()
        ));
    }

    /// `expires_in`: `None` if it never does.
    pub fn cannot_release(&mut self, error: &NodeError, expires_in: Option<Duration>) {
        let then = match expires_in {
            Some(time) => format!("it expires by itself within {}", human(time)),
            None => "it never expires: redlock break frees it".into(),
        };
        self.say(&format!("cannot release {}: {error}; {then}", self.lock()));
    }

    pub fn never_expires(&mut self) {
        self.say(&format!(
            "--ttl none: if this run is killed, {} stays locked until `redlock break`",
            self.lock()
        ));
    }

    pub fn max_hold_over(&mut self, max_hold: Duration) {
        self.error(&format!(
            "had {} for {}, the most that --max-hold allows; stopping the command",
            self.lock(),
            human(max_hold)
        ));
        self.events.max_hold_over();
    }

    /// Not silenced by anything: whoever reads the log must not take this run for a locked one.
    pub fn runs_without_lock(&mut self, error: &NodeError) {
        self.error(&format!(
            "WARNING: cannot take {}: {error}; running the command WITHOUT the lock (--on-unavailable run)",
            self.lock()
        ));
        self.events.unavailable(&error.to_string(), "run");
    }

    pub fn skips(&mut self, error: &NodeError) {
        self.say(&format!(
            "cannot take {}: {error}; the command is skipped (--on-unavailable skip)",
            self.lock()
        ));
        self.events.unavailable(&error.to_string(), "skip");
    }

    /// In every voice: the reason why redlock exits as it does.
    pub fn error(&mut self, message: &str) {
        self.erase_live_line();
        print(message);
    }

    fn say(&mut self, message: &str) {
        if self.voice != Voice::Quiet {
            self.error(message);
        }
    }

    fn narrate(&mut self, message: impl FnOnce(&Self) -> String) {
        if self.voice == Voice::Verbose {
            let message = message(self);
            self.error(&message);
        }
    }

    /// What the lock is called.
    fn lock(&self) -> String {
        text::quoted(&self.keys)
    }

    fn trouble(&mut self, message: String) {
        if !self.trouble_told || self.voice == Voice::Verbose {
            self.trouble_told = true;
            self.say(&message);
        }
    }

    fn live_line(&mut self, line: &str) {
        let line = text::fit(&plain(line.as_bytes()), self.width);
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        self.live_line_shown = true;
    }

    pub fn erase_live_line(&mut self) {
        if std::mem::take(&mut self.live_line_shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// One line on stderr, in one write, so that lines of several processes do not mix.
pub fn print(message: &str) {
    let _ = std::io::stderr().write_all(format!("redlock: {}\n", plain(message.as_bytes())).as_bytes());
}
