//! `--events`: a line with a JSON object for each event; docs/operations.md lists the fields.
//!
//! The last line of every run is `ended`. It is written when everything else is done, or by the panic
//! hook; therefore the state of the run is here, where every thread can reach it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::json::Object;
use super::problem::problem;
use super::stderr::stderr;
use super::wait::WAIT_LINE_EVERY;
use super::writer::LineWriter;
use crate::clock::BootTime;
use crate::duration::millis;
use crate::exit::{self, Exit};
use crate::lock::{BackendError, Blocked, Blocker, Grant, HolderInfo, Holding, Outcome, Renewal, Votes};
use crate::moment::printable;

/// `None` without `--events` and `--hook`, and after the last event.
static EVENTS: Mutex<Option<Events>> = Mutex::new(None);

enum Destination {
    Stderr,
    File { path: PathBuf, writer: LineWriter },
}

/// Receives each event as a line, besides the file. Never blocks.
pub(crate) trait EventSink: Send {
    fn send(&self, line: &[u8]);

    /// The first failure, if one has happened since the last call.
    fn failure(&self) -> Option<String>;
}

pub(super) struct Events {
    destination: Option<Destination>,
    hook: Option<Box<dyn EventSink>>,
    keys: Vec<String>,
    run: Object,
    asked_at: Option<BootTime>,
    last_waiting: Option<BootTime>,
    pub attempts: u32,
    blocked: Option<Blocked>,
    grant: Option<Grant>,
    held: Option<Duration>,
    /// `None` if the run never had the lock; null if this is unknown.
    released: Option<Value>,
    pub command_was_started: bool,
    outcome: Option<Outcome>,
    pub cause: Option<String>,
}

/// Start to write events, to a file, a hook or both. `-` is stderr.
pub(super) fn open(
    path: Option<&Path>,
    hook: Option<Box<dyn EventSink>>,
    keys: &[String],
    run: &HolderInfo,
) -> std::io::Result<()> {
    let destination = match path {
        None if hook.is_none() => return Ok(()),
        None => None,
        Some(path) if path == Path::new("-") => Some(Destination::Stderr),
        Some(path) => Some(Destination::File { path: path.to_owned(), writer: LineWriter::append_to(path)? }),
    };
    let events = Events {
        destination,
        hook,
        keys: keys.to_vec(),
        run: process(run),
        asked_at: None,
        last_waiting: None,
        attempts: 0,
        blocked: None,
        grant: None,
        held: None,
        released: None,
        command_was_started: false,
        outcome: None,
        cause: None,
    };
    *EVENTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(events);
    Ok(())
}

/// Does nothing without `--events`, or during a panic in the middle of an event.
pub(super) fn events(note: impl FnOnce(&mut Events)) {
    let events = EVENTS.try_lock().or_else(|error| match error {
        TryLockError::Poisoned(error) => Ok(PoisonError::into_inner(error)),
        TryLockError::WouldBlock => Err(()),
    });
    if let Ok(mut events) = events
        && let Some(events) = events.as_mut()
    {
        note(events);
    }
}

/// What went wrong with the events.
#[derive(Default)]
pub(super) struct EventsResult {
    /// The file, the number of lost lines and the error.
    pub file: Option<(PathBuf, usize, Option<std::io::Error>)>,
    pub hook_failure: Option<String>,
}

/// Write the last event.
pub(super) fn end(exit: Exit, failure: Option<&str>) -> EventsResult {
    events(|events| events.ended(exit, failure));
    let Some(events) = EVENTS.try_lock().ok().and_then(|mut events| events.take()) else {
        return EventsResult::default();
    };
    let file = match events.destination {
        None | Some(Destination::Stderr) => None,
        Some(Destination::File { path, writer }) => {
            let (lost, error) = writer.finish();
            Some((path, lost, error))
        }
    };
    EventsResult { file, hook_failure: events.hook.and_then(|hook| hook.failure()) }
}

impl Events {
    pub(super) fn asks(&mut self) {
        self.asked_at.get_or_insert_with(BootTime::now);
    }

    /// The lock is taken.
    pub(super) fn waiting(&mut self, blocked: &Blocked, waited: Duration, gives_up_in: Option<Duration>) {
        self.blocked = Some(blocked.clone());
        self.waiting_for(self.about_blocked(blocked), waited, gives_up_in);
    }

    /// The servers cannot serve now.
    pub(super) fn waiting_for_servers(
        &mut self,
        cause: &str,
        waited: Duration,
        gives_up_in: Option<Duration>,
    ) {
        let obstacle = Object::default().with("state", "unavailable").with("cause", cause);
        self.waiting_for(obstacle, waited, gives_up_in);
    }

    /// Written at the start of the wait, then as often as a line in a log.
    fn waiting_for(&mut self, obstacle: Object, waited: Duration, gives_up_in: Option<Duration>) {
        if self.last_waiting.is_some_and(|last| last.elapsed() < WAIT_LINE_EVERY) {
            return;
        }
        self.last_waiting = Some(BootTime::now());
        let event = Object::default()
            .with("waited_ms", millis(waited))
            .with_known("gives_up_ms", gives_up_in.map(millis))
            .and(obstacle);
        self.write("waiting", event, false);
    }

    pub(super) fn acquired(&mut self, grant: &Grant) {
        self.grant = Some(grant.clone());
        let event = Object::default().with("waited_ms", millis(grant.waited)).and(about(grant));
        self.write("acquired", event, false);
    }

    pub(super) fn refreshed(&mut self, grant: &Grant) {
        let held = grant.taken_at.elapsed();
        let event = Object::default().with("held_ms", millis(held)).and(about(grant));
        self.write("refreshed", event, false);
    }

    /// The outcome, whatever follows.
    pub(super) fn decide(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    /// The outcome, unless it is decided.
    pub(super) fn suggest(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }

    /// `by`: the field for the client that took the lock away, and that client. `is_stopped`: the
    /// command is stopped.
    pub(super) fn lost(&mut self, cause: &str, by: Option<(&str, &HolderInfo)>, is_stopped: bool) {
        if is_stopped {
            let newer = by.filter(|(field, _)| *field == "superseded_by");
            let replaced = newer.map(|(_, by)| Outcome::Replaced { by: Box::new(by.clone()) });
            self.decide(replaced.unwrap_or(Outcome::Lost));
        }
        let held = self.grant.as_ref().map(|grant| millis(grant.taken_at.elapsed()));
        let mut event = Object::default()
            .with("cause", cause)
            .with("action", if is_stopped { "stop" } else { "warn" })
            .with_known("held_ms", held);
        if let Some((field, by)) = by {
            event = event.with(field, process(by));
        }
        self.write("lost", event, false);
    }

    pub(super) fn not_acquired(&mut self, outcome: Outcome, blocked: Option<&Blocked>) {
        self.decide(outcome);
        self.blocked = blocked.cloned();
    }

    pub(super) fn released(&mut self, held: Duration, is_released: Option<bool>) {
        (self.held, self.released) = (Some(held), Some(is_released.into()));
    }

    fn ended(&mut self, exit: Exit, failure: Option<&str>) {
        let outcome = self.outcome.take().unwrap_or_else(|| self.outcome_of(exit, failure.is_some()));
        // A keeper has no command.
        let is_kept = outcome == Outcome::Released && !self.command_was_started;
        let name = if is_kept { outcome.name() } else { outcome.event() };
        let mut event = Object::default()
            .with("outcome", name)
            .with_known("exit", exit.code())
            .with_known("signal", exit.signal());
        let waited = match &self.grant {
            Some(grant) => Some(grant.waited),
            None => self.asked_at.map(BootTime::elapsed),
        };
        let attempts = self.grant.as_ref().map_or(self.attempts, |grant| grant.claim.attempt);
        event = event
            .with_known("waited_ms", waited.map(millis))
            .with_known("held_ms", self.held.map(millis))
            .with_known("attempts", (attempts > 0).then_some(attempts));
        if let Some(grant) = &self.grant {
            event = event.with("fences", grant.fences.as_slice());
        }
        event = event.with_known("released", self.released.clone());
        if outcome == Outcome::GaveUp
            && let Some(blocked) = &self.blocked
        {
            event = event.and(self.about_blocked(blocked));
        }
        let event = event.and(other_run(&outcome)).with_known("cause", failure.or(self.cause.as_deref()));
        self.write("ended", event, true);
    }

    /// For a run whose outcome was not reported before.
    fn outcome_of(&self, exit: Exit, has_failed: bool) -> Outcome {
        match exit {
            _ if self.command_was_started && !has_failed => Outcome::Released,
            Exit::Code(exit::CANNOT_EXECUTE | exit::NOT_FOUND) => Outcome::NotStarted,
            Exit::Signal(_) => Outcome::Cancelled,
            Exit::Code(_) if self.command_was_started => Outcome::Cancelled,
            Exit::Code(exit::UNAVAILABLE) => Outcome::Unavailable,
            Exit::Code(exit::USAGE | exit::REFUSED | exit::UNFIT) => Outcome::Refused,
            Exit::Code(_) => Outcome::NotStarted,
        }
    }

    /// The obstacle.
    fn about_blocked(&self, blocked: &Blocked) -> Object {
        let key = self.keys.get(blocked.key).filter(|_| self.keys.len() > 1);
        let (state, holding) = match &blocked.by {
            Blocker::Holder(holding) => ("held", Some(holding)),
            Blocker::Reservation(holding) => ("kept", Some(holding)),
            Blocker::Foreign { .. } => ("foreign", None),
            Blocker::Queue => ("free", None),
            Blocker::Quarantine(_) => ("quarantined", None),
        };
        let mut object = Object::default()
            .with_known("key", key.map(String::as_str))
            .with("state", state)
            .with_known("position", blocked.position.map(|ahead| ahead + 1))
            .with_known("queue_length", blocked.position.map(|_| blocked.queue_length));
        if let Some(holding) = holding {
            object = object
                .with("holders", vec![holder(holding)])
                .with_known("other_holders", (holding.others > 0).then_some(holding.others));
        }
        if let Blocker::Quarantine(servers) = &blocked.by {
            let servers: Vec<Object> = servers
                .iter()
                .map(|(url, left)| {
                    Object::default().with("url", url.as_str()).with("quarantined_ms", millis(*left))
                })
                .collect();
            object = object.with("servers", Object::default().with("quarantined", servers));
        }
        object
    }

    fn write(&mut self, event: &str, more: Object, is_last: bool) {
        let start = Object::default()
            .with("v", 1)
            .with("time", time(SystemTime::now()))
            .with("event", event)
            .with("keys", self.keys.as_slice())
            .with("run", self.run.clone());
        let line = format!("{}\n", start.and(more).text());
        if let Some(hook) = &self.hook {
            hook.send(line.as_bytes());
        }
        match &self.destination {
            None => {}
            Some(Destination::Stderr) => stderr().event(line, is_last),
            Some(Destination::File { writer, .. }) => writer.event(line, is_last),
        }
    }
}

/// The run, or the client, that caused this outcome.
pub(super) fn other_run(outcome: &Outcome) -> Object {
    let field = if matches!(outcome, Outcome::Done { .. }) {
        "done_by"
    } else if matches!(outcome, Outcome::Broken { .. }) {
        "broken_by"
    } else {
        "superseded_by"
    };
    Object::default().with_known(field, outcome.by().map(process))
}

/// A run: this one, or a holder.
pub(super) fn process(info: &HolderInfo) -> Object {
    Object::default()
        .with_text("host", &info.host)
        .with_known("pid", info.pid.parse::<u32>().ok())
        .with_text("user", &info.user)
        .with_text("label", &info.label)
        .with_text("command", &info.command)
        .with_text("job_url", &info.job_url)
        .with_known("keeper", if let Renewal::Keeper(pid) = info.renewal { Some(pid) } else { None })
        .with_known("renewed", (info.renewal == Renewal::Nobody).then_some(false))
}

fn holder(holding: &Holding) -> Object {
    let since = holding.held_for.and_then(|held| SystemTime::now().checked_sub(held));
    process(&holding.info)
        .with_known("since", since.map(time))
        .with_known("held_ms", holding.held_for.map(millis))
        .with_known("expires_ms", holding.expires_in.map(millis))
}

fn about(grant: &Grant) -> Object {
    let mut object = Object::default()
        .with("attempts", grant.claim.attempt)
        .with("token", grant.claim.to_string())
        .with("fences", grant.fences.as_slice());
    if !grant.slots.is_empty() {
        object = object.with("slots", grant.slots.as_slice());
    }
    if grant.votes.servers > 1 {
        object = object.with("servers", servers(&grant.votes));
    }
    object
}

/// The number of servers that voted, and the errors of the others.
fn servers(votes: &Votes) -> Object {
    let failed = |error: &BackendError| {
        Object::default().with_known("url", error.at.as_deref()).with("cause", problem(&error.problem))
    };
    let failed: Vec<Object> = votes.failures.iter().map(failed).collect();
    Object::default().with("configured", votes.servers).with("voted", votes.voted).with("failed", failed)
}

pub(super) fn time(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(printable(moment)).to_string()
}
