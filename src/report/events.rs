//! `--events`: a JSON object a line for each event.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::format;
use super::stream::Stream;
use crate::exit::Exit;
use crate::lock::{Blocked, Blocker, Grant, Votes};

pub(super) struct Events {
    pub(super) stream: Option<Stream>,
    keys: Vec<String>,
    has_waited: bool,
}

impl Events {
    pub(super) fn open(path: Option<&Path>, keys: &[String]) -> std::io::Result<Self> {
        let stream = path.map(Stream::append_to).transpose()?;
        Ok(Self { stream, keys: keys.to_vec(), has_waited: false })
    }

    pub(super) fn has_waited(&self) -> bool {
        self.has_waited
    }

    pub(super) fn waiting(&mut self, blocked: &Blocked, waited: Duration) {
        self.has_waited = true;
        let holding = match &blocked.by {
            Blocker::Holder(holding) | Blocker::Reservation(holding) => Some(holding),
            Blocker::Foreign { .. } | Blocker::Queue | Blocker::Quarantine(_) => None,
        };
        self.write("waiting", || {
            let holder = holding.map(|holding| {
                let fields = holding.info.fields().into_iter();
                fields.map(|(name, value)| (name.to_owned(), value.into())).collect::<Map<_, _>>()
            });
            json!({
                "waited_ms": millis(waited),
                "place": blocked.position,
                "others": holding.map_or(0, |holding| holding.others),
                "held_ms": holding.and_then(|holding| holding.held_for).map(millis),
                "holder": holder,
            })
        });
    }

    pub(super) fn acquired(&mut self, grant: &Grant) {
        self.write("acquired", || about(grant));
    }

    pub(super) fn refreshed(&mut self, grant: &Grant) {
        self.write("refreshed", || about(grant));
    }

    pub(super) fn lost(&mut self, cause: &str) {
        self.write("lost", || json!({ "cause": cause }));
    }

    /// `action`: what `--on-unavailable` asked for.
    pub(super) fn unavailable(&mut self, cause: &str, action: &str) {
        self.write("unavailable", || json!({ "cause": cause, "action": action }));
    }

    pub(super) fn max_hold_over(&mut self) {
        self.write("max_hold", || json!({}));
    }

    pub(super) fn released(&mut self, grant: &Grant, held: Duration, exit: Exit) {
        self.write("released", || {
            let mut event = about(grant);
            event["held_ms"] = millis(held).into();
            event["exit"] = exit.shell_code().into();
            if let Exit::Signal(number) = exit {
                event["signal"] = number.into();
            }
            event
        });
    }

    fn write(&mut self, event: &str, more: impl FnOnce() -> Value) {
        let Some(stream) = &mut self.stream else { return };
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let mut line = json!({ "time": time, "event": event });
        match &self.keys[..] {
            [key] => line["key"] = key.as_str().into(),
            keys => line["keys"] = keys.into(),
        }
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more()) {
            line.extend(more);
        }
        stream.push(|dropped| {
            if dropped > 0 {
                line["dropped"] = dropped.into();
            }
            format!("{line}\n").into_bytes()
        });
    }
}

/// How many of the servers vote, and which do not, and why.
fn servers(votes: &Votes) -> Value {
    let failed: Vec<Value> = votes
        .failures
        .iter()
        .map(|error| json!({ "url": error.at, "cause": format::problem(&error.problem) }))
        .collect();
    json!({ "configured": votes.servers, "voting": votes.servers - failed.len(), "failed": failed })
}

fn about(grant: &Grant) -> Value {
    let mut about = json!({
        "waited_ms": millis(grant.waited),
        "attempts": grant.claim.attempt,
        "token": grant.claim.to_string(),
    });
    match grant.fences[..] {
        [fence] => about["fence"] = fence.into(),
        _ => about["fences"] = grant.fences.as_slice().into(),
    }
    if grant.votes.servers > 1 {
        about["servers"] = servers(&grant.votes);
    }
    match grant.slots[..] {
        [] => {}
        [slot] => about["slot"] = slot.into(),
        _ => about["slots"] = grant.slots.as_slice().into(),
    }
    about
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
