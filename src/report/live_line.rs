//! The wait line on a terminal, which is updated in place.

use std::io::{self, IsTerminal};

use nix::unistd::{getpgrp, tcgetpgrp};

use super::format::{WaitLine, after_comma};
use super::stderr::stderr;
use super::text::{ELLIPSIS, cut, sanitize, width};
use crate::duration::format_seconds;

/// Return to the beginning of the line and erase it.
const ERASE: &str = "\r\x1b[K";
/// Columns that stay free, so that an echoed ^C does not wrap onto a line that is never erased.
const FREE: usize = 3;
const PREFIX: &str = "redlock: ";
const FOR: &str = " for ";
/// A shorter piece of a key says nothing.
const SHORTEST_LOCK: usize = 8;

pub(super) struct LiveLine {
    is_terminal: bool,
    columns: usize,
    is_shown: bool,
}

impl LiveLine {
    /// `width`: the terminal's; a line that wraps could not be erased.
    pub(super) fn new(width: Option<usize>) -> Self {
        let mut line = Self { is_terminal: io::stderr().is_terminal(), columns: 0, is_shown: false };
        line.resize(width);
        line
    }

    pub(super) fn resize(&mut self, width: Option<usize>) {
        self.columns = width.unwrap_or(80).saturating_sub(FREE);
    }

    /// Not in the background (`redlock run ... &`): there it would erase what the user types.
    pub(super) fn is_available(&self) -> bool {
        let is_in_background = || tcgetpgrp(io::stderr()).is_ok_and(|foreground| foreground != getpgrp());
        self.is_terminal && !is_in_background()
    }

    pub(super) fn show(&mut self, line: &WaitLine) {
        let text = fit(line, self.columns);
        stderr().show(format!("{ERASE}{text}"));
        self.is_shown = true;
    }

    /// Whether the line shows the whole link to the holder's job, if there is one.
    pub(super) fn has_room_for_job(&self, line: &WaitLine) -> bool {
        line.job_url.is_empty() || room_beside_job(line, self.columns).is_some()
    }

    pub(super) fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            stderr().text(ERASE);
        }
    }
}

/// The line, shortened until it fits: first the end of the text about the obstacle, then the words
/// before it, then the key, then the place in the queue. The holder's name stays as long as possible,
/// and the link to its job stays whole or is left out.
fn fit(line: &WaitLine, columns: usize) -> String {
    let (blocker, job) = (obstacle(line), job(line));
    if let Some(left) = room_beside_job(line, columns) {
        return full_head(line) + &cut(&blocker, left) + &job;
    }
    let needed = needed(line);
    let waited = format!("{PREFIX}waited {}", format_seconds(line.waited));
    let lock = sanitize(&line.lock);
    let room_for_lock = columns
        .saturating_sub(width(&waited) + width(FOR) + width(&line.place) + needed)
        .checked_sub(1)
        .filter(|room| *room >= SHORTEST_LOCK);
    let heads = [
        Some(full_head(line)),
        Some(format!("{waited}{FOR}{lock}{}", line.place)),
        room_for_lock.map(|room| format!("{waited}{FOR}{}\"{}", cut(&lock, room), line.place)),
        Some(format!("{waited}{}", line.place)),
        Some(waited),
    ];
    let fits = |head: &String| width(head) + needed <= columns;
    match heads.into_iter().flatten().find(fits) {
        Some(head) => format!("{head}{}", cut(&blocker, columns - width(&head))),
        None => cut(&format!("{PREFIX}{}", line.blocker), columns),
    }
}

fn full_head(line: &WaitLine) -> String {
    format!("{PREFIX}{}", sanitize(line.head()))
}

/// ", held by root@web1 pid 42 (rsync) since 09:14:05 (2m 3s)"
fn obstacle(line: &WaitLine) -> String {
    format!(", {}", sanitize(&line.blocker))
}

fn job(line: &WaitLine) -> String {
    after_comma(&line.job_url)
}

/// The columns that the shortened obstacle needs.
fn needed(line: &WaitLine) -> usize {
    let obstacle = obstacle(line);
    let name = obstacle.get(..", ".len() + line.name_end).unwrap_or(&obstacle);
    width(&obstacle).min(width(name) + ELLIPSIS.len() + 1)
}

/// The columns left for the obstacle between the head and the whole link, if they suffice.
fn room_beside_job(line: &WaitLine, columns: usize) -> Option<usize> {
    let left = columns.checked_sub(width(&full_head(line)) + width(&job(line)))?;
    (left >= needed(line)).then_some(left)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    fn line(lock: &str, job_url: &str) -> WaitLine {
        WaitLine {
            lock: format!("\"{lock}\""),
            waited: Duration::from_secs(63),
            place: ", place 2 of 5".into(),
            blocker: "held by ci@runner-3 pid 4711 (deploy.sh) since 09:14:05 (2m 3s)".into(),
            name_end: "held by ci@runner-3 pid 4711".len(),
            job_url: job_url.into(),
        }
    }

    #[test]
    fn the_link_stays_whole_or_is_left_out() {
        assert_eq!(
            fit(&line("x", "https://ci/1"), 100),
            "redlock: waiting for \"x\": waited 1m 3s, place 2 of 5, held by ci@runner-3 pid 4711 ..., https://ci/1"
        );
        assert!(!fit(&line("x", "https://ci/1"), 80).contains("https"), "a part of a link is of no use");
    }

    #[test]
    fn the_holder_is_named_on_a_terminal_of_80_columns() {
        for (lock, columns, shown) in [
            (
                "deploy",
                96,
                "redlock: waiting for \"deploy\": waited 1m 3s, place 2 of 5, held by ci@runner-3 pid 4711 (depl...",
            ),
            (
                "deploy",
                88,
                "redlock: waited 1m 3s for \"deploy\", place 2 of 5, held by ci@runner-3 pid 4711 (deplo...",
            ),
            (
                "deploy-europe-west",
                90,
                "redlock: waited 1m 3s for \"deploy-euro...\", place 2 of 5, held by ci@runner-3 pid 4711 ...",
            ),
            ("deploy", 77, "redlock: waited 1m 3s, place 2 of 5, held by ci@runner-3 pid 4711 (deploy...."),
            ("deploy", 60, "redlock: waited 1m 3s, held by ci@runner-3 pid 4711 (depl..."),
            ("deploy", 40, "redlock: held by ci@runner-3 pid 4711..."),
        ] {
            assert_eq!(fit(&line(lock, ""), columns), shown, "{columns}");
        }
    }

    proptest! {
        #[test]
        fn a_fitted_line_fits(
            lock in ".{0,60}",
            blocker in ".{0,90}",
            name_end in 0usize..90,
            job_url in ".{0,90}",
            columns in 0usize..120,
        ) {
            let line = WaitLine { lock, blocker, name_end, job_url, ..line("", "") };
            prop_assert!(width(&fit(&line, columns)) <= columns);
        }
    }
}
