//! stderr, which every line of the program goes through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use super::format::sanitize;
use super::journal;
use super::stream::Stream;

/// Opened with the first word: most runs say nothing.
static STDERR: Mutex<Option<Stream>> = Mutex::new(None);

pub(super) fn stderr_stream(write: impl FnOnce(&mut Stream)) {
    with_stderr(|stderr| write(stderr.get_or_insert_with(Stream::to_stderr)));
}

/// Does nothing if nothing was ever said.
pub(super) fn opened_stderr(write: impl FnOnce(&mut Stream)) {
    with_stderr(|stderr| {
        if let Some(stderr) = stderr {
            write(stderr);
        }
    });
}

/// Not if it is in use: that is a panic in the middle of a line.
fn with_stderr(write: impl FnOnce(&mut Option<Stream>)) {
    let stderr = STDERR.try_lock().or_else(|error| match error {
        TryLockError::Poisoned(error) => Ok(PoisonError::into_inner(error)),
        TryLockError::WouldBlock => Err(()),
    });
    if let Ok(mut stderr) = stderr {
        write(&mut stderr);
    }
}

/// Set when nobody reads stderr any more.
static IS_DETACHED: AtomicBool = AtomicBool::new(false);

/// From here on lines go to the system log. What was said before is written, as far as it is read.
pub(super) fn detach() {
    with_stderr(|stderr| {
        if let Some(mut stream) = stderr.take() {
            stream.finish();
        }
    });
    IS_DETACHED.store(true, Ordering::Relaxed);
}

/// One line on stderr, in one piece, so that lines of several processes do not mix.
pub(crate) fn print(message: &str) {
    if IS_DETACHED.load(Ordering::Relaxed) {
        return journal::send(&sanitize(message.as_bytes()));
    }
    let line = format!("redlock: {}\n", sanitize(message.as_bytes()));
    stderr_stream(|stderr| {
        stderr.push(|dropped| match dropped {
            0 => line.into_bytes(),
            1 => format!("redlock: a line is missing here: it could not be written\n{line}").into_bytes(),
            _ => format!("redlock: {dropped} lines are missing here: they could not be written\n{line}")
                .into_bytes(),
        });
    });
}

/// Lines of our own, such as a help text, as they are.
pub(crate) fn print_text(text: &str) {
    stderr_stream(|stderr| stderr.push(|_| text.as_bytes().to_vec()));
}

/// Before the exit: the last chance for lines whose reader was away.
pub(crate) fn finish() {
    opened_stderr(|stderr| {
        stderr.finish();
    });
}
