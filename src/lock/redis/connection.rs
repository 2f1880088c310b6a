//! One connection as bytes: connect without blocking, send, split what arrives into replies.
//!
//! The redis crate's own connection blocks in `read` and does not show its descriptor, so a waiter could
//! be woken neither by a signal nor by the first of several servers; here all of them sit in one `poll`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::PollFlags;
use socket2::{Domain, SockAddr, Socket, Type};

use super::resp::{LONGEST_REPLY, reply_length};

#[derive(Debug, Default)]
pub(super) struct Connection {
    /// `None` until there is an address to connect to.
    socket: Option<Socket>,
    connected: bool,
    /// The host's other addresses, tried when this one does not answer.
    alternatives: VecDeque<SockAddr>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// How much of it has been handed out.
    read: usize,
    /// Why nothing more will come. Reported only when all that did come has been read: a server that
    /// turns us away says why before it hangs up.
    broken: Option<io::Error>,
}

impl Connection {
    /// Start connecting to the first of these that does not fail on the spot, and send what is queued.
    pub(super) fn connect(&mut self, addresses: Vec<SockAddr>) {
        self.alternatives = addresses.into();
        self.try_next(io::Error::new(ErrorKind::NotFound, "the name has no address"));
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
        let flags = match (self.connected, self.outgoing.is_empty()) {
            (false, _) => PollFlags::POLLOUT,
            (true, false) => PollFlags::POLLIN | PollFlags::POLLOUT,
            (true, true) => PollFlags::POLLIN,
        };
        self.socket.as_ref().map(|socket| (socket.as_fd(), flags))
    }

    /// Has the server been reached?
    pub(super) fn is_open(&self) -> bool {
        self.connected
    }

    /// Go on after poll has reported something.
    pub(super) fn advance(&mut self) {
        if self.is_connected() {
            self.flush();
            self.fill();
        }
    }

    /// The next complete reply, if it has arrived.
    pub(super) fn next_reply(&mut self) -> io::Result<Option<Vec<u8>>> {
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
        if let (Some(socket), false) = (&self.socket, self.connected) {
            match socket.take_error() {
                Ok(None) => self.connected = socket.peer_addr().is_ok(),
                Ok(Some(error)) | Err(error) => self.try_next(error),
            }
        }
        self.connected
    }

    /// `last` is why the address before did not do.
    fn try_next(&mut self, mut last: io::Error) {
        while let Some(address) = self.alternatives.pop_front() {
            match connect(&address) {
                Ok((socket, connected)) => {
                    (self.socket, self.connected) = (Some(socket), connected);
                    return;
                }
                Err(error) => last = error,
            }
        }
        self.broken = Some(last);
    }

    fn flush(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        while !self.outgoing.is_empty() {
            match socket.write(&self.outgoing) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    self.outgoing.clear();
                    self.broken.get_or_insert(e);
                }
            }
        }
    }

    /// Not more than a reply can be long: a server that sends faster than we read must not keep us here.
    fn fill(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        self.incoming.drain(..std::mem::take(&mut self.read));
        let mut chunk = [0; 4096];
        while self.incoming.len() <= LONGEST_REPLY {
            match socket.read(&mut chunk) {
                Ok(0) => {
                    self.broken.get_or_insert(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "the server closed the connection",
                    ));
                    return;
                }
                Ok(length) => {
                    self.incoming.extend_from_slice(&chunk[..length]);
                    if length < chunk.len() {
                        return;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    self.broken.get_or_insert(e);
                    return;
                }
            }
        }
    }
}

/// The guardian has a copy of every descriptor that was open when it was forked: closing ours alone would
/// leave the server waiting for us.
impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn connect(address: &SockAddr) -> io::Result<(Socket, bool)> {
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if address.domain() != Domain::UNIX {
        socket.set_tcp_nodelay(true)?;
    }
    match socket.connect(address) {
        Ok(()) => Ok((socket, true)),
        Err(e) if e.raw_os_error() == Some(nix::libc::EINPROGRESS) => Ok((socket, false)),
        Err(e) => Err(e),
    }
}
