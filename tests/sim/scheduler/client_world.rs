//! A client's view of the world.

use super::*;

/// A client's view of the world.
pub struct ClientWorld {
    pub(super) id: ProcessId,
    pub(super) site: SiteId,
    pub(super) shared: SharedRef,
    pub(super) yielder: Cell<*const Yielder<Resume, ()>>,
    /// Readable, in the simulation, when the process has received a signal.
    pub(super) signal_fd: OwnedFd,
}

impl ClientWorld {
    pub fn signal_fd(&self) -> BorrowedFd<'_> {
        self.signal_fd.as_fd()
    }

    pub fn is_cancelled(&self) -> bool {
        self.shared.borrow().processes[self.id].is_cancelled
    }

    pub fn shared(&self) -> &SharedRef {
        &self.shared
    }

    pub fn site(&self) -> SiteId {
        self.site
    }

    /// When this client's clock shows that moment, in us after the beginning.
    pub fn true_moment(&self, moment: BootTime) -> u64 {
        let shared = self.shared.borrow();
        shared.sites[self.site].boot_clock.moment_of(UPTIME_US, moment.as_nanos() / 1000)
    }

    pub fn note(&self, text: impl FnOnce() -> String) {
        let mut shared = self.shared.borrow_mut();
        let now = shared.now_us;
        shared.trace.note(now, || format!("client {}: {}", self.id, text()));
    }

    fn connection(&self, wire: BorrowedFd<'_>) -> Option<ConnectionId> {
        self.shared.borrow().processes[self.id].sockets.get(&wire.as_raw_fd()).copied()
    }

    fn hand_over(&self) {
        // SAFETY: the coroutine sets the pointer when it begins, its yielder lives until it ends,
        // and this is called only on its own stack.
        let resume = unsafe { &*self.yielder.get() }.suspend(());
        if resume == Resume::Die {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

impl World for ClientWorld {
    fn boot_time(&self) -> Duration {
        Duration::from_micros(self.shared.borrow_mut().boot_us(self.id))
    }

    fn wall_clock(&self) -> Duration {
        let shared = self.shared.borrow_mut();
        Duration::from_micros(shared.site_of(self.id).wall_clock.reads(EPOCH_US, shared.now_us))
    }

    fn random(&self) -> [u8; 16] {
        let mut shared = self.shared.borrow_mut();
        let dice = &mut shared.processes[self.id].dice;
        let (a, b) = (dice.next().to_ne_bytes(), dice.next().to_ne_bytes());
        std::array::from_fn(|at| if at < 8 { a[at] } else { b[at - 8] })
    }

    fn sleep(&self, watched: &[PollFd<'_>], until: BootTime) -> Vec<bool> {
        let signal_fd = self.signal_fd.as_raw_fd();
        {
            let mut shared = self.shared.borrow_mut();
            let process = &shared.processes[self.id];
            let boot_clock = shared.sites[process.site].boot_clock;
            let until_us = boot_clock.moment_of(UPTIME_US, until.as_nanos().div_ceil(1000));
            let sockets = watched.iter().filter_map(|watched| {
                let socket = process.sockets.get(&watched.as_fd().as_raw_fd())?;
                Some((*socket, watched.events().contains(PollFlags::POLLOUT)))
            });
            let sockets = sockets.collect();
            let watches_signals = watched.iter().any(|fd| fd.as_fd().as_raw_fd() == signal_fd);
            shared.processes[self.id].asleep = Some(Sleep { sockets, until_us, watches_signals });
        }
        self.hand_over();
        let mut shared = self.shared.borrow_mut();
        shared.processes[self.id].asleep = None;
        let process = &shared.processes[self.id];
        let ready = |fd: RawFd, flags: PollFlags| match process.sockets.get(&fd) {
            Some(socket) => shared.is_ready(*socket, flags.contains(PollFlags::POLLOUT)),
            None => fd == signal_fd && process.is_cancelled,
        };
        watched.iter().map(|fd| ready(fd.as_fd().as_raw_fd(), fd.events())).collect()
    }

    fn resolve(&self, host: &str, _port: u16) -> io::Result<OwnedFd> {
        panic!("{host}: servers have addresses here")
    }

    fn resolved(&self, _: BorrowedFd<'_>) -> Option<io::Result<Vec<SockAddr>>> {
        None
    }

    fn connect(&self, address: &SockAddr) -> io::Result<OwnedFd> {
        let fd = OwnedFd::from(EventFd::new()?);
        let address = address.as_socket().expect("an internet address").to_string();
        let mut shared = self.shared.borrow_mut();
        let server = shared.addresses[&address];
        let now = shared.now_us;
        let socket = shared.network.connect(self.site, server, now);
        shared.processes[self.id].sockets.insert(fd.as_raw_fd(), socket);
        Ok(fd)
    }

    fn is_connected(&self, wire: BorrowedFd<'_>) -> io::Result<bool> {
        let socket = self.connection(wire).expect("a socket of ours");
        match self.shared.borrow_mut().network.connections[&socket].state {
            SocketState::Connecting => Ok(false),
            SocketState::Open => Ok(true),
            SocketState::Refused => Err(ErrorKind::ConnectionRefused.into()),
            SocketState::Reset | SocketState::Closed => Err(ErrorKind::ConnectionReset.into()),
        }
    }

    fn read(&self, wire: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
        let socket = self.connection(wire).expect("a socket of ours");
        let mut shared = self.shared.borrow_mut();
        let connection = shared.network.connections.get_mut(&socket).expect("a known connection");
        if connection.state == SocketState::Reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let length = connection.incoming.len().min(bytes.len());
        for (to, from) in bytes.iter_mut().zip(connection.incoming.drain(..length)) {
            *to = from;
        }
        match (length, connection.has_ended) {
            (0, false) => Err(ErrorKind::WouldBlock.into()),
            (length, _) => Ok(length),
        }
    }

    fn write(&self, wire: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.connection(wire).expect("a socket of ours");
        let mut shared = self.shared.borrow_mut();
        if shared.network.connections[&socket].state != SocketState::Open {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let now = shared.now_us;
        shared.network.send(socket, Direction::ToServer, Segment::Data(bytes.to_vec()), now);
        Ok(bytes.len())
    }

    fn abort(&self, wire: BorrowedFd<'_>) {
        if let Some(socket) = self.connection(wire) {
            self.shared.borrow_mut().network.abort_by_client(socket);
        }
    }

    fn close(&self, wire: BorrowedFd<'_>) {
        let mut shared = self.shared.borrow_mut();
        let now = shared.now_us;
        // The kernel has closed the sockets of a process that was killed.
        let socket = shared.processes[self.id].sockets.remove(&wire.as_raw_fd());
        if let Some(socket) = socket {
            shared.network.close_by_client(socket, now);
        }
    }
}
