//! The simulated world: one scheduler, virtual time, and clients that run one at a time.
//!
//! Each client process is a coroutine that runs the real code until it sleeps; then the scheduler
//! lets time pass until the next event. So nothing depends on the machine: one seed decides what
//! happens, and in which order.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::EventFd;
use socket2::SockAddr;

use crate::client::Record;
use crate::clock::BootTime;
use crate::dice::Dice;
use crate::network::{
    ConnectionId, Delivered, Direction, Event, Network, ProcessId, Segment, ServerId, SiteId, SocketState,
};
use crate::oracle::Oracle;
use crate::server::{Output, VirtualServer};
use crate::trace::Trace;
use crate::world::{World, enter};

/// When virtual time begins: the servers' clocks are large numbers, as real ones are.
pub const EPOCH_US: u64 = 1_800_000_000_000_000;
/// Every host has been up for a while.
const UPTIME_US: u64 = 10_000_000_000;
const STACK_SIZE: usize = 256 * 1024;

/// A clock beside true time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    pub offset_us: i64,
    /// How much faster it runs, in millionths.
    pub drift_ppm: i64,
}

impl Clock {
    /// The reading `elapsed` us after the beginning.
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
        while moment < u64::MAX && self.reads(start, moment) < shown {
            moment += 1;
        }
        moment
    }
}

/// A host of clients: its clocks, and in the network its lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Site {
    /// CLOCK_BOOTTIME.
    pub boot_clock: Clock,
    pub wall_clock: Clock,
}

/// A client process.
struct Process {
    site: SiteId,
    dice: Dice,
    sockets: BTreeMap<RawFd, ConnectionId>,
    /// What it sleeps for.
    asleep: Option<Sleep>,
    /// Stopped: it does not run, whatever happens.
    is_paused: bool,
    /// It has received SIGTERM.
    is_cancelled: bool,
}

#[derive(Clone, Debug, Default)]
struct Sleep {
    sockets: Vec<(ConnectionId, bool)>,
    until_us: u64,
    /// The descriptor that becomes readable with a signal is among those that it watches.
    watches_signals: bool,
}

/// What the clients and the scheduler share.
pub struct Shared {
    pub now_us: u64,
    pub network: Network,
    processes: Vec<Process>,
    pub sites: Vec<Site>,
    living: BTreeSet<ProcessId>,
    /// The addresses by which clients call the servers.
    pub addresses: BTreeMap<String, ServerId>,
    pub trace: Trace,
    pub oracle: Oracle,
    /// What is known of the actors, by number.
    pub records: BTreeMap<u64, Record>,
    /// The hosts of the actors.
    pub actors: BTreeMap<u64, SiteId>,
}

pub type SharedRef = Rc<RefCell<Shared>>;

/// Unwinds the stack of a client that is killed.
struct Killed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    GoOn,
    Die,
}

/// A client's view of the world.
pub struct ClientWorld {
    id: ProcessId,
    site: SiteId,
    shared: SharedRef,
    yielder: Cell<*const Yielder<Resume, ()>>,
    /// Readable, in the simulation, when the process has received a signal.
    signal_fd: OwnedFd,
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

impl Shared {
    fn site_of(&self, id: ProcessId) -> &Site {
        &self.sites[self.processes[id].site]
    }

    fn boot_us(&self, id: ProcessId) -> u64 {
        self.site_of(id).boot_clock.reads(UPTIME_US, self.now_us)
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

    fn is_due(&self, id: ProcessId) -> bool {
        let process = &self.processes[id];
        let Some(sleep) = process.asleep.as_ref().filter(|_| !process.is_paused) else { return false };
        self.now_us >= sleep.until_us
            || (sleep.watches_signals && process.is_cancelled)
            || sleep.sockets.iter().any(|&(socket, wants_write)| self.is_ready(socket, wants_write))
    }

    fn due(&self) -> Vec<ProcessId> {
        self.living.iter().copied().filter(|&id| self.is_due(id)).collect()
    }

    fn next_wake_up(&self) -> Option<u64> {
        let processes = self.living.iter().map(|&id| &self.processes[id]);
        let awake = processes.filter(|process| !process.is_paused);
        awake.filter_map(|process| process.asleep.as_ref().map(|sleep| sleep.until_us)).min()
    }

    fn end_process(&mut self, id: ProcessId) {
        let now = self.now_us;
        self.living.remove(&id);
        let process = &mut self.processes[id];
        process.asleep = None;
        for socket in std::mem::take(&mut process.sockets).into_values() {
            self.network.close_by_client(socket, now);
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

/// A server and its host.
pub struct Host {
    pub server: VirtualServer,
    pub clock: Clock,
    /// Stopped: connections and data wait.
    pub is_paused: bool,
    waiting: Vec<Delivered>,
}

impl Host {
    /// The reading of the server's clock this long after the beginning.
    pub fn now(&self, elapsed: u64) -> u64 {
        self.clock.reads(EPOCH_US, elapsed)
    }
}

/// Events that are not the network's.
pub trait Plan {
    /// Called at the moments that it asked for.
    fn happen(&mut self, simulation: &mut Simulation);
    /// When it wants to be called next.
    fn next_moment(&self) -> Option<u64>;
}

type Task = Coroutine<Resume, (), (), DefaultStack>;

pub struct Simulation {
    pub shared: SharedRef,
    pub hosts: Vec<Host>,
    seed: u64,
    dice: Dice,
    events: BTreeMap<(u64, u64), Event>,
    event_count: u64,
    tasks: BTreeMap<ProcessId, (Task, Rc<ClientWorld>)>,
    /// Stacks of processes that have ended, for the next ones.
    stacks: Vec<DefaultStack>,
}

impl Simulation {
    pub fn new(seed: u64, hosts: Vec<(VirtualServer, Clock)>) -> Self {
        let shared = Shared {
            now_us: 0,
            network: Network::new(seed),
            processes: Vec::new(),
            sites: Vec::new(),
            living: BTreeSet::new(),
            addresses: BTreeMap::new(),
            trace: Trace::default(),
            oracle: Oracle::default(),
            records: BTreeMap::new(),
            actors: BTreeMap::new(),
        };
        let host = |(server, clock)| Host { server, clock, is_paused: false, waiting: Vec::new() };
        Self {
            shared: Rc::new(RefCell::new(shared)),
            hosts: hosts.into_iter().map(host).collect(),
            seed,
            dice: Dice::new(seed, 2),
            events: BTreeMap::new(),
            event_count: 0,
            tasks: BTreeMap::new(),
            stacks: Vec::new(),
        }
    }

    pub fn now(&self) -> u64 {
        self.shared.borrow().now_us
    }

    pub fn note(&self, text: impl FnOnce() -> String) {
        let mut shared = self.shared.borrow_mut();
        let now = shared.now_us;
        shared.trace.note(now, text);
    }

    pub fn add_site(&mut self, site: Site) -> SiteId {
        self.shared.borrow_mut().sites.push(site);
        self.shared.borrow().sites.len() - 1
    }

    /// A new process on this host runs this. It starts at once. `number` decides its random numbers.
    pub fn start(
        &mut self,
        site: SiteId,
        number: u64,
        run: impl FnOnce(&Rc<ClientWorld>) + 'static,
    ) -> ProcessId {
        let mut shared = self.shared.borrow_mut();
        let id = shared.processes.len();
        shared.living.insert(id);
        shared.processes.push(Process {
            site,
            dice: Dice::new(self.seed, 1_000_000 + number),
            sockets: BTreeMap::new(),
            asleep: Some(Sleep::default()),
            is_paused: false,
            is_cancelled: false,
        });
        let world = Rc::new(ClientWorld {
            id,
            site,
            shared: Rc::clone(&self.shared),
            yielder: Cell::new(std::ptr::null()),
            signal_fd: OwnedFd::from(EventFd::new().expect("a descriptor")),
        });
        let stack = self.stacks.pop();
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK_SIZE).expect("memory for a stack"));
        let inner = Rc::clone(&world);
        let task = Coroutine::with_stack(stack, move |yielder: &Yielder<Resume, ()>, resume| {
            inner.yielder.set(yielder);
            if resume == Resume::Die {
                return;
            }
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&inner)));
            if let Err(panic) = ended
                && !panic.is::<Killed>()
            {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let mut shared = inner.shared.borrow_mut();
                shared.oracle.violation("panic", format!("client {id}: {}", text.unwrap_or_default()));
            }
        });
        self.tasks.insert(id, (task, world));
        id
    }

    /// Processes that have not ended.
    pub fn living(&self) -> Vec<ProcessId> {
        self.shared.borrow().living.iter().copied().collect()
    }

    pub fn is_living(&self, id: ProcessId) -> bool {
        self.shared.borrow().living.contains(&id)
    }

    pub fn pause_process(&mut self, id: ProcessId, is_paused: bool) {
        self.shared.borrow_mut().processes[id].is_paused = is_paused;
    }

    pub fn is_paused(&self, id: ProcessId) -> bool {
        self.shared.borrow().processes[id].is_paused
    }

    pub fn cancel(&mut self, id: ProcessId) {
        self.shared.borrow_mut().processes[id].is_cancelled = true;
    }

    /// SIGKILL: its sockets are closed by the kernel, and nothing of it runs again.
    pub fn kill(&mut self, id: ProcessId) {
        if self.is_living(id) {
            self.shared.borrow_mut().end_process(id);
            // The stack unwinds, which changes nothing in the world.
            self.resume(id, Resume::Die);
            self.collect_events();
        }
    }

    /// Lets the process run until it sleeps or ends.
    fn resume(&mut self, id: ProcessId, how: Resume) {
        let (task, world) = self.tasks.get_mut(&id).expect("a process that has not ended");
        let entered = enter(Rc::clone(world) as Rc<dyn World>);
        let result = task.resume(how);
        drop(entered);
        if matches!(result, CoroutineResult::Return(())) {
            let (task, _) = self.tasks.remove(&id).expect("it was there");
            self.stacks.push(task.into_stack());
            if self.is_living(id) {
                self.shared.borrow_mut().end_process(id);
            }
        }
    }

    /// Lets things happen until this moment, or until nothing is left to happen.
    pub fn run_until(&mut self, end: u64, plan: &mut dyn Plan) {
        loop {
            self.run_clients();
            let next = [
                self.events.keys().next().map(|(at, _)| *at),
                self.next_server_moment(),
                plan.next_moment(),
                self.shared.borrow().next_wake_up(),
            ];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else { return };
            {
                let mut shared = self.shared.borrow_mut();
                shared.now_us = shared.now_us.max(next);
                shared.oracle.now_us = shared.now_us;
            }
            self.happen_now(plan);
        }
    }

    fn happen_now(&mut self, plan: &mut dyn Plan) {
        let now = self.now();
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            let event = entry.remove();
            let delivered = self.shared.borrow_mut().network.happen(event, now);
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
            Delivered::Nothing => return,
            Delivered::Opened(server, _) | Delivered::Data(server, ..) | Delivered::Closed(server, ..) => {
                *server
            }
        };
        let now = self.now();
        if let Delivered::Opened(_, id) | Delivered::Closed(_, id, _) = delivered {
            let shared = &mut *self.shared.borrow_mut();
            let site = shared.network.site_of(id).unwrap_or_default();
            let what = if matches!(delivered, Delivered::Opened(..)) { "opens" } else { "closes" };
            shared.trace.note(now, || format!("server {server} <- host {site}: {what} connection {id}"));
        }
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
                self.send_outputs(server, outputs);
            }
            Delivered::Nothing => {}
        }
    }

    fn send_outputs(&mut self, server: ServerId, outputs: Vec<Output>) {
        let executed = std::mem::take(&mut self.hosts[server].server.executed);
        let mut shared = self.shared.borrow_mut();
        let Shared { trace, oracle, network, now_us: now, .. } = &mut *shared;
        for call in executed {
            let site = network.site_of(call.connection);
            trace.executed(*now, server, site, &call);
            oracle.executed(server, site, &call);
        }
        for output in outputs {
            match output {
                Output::Send(id, bytes) => network.send(id, Direction::ToClient, Segment::Data(bytes), *now),
                Output::Close(id) => {
                    trace.note(*now, || format!("server {server} closes connection {id}"));
                    network.close_by_server(id, false, *now);
                }
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
            self.shared.borrow_mut().network.close_by_server(id, false, now);
        }
        self.collect_events();
    }

    /// The server's process ends.
    pub fn stop_server(&mut self, server: ServerId) {
        self.hosts[server].is_paused = false;
        self.hosts[server].waiting.clear();
        self.close_connections(server);
        self.hosts[server].server.forget_scripts();
        self.shared.borrow_mut().network.is_down.insert(server, true);
    }

    pub fn start_server(&mut self, server: ServerId) {
        self.shared.borrow_mut().network.is_down.insert(server, false);
    }

    /// Every client whose time has come runs until it sleeps again. The dice decide the order.
    fn run_clients(&mut self) {
        loop {
            let due = self.shared.borrow().due();
            if due.is_empty() {
                return;
            }
            let id = due[usize::try_from(self.dice.next() % due.len() as u64).expect("small")];
            self.resume(id, Resume::GoOn);
            self.collect_events();
        }
    }

    fn collect_events(&mut self) {
        let scheduled = std::mem::take(&mut self.shared.borrow_mut().network.scheduled);
        for (at, event) in scheduled {
            self.event_count += 1;
            self.events.insert((at, self.event_count), event);
        }
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        for id in self.living() {
            self.kill(id);
        }
    }
}
