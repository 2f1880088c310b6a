//! A host's addresses, without waiting for them.
//!
//! The system's resolver blocks, for as long as it likes. So a thread asks it, and the answer is polled
//! for like everything else.

use std::io::{self, PipeReader, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use socket2::SockAddr;

/// A question under way.
#[derive(Debug)]
pub struct Resolution {
    bell: PipeReader,
    answer: Receiver<io::Result<Vec<SockAddr>>>,
}

impl Resolution {
    pub fn start(host: &str, port: u16) -> io::Result<Self> {
        let (bell, mut ring) = io::pipe()?;
        let (tell, answer) = sync_channel(1);
        let host = host.to_owned();
        thread::Builder::new().name("resolve".into()).spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            // Nobody listens any more only when the program is about to end.
            let _ = tell.send(found.map(|addresses| addresses.map(SockAddr::from).collect()));
            let _ = ring.write(&[1]);
        })?;
        Ok(Self { bell, answer })
    }

    /// Readable when the answer is there.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn answer(&self) -> Option<io::Result<Vec<SockAddr>>> {
        self.answer.try_recv().ok()
    }
}

/// The address itself, if the host is given as one.
pub fn literal(host: &str, port: u16) -> Option<SockAddr> {
    host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port).into())
}
