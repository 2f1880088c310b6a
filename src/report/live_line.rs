//! The wait line on a terminal, which is updated in place.

use std::io::{self, IsTerminal};

use super::format::{WaitLine, sanitize};
use super::stderr::stderr;

/// Return to the beginning of the line and erase it.
const ERASE: &str = "\r\x1b[K";
/// Columns that stay free, so that an echoed ^C does not wrap onto a line that is never erased.
const FREE: usize = 3;
const ELLIPSIS: &str = "...";

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

    pub(super) fn is_available(&self) -> bool {
        self.is_terminal
    }

    pub(super) fn show(&mut self, line: &WaitLine) {
        let text = fit(line, self.columns);
        stderr().show(format!("{ERASE}{text}"));
        self.is_shown = true;
    }

    /// Whether the line shows the whole link to the holder's job, if there is one.
    pub(super) fn has_room_for_job(&self, line: &WaitLine) -> bool {
        line.job_url.is_empty() || Parts::of(line).leave_room(self.columns).is_some()
    }

    pub(super) fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            stderr().text(ERASE);
        }
    }
}

struct Parts {
    head: String,
    middle: String,
    job: String,
}

impl Parts {
    fn of(line: &WaitLine) -> Self {
        let part = |before: &str, text: &str| format!("{before}{}", sanitize(text.as_bytes()));
        let job = if line.job_url.is_empty() { String::new() } else { part(", ", &line.job_url) };
        Self { head: part("redlock: ", &line.head), middle: part(", ", &line.blocker), job }
    }

    /// The columns left between the head and the link, if they are enough for some text.
    fn leave_room(&self, columns: usize) -> Option<usize> {
        let left = columns.checked_sub(width(&self.head) + width(&self.job))?;
        (left > ELLIPSIS.len() || left >= width(&self.middle)).then_some(left)
    }
}

/// The part in the middle is shortened first, so that the link stays whole. Without room for the
/// link, it is left out.
fn fit(line: &WaitLine, columns: usize) -> String {
    let parts = Parts::of(line);
    match parts.leave_room(columns) {
        Some(left) => parts.head + &cut(&parts.middle, left) + &parts.job,
        None => cut(&(parts.head + &parts.middle), columns),
    }
}

fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut shortened, mut left) = (String::new(), columns.saturating_sub(ELLIPSIS.len()));
    for c in text.chars() {
        match left.checked_sub(columns_of(c)) {
            Some(rest) => left = rest,
            None => break,
        }
        shortened.push(c);
    }
    shortened + &ELLIPSIS[..columns.min(ELLIPSIS.len())]
}

fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// Chinese, Japanese and Korean characters and most emoji take two columns. An overestimate is
/// harmless.
fn columns_of(c: char) -> usize {
    let is_wide = matches!(u32::from(c),
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f
        | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f000..=0x1faff | 0x20000..=0x3fffd);
    if is_wide { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(job_url: &str) -> WaitLine {
        WaitLine {
            head: "waiting for \"x\": waited 3s, place 1 of 1".into(),
            blocker: "held by ci@runner-3 pid 4711 (deploy.sh) since 09:14:05 (2m 3s)".into(),
            job_url: job_url.into(),
        }
    }

    #[test]
    fn the_link_stays_whole_and_the_rest_is_shortened() {
        assert_eq!(
            fit(&line("https://ci/1"), 80),
            "redlock: waiting for \"x\": waited 3s, place 1 of 1, held by ci@r..., https://ci/1"
        );
        assert_eq!(fit(&line(""), 60), "redlock: waiting for \"x\": waited 3s, place 1 of 1, held b...");
        let long = format!("https://ci/{}", "1".repeat(40));
        assert!(!fit(&line(&long), 80).contains("https"), "a part of a link is of no use");
    }

    proptest! {
        #[test]
        fn a_fitted_line_fits(head in ".{0,60}", blocker in ".{0,90}", job_url in ".{0,90}", columns in 0usize..120) {
            let line = WaitLine { head, blocker, job_url };
            prop_assert!(width(&fit(&line, columns)) <= columns);
        }
    }
}
