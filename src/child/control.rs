//! Requests to a process that holds locks on this host: an abstract unix socket whose name is the
//! grant's token. The kernel tells which user connects, and that decides who is trusted.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::unistd::geteuid;

use super::attach::peer;

/// How long a request or a reply may take to arrive once its sender is connected.
const WITHIN: Duration = Duration::from_secs(2);

/// The longest message that is read.
const LONGEST: u64 = 64 * 1024;

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("redlock-keeper-{name}"))
}

/// The holder's side.
#[derive(Debug)]
pub(crate) struct ControlPoint(UnixListener);

/// A request that waits for its reply.
#[derive(Debug)]
pub(crate) struct ControlRequest {
    pub message: Vec<u8>,
    stream: UnixStream,
}

impl ControlPoint {
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// The next request, if one has arrived, from this user or root. Others are refused.
    pub(crate) fn accept(&self) -> Option<ControlRequest> {
        loop {
            let (mut stream, _) = self.0.accept().ok()?;
            let is_trusted = peer(&stream).is_some_and(|(_, user)| user == geteuid() || user.is_root());
            if !is_trusted {
                let _ = stream.write_all(REFUSED);
                continue;
            }
            if let Ok(message) = read_message(&mut stream) {
                return Some(ControlRequest { message, stream });
            }
        }
    }
}

impl AsFd for ControlPoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ControlRequest {
    /// A client that is gone does not matter.
    pub(crate) fn reply(mut self, reply: &[u8]) {
        let _ = self.stream.write_all(reply);
    }
}

const REFUSED: &[u8] = b"refused";

/// A holder's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlReply {
    Received(Vec<u8>),
    /// There is no such holder within reach.
    NotThere,
    /// The holder belongs to another user.
    Refused,
    /// The holder does not reply: it is stopped, or busy.
    Silent,
}

/// Send a request to the holder with this name.
pub(crate) fn ask_holder(name: &str, message: &[u8], within: Duration) -> ControlReply {
    let Ok(mut stream) = address(name).and_then(|address| UnixStream::connect_addr(&address)) else {
        return ControlReply::NotThere;
    };
    let ask = |stream: &mut UnixStream| {
        stream.write_all(message)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.set_read_timeout(Some(within))?;
        let mut reply = Vec::new();
        stream.take(LONGEST).read_to_end(&mut reply).map(|_| reply)
    };
    match ask(&mut stream) {
        Ok(reply) if reply == REFUSED => ControlReply::Refused,
        Ok(reply) if reply.is_empty() => ControlReply::NotThere,
        Ok(reply) => ControlReply::Received(reply),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            ControlReply::Silent
        }
        // It may have refused this process before it read the request.
        Err(_) => {
            let mut reply = Vec::new();
            match stream.take(LONGEST).read_to_end(&mut reply) {
                Ok(_) if reply == REFUSED => ControlReply::Refused,
                _ => ControlReply::NotThere,
            }
        }
    }
}

fn read_message(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(WITHIN))?;
    let mut message = Vec::new();
    stream.take(LONGEST).read_to_end(&mut message)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_replies_to_a_request() {
        let name = uuid::Uuid::new_v4().to_string();
        assert_eq!(ask_holder(&name, b"x", WITHIN), ControlReply::NotThere);
        let point = ControlPoint::open(&name).unwrap();
        assert!(point.accept().is_none());
        let client = std::thread::spawn({
            let name = name.clone();
            move || ask_holder(&name, b"release", WITHIN)
        });
        let request = loop {
            if let Some(request) = point.accept() {
                break request;
            }
            std::thread::yield_now();
        };
        assert_eq!(request.message, b"release");
        request.reply(b"released");
        assert_eq!(client.join().unwrap(), ControlReply::Received(b"released".to_vec()));
        assert_eq!(ask_holder(&name, b"x", Duration::from_millis(10)), ControlReply::Silent);
        drop(point);
        assert_eq!(ask_holder(&name, b"x", WITHIN), ControlReply::NotThere);
    }
}
