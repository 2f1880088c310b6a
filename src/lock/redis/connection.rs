//! One connection as bytes: connect without blocking, send, split what arrives into replies.
//!
//! The redis crate's own connection blocks in `read` and does not show its descriptor, so a waiter could
//! be woken neither by a signal nor by the first of several servers; here all of them sit in one `poll`.
//! tls.rs is between the bytes and the socket if the server has a `rediss://` URL.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::SystemTime;

use nix::poll::PollFlags;
use socket2::SockAddr;

use super::resp::{LONGEST_REPLY, reply_length};
use super::tls::{Tls, TlsStream};
use crate::lock::{Problem, TlsProblem};
use crate::world::Wire;

/// Why a connection came to its end.
#[derive(Debug)]
pub(super) enum ConnectionError {
    Io(io::Error),
    /// The server closed a connection without TLS before it had answered anything.
    Unanswered,
    Tls(TlsProblem),
    /// The server closed a connection with TLS before it had answered anything, and did not say why. Most often for this.
    ClosedWithTls(TlsProblem),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<TlsProblem> for ConnectionError {
    fn from(problem: TlsProblem) -> Self {
        Self::Tls(problem)
    }
}

impl ConnectionError {
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Io(error) => match error.kind() {
                ErrorKind::ConnectionRefused => Problem::ConnectionRefused,
                // The system's own error: there is no such unix socket.
                ErrorKind::NotFound if error.raw_os_error().is_some() => Problem::NoSocket,
                ErrorKind::PermissionDenied => Problem::SocketPermission,
                _ => Problem::Connection(error.to_string()),
            },
            Self::Unanswered => Problem::ClosedUnanswered,
            Self::Tls(problem) | Self::ClosedWithTls(problem) => Problem::Tls(problem),
        }
    }
}

#[derive(Debug)]
enum Channel {
    Plain(Wire),
    Tls(Box<TlsStream>),
}

impl Channel {
    fn wire(&self) -> &Wire {
        match self {
            Self::Plain(wire) => wire,
            Self::Tls(stream) => stream.wire(),
        }
    }
}

/// How to speak TLS to a server, and its host as the URL has it.
pub(super) type Security = (Arc<Tls>, String);

#[derive(Debug)]
pub(super) struct Destination {
    /// All addresses of a host, in the order in which they are tried.
    pub addresses: Vec<SockAddr>,
    /// `None` without TLS.
    pub security: Option<Security>,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    security: Option<Security>,
    /// `None` until there is an address to connect to.
    stream: Option<Channel>,
    connected: bool,
    /// The host's other addresses, tried when this one does not answer.
    alternatives: VecDeque<SockAddr>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// How much of it has been handed out.
    read: usize,
    /// Why nothing more will come. Reported only when all that did come has been read: a server that
    /// turns us away says why before it hangs up.
    broken: Option<ConnectionError>,
    /// Something was received.
    has_heard_server: bool,
}

impl Connection {
    /// Start connecting to the first address that does not fail at once, and send what is queued.
    pub(super) fn connect(&mut self, destination: Destination) {
        self.alternatives = destination.addresses.into();
        self.security = destination.security;
        self.try_next(io::Error::new(ErrorKind::NotFound, "the name has no address").into());
        self.send(&[]);
    }

    /// Queue bytes and send what the socket takes now.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
        // On this host a connection is there as soon as it is asked for.
        if self.is_connected() {
            self.flush();
        }
    }

    /// What to poll for; `None` before there is a socket.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let stream = self.stream.as_ref()?;
        let wants_write = match stream {
            Channel::Plain(_) => !self.outgoing.is_empty(),
            Channel::Tls(stream) => stream.wants_write(),
        };
        let flags = match (self.connected, wants_write) {
            (false, _) => PollFlags::POLLOUT,
            (true, true) => PollFlags::POLLIN | PollFlags::POLLOUT,
            (true, false) => PollFlags::POLLIN,
        };
        Some((stream.wire().as_fd(), flags))
    }

    /// Has the server been reached, and can it have received anything?
    pub(super) fn is_open(&self) -> bool {
        self.stage() == Stage::Open
    }

    /// How far it is. Each stage takes a round trip, and none comes twice.
    pub(super) fn stage(&self) -> Stage {
        match &self.stream {
            Some(Channel::Plain(_)) if self.connected => Stage::Open,
            Some(Channel::Tls(stream)) if stream.is_established() => Stage::Open,
            Some(Channel::Tls(stream)) if stream.has_heard_server() => Stage::Handshake,
            Some(Channel::Tls(_)) if self.connected => Stage::Connected,
            _ => Stage::Connecting,
        }
    }

    /// When the certificate of a server with TLS expires.
    pub(super) fn certificate_expires(&self) -> Option<SystemTime> {
        match self.stream.as_ref()? {
            Channel::Plain(_) => None,
            Channel::Tls(stream) => stream.certificate_expires(),
        }
    }

    /// Go on after poll has reported something.
    pub(super) fn advance(&mut self) {
        if self.is_connected() {
            self.flush();
            self.fill();
        }
    }

    /// The next complete reply, if it has arrived.
    pub(super) fn next_reply(&mut self) -> Result<Option<Vec<u8>>, ConnectionError> {
        let unread = &self.incoming[self.read..];
        match reply_length(unread)? {
            Some(length) => {
                let reply = unread[..length].to_vec();
                self.read += length;
                Ok(Some(reply))
            }
            None => self.broken.take().map_or(Ok(None), Err),
        }
    }

    fn is_connected(&mut self) -> bool {
        if let (Some(stream), false) = (&self.stream, self.connected) {
            match stream.wire().is_connected() {
                Ok(connected) => self.connected = connected,
                Err(error) => self.try_next(error.into()),
            }
        }
        self.connected
    }

    /// `last` is why the address before did not do.
    fn try_next(&mut self, mut last: ConnectionError) {
        while let Some(address) = self.alternatives.pop_front() {
            match self.start(&address) {
                // On this host most connections are there as soon as they are asked for.
                Ok(stream) => {
                    (self.stream, self.connected) = (Some(stream), false);
                    return;
                }
                Err(error) => last = error,
            }
        }
        self.broken = Some(last);
    }

    fn start(&self, address: &SockAddr) -> Result<Channel, ConnectionError> {
        let wire = Wire::connect(address)?;
        Ok(match &self.security {
            None => Channel::Plain(wire),
            Some((tls, host)) => Channel::Tls(Box::new(tls.start(host, wire)?)),
        })
    }

    fn flush(&mut self) {
        let sent = match &mut self.stream {
            None => return,
            Some(Channel::Plain(wire)) => send(wire, &mut self.outgoing).map_err(ConnectionError::from),
            Some(Channel::Tls(stream)) => stream.send(&mut self.outgoing),
        };
        if let Err(error) = sent {
            self.outgoing.clear();
            self.broken.get_or_insert(error);
        }
    }

    /// Not more than a reply can be long: a server that sends faster than we read must not keep us here.
    fn fill(&mut self) {
        self.incoming.drain(..std::mem::take(&mut self.read));
        let before = self.incoming.len();
        let received = match &mut self.stream {
            None => return,
            Some(Channel::Plain(wire)) => receive(wire, &mut self.incoming).map_err(ConnectionError::from),
            Some(Channel::Tls(stream)) => stream.receive(&mut self.incoming, LONGEST_REPLY),
        };
        self.has_heard_server |= self.incoming.len() > before;
        if let Err(error) = received {
            let is_unanswered = !self.has_heard_server && self.is_plain_tcp() && is_end(&error);
            self.broken.get_or_insert(if is_unanswered { ConnectionError::Unanswered } else { error });
        }
    }

    fn is_plain_tcp(&self) -> bool {
        matches!(&self.stream, Some(Channel::Plain(wire)) if wire.is_tcp())
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    /// The server is there, but has not begun to speak TLS.
    Connected,
    Handshake,
    Open,
}

fn is_end(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::Io(e)
        if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

fn send(mut wire: &Wire, outgoing: &mut Vec<u8>) -> io::Result<()> {
    while !outgoing.is_empty() {
        match wire.write(outgoing) {
            Ok(sent) => drop(outgoing.drain(..sent)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive(mut wire: &Wire, incoming: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = [0; 4096];
    while incoming.len() <= LONGEST_REPLY {
        match wire.read(&mut chunk) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, CLOSED)),
            Ok(length) => {
                incoming.extend_from_slice(&chunk[..length]);
                if length < chunk.len() {
                    break;
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(super) const CLOSED: &str = "the server closed the connection";
