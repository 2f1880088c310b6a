//! A process that holds locks on this host can be asked to do something with them: an abstract unix socket whose name is
//! the grant's token, and who may ask is decided by the kernel's word on who connects.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::unistd::geteuid;

use super::attach::peer;

/// What a request, or an answer, may take to arrive once its sender is connected.
const WITHIN: Duration = Duration::from_secs(2);

/// The longest message that is read.
const LONGEST: u64 = 64 * 1024;

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("redlock-keeper-{name}"))
}

/// The holder's side.
#[derive(Debug)]
pub(crate) struct ControlPoint(UnixListener);

/// A request that waits for its answer.
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

    /// The next request, if one has come. Only of our own user, or root; others are told so.
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
    /// A client that has gone does not matter.
    pub(crate) fn answer(mut self, answer: &[u8]) {
        let _ = self.stream.write_all(answer);
    }
}

const REFUSED: &[u8] = b"refused";

/// The answer of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlAnswer {
    Said(Vec<u8>),
    /// There is no such holder that we could reach.
    NotThere,
    /// It is another user's.
    Refused,
    /// It does not answer: it is stopped, or busy.
    Silent,
}

/// Ask the holder with this name.
pub(crate) fn ask_holder(name: &str, message: &[u8], within: Duration) -> ControlAnswer {
    let Ok(mut stream) = address(name).and_then(|address| UnixStream::connect_addr(&address)) else {
        return ControlAnswer::NotThere;
    };
    let ask = |stream: &mut UnixStream| {
        stream.write_all(message)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.set_read_timeout(Some(within))?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer).map(|_| answer)
    };
    match ask(&mut stream) {
        Ok(answer) if answer == REFUSED => ControlAnswer::Refused,
        Ok(answer) if answer.is_empty() => ControlAnswer::NotThere,
        Ok(answer) => ControlAnswer::Said(answer),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            ControlAnswer::Silent
        }
        // It may have refused us before it read what we wrote.
        Err(_) => {
            let mut answer = Vec::new();
            match stream.take(LONGEST).read_to_end(&mut answer) {
                Ok(_) if answer == REFUSED => ControlAnswer::Refused,
                _ => ControlAnswer::NotThere,
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
    fn a_holder_is_asked_and_answers() {
        let name = uuid::Uuid::new_v4().to_string();
        assert_eq!(ask_holder(&name, b"x", WITHIN), ControlAnswer::NotThere);
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
        request.answer(b"released");
        assert_eq!(client.join().unwrap(), ControlAnswer::Said(b"released".to_vec()));
        assert_eq!(ask_holder(&name, b"x", Duration::from_millis(10)), ControlAnswer::Silent);
        drop(point);
        assert_eq!(ask_holder(&name, b"x", WITHIN), ControlAnswer::NotThere);
    }
}
