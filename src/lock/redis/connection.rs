//! One connection as bytes: connect without blocking, send, split what arrives into replies.
//!
//! The redis crate's own connection blocks in `read` and hides its descriptor, so that neither a
//! signal nor the first of several servers could wake a waiter. Here all of them are in one `poll`.
//! tls/ is between the bytes and the socket of a `rediss://` server.

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

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum ConnectionError {
    Io(io::Error),
    /// The server closed a connection without TLS before its first reply.
    Unanswered,
    Tls(TlsProblem),
    /// The server closed a connection with TLS before its first reply, probably for this reason.
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
    /// Whether the server has closed the connection.
    pub(super) fn is_end(&self) -> bool {
        match self {
            Self::Io(error) => is_end(error),
            Self::Unanswered | Self::ClosedWithTls(_) => true,
            Self::Tls(_) => false,
        }
    }

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
enum Transport {
    Plain(Wire),
    Tls(Box<TlsStream>),
}

impl Transport {
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
pub(super) struct Endpoint {
    /// All addresses of a host, in the order in which they are tried.
    pub addresses: Vec<SockAddr>,
    /// `None` without TLS.
    pub security: Option<Security>,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    security: Option<Security>,
    /// `None` until there is an address to connect to.
    stream: Option<Transport>,
    connected: bool,
    /// The host's other addresses, tried if this one fails.
    alternatives: VecDeque<SockAddr>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// How much of `incoming` has been returned.
    read: usize,
    /// Why the connection has ended. Reported only after everything that arrived has been read: a
    /// server that rejects us says why before it closes the connection.
    broken: Option<ConnectionError>,
    /// Something was received.
    has_received: bool,
}

impl Connection {
    /// Start connecting to the first address that does not fail at once, and send what is queued.
    pub(super) fn connect(&mut self, endpoint: Endpoint) {
        self.alternatives = endpoint.addresses.into();
        self.security = endpoint.security;
        self.try_next(io::Error::new(ErrorKind::NotFound, "the name has no address").into());
        self.send(&[]);
    }

    /// Queue bytes and send what the socket takes now.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
        // On this host a connection is often open at once.
        if self.is_connected() {
            self.flush();
        }
    }

    /// The descriptor to poll and for what; `None` before there is a socket.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let stream = self.stream.as_ref()?;
        let wants_write = match stream {
            Transport::Plain(_) => !self.outgoing.is_empty(),
            Transport::Tls(stream) => stream.wants_write(),
        };
        let flags = match (self.connected, wants_write) {
            (false, _) => PollFlags::POLLOUT,
            (true, true) => PollFlags::POLLIN | PollFlags::POLLOUT,
            (true, false) => PollFlags::POLLIN,
        };
        Some((stream.wire().as_fd(), flags))
    }

    /// Whether the server can have received anything.
    pub(super) fn is_open(&self) -> bool {
        self.stage() == Stage::Open
    }

    /// Each stage takes a round trip, and is reached once.
    pub(super) fn stage(&self) -> Stage {
        match &self.stream {
            Some(Transport::Plain(_)) if self.connected => Stage::Open,
            Some(Transport::Tls(stream)) if stream.is_established() => Stage::Open,
            Some(Transport::Tls(stream)) if stream.has_received() => Stage::Handshake,
            Some(Transport::Tls(_)) if self.connected => Stage::Connected,
            _ => Stage::Connecting,
        }
    }

    /// When the server's certificate expires.
    pub(super) fn certificate_expires(&self) -> Option<SystemTime> {
        match self.stream.as_ref()? {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => stream.certificate_expires(),
        }
    }

    /// Read and write what is possible now.
    pub(super) fn advance(&mut self) {
        if self.is_connected() {
            self.flush();
            self.fill();
        }
    }

    /// Whether the kernel has all that was to be sent.
    pub(super) fn has_sent_all(&self) -> bool {
        let is_encrypted = match &self.stream {
            Some(Transport::Tls(stream)) => !stream.wants_write(),
            Some(Transport::Plain(_)) | None => true,
        };
        self.is_open() && self.outgoing.is_empty() && is_encrypted
    }

    /// What the server has not received when the connection is closed will never reach it.
    pub(super) fn abort(&self) {
        if let Some(stream) = &self.stream {
            stream.wire().abort();
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

    /// `last` is why the address before failed.
    fn try_next(&mut self, mut last: ConnectionError) {
        while let Some(address) = self.alternatives.pop_front() {
            match self.start(&address) {
                Ok(stream) => {
                    (self.stream, self.connected) = (Some(stream), false);
                    return;
                }
                Err(error) => last = error,
            }
        }
        self.broken = Some(last);
    }

    fn start(&self, address: &SockAddr) -> Result<Transport, ConnectionError> {
        let wire = Wire::connect(address)?;
        Ok(match &self.security {
            None => Transport::Plain(wire),
            Some((tls, host)) => Transport::Tls(Box::new(tls.start(host, wire)?)),
        })
    }

    fn flush(&mut self) {
        let sent = match &mut self.stream {
            None => return,
            Some(Transport::Plain(wire)) => send(wire, &mut self.outgoing).map_err(ConnectionError::from),
            Some(Transport::Tls(stream)) => stream.send(&mut self.outgoing),
        };
        if let Err(error) = sent {
            self.outgoing.clear();
            self.broken.get_or_insert(error);
        }
    }

    /// Reads about as much as the longest reply: a fast server must not keep us here.
    fn fill(&mut self) {
        self.incoming.drain(..std::mem::take(&mut self.read));
        let before = self.incoming.len();
        let received = match &mut self.stream {
            None => return,
            Some(Transport::Plain(wire)) => receive(wire, &mut self.incoming).map_err(ConnectionError::from),
            Some(Transport::Tls(stream)) => stream.receive(&mut self.incoming, LONGEST_REPLY),
        };
        self.has_received |= self.incoming.len() > before;
        if let Err(error) = received {
            let is_unanswered = !self.has_received && self.is_plain_tcp() && error.is_end();
            self.broken.get_or_insert(if is_unanswered { ConnectionError::Unanswered } else { error });
        }
    }

    fn is_plain_tcp(&self) -> bool {
        matches!(&self.stream, Some(Transport::Plain(wire)) if wire.is_tcp())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    /// The server has accepted, but not begun to speak TLS.
    Connected,
    Handshake,
    Open,
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
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
