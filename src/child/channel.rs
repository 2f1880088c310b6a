//! A socket between two of our processes that preserves the boundaries of messages (SOCK_SEQPACKET).

use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use nix::poll::PollFlags;
use socket2::{Domain, Socket, Type};

use crate::clock::BootTime;
use crate::poll::Poll;

/// The size that fits into the smallest buffer a socket can have.
const PIECE: usize = 2048;

/// The first byte of each piece of a message.
const LAST: u8 = 0;
const CONTINUED: u8 = 1;

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Channel(Socket);

impl Channel {
    pub(super) fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = Socket::pair(Domain::UNIX, Type::from(libc::SOCK_SEQPACKET), None)?;
        Ok((Self(a), Self(b)))
    }

    /// Send a message of one piece. Never waits for the reader, which may be stopped: if there is
    /// no room, hundreds of messages are unread.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        let piece = tagged(LAST, message);
        self.0.send_with_flags(&piece, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(drop)
    }

    /// Send a message of any length that must arrive. `WouldBlock` if there was no room for it in
    /// time; without `until` it waits for the reader.
    pub(super) fn send_until(&self, message: &[u8], until: Option<BootTime>) -> io::Result<()> {
        let mut pieces = message.chunks(PIECE).peekable();
        while let Some(piece) = pieces.next() {
            let piece = tagged(if pieces.peek().is_some() { CONTINUED } else { LAST }, piece);
            loop {
                match self.0.send_with_flags(&piece, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                    Err(e)
                        if e.kind() == ErrorKind::WouldBlock
                            && until.is_none_or(|until| !until.has_passed()) =>
                    {
                        // After an interruption the loop tries again.
                        let mut poll = Poll::new();
                        poll.add(self.0.as_fd(), PollFlags::POLLOUT, ());
                        poll.until(until);
                        poll.wait();
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    result => {
                        result?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The next message; `None` if the other end is closed.
    pub(super) fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        self.receive_with(0)
    }

    /// The same; `WouldBlock` if there is none.
    pub(super) fn try_receive(&self) -> io::Result<Option<Vec<u8>>> {
        self.receive_with(libc::MSG_DONTWAIT)
    }

    fn receive_with(&self, flags: libc::c_int) -> io::Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        loop {
            let Some(piece) = self.receive_piece(flags)? else { return Ok(None) };
            let Some((&kind, content)) = piece.split_first() else { return Ok(None) };
            message.extend_from_slice(content);
            if kind == LAST {
                return Ok(Some(message));
            }
        }
    }

    fn receive_piece(&self, flags: libc::c_int) -> io::Result<Option<Vec<u8>>> {
        // With MSG_TRUNC the kernel returns the whole length, whatever the buffer's size.
        let length = again(|| self.0.recv_with_flags(&mut [], flags | libc::MSG_PEEK | libc::MSG_TRUNC))?;
        let mut message = vec![0; length];
        let read = again(|| (&self.0).read(&mut message))?;
        Ok((read > 0).then_some(message))
    }

    pub(super) fn shut_down(&self, how: Shutdown) {
        // Fails only if the other end is already gone.
        let _ = self.0.shutdown(how);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Repeat an interrupted call. If the other end was closed with unread messages, the kernel reports
/// that once, before the messages that the other end had sent.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::Interrupted) => {}
            result => return result,
        }
    }
}

pub(super) fn tagged(tag: u8, payload: &[u8]) -> Vec<u8> {
    [&[tag], payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_longer_than_the_sockets_buffer_arrives_whole() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.0.set_send_buffer_size(1).unwrap(); // as small as it can be
        let message = |length: usize| -> Vec<u8> { (0..=length).map(|n| n as u8).collect() };
        let lengths = [0, PIECE - 2, PIECE - 1, PIECE, 2 * PIECE, 100_000, 3_000_000];
        std::thread::scope(|scope| {
            scope.spawn(|| lengths.iter().for_each(|&n| ours.send_until(&message(n), None).unwrap()));
            for length in lengths {
                assert!(theirs.receive().unwrap() == Some(message(length)), "{length}");
            }
        });
    }

    #[test]
    fn a_message_that_is_never_read_times_out() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let error = ours.send_until(&vec![0; 10_000_000], Some(BootTime::now())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn the_last_message_arrives_from_a_process_that_left_others_unread() {
        let (ours, theirs) = Channel::pair().unwrap();
        assert_eq!(ours.try_receive().unwrap_err().kind(), ErrorKind::WouldBlock);
        theirs.send(b"last").unwrap();
        ours.send(b"unread").unwrap();
        drop(theirs);
        assert_eq!(ours.receive().unwrap(), Some(b"last".to_vec()));
        assert_eq!(ours.try_receive().unwrap(), None);
    }
}
