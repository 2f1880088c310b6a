//! A terminal's whole screen, redrawn in place, for `--watch`.
//!
//! The screen's old contents are restored however the program ends: normally, by ^C, by a panic.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::text::{COLUMN, sanitize};

/// The alternate screen, without the cursor; the terminal itself wraps no line.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Whether the screen is ours. Locked during writes, so that nothing is written after it was left.
static SCREEN: Mutex<bool> = Mutex::new(false);

/// The size of the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub rows: usize,
    pub columns: usize,
}

/// What is shown, which decides about lines that are wider than the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// They are cut.
    Table,
    /// They are folded between two words, and indented to the column of the text.
    Text,
    /// As [`Content::Text`]; for programs no blank line separates two looks.
    Json,
}

pub(crate) fn enter_screen() -> io::Result<()> {
    let mut is_ours = lock();
    *is_ours = true;
    write(ENTER)
}

/// Draws the heading and the lines from the top. The last row says how many lines do not fit.
pub(crate) fn draw_screen(heading: &str, text: &str, content: Content, size: Size) -> io::Result<()> {
    let is_ours = lock();
    if *is_ours { write(&frame(heading, text, content, size)) } else { Ok(()) }
}

/// Restore the terminal. Nothing can be drawn while the caller holds the guard.
pub(crate) fn leave_screen() -> MutexGuard<'static, bool> {
    let mut is_ours = lock();
    if std::mem::take(&mut *is_ours) {
        let _ = write(LEAVE);
    }
    is_ours
}

/// During a panic, perhaps in the middle of a frame.
pub(super) fn leave_screen_in_panic() {
    if let Ok(mut is_ours) = SCREEN.try_lock()
        && std::mem::take(&mut *is_ours)
    {
        let _ = write(LEAVE);
    }
}

fn lock() -> MutexGuard<'static, bool> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In one piece, so that a terminal never shows half a frame.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Each row is erased just before its line is written, which avoids flicker. Erasing after it would
/// erase the last character of a full line, where the cursor stays.
fn frame(heading: &str, text: &str, content: Content, size: Size) -> String {
    let mut lines: Vec<String> = vec![sanitize(heading), String::new()];
    match content {
        Content::Table => lines.extend(text.lines().map(str::to_owned)),
        Content::Text | Content::Json => lines.extend(text.lines().flat_map(|line| fold(line, size.columns))),
    }
    if lines.len() > size.rows {
        let left = lines.len() - size.rows.saturating_sub(1);
        lines.truncate(size.rows.saturating_sub(1));
        lines.push(format!("and {left} more lines"));
    }
    let cut = |line: &String| line.chars().take(size.columns).collect::<String>();
    let erase = |at| if at + 1 == lines.len() { "\x1b[J" } else { "\x1b[K" };
    let rows: Vec<String> =
        lines.iter().enumerate().map(|(at, line)| erase(at).to_owned() + &cut(line)).collect();
    format!("\x1b[H{}", rows.join("\r\n"))
}

fn fold(line: &str, columns: usize) -> Vec<String> {
    let mut folded = Vec::new();
    let mut rest: Vec<char> = line.chars().collect();
    while rest.len() > columns && columns > 2 * COLUMN {
        let blank = (COLUMN + 1..=columns).rev().find(|&at| rest[at] == ' ');
        let (end, next) = blank.map_or((columns, columns), |at| (at, at + 1));
        folded.push(rest[..end].iter().collect());
        rest = std::iter::repeat_n(' ', COLUMN).chain(rest.drain(next..)).collect();
    }
    folded.push(rest.into_iter().collect());
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_folded_between_words() {
        let size = Size { rows: 9, columns: 20 };
        let drawn = frame("h", "holder   one two three\nx", Content::Text, size);
        assert_eq!(
            drawn,
            "\x1b[H\x1b[Kh\r\n\x1b[K\r\n\x1b[Kholder   one two\r\n\x1b[K         three\r\n\x1b[Jx"
        );
        assert_eq!(
            fold(&"w".repeat(30), 20),
            ["w".repeat(20), format!("{}{}", " ".repeat(9), "w".repeat(10))]
        );
        assert_eq!(fold("one two", 0), ["one two"]);
    }

    #[test]
    fn a_frame_fits_the_screen() {
        let size = Size { rows: 4, columns: 5 };
        let drawn = frame("head", "1234567\nb\nc\nd\n", Content::Table, size);
        assert_eq!(drawn, "\x1b[H\x1b[Khead\r\n\x1b[K\r\n\x1b[K12345\r\n\x1b[Jand 3");
        let drawn = frame("head", "a\n", Content::Table, size);
        assert_eq!(drawn, "\x1b[H\x1b[Khead\r\n\x1b[K\r\n\x1b[Ja");
    }

    #[test]
    fn a_screen_without_a_size_harms_nobody() {
        for (rows, columns) in [(0, 0), (1, 1), (0, 80)] {
            for content in [Content::Table, Content::Text] {
                let _ = frame("head", "a b\nb\n", content, Size { rows, columns });
            }
        }
    }
}
