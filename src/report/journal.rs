//! The system log, for a process whose stderr nobody reads: journald's or a syslog daemon's socket, if there is one.

use std::os::unix::net::UnixDatagram;

/// Every system log listens there.
const SOCKET: &str = "/dev/log";

/// Facility daemon, severity warning.
const PRIORITY: u8 = 3 << 3 | 4;

/// Never waits: a log that is busy, or not there, is done without.
pub(super) fn send(message: &str) {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).is_ok() {
        let _ = socket.send_to(line(message, std::process::id()).as_bytes(), SOCKET);
    }
}

/// As syslog(3) writes it, without the time, which the log adds.
fn line(message: &str, pid: u32) -> String {
    format!("<{PRIORITY}>redlock[{pid}]: {message}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_names_its_sender() {
        assert_eq!(super::line("lost the lock \"k\"", 7), "<28>redlock[7]: lost the lock \"k\"");
    }
}
