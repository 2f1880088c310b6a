//! stderr, the destination of every line of the program; for a detached keeper, the system log.

use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::text::sanitize;
use super::writer::LineWriter;

static STDERR: OnceLock<LineWriter> = OnceLock::new();

/// Set when nothing reads stderr any more.
static IS_DETACHED: AtomicBool = AtomicBool::new(false);

/// Where every system log listens.
const SYSTEM_LOG: &str = "/dev/log";
/// Facility daemon, severity warning.
const PRIORITY: u8 = 3 << 3 | 4;

pub(super) fn stderr() -> &'static LineWriter {
    STDERR.get_or_init(LineWriter::to_stderr)
}

/// Send all further lines to the system log.
pub(super) fn detach() {
    finish();
    IS_DETACHED.store(true, Ordering::Relaxed);
}

/// One line on stderr, in one piece, so that lines of several processes do not mix.
pub(crate) fn print(message: &str) {
    let message = sanitize(message);
    if IS_DETACHED.load(Ordering::Relaxed) {
        log(&message);
    } else {
        stderr().text(format!("redlock: {message}\n"));
    }
}

/// Text of our own, such as help, unchanged.
pub(crate) fn print_text(text: &str) {
    stderr().text(text);
}

/// Before the exit: the last chance for lines whose reader is behind.
pub(crate) fn finish() {
    if let Some(stderr) = STDERR.get() {
        stderr.finish();
    }
}

/// A log that is busy or does not exist gets nothing.
pub(crate) fn log(message: &str) {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).is_ok() {
        let _ = socket.send_to(log_line(message, std::process::id()).as_bytes(), SYSTEM_LOG);
    }
}

/// As syslog(3) writes it, without the time, which the log adds.
fn log_line(message: &str, pid: u32) -> String {
    format!("<{PRIORITY}>redlock[{pid}]: {message}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_log_line_names_its_sender() {
        assert_eq!(super::log_line("lost the lock \"k\"", 7), "<28>redlock[7]: lost the lock \"k\"");
    }
}
