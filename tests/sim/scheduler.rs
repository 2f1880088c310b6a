//! The simulated world: one scheduler, virtual time, and clients that run one at a time.
//!
//! Each client process is a thread that runs the real code. It has the baton while it computes, and
//! hands it back when it sleeps; then the scheduler lets time pass until the next event. So nothing
//! depends on the machine: one seed decides what happens, and in which order.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::EventFd;
use socket2::SockAddr;

use crate::clock::BootTime;
use crate::dice::Dice;
use crate::network::{
    ClientId, ConnectionId, Delivered, Direction, Event, Network, Segment, ServerId, SocketState,
};
use crate::oracle::Oracle;
use crate::server::{Output, VirtualServer};
use crate::trace::Trace;
use crate::world::{World, enter};

/// When virtual time begins: the servers' clocks are large numbers, as real ones are.
pub const EPOCH_US: u64 = 1_800_000_000_000_000;
/// Every host has been up for a while.
const UPTIME_US: u64 = 10_000_000_000;

/// A clock beside true time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    pub offset_us: i64,
    /// How much faster it runs, in millionths.
    pub drift_ppm: i64,
}

impl Clock {
    /// What it shows `elapsed` us after the beginning.
    fn reads(self, start: u64, elapsed: u64) -> u64 {
        let drift = i128::from(elapsed) * i128::from(self.drift_ppm) / 1_000_000;
        let shown = i128::from(start) + i128::from(elapsed) + drift + i128::from(self.offset_us);
        u64::try_from(shown.max(0)).expect("a time that fits")
    }

    /// When it will show this, in us after the beginning.
    fn moment_of(self, start: u64, shown: u64) -> u64 {
        let elapsed = i128::from(shown) - i128::from(start) - i128::from(self.offset_us);
        let elapsed = elapsed * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm));
        let mut moment = u64::try_from(elapsed.max(0)).unwrap_or(u64::MAX);
        while self.reads(start, moment) < shown {
            moment += 1;
        }
        moment
    }
}

/// A client process.
struct Process {
    /// Of its host, as CLOCK_BOOTTIME.
    boot_clock: Clock,
    wall_clock: Clock,
    dice: Dice,
    sockets: BTreeMap<RawFd, ConnectionId>,
    /// What it sleeps for.
    asleep: Option<Sleep>,
    /// Stopped: it does not run, whatever happens.
    is_paused: bool,
    has_ended: bool,
    /// Told to end by a signal.
    is_cancelled: bool,
    resume: Sender<Resume>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug)]
struct Sleep {
    sockets: Vec<(ConnectionId, bool)>,
    until_us: u64,
    /// A descriptor of its own that tells of signals is among those that it watches.
    watches_signals: bool,
}

/// What the threads of clients and the scheduler share. Only one of them runs at a time.
pub struct Shared {
    pub now_us: u64,
    pub network: Network,
    processes: Vec<Process>,
    /// The addresses by which clients call the servers.
    pub addresses: BTreeMap<String, ServerId>,
    pub trace: Trace,
    pub oracle: Oracle,
}

pub type SharedRef = Arc<Mutex<Shared>>;

pub fn lock(shared: &SharedRef) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the thread of a client that is killed.
pub struct Killed;

/// A client's view of the world.
pub struct ClientWorld {
    id: ClientId,
    shared: SharedRef,
    yields: Sender<ClientId>,
    resume: Receiver<Resume>,
    /// Readable, in the simulation, when the process was told to end.
    signal_fd: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    GoOn,
    Die,
}

impl ClientWorld {
    pub fn signal_fd(&self) -> BorrowedFd<'_> {
        self.signal_fd.as_fd()
    }

    pub fn is_cancelled(&self) -> bool {
        lock(&self.shared).processes[self.id].is_cancelled
    }

    pub fn shared(&self) -> &SharedRef {
        &self.shared
    }

    pub fn id(&self) -> ClientId {
        self.id
    }

    /// When this client's clock shows that moment, in us after the beginning.
    pub fn true_moment(&self, moment: BootTime) -> u64 {
        let shared = lock(&self.shared);
        shared.processes[self.id].boot_clock.moment_of(UPTIME_US, moment.as_nanos() / 1000)
    }

    fn connection(&self, wire: BorrowedFd<'_>) -> Option<ConnectionId> {
        lock(&self.shared).processes[self.id].sockets.get(&wire.as_raw_fd()).copied()
    }

    fn hand_over(&self) {
        self.yields.send(self.id).expect("the scheduler waits");
        if self.resume.recv() != Ok(Resume::GoOn) {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

impl Shared {
    fn boot_us(&self, id: ClientId) -> u64 {
        self.processes[id].boot_clock.reads(UPTIME_US, self.now_us)
    }

    /// Whether a socket is ready: for reading, or for writing if that is wanted.
    fn is_ready(&self, id: ConnectionId, wants_write: bool) -> bool {
        let Some(connection) = self.network.connections.get(&id) else { return true };
        match connection.state {
            SocketState::Connecting => false,
            SocketState::Refused | SocketState::Reset | SocketState::Closed => true,
            SocketState::Open => wants_write || !connection.incoming.is_empty() || connection.has_ended,
        }
    }

    fn is_due(&self, id: ClientId) -> bool {
        let process = &self.processes[id];
        let Some(sleep) = process.asleep.as_ref().filter(|_| !process.is_paused && !process.has_ended) else {
            return false;
        };
        self.now_us >= sleep.until_us
            || (sleep.watches_signals && process.is_cancelled)
            || sleep.sockets.iter().any(|&(socket, wants_write)| self.is_ready(socket, wants_write))
    }
}

impl World for ClientWorld {
    fn boot_time(&self) -> Duration {
        Duration::from_micros(lock(&self.shared).boot_us(self.id))
    }

    fn wall_clock(&self) -> Duration {
        let shared = lock(&self.shared);
        Duration::from_micros(shared.processes[self.id].wall_clock.reads(EPOCH_US, shared.now_us))
    }

    fn random(&self) -> [u8; 16] {
        let mut shared = lock(&self.shared);
        let dice = &mut shared.processes[self.id].dice;
        let (a, b) = (dice.next().to_ne_bytes(), dice.next().to_ne_bytes());
        std::array::from_fn(|at| if at < 8 { a[at] } else { b[at - 8] })
    }

    fn sleep(&self, watched: &[PollFd<'_>], until: BootTime) -> Vec<bool> {
        let signal_fd = self.signal_fd.as_raw_fd();
        {
            let mut shared = lock(&self.shared);
            let process = &shared.processes[self.id];
            let until_us = process.boot_clock.moment_of(UPTIME_US, until.as_nanos().div_ceil(1000));
            let sockets = watched.iter().filter_map(|watched| {
                let socket = process.sockets.get(&watched.as_fd().as_raw_fd())?;
                Some((*socket, watched.events().contains(PollFlags::POLLOUT)))
            });
            let sockets = sockets.collect();
            let watches_signals = watched.iter().any(|fd| fd.as_fd().as_raw_fd() == signal_fd);
            shared.processes[self.id].asleep = Some(Sleep { sockets, until_us, watches_signals });
        }
        self.hand_over();
        let mut shared = lock(&self.shared);
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
        let mut shared = lock(&self.shared);
        let server = shared.addresses[&address];
        let now = shared.now_us;
        let socket = shared.network.connect(self.id, server, now);
        shared.processes[self.id].sockets.insert(fd.as_raw_fd(), socket);
        Ok(fd)
    }

    fn is_connected(&self, wire: BorrowedFd<'_>) -> io::Result<bool> {
        let socket = self.connection(wire).expect("a socket of ours");
        match lock(&self.shared).network.connections[&socket].state {
            SocketState::Connecting => Ok(false),
            SocketState::Open => Ok(true),
            SocketState::Refused => Err(ErrorKind::ConnectionRefused.into()),
            SocketState::Reset | SocketState::Closed => Err(ErrorKind::ConnectionReset.into()),
        }
    }

    fn read(&self, wire: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
        let socket = self.connection(wire).expect("a socket of ours");
        let mut shared = lock(&self.shared);
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
        let mut shared = lock(&self.shared);
        if shared.network.connections[&socket].state != SocketState::Open {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let now = shared.now_us;
        shared.network.send(socket, Direction::ToServer, Segment::Data(bytes.to_vec()), now);
        Ok(bytes.len())
    }

    fn close(&self, wire: BorrowedFd<'_>) {
        let mut shared = lock(&self.shared);
        let now = shared.now_us;
        // The kernel has closed the sockets of a process that was killed.
        if let Some(socket) = shared.processes[self.id].sockets.remove(&wire.as_raw_fd()) {
            shared.network.close_by_client(socket, now);
        }
    }
}

/// A server and its host.
pub struct Host {
    pub server: VirtualServer,
    pub clock: Clock,
    /// Stopped: connections and data wait.
    pub is_paused: bool,
    waiting: Vec<Delivered>,
}

impl Host {
    /// What the server's clock shows this long after the beginning.
    pub fn now(&self, elapsed: u64) -> u64 {
        self.clock.reads(EPOCH_US, elapsed)
    }
}

/// Something that happens at a moment, and is not the network's.
pub trait Plan {
    /// Called at the moments that it asked for.
    fn happen(&mut self, simulation: &mut Simulation);
    /// When it wants to be called next.
    fn next_moment(&self) -> Option<u64>;
}

pub struct Simulation {
    pub shared: SharedRef,
    pub hosts: Vec<Host>,
    pub dice: Dice,
    events: BTreeMap<(u64, u64), Event>,
    event_count: u64,
    yields: (Sender<ClientId>, Receiver<ClientId>),
}

impl Simulation {
    pub fn new(seed: u64, hosts: Vec<VirtualServer>) -> Self {
        let shared = Shared {
            now_us: 0,
            network: Network::new(Dice::new(seed, 1)),
            processes: Vec::new(),
            addresses: BTreeMap::new(),
            trace: Trace::default(),
            oracle: Oracle::default(),
        };
        let host = |server| Host { server, clock: Clock::default(), is_paused: false, waiting: Vec::new() };
        Self {
            shared: Arc::new(Mutex::new(shared)),
            hosts: hosts.into_iter().map(host).collect(),
            dice: Dice::new(seed, 2),
            events: BTreeMap::new(),
            event_count: 0,
            yields: channel(),
        }
    }

    pub fn now(&self) -> u64 {
        lock(&self.shared).now_us
    }

    /// A new process runs this. It starts at once.
    pub fn start(
        &mut self,
        boot_clock: Clock,
        wall_clock: Clock,
        run: impl FnOnce(&Rc<ClientWorld>) + Send + 'static,
    ) -> ClientId {
        let (resume, resumed) = channel();
        let mut shared = lock(&self.shared);
        let id = shared.processes.len();
        let (handle, yields) = (Arc::clone(&self.shared), self.yields.0.clone());
        let thread = std::thread::Builder::new().stack_size(512 * 1024).spawn(move || {
            if resumed.recv() != Ok(Resume::GoOn) {
                return;
            }
            let signal_fd = OwnedFd::from(EventFd::new().expect("a descriptor"));
            let world = Rc::new(ClientWorld { id, shared: handle, yields, resume: resumed, signal_fd });
            let entered = enter(Rc::clone(&world) as Rc<dyn World>);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&world)));
            drop(entered);
            let mut shared = lock(&world.shared);
            shared.end_process(id);
            if let Err(panic) = ended
                && !panic.is::<Killed>()
            {
                let text = panic.downcast_ref::<String>().cloned();
                shared.oracle.violation(format!("client {id} panicked: {}", text.unwrap_or_default()));
            }
            drop(shared);
            let _ = world.yields.send(id);
        });
        let dice_seed = self.dice.next();
        shared.processes.push(Process {
            boot_clock,
            wall_clock,
            dice: Dice::new(dice_seed, 3),
            sockets: BTreeMap::new(),
            asleep: Some(Sleep { sockets: Vec::new(), until_us: 0, watches_signals: false }),
            is_paused: false,
            has_ended: false,
            is_cancelled: false,
            resume,
            thread: Some(thread.expect("a thread")),
        });
        id
    }

    /// Processes that have not ended.
    pub fn living(&self) -> Vec<ClientId> {
        let shared = lock(&self.shared);
        (0..shared.processes.len()).filter(|&id| !shared.processes[id].has_ended).collect()
    }

    pub fn pause_process(&mut self, id: ClientId, is_paused: bool) {
        lock(&self.shared).processes[id].is_paused = is_paused;
    }

    pub fn cancel(&mut self, id: ClientId) {
        lock(&self.shared).processes[id].is_cancelled = true;
    }

    /// SIGKILL: its sockets are closed by the kernel, and nothing of it runs again.
    pub fn kill(&mut self, id: ClientId) {
        let mut shared = lock(&self.shared);
        if shared.processes[id].has_ended {
            return;
        }
        shared.end_process(id);
        let _ = shared.processes[id].resume.send(Resume::Die);
        let thread = shared.processes[id].thread.take();
        drop(shared);
        // The thread unwinds, which changes nothing in the world.
        if let Some(thread) = thread {
            let _ = self.yields.1.recv();
            let _ = thread.join();
        }
    }

    /// Let things happen until this moment, or until nothing is left to happen.
    pub fn run_until(&mut self, end: u64, plan: &mut dyn Plan) {
        loop {
            self.run_clients();
            let next = [
                self.events.keys().next().map(|(at, _)| *at),
                self.next_server_moment(),
                plan.next_moment(),
                lock(&self.shared).next_wake_up(),
            ];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else {
                let mut shared = lock(&self.shared);
                shared.now_us = shared.now_us.max(end);
                return;
            };
            {
                let mut shared = lock(&self.shared);
                shared.now_us = shared.now_us.max(next);
            }
            self.happen_now(plan);
        }
    }

    fn happen_now(&mut self, plan: &mut dyn Plan) {
        let now = self.now();
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            let event = entry.remove();
            let delivered = lock(&self.shared).network.happen(event, now);
            self.deliver(delivered);
            self.collect_events();
        }
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            let shown = host.now(now);
            if !host.is_paused && host.server.next_moment().is_some_and(|moment| moment <= shown) {
                let outputs = host.server.tick(shown);
                self.send_outputs(at, outputs);
            }
        }
        if plan.next_moment().is_some_and(|moment| moment <= now) {
            plan.happen(self);
        }
        self.collect_events();
    }

    fn next_server_moment(&self) -> Option<u64> {
        let moment = |host: &Host| {
            let shown = host.server.next_moment().filter(|_| !host.is_paused)?;
            Some(host.clock.moment_of(EPOCH_US, shown))
        };
        self.hosts.iter().filter_map(moment).min()
    }

    fn deliver(&mut self, delivered: Delivered) {
        let server = match &delivered {
            Delivered::Nothing | Delivered::ForClient(_) => return,
            Delivered::Opened(server, _) | Delivered::Data(server, ..) | Delivered::Closed(server, ..) => {
                *server
            }
        };
        let now = self.now();
        let host = &mut self.hosts[server];
        if host.is_paused {
            host.waiting.push(delivered);
            return;
        }
        let shown = host.now(now);
        match delivered {
            Delivered::Opened(_, id) => host.server.open(id, shown),
            Delivered::Closed(_, id, _) => host.server.close(id),
            Delivered::Data(_, id, bytes) => {
                let outputs = host.server.receive(id, &bytes, shown);
                lock(&self.shared).trace.received(now, server, id, &bytes);
                self.send_outputs(server, outputs);
            }
            Delivered::Nothing | Delivered::ForClient(_) => {}
        }
    }

    fn send_outputs(&mut self, server: ServerId, outputs: Vec<Output>) {
        let mut shared = lock(&self.shared);
        let now = shared.now_us;
        for output in outputs {
            match output {
                Output::Send(id, bytes) => {
                    shared.trace.replied(now, server, id, &bytes);
                    shared.network.send(id, Direction::ToClient, Segment::Data(bytes), now);
                }
                Output::Close(id) => shared.network.close_by_server(id, false, now),
            }
        }
    }

    /// A paused server reads what has arrived meanwhile. A reset drops what was not read before it.
    pub fn continue_server(&mut self, server: ServerId) {
        self.hosts[server].is_paused = false;
        let waiting = std::mem::take(&mut self.hosts[server].waiting);
        let reset: Vec<ConnectionId> = waiting
            .iter()
            .filter_map(|delivered| match delivered {
                Delivered::Closed(_, id, true) => Some(*id),
                _ => None,
            })
            .collect();
        for delivered in waiting {
            let is_lost = matches!(&delivered, Delivered::Data(_, id, _) if reset.contains(id));
            if !is_lost {
                self.deliver(delivered);
            }
        }
        self.collect_events();
    }

    /// As CLIENT KILL, or a proxy with an idle limit.
    pub fn close_connections(&mut self, server: ServerId) {
        let now = self.now();
        for id in self.hosts[server].server.stop() {
            lock(&self.shared).network.close_by_server(id, false, now);
        }
        self.collect_events();
    }

    /// The server's process ends and starts again, with its data or without.
    pub fn restart_server(&mut self, server: ServerId, new_id: u64, forgets: bool) {
        self.hosts[server].is_paused = false;
        self.hosts[server].waiting.clear();
        self.close_connections(server);
        self.hosts[server].server.forget_scripts();
        let mut data = self.hosts[server].server.data();
        let hex = format!("{new_id:016x}").repeat(3)[..40].to_owned();
        data.identity.run_id.clone_from(&hex);
        data.identity.replication_id = hex.chars().rev().collect();
        if forgets {
            data.databases.clear();
        }
        drop(data);
        self.collect_events();
    }

    /// Every client whose time has come runs until it sleeps again. In which order, the dice say.
    fn run_clients(&mut self) {
        loop {
            let due = lock(&self.shared).due();
            if due.is_empty() {
                return;
            }
            let id = due[usize::try_from(self.dice.next() % due.len() as u64).expect("small")];
            let resume = lock(&self.shared).processes[id].resume.clone();
            if resume.send(Resume::GoOn).is_ok() {
                let back = self.yields.1.recv().expect("the client yields");
                assert_eq!(back, id, "only one client runs at a time");
            }
            self.collect_events();
        }
    }

    fn collect_events(&mut self) {
        let scheduled = std::mem::take(&mut lock(&self.shared).network.scheduled);
        for (at, event) in scheduled {
            self.event_count += 1;
            self.events.insert((at, self.event_count), event);
        }
    }
}

impl Shared {
    fn due(&self) -> Vec<ClientId> {
        (0..self.processes.len()).filter(|&id| self.is_due(id)).collect()
    }

    fn next_wake_up(&self) -> Option<u64> {
        let wake_up = |process: &Process| {
            let sleep = process.asleep.as_ref()?;
            (!process.is_paused && !process.has_ended).then_some(sleep.until_us)
        };
        self.processes.iter().filter_map(wake_up).min()
    }

    fn end_process(&mut self, id: ClientId) {
        let now = self.now_us;
        let process = &mut self.processes[id];
        process.has_ended = true;
        process.asleep = None;
        for socket in std::mem::take(&mut process.sockets).into_values() {
            self.network.close_by_client(socket, now);
        }
        self.oracle.ended(id, now);
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        for id in self.living() {
            self.kill(id);
        }
        let mut shared = lock(&self.shared);
        let threads: Vec<_> =
            shared.processes.iter_mut().filter_map(|process| process.thread.take()).collect();
        drop(shared);
        for thread in threads {
            let _ = thread.join();
        }
    }
}
