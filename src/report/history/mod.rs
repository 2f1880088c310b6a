//! The output of `redlock history`: a timeline, figures and a table of runs; JSON; an SVG picture.

mod axis;
mod json;
mod overview;
mod run;
mod summary;
mod svg;
mod terminal;
mod timeline;

use std::time::{Duration, SystemTime};

use super::format::{LocalTime, clock_time};
use super::list::{align, shorten};
use super::status::failing_servers;
use super::text::sanitize;
use crate::duration::format;
use crate::lock::History;
use run::{Run, runs_of};
use summary::Summary;
use timeline::Timeline;

pub(crate) use json::history_json;
pub(crate) use overview::histories_text;

const HEADINGS: [&str; 6] = ["STARTED", "WAITED", "HELD", "EXIT", "FENCE", "WHO"];

/// The current time, the start of the period, and the local time of both.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub now: SystemTime,
    /// Runs that ended earlier are not shown.
    pub since: Option<SystemTime>,
    pub local_time: LocalTime,
}

/// The abilities of the terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub width: usize,
    pub has_colours: bool,
    pub is_unicode: bool,
}

/// The runs that are listed one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub most: usize,
    pub only_failed: bool,
    /// The terminal's, to which they are shortened.
    pub columns: Option<usize>,
}

/// The timeline, the figures and the last runs, newest first.
pub(crate) fn history_text(history: &History, clock: Clock, style: Style, rows: Rows) -> String {
    let key = sanitize(&history.status.key);
    let runs = runs_of(history, clock.now);
    let text = match Timeline::new(&runs, clock) {
        None => format!("{key}: {}\n", nothing("its", clock, false)),
        Some(timeline) => {
            let summary = Summary::new(&runs, &timeline);
            let heading = heading(&key, &summary, &timeline, clock);
            let picture = terminal::draw(&timeline, clock.local_time, style);
            let figures = summary.figures();
            let table = table(&runs, rows, clock);
            format!("{heading}\n\n{picture}\n{figures}\n{table}")
        }
    };
    text + &failing_servers(&history.status.servers)
}

/// At most `most` runs that have ended, and all that have not, newest first.
fn table(runs: &[Run<'_>], Rows { most, only_failed, columns }: Rows, clock: Clock) -> String {
    let runs = || runs.iter().filter(|run| !only_failed || run.has_failed());
    let ended = runs().filter(|run| run.ended().is_some()).count();
    let mut left_out = ended.saturating_sub(most);
    let mut rows: Vec<[String; 6]> = Vec::new();
    for run in runs() {
        if run.ended().is_some() && left_out > 0 {
            left_out -= 1;
        } else {
            rows.push(row(run, clock));
        }
    }
    rows.push(HEADINGS.map(str::to_owned));
    rows.reverse();
    shorten(&mut rows, &[5, 3], columns);
    align(&rows) + &and_more(ended, most)
}

fn and_more(all: usize, most: usize) -> String {
    match all.saturating_sub(most) {
        0 => String::new(),
        more => format!("and {more} more; --limit {all} lists them all\n"),
    }
}

fn row(run: &Run<'_>, clock: Clock) -> [String; 6] {
    let unknown = || "-".to_owned();
    [
        clock_time(run.started(), clock.now, clock.local_time).unwrap_or_else(unknown),
        run.waited.map_or_else(unknown, format),
        run.held_for().map_or_else(unknown, format),
        run.exit(),
        run.fence.map_or_else(unknown, |fence| fence.to_string()),
        run.who(),
    ]
}

/// The timeline as a picture.
pub(crate) fn history_svg(history: &History, clock: Clock) -> String {
    let key = sanitize(&history.status.key);
    let runs = runs_of(history, clock.now);
    match Timeline::new(&runs, clock) {
        None => svg::sentence(&format!("{key}: {}", nothing("its", clock, false))),
        Some(timeline) => {
            let summary = Summary::new(&runs, &timeline);
            let heading = heading(&key, &summary, &timeline, clock);
            svg::draw(&heading, &summary.sentences(), &timeline, &runs, clock)
        }
    }
}

fn nothing(whose: &str, clock: Clock, only_failed: bool) -> String {
    let since = clock.since.and_then(|since| moment(since, clock.local_time));
    let since = since.map_or_else(String::new, |since| format!(" since {since}"));
    let runs = if only_failed { "failed runs" } else { "runs" };
    format!("no {runs} in {whose} history{since}")
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

/// A count as a coordinate.
fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Zero if `to` is earlier.
fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}
