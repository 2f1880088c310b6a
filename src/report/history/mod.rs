//! The runs of a lock, as `redlock history` shows them: a timeline, figures, rows; JSON; a picture.

mod axis;
mod json;
mod rows;
mod run;
mod summary;
mod svg;
mod terminal;
mod timeline;

use std::time::{Duration, SystemTime};

use super::format::{LocalTime, sanitize};
use super::status::server_lines;
use crate::lock::{History, ServerState};
use run::runs_of;
use summary::Summary;
use timeline::Timeline;

pub(crate) use json::history_json;

/// What times are relative to, and how they are shown.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub now: SystemTime,
    /// Only what ended after this is shown, if that was asked for.
    pub since: Option<SystemTime>,
    pub local_time: LocalTime,
}

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub width: usize,
    pub has_colours: bool,
    pub is_unicode: bool,
}

/// The timeline, the figures, and the last `rows` runs, the newest first.
pub(crate) fn history_text(history: &History, clock: Clock, style: Style, rows: usize) -> String {
    let key = sanitize(&history.status.key);
    let runs = runs_of(history, clock.now);
    let mut text = match Timeline::new(&runs, clock) {
        None => format!("{key}: {}\n", nothing(clock)),
        Some(timeline) => {
            let summary = Summary::new(&runs, &timeline);
            let heading = heading(&key, &summary, &timeline, clock);
            let picture = terminal::draw(&timeline, clock.local_time, style);
            let figures = summary.figures();
            let table = rows::table(&runs, rows, clock);
            format!("{heading}\n\n{picture}\n{figures}\n{table}")
        }
    };
    let servers = &history.status.servers;
    if !servers.iter().all(|server| matches!(server.state, ServerState::Serves)) {
        text += &format!("\n{}", server_lines(servers));
    }
    text
}

/// The timeline as a picture for a report.
pub(crate) fn history_svg(history: &History, clock: Clock) -> String {
    let key = sanitize(&history.status.key);
    let runs = runs_of(history, clock.now);
    match Timeline::new(&runs, clock) {
        None => svg::sentence(&format!("{key}: {}", nothing(clock))),
        Some(timeline) => {
            let summary = Summary::new(&runs, &timeline);
            let heading = heading(&key, &summary, &timeline, clock);
            svg::draw(&heading, &summary.sentences(), &timeline, &runs, clock)
        }
    }
}

fn nothing(clock: Clock) -> String {
    match clock.since.and_then(|since| moment(since, clock.local_time)) {
        Some(since) => format!("no runs in its history since {since}"),
        None => "no runs in its history".into(),
    }
}

/// "deploy: 212 runs since 2026-11-16 07:58, 9 failed, 3 did not get the lock"
fn heading(key: &str, summary: &Summary, timeline: &Timeline, clock: Clock) -> String {
    let shown = |at| moment(at, clock.local_time).unwrap_or_default();
    let (from, to) = (shown(timeline.from), shown(timeline.to));
    let period = match (timeline.to == clock.now, from.split_once(' '), to.split_once(' ')) {
        (true, ..) => format!("since {from}"),
        (false, Some((day, _)), Some((same, time))) if day == same => format!("from {from} to {time}"),
        (false, ..) => format!("from {from} to {to}"),
    };
    format!("{key}: {}", summary.sentence(&period))
}

/// "2026-11-16 09:14"
fn moment(moment: SystemTime, local_time: LocalTime) -> Option<String> {
    let [year, month, day, hour, minute, _] = local_time(moment)?;
    Some(format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}"))
}

/// For coordinates.
fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Zero if it is in the past.
fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}
