//! The simulated world: one scheduler, virtual time, and clients that run one at a time.
//!
//! Each client process is a coroutine that runs the real code until it sleeps; then the scheduler
//! lets time pass until the next event. So nothing depends on the machine: one seed decides what
//! happens, and in which order.

mod client_world;
mod servers;

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

pub use client_world::ClientWorld;
pub use servers::Host;

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
