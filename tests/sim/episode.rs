//! One episode: a seed decides the servers, the clients, their settings and every fault.
//!
//! First the servers' quarantine passes; then clients come and go while faults happen; then nothing
//! more happens, and every client must come to its end.

use std::time::Duration;

use crate::client::Run;
use crate::dice::Dice;
use crate::lock::WaitPolicy;
use crate::network::{ClientId, Direction, ServerId};
use crate::scheduler::{Clock, Host, Plan, Simulation, lock};
use crate::server::VirtualServer;
use crate::server::data::Identity;

/// No fault before this moment: new servers are quarantined.
const FIRST_FAULT_US: u64 = 35_000_000;
/// No run starts, and no fault happens, after this moment.
const LAST_START_US: u64 = 100_000_000;
/// By then every run must have ended.
const END_US: u64 = 300_000_000;
/// Between two starts of runs, and between two faults, at least and at most.
const BETWEEN_RUNS_US: (u64, u64) = (1_000, 150_000);
const BETWEEN_FAULTS_US: (u64, u64) = (50_000, 3_000_000);
const MOST_CLIENTS: usize = 8;

/// What an episode was like.
#[derive(Debug)]
pub struct Report {
    pub grants: u64,
    pub faults: u64,
    pub simulated_us: u64,
    pub violations: Vec<String>,
    pub trace_hash: u64,
    pub trace: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub servers: usize,
    pub is_traced: bool,
}

fn identity(dice: &mut Dice) -> Identity {
    let mut hex = || format!("{:016x}{:016x}{:08x}", dice.next(), dice.next(), dice.next() as u32);
    Identity { run_id: hex(), replication_id: hex(), is_replica: false }
}

/// Starts clients and faults, and ends the faults.
struct Driver {
    dice: Dice,
    servers: Vec<String>,
    next_run: u64,
    next_fault: Option<u64>,
    repairs: Vec<(u64, Repair)>,
    faults: u64,
}

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
enum Repair {
    Line(ClientId, ServerId, Direction),
    Start(ServerId),
    Continue(ServerId),
    ContinueProcess(ClientId),
}

impl Driver {
    fn random_run(&mut self) -> Run {
        let dice = &mut self.dice;
        let ttl = Duration::from_millis(dice.one_of(&[3000, 5000, 10_000, 30_000]));
        let several = self.servers.len() > 1;
        let wait = match dice.between(0, 9) {
            0 => WaitPolicy::No,
            1 => WaitPolicy::Queue { at_most: Some(Duration::from_millis(dice.between(100, 20_000))) },
            2 => WaitPolicy::Retry { count: 3, interval: Duration::from_millis(500), at_most: None },
            _ => WaitPolicy::Queue { at_most: None },
        };
        let node_timeout = if several {
            (ttl / 20).clamp(Duration::from_millis(200), Duration::from_secs(1))
        } else {
            (ttl / 3).clamp(Duration::from_secs(1), Duration::from_secs(5))
        };
        let is_short = dice.percent(80);
        let command = if is_short { dice.between(1, 300) } else { dice.between(300, 15_000) };
        Run {
            servers: self.servers.clone(),
            key: dice.one_of(&["a", "b"]).into(),
            ttl,
            node_timeout,
            quarantine: if several { Duration::from_secs(30) } else { Duration::ZERO },
            wait,
            is_shared: dice.percent(20),
            command: Duration::from_millis(command),
        }
    }

    fn start_run(&mut self, simulation: &mut Simulation) {
        let run = self.random_run();
        let within = |dice: &mut Dice, bound: u64| dice.between(0, 2 * bound) as i64 - bound as i64;
        let boot = Clock {
            offset_us: self.dice.between(0, 5_000_000) as i64,
            drift_ppm: within(&mut self.dice, 1000),
        };
        let wall = Clock { offset_us: within(&mut self.dice, 10_000_000), drift_ppm: 0 };
        let id = simulation.start(boot, wall, move |world| run.run(world));
        let mut shared = lock(&simulation.shared);
        for server in 0..self.servers.len() {
            let latency = self.dice.one_of(&[50, 100, 500, 5000, 30_000]);
            for direction in [Direction::ToServer, Direction::ToClient] {
                shared.network.line(id, server, direction).latency_us = latency;
            }
        }
    }

    fn start_fault(&mut self, simulation: &mut Simulation) {
        self.faults += 1;
        let now = simulation.now();
        let server = self.dice.next() as usize % self.servers.len();
        let living = simulation.living();
        let client = (!living.is_empty()).then(|| self.dice.one_of(&living));
        let length = self.dice.one_of(&[50_000, 300_000, 1_000_000, 4_000_000, 12_000_000]);
        let what = match (self.dice.between(0, 8), client) {
            (0 | 1, Some(client)) => self.cut(simulation, client, server, length),
            (2, _) => {
                simulation.hosts[server].is_paused = true;
                self.repairs.push((now + length, Repair::Continue(server)));
                format!("server {server} is paused")
            }
            (3, Some(client)) => {
                simulation.kill(client);
                format!("client {client} is killed")
            }
            (4, Some(client)) => {
                simulation.pause_process(client, true);
                self.repairs.push((now + length, Repair::ContinueProcess(client)));
                format!("client {client} is paused")
            }
            (5, _) => {
                simulation.close_connections(server);
                format!("server {server} closes all connections")
            }
            (6, Some(client)) => {
                simulation.cancel(client);
                format!("client {client} receives SIGTERM")
            }
            (7, _) => {
                simulation.hosts[server].server.forget_scripts();
                format!("server {server} forgets its scripts")
            }
            (8, _) => {
                // A single server that loses its data loses its locks: that is documented.
                let forgets = self.servers.len() > 1 && self.dice.percent(50);
                simulation.restart_server(server, self.dice.next(), forgets);
                lock(&simulation.shared).network.is_down.insert(server, true);
                self.repairs.push((now + length / 4, Repair::Start(server)));
                format!("server {server} restarts, without its data: {forgets}")
            }
            (_, _) => "nothing".into(),
        };
        note(simulation, || format!("fault: {what} ({length} us)"));
    }

    /// One way or both, from one server or from all.
    fn cut(&mut self, simulation: &Simulation, client: ClientId, server: ServerId, length: u64) -> String {
        let directions: &[Direction] = match self.dice.between(0, 3) {
            0 => &[Direction::ToServer],
            1 => &[Direction::ToClient],
            _ => &[Direction::ToServer, Direction::ToClient],
        };
        let is_from_all = self.dice.percent(30);
        let servers = if is_from_all { 0..self.servers.len() } else { server..server + 1 };
        let ends = simulation.now() + length;
        for server in servers.clone() {
            for &direction in directions {
                lock(&simulation.shared).network.line(client, server, direction).is_cut = true;
                self.repairs.push((ends, Repair::Line(client, server, direction)));
            }
        }
        format!("client {client} is cut off from servers {servers:?}, {directions:?}")
    }

    fn repair(simulation: &mut Simulation, repair: Repair) {
        match repair {
            Repair::Line(client, server, direction) => {
                lock(&simulation.shared).network.line(client, server, direction).is_cut = false;
            }
            Repair::Start(server) => {
                lock(&simulation.shared).network.is_down.insert(server, false);
            }
            Repair::Continue(server) => simulation.continue_server(server),
            Repair::ContinueProcess(client) => simulation.pause_process(client, false),
        }
        note(simulation, || format!("repair: {repair:?}"));
    }
}

fn note(simulation: &Simulation, text: impl FnOnce() -> String) {
    let mut shared = lock(&simulation.shared);
    let now = shared.now_us;
    shared.trace.note(now, text);
}

impl Plan for Driver {
    fn next_moment(&self) -> Option<u64> {
        let repair = self.repairs.iter().map(|(at, _)| *at).min();
        let run = Some(self.next_run).filter(|at| *at < LAST_START_US);
        [run, self.next_fault, repair].into_iter().flatten().min()
    }

    fn happen(&mut self, simulation: &mut Simulation) {
        let now = simulation.now();
        let all = std::mem::take(&mut self.repairs);
        let (due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| *at <= now);
        self.repairs = later;
        for (_, repair) in due {
            Self::repair(simulation, repair);
        }
        if self.next_run <= now && now < LAST_START_US {
            if simulation.living().len() < MOST_CLIENTS {
                self.start_run(simulation);
            }
            self.next_run = now + self.dice.between(BETWEEN_RUNS_US.0, BETWEEN_RUNS_US.1);
        }
        if self.next_fault.is_some_and(|at| at <= now) {
            self.start_fault(simulation);
            let next = now + self.dice.between(BETWEEN_FAULTS_US.0, BETWEEN_FAULTS_US.1);
            self.next_fault = (next < LAST_START_US).then_some(next);
        }
    }
}

/// What stays long after the last run: the marker, tokens, finished runs, and the records of runs
/// that were killed, until the next run logs them.
const STAYS: [&[u8]; 5] = [b"lock-node", b"lock-fence:", b"lock-log:", b"lock-info:", b"lock-shared:"];

/// Keys that must not be there when every run has ended, and keys that never expire.
fn leftovers(host: &Host, now: u64) -> Vec<String> {
    let mut data = host.server.data();
    data.now_us = host.now(now);
    let is_left = |key: &[u8], expires: Option<u64>| {
        let is_expected = STAYS.iter().any(|name| key.starts_with(name));
        !is_expected || (expires.is_none() && key != b"lock-node")
    };
    let keys = data.store().expiries().filter(|(key, expires)| is_left(key, *expires));
    keys.map(|(key, expires)| format!("{} ({expires:?})", String::from_utf8_lossy(key))).collect()
}

pub fn run(seed: u64, options: &Options) -> Report {
    let mut dice = Dice::new(seed, 0);
    let servers = (0..options.servers).map(|_| VirtualServer::new(identity(&mut dice))).collect();
    let mut simulation = Simulation::new(seed, servers);
    let mut urls = Vec::new();
    {
        let mut shared = lock(&simulation.shared);
        shared.trace.is_kept = options.is_traced;
        for server in 0..options.servers {
            let address = format!("10.0.0.{}:6379", server + 1);
            urls.push(format!("redis://{address}"));
            shared.addresses.insert(address, server);
        }
    }
    let mut driver = Driver {
        dice: Dice::new(seed, 4),
        servers: urls,
        next_run: 0,
        next_fault: Some(FIRST_FAULT_US),
        repairs: Vec::new(),
        faults: 0,
    };
    simulation.run_until(END_US, &mut driver);
    let stuck = simulation.living();
    let leftovers: Vec<String> = simulation.hosts.iter().flat_map(|host| leftovers(host, END_US)).collect();
    let mut shared = lock(&simulation.shared);
    if !stuck.is_empty() {
        shared.oracle.violation(format!("clients {stuck:?} never end"));
    }
    for key in leftovers {
        shared.oracle.violation(format!("left over: {key}"));
    }
    Report {
        grants: shared.oracle.grants,
        faults: driver.faults,
        simulated_us: shared.now_us,
        violations: std::mem::take(&mut shared.oracle.violations),
        trace_hash: shared.trace.hash(),
        trace: shared.trace.lines().cloned().collect(),
    }
}
