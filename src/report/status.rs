//! The output of `redlock status`, for people and as JSON.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::events::{process, time};
use super::format::{
    LocalTime, after_comma, another_program, clock_time, config_files, held_by, holder, holder_line,
    no_server_configured, other_version, quoted, usually,
};
use super::json::Object;
use super::problem::problem;
use super::stderr::print;
use super::text::{labelled, sanitize};
use crate::duration::{format, format_seconds, fractional_millis, millis};
use crate::lock::{
    Difference, Done, Fault, Holder, HolderInfo, Holding, Mode, Problem, Renewal, ServerState, ServerStatus,
    State, Status, Usual, WaiterStatus,
};

/// The config files, and the servers or the directory of the locks.
pub(crate) fn looking_at(paths: &[PathBuf], location: &str) {
    print(&format!("{}; locks on {location}", config_files(paths)));
}

/// Locks on a server may be held while those of this host are free.
pub(crate) fn only_on_this_host(what: &str) {
    print(&no_server_configured(&format!("{what} on this host only")));
}

/// The first line of --watch.
pub(crate) fn watch_heading(interval: Duration, now: SystemTime, local_time: LocalTime) -> String {
    let time = clock_time(now, now, local_time).unwrap_or_default();
    format!("Every {}   {time}   ^C ends", format(interval))
}

/// The contents of the screen when a look has failed.
pub(crate) fn failed_look(message: &str) -> String {
    format!("{}\n", sanitize(message))
}

/// A wait line of status --wait-free.
pub(crate) fn still_taken(status: &Status, waited: Duration, local_time: LocalTime) {
    let (key, waited) = (quoted(&[&status.key]), format_seconds(waited));
    print(&format!("waiting until {key} is free: waited {waited}, {}", obstacle(status, local_time)));
}

/// The last line of a wait that was too long.
pub(crate) fn gave_up_waiting(status: &Status, waited: Duration, local_time: LocalTime) -> String {
    let key = quoted(&[&status.key]);
    format!("{key} is not free after {}: {}", format(waited), obstacle(status, local_time))
}

/// "held by root@web1 pid 42 (rsync) since 09:14:05 (2m 3s), 2 waiting"
pub(super) fn obstacle(status: &Status, local_time: LocalTime) -> String {
    let by = match (status.state, status.holders.first()) {
        (State::Held | State::Shared | State::Slots { .. }, Some(first)) => {
            let Holder { info, held_for, expires_in, .. } = first.clone();
            let others = status.holder_count.saturating_sub(1);
            held_by(&Holding { info, others, held_for, expires_in, ..Holding::default() }, local_time)
        }
        _ => summary(status),
    };
    if status.waiter_count > 0 { format!("{by}, {} waiting", status.waiter_count) } else { by }
}

/// The lines for people.
pub(crate) fn status_text(status: &Status, local_time: LocalTime) -> String {
    let has_lease = !status.servers.is_empty();
    let and_more = |all: usize, shown: usize| (all > shown).then(|| format!("and {} more", all - shown));
    let holders = status.holders.iter().filter(|_| status.state != State::Foreign);
    let holders = holders.flat_map(|holder| holder_lines(holder, has_lease, local_time));
    let width = status.waiters.len().to_string().len();
    let waiters = &status.waiters;
    let queue = waiters.iter().map(|waiter| format!("{:>width$}  {}", waiter.position, waiter_line(waiter)));
    let done = |Done { by, ago }: &Done| format!("{} ago by {} (--once)", format_seconds(*ago), holder(by));
    [
        format!("{}: {}\n", sanitize(&status.key), summary(status)),
        labelled("holder", holders.chain(and_more(status.holder_count, status.holders.len()))),
        labelled("queue", queue.chain(and_more(status.waiter_count, waiters.len()))),
        labelled("usually", status.usual.as_ref().map(usually)),
        labelled("done", status.done.as_ref().map(done)),
        server_lines(&status.servers),
    ]
    .concat()
}

/// "held", "3 of 4 slots are taken", ...
fn summary(status: &Status) -> String {
    if status.lacks_majority().is_none() {
        return state(status);
    }
    let seen = if status.is_taken() { state(status) } else { "not held".into() };
    format!("not decided: {seen}, as far as {} can tell", those_that_answer(status))
}

/// "1 of 3 servers"
pub(super) fn those_that_answer(status: &Status) -> String {
    format!("{} of {} servers", status.reply_count(), status.servers.len())
}

fn state(status: &Status) -> String {
    let first = status.holders.first();
    match status.state {
        State::Free if status.undecided.is_some() => match status.servers.len() {
            1 => "not held, as far as the server knows".into(),
            _ => "not held, as far as the servers that vote know".into(),
        },
        State::Free if status.waiter_count > 0 => "free, the next waiter is about to take it".into(),
        State::Free => "free".into(),
        State::Held => "held".into(),
        State::Shared => format!("shared by {}", status.holder_count),
        State::Slots { of } => format!("{} of {of} slots are taken", status.holder_count),
        State::Kept => {
            let left = status.holders.iter().filter_map(|holder| holder.expires_in).max();
            left.map_or_else(
                || "kept by --min-hold".into(),
                |left| format!("kept by --min-hold, free again in {}", format_seconds(left)),
            )
        }
        State::Foreign => {
            let (pid, expires_in) = first.map_or(("", None), |first| (&*first.info.pid, first.expires_in));
            another_program(pid, expires_in, !status.servers.is_empty())
        }
    }
}

fn holder_lines(held: &Holder, has_lease: bool, local_time: LocalTime) -> Vec<String> {
    let slot = held.slot.map_or_else(String::new, |slot| format!("slot {slot}: "));
    let mut lines = vec![slot + &holder_line(held, has_lease, local_time)];
    if !held.info.job_url.is_empty() {
        lines.push(sanitize(&held.info.job_url));
    }
    if let (Renewal::Keeper(pid), false) = (held.info.renewal, held.has_ended()) {
        lines.push(format!("kept by redlock-keeper pid {pid}"));
    }
    let fence = held.fence.map(|fence| format!("fence {fence}"));
    let token = held.token.as_ref().map(|token| format!("token {}", sanitize(token)));
    let about: Vec<String> = [fence, token, other_version(&held.info)].into_iter().flatten().collect();
    if !about.is_empty() {
        lines.push(about.join(", "));
    }
    lines
}

fn waiter_line(waiter: &WaiterStatus) -> String {
    let mut line = holder(&waiter.info);
    if let Some(waited) = waiter.waited {
        line += &format!(", waiting {}", format_seconds(waited));
    }
    line += &match &waiter.mode {
        Mode::Exclusive => String::new(),
        Mode::Shared { group } if group.is_empty() => ", shared".into(),
        Mode::Shared { group } => format!(", shared in group \"{}\"", sanitize(group)),
        Mode::Slot { of } => format!(", for one of {of} slots"),
    };
    line + &after_comma(&waiter.info.job_url) + &after_comma(&other_version(&waiter.info).unwrap_or_default())
}

/// A blank line and the servers, if not all of them serve.
pub(super) fn failing_servers(servers: &[ServerStatus]) -> String {
    if servers.iter().all(|server| matches!(server.state, ServerState::Serves)) {
        return String::new();
    }
    format!("\n{}", server_lines(servers))
}

/// A single server is shown only if it does not serve.
fn server_lines(servers: &[ServerStatus]) -> String {
    let is_shown =
        |server: &&ServerStatus| servers.len() != 1 || !matches!(server.state, ServerState::Serves);
    let line = |server: &ServerStatus| match (&server.state, server_cause(server)) {
        (ServerState::Fails(_), cause) => format!("{} FAILS: {}", server.name, cause.unwrap_or_default()),
        (_, Some(cause)) => format!("{} {cause}", server.name),
        (_, None) if server.vote == Some(true) => format!("{} agrees", server.name),
        (_, None) => format!("{} ok", server.name),
    };
    labelled("servers", servers.iter().filter(is_shown).map(line))
}

/// The problem of a server, or its difference from the majority.
fn server_cause(server: &ServerStatus) -> Option<String> {
    match (&server.state, &server.differs) {
        (ServerState::Fails(error), _) => Some(sanitize(problem(&error.problem))),
        (ServerState::Replica, _) => Some("is a replica".into()),
        (ServerState::Quarantined(left), _) => Some(problem(&Problem::InQuarantine(*left))),
        (ServerState::Serves, Some(Difference::Free)) => Some("says free".into()),
        (ServerState::Serves, Some(Difference::HeldBy(info))) => {
            Some(format!("says held by {}", holder(info)))
        }
        (ServerState::Serves, Some(Difference::Foreign)) => Some("says held by another program".into()),
        (ServerState::Serves, None) => None,
    }
}

/// The line for programs.
pub(crate) fn status_json(status: &Status) -> String {
    let (state, slots) = match status.state {
        // An unknown state is left out.
        _ if status.undecided.is_some() => (None, None),
        State::Free => (Some("free"), None),
        State::Held => (Some("held"), None),
        State::Shared => (Some("shared"), None),
        State::Slots { of } => (Some("slots"), Some(of)),
        State::Kept => (Some("kept"), None),
        State::Foreign => (Some("foreign"), None),
    };
    let holders: Vec<Object> = status.holders.iter().map(holder_object).collect();
    let waiters: Vec<Object> = status.waiters.iter().map(waiter_object).collect();
    let mut object = key_object(&status.key)
        .with_known("state", state)
        .with_known("of", slots)
        .with("holders", holders)
        .with("waiters", waiters)
        .with_known("usual", status.usual.as_ref().map(usual_object))
        .with_known("done", status.done.as_ref().map(done_object));
    if !status.servers.is_empty() {
        let servers: Vec<Object> = status.servers.iter().map(server_object).collect();
        object = object.with("servers", servers);
    }
    object.text()
}

/// A key that is not UTF-8 has its bytes, too.
pub(super) fn key_object(key: &[u8]) -> Object {
    if let Ok(text) = std::str::from_utf8(key) {
        return Object::default().with("key", text);
    }
    let mut hex = String::new();
    for byte in key {
        hex += &format!("{byte:02x}");
    }
    Object::default().with("key", sanitize(key)).with("key_hex", hex)
}

fn holder_object(holder: &Holder) -> Object {
    let object = process(&holder.info)
        .and(redlock(&holder.info))
        .with_known("token", holder.token.as_deref())
        .with_known("fence", holder.fence)
        .with_known("slot", holder.slot)
        .with_known("since", holder.since.map(time))
        .with_known("held_ms", holder.held_for.map(millis))
        .with_known("expires_ms", holder.expires_in.map(millis))
        .with_known("ended", holder.has_ended().then_some(true));
    match &holder.broken_by {
        Some(by) => object.with("broken_by", process(by)),
        None => object,
    }
}

/// For how long runs hold the lock.
fn usual_object(usual: &Usual) -> Object {
    let Usual { runs, median, p95 } = *usual;
    Object::default().with("p50_ms", millis(median)).with("p95_ms", millis(p95)).with("runs", runs)
}

/// The last run with --once that has succeeded.
fn done_object(done: &Done) -> Object {
    let at = SystemTime::now().checked_sub(done.ago);
    process(&done.by).with_known("at", at.map(time)).with("ago_ms", millis(done.ago))
}

/// The version of redlock that a holder or waiter runs.
fn redlock(info: &HolderInfo) -> Object {
    Object::default().with_text("version", &info.version).with_known("protocol", info.protocol)
}

pub(super) fn mode_name(mode: &Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared { .. } => "shared",
        Mode::Slot { .. } => "slots",
    }
}

fn waiter_object(waiter: &WaiterStatus) -> Object {
    process(&waiter.info)
        .and(redlock(&waiter.info))
        .with("mode", mode_name(&waiter.mode))
        .with("position", waiter.position)
        .with_known("waited_ms", waiter.waited.map(millis))
}

fn server_object(server: &ServerStatus) -> Object {
    let state = match &server.state {
        ServerState::Serves => "ok",
        ServerState::Replica => "replica",
        ServerState::Quarantined(_) => "quarantined",
        ServerState::Fails(error) => match error.fault() {
            Fault::Unavailable => "down",
            Fault::Refused => "refused",
            Fault::Unfit => "unfit",
        },
    };
    Object::default()
        .with("url", server.name.as_str())
        .with("state", state)
        .with_known("vote", server.vote)
        .with_known("cause", server_cause(server))
        .with_known("rtt_ms", server.rtt.map(fractional_millis))
}
