//! The proxy's thread: it moves the bytes of all its connections, and sleeps in `ppoll` until
//! something arrives or is due. Bytes get their delivery time when they arrive, so that a delay
//! costs no throughput.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Socket, Type};

use super::proxy::{Door, Settings, Shared, lock};

pub(super) const BACKLOG: i32 = 1024;

pub(super) struct Wire {
    listener: Socket,
    target: u16,
    /// Readable when the settings have changed.
    wake_end: UnixStream,
    shared: Arc<Shared>,
    connections: Vec<Connection>,
    door: Door,
    cuts: u64,
    /// Keep the backlog of a silent door full.
    fillers: Vec<Socket>,
}

struct Connection {
    number: u64,
    requests: Pipe,
    replies: Pipe,
}

/// One direction of a connection.
struct Pipe {
    from: TcpStream,
    to: TcpStream,
    under_way: VecDeque<(Instant, Vec<u8>)>,
    /// No byte counts as sent before this time.
    opened: Instant,
    /// Later bytes do not arrive earlier.
    last_due: Instant,
    /// `from` has reached its end.
    ended: bool,
    /// `to` has been shut down, or is gone.
    closed: bool,
    /// `to` accepts no more bytes for now.
    full: bool,
    dice: u64,
}

impl Wire {
    pub fn new(listener: Socket, target: u16, wake_end: UnixStream, shared: Arc<Shared>) -> Wire {
        let (door, connections, fillers) = (Door::Open, Vec::new(), Vec::new());
        Wire { listener, target, wake_end, shared, connections, door, cuts: 0, fillers }
    }

    pub fn run(mut self) {
        loop {
            let shared = Arc::clone(&self.shared);
            let settings = shared.apply(|settings| self.change_to(settings));
            if settings.closed {
                return;
            }
            let due = self.deliver(&settings);
            self.sleep(due);
            let _ = self.wake_end.read(&mut [0; 64]);
            self.collect(&settings);
            if self.door == Door::Open {
                self.accept(&settings);
            }
        }
    }

    fn change_to(&mut self, settings: &Settings) {
        if settings.cuts != self.cuts {
            self.cuts = settings.cuts;
            self.connections.clear();
        }
        if settings.door == self.door {
            return;
        }
        if self.door == Door::Silent {
            self.fillers.clear();
            while self.listener.accept().is_ok() {} // the fillers, and clients that give up now
        }
        match settings.door {
            Door::Open => self.listener.listen(BACKLOG).expect("listen again"),
            Door::Refusing => {
                self.connections.clear();
                // the port stays ours
                self.listener.shutdown(Shutdown::Read).expect("stop listening");
            }
            Door::Silent => {
                self.listener.listen(0).expect("a short backlog");
                self.fillers = (0..4).filter_map(|_| self.filler()).collect();
            }
        }
        self.door = settings.door;
    }

    fn filler(&self) -> Option<Socket> {
        let filler = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
        filler.set_nonblocking(true).ok()?;
        let _ = filler.connect(&self.listener.local_addr().ok()?); // never completes
        Some(filler)
    }

    /// Delivers everything that is due; returns when the next bytes are.
    fn deliver(&mut self, settings: &Settings) -> Option<Instant> {
        let (now, held) = (Instant::now(), settings.paused || self.door == Door::Silent);
        let counters = &self.shared.counters;
        let mut next: Option<Instant> = None;
        for Connection { number, requests, replies } in &mut self.connections {
            if !held && *number > settings.stranded && requests.deliver(now, Shutdown::Write) > 0 {
                *lock(&counters.last_delivery) = Some(Instant::now());
            }
            if !held {
                counters.replies.fetch_add(replies.deliver(now, Shutdown::Both), SeqCst);
            }
            let waiting = [(*number > settings.stranded).then_some(&*requests), Some(&*replies)];
            let dues = waiting.into_iter().flatten().filter_map(Pipe::next_due);
            next = next.into_iter().chain(dues.filter(|_| !held)).min();
        }
        self.connections.retain(|connection| !connection.requests.closed || !connection.replies.closed);
        next
    }

    /// Sleeps until something arrives, can be written or is due.
    fn sleep(&self, due: Option<Instant>) {
        let timeout = due.map(|due| TimeSpec::from(due.saturating_duration_since(Instant::now())));
        let mut fds = vec![PollFd::new(self.wake_end.as_fd(), PollFlags::POLLIN)];
        if self.door == Door::Open {
            fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        for pipe in self.connections.iter().flat_map(|c| [&c.requests, &c.replies]) {
            // A connection that has ended is left out: poll would report it in a loop.
            if !pipe.ended {
                fds.push(PollFd::new(pipe.from.as_fd(), PollFlags::POLLIN));
            }
            if pipe.full {
                fds.push(PollFd::new(pipe.to.as_fd(), PollFlags::POLLOUT));
            }
        }
        let _ = ppoll(&mut fds, timeout, None);
    }

    fn collect(&mut self, settings: &Settings) {
        for Connection { requests, replies, .. } in &mut self.connections {
            let reads = requests.collect(settings.to_server, settings.jitter, false);
            self.shared.counters.requests.fetch_add(reads, SeqCst);
            replies.collect(settings.to_client, settings.jitter, settings.drop_replies);
        }
    }

    fn accept(&mut self, settings: &Settings) {
        while let Ok((client, _)) = self.listener.accept() {
            let number = self.shared.counters.connections.fetch_add(1, SeqCst) + 1;
            let server = SocketAddr::from((Ipv4Addr::LOCALHOST, self.target));
            let Ok(server) = TcpStream::connect_timeout(&server, Duration::from_secs(1)) else { continue };
            let client = TcpStream::from(client);
            for socket in [&client, &server] {
                let _ = socket.set_nodelay(true);
                socket.set_nonblocking(true).expect("non-blocking");
            }
            let copy = |socket: &TcpStream| socket.try_clone().expect("a second handle");
            let round_trip = settings.to_server + settings.to_client;
            let opened = Instant::now() + if settings.handshake { round_trip } else { Duration::ZERO };
            let requests = Pipe::new(copy(&client), copy(&server), opened);
            let replies = Pipe::new(server, client, opened);
            self.connections.push(Connection { number, requests, replies });
        }
    }
}

impl Pipe {
    fn new(from: TcpStream, to: TcpStream, opened: Instant) -> Pipe {
        let dice = RandomState::new().hash_one(1) | 1;
        let (under_way, last_due) = (VecDeque::new(), opened);
        Pipe { from, to, under_way, opened, last_due, ended: false, closed: false, full: false, dice }
    }

    /// Reads what has arrived, including the end, and sets when it is due. Returns the number of
    /// reads.
    fn collect(&mut self, delay: Duration, jitter: Duration, lose: bool) -> u64 {
        let mut reads = 0;
        let mut buffer = [0; 65536];
        while !self.ended {
            let n = match self.from.read(&mut buffer) {
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return reads,
                Err(_) => 0,
            };
            self.ended = n == 0;
            if n > 0 {
                reads += 1;
            }
            if n > 0 && lose {
                continue;
            }
            let sent = Instant::now().max(self.opened);
            self.last_due = self.last_due.max(sent + delay + jitter.mul_f64(self.random()));
            self.under_way.push_back((self.last_due, buffer[..n].to_vec())); // empty at the end
        }
        reads
    }

    /// Writes what is due. Returns the number of writes.
    fn deliver(&mut self, now: Instant, at_the_end: Shutdown) -> u64 {
        let mut writes = 0;
        self.full = false;
        while let Some((due, bytes)) = self.under_way.front_mut() {
            if *due > now {
                break;
            }
            if bytes.is_empty() {
                let _ = self.to.shutdown(at_the_end);
                self.closed = true;
            } else if !self.closed {
                match self.to.write(bytes) {
                    Ok(n) if n < bytes.len() => drop(bytes.drain(..n)),
                    Ok(_) => bytes.clear(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.full = true;
                        break;
                    }
                    Err(_) => (self.closed, _) = (true, bytes.clear()),
                }
                writes += 1;
            }
            if bytes.is_empty() || self.closed {
                self.under_way.pop_front();
            }
        }
        writes
    }

    /// When there is something to do without anything to read.
    fn next_due(&self) -> Option<Instant> {
        self.under_way.front().filter(|_| !self.full).map(|(due, _)| *due)
    }

    /// Between 0 and 1 (xorshift).
    fn random(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as f64 / (1_u64 << 53) as f64
    }
}
