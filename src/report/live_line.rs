//! The one line on a terminal that changes while we wait.

use std::io::{IsTerminal, stderr};

use super::stderr_stream;

/// Return to the beginning of the line and erase it.
const ERASE: &str = "\r\x1b[K";

pub(super) struct LiveLine {
    is_terminal: bool,
    width: usize,
    is_shown: bool,
}

impl LiveLine {
    /// `width` of the terminal, for a line that must be erased again.
    pub(super) fn new(width: Option<usize>) -> Self {
        Self { is_terminal: stderr().is_terminal(), width: width.unwrap_or(80), is_shown: false }
    }

    pub(super) fn is_available(&self) -> bool {
        self.is_terminal
    }

    /// `line` must be free of control characters.
    pub(super) fn show(&mut self, line: &str) {
        stderr_stream(|stderr| stderr.show(format!("{ERASE}{}", fit(line, self.width)).as_bytes()));
        self.is_shown = true;
    }

    pub(super) fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            stderr_stream(|stderr| stderr.push(|_| ERASE.into()));
        }
    }
}

/// As much of the line as fits, so that erasing one line erases all of it.
fn fit(line: &str, width: usize) -> &str {
    line.char_indices().nth(width.saturating_sub(1)).map_or(line, |(end, _)| &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_fitted_line_fits(line in ".{0,200}", width in 1usize..100) {
            prop_assert!(fit(&line, width).chars().count() < width.max(1));
        }
    }
}
