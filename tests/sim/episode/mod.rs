//! One episode: a scenario happens, and the oracles watch.

mod checks;
mod faults;

use std::collections::{BTreeMap, BTreeSet};

use checks::leftovers;

use crate::client::{Client, Job, Subject};
use crate::dice::Dice;
use crate::mutant::Mutant;
use crate::network::{Direction, ProcessId, ServerId, SiteId};
use crate::oracle::Violation;
use crate::scenario::{Actor, Cut, Fault, Feature, Keeps, Scenario, What, address};
use crate::scheduler::{Host, Plan, Simulation};
use crate::server::VirtualServer;
use crate::server::data::Identity;
use crate::server::store::Store;

/// By then, after the last step, every process must have ended.
const PATIENCE_US: u64 = 400_000_000;
/// The processes at a time; an actor that comes later does not start.
const MOST_PROCESSES: usize = 12;
/// After a release, the claim must be gone by then.
const RELEASED_AFTER_US: u64 = 1_500_000;
/// A claim must be gone this long after its last lease: a slow line delays the last renewal, and the
/// servers' clocks run differently.
const EXPIRED_AFTER_US: u64 = 2_500_000;
/// How often a server's data is saved, for a restart with an old copy.
const SAVED_EVERY_US: u64 = 1_000_000;

/// What an episode was like.
#[derive(Debug, Default)]
pub struct Report {
    pub grants: u64,
    pub faults: u64,
    pub nested: usize,
    pub simulated_us: u64,
    pub violations: Vec<Violation>,
    pub trace_hash: u64,
    pub trace: Vec<String>,
}

fn identity(dice: &mut Dice) -> Identity {
    let mut hex = || format!("{:016x}{:016x}{:08x}", dice.next(), dice.next(), dice.next() as u32);
    Identity { run_id: hex(), replication_id: hex(), is_replica: false }
}

/// The end of a fault, or a moment at which something is checked.
#[derive(Clone, Debug)]
enum Later {
    MendLine {
        site: SiteId,
        servers: Vec<ServerId>,
        directions: Vec<Direction>,
    },
    RestoreLatency {
        site: SiteId,
        servers: Vec<ServerId>,
    },
    StartServer(ServerId),
    ContinueServer(ServerId),
    ContinueProcess(ProcessId, SiteId),
    RestoreMemory(ServerId),
    Allow(ServerId, &'static str),
    Save,
    /// The guardian of this actor releases.
    Guardian(u64),
    /// Nothing of this actor may be left on servers that it could reach since this moment.
    CheckRelease {
        actor: u64,
        by: SiteId,
        since: u64,
    },
    /// The last lease that this actor asked for is over.
    CheckExpiry {
        actor: u64,
    },
}

/// A process, and the actor that it belongs to.
struct Running {
    actor: u64,
    site: SiteId,
    /// When its last pause ends.
    wakes_at: u64,
}

struct Driver<'a> {
    scenario: &'a Scenario,
    /// The next step of the scenario.
    next: usize,
    later: BTreeMap<(u64, u64), Later>,
    later_count: u64,
    dice: Dice,
    faults: u64,
    running: BTreeMap<ProcessId, Running>,
    actors: BTreeMap<u64, Actor>,
    /// The latencies of each host, in us.
    latencies: BTreeMap<SiteId, Vec<u64>>,
    saved: Vec<Vec<(u64, BTreeMap<u32, Store>)>>,
    /// Actors whose lease another client may have extended.
    was_extended: BTreeSet<u64>,
    mutant: Option<&'static Mutant>,
}

impl Driver<'_> {
    fn at(&mut self, at_us: u64, what: Later) {
        self.later_count += 1;
        self.later.insert((at_us, self.later_count), what);
    }

    fn start(&mut self, simulation: &mut Simulation, actor: &Actor) {
        if self.running.len() >= MOST_PROCESSES {
            return;
        }
        if let Job::Extend { of, .. } = actor.job {
            self.was_extended.insert(of);
        }
        let site = simulation.add_site(actor.site);
        {
            let mut shared = simulation.shared.borrow_mut();
            shared.actors.insert(actor.number, site);
            for (server, latency) in actor.latencies_us.iter().enumerate() {
                for direction in [Direction::ToServer, Direction::ToClient] {
                    shared.network.line(site, server, direction).latency_us = *latency;
                }
            }
        }
        self.latencies.insert(site, actor.latencies_us.clone());
        self.actors.insert(actor.number, actor.clone());
        let (number, access, job) = (actor.number, actor.access.clone(), actor.job.clone());
        let process = simulation.start(site, number, move |world| {
            Client { number, access: &access, world }.perform(&job);
        });
        self.running.insert(process, Running { actor: actor.number, site, wakes_at: 0 });
    }

    /// Processes that have ended since the last look.
    fn reap(&mut self, simulation: &mut Simulation) {
        let ended: Vec<ProcessId> =
            self.running.keys().copied().filter(|&process| !simulation.is_living(process)).collect();
        for process in ended {
            let Running { actor, .. } = self.running.remove(&process).expect("it was there");
            let now = simulation.now();
            self.check_later(simulation, actor, now);
        }
    }

    /// When nothing of this actor may be left.
    fn check_later(&mut self, simulation: &Simulation, actor: u64, now: u64) {
        let shared = simulation.shared.borrow();
        let Some(record) = shared.records.get(&actor) else { return };
        let by = shared.actors[&actor];
        let refused = record.is_refused.then_some((actor, record.started));
        let left = record.leaves_at.map(|since| (actor, since));
        for (actor, since) in [left, refused, record.released].into_iter().flatten() {
            self.at(now + RELEASED_AFTER_US, Later::CheckRelease { actor, by, since });
        }
        if record.claim.is_some() && record.subject != Some(Subject::Token) {
            self.at(record.lease_ends.max(now) + EXPIRED_AFTER_US, Later::CheckExpiry { actor });
        }
    }

    /// The process of an actor, if it is living.
    fn process_of(&self, actor: u64) -> Option<(ProcessId, SiteId)> {
        let found = self.running.iter().find(|(_, running)| running.actor == actor);
        found.map(|(process, running)| (*process, running.site))
    }

    fn start_guardian(&mut self, simulation: &mut Simulation, actor: u64) {
        let (orphan, grant, site) = {
            let mut shared = simulation.shared.borrow_mut();
            let site = shared.actors[&actor];
            let now = shared.now_us;
            let record = shared.records.get_mut(&actor).expect("it has run");
            record.leaves_at = Some(now);
            let min_hold = match self.actors.get(&actor).map(|actor| &actor.job) {
                Some(Job::Run(run)) => !run.min_hold.is_zero(),
                _ => false,
            };
            record.keeps_min_hold |= min_hold;
            (record.orphan.take(), record.grant.clone(), site)
        };
        let Some(orphan) = orphan else { return };
        simulation.note(|| format!("the guardian of actor {actor} releases"));
        let process = simulation.start(site, 500_000 + actor, move |_| {
            let has_run = grant.is_some();
            orphan(grant.as_deref(), has_run);
        });
        self.running.insert(process, Running { actor, site, wakes_at: 0 });
    }

    fn on_later(&mut self, simulation: &mut Simulation, later: Later) {
        if !matches!(later, Later::Save | Later::CheckRelease { .. } | Later::CheckExpiry { .. }) {
            simulation.note(|| format!("{later:?}"));
        }
        match later {
            Later::MendLine { site, servers, directions } => {
                let mut shared = simulation.shared.borrow_mut();
                for server in servers {
                    for &direction in &directions {
                        shared.network.line(site, server, direction).is_cut = false;
                    }
                    shared.oracle.trouble_ends((Some(site), server));
                }
            }
            Later::RestoreLatency { site, servers } => {
                let mut shared = simulation.shared.borrow_mut();
                for server in servers {
                    let latency = self.latencies[&site][server];
                    for direction in [Direction::ToServer, Direction::ToClient] {
                        shared.network.line(site, server, direction).latency_us = latency;
                    }
                    shared.oracle.trouble_ends((Some(site), server));
                }
            }
            Later::StartServer(server) => {
                simulation.start_server(server);
                simulation.shared.borrow_mut().oracle.trouble_ends((None, server));
            }
            Later::ContinueServer(server) => {
                simulation.continue_server(server);
                simulation.shared.borrow_mut().oracle.trouble_ends((None, server));
            }
            Later::ContinueProcess(process, site) => {
                if simulation.is_living(process) {
                    simulation.pause_process(process, false);
                }
                for server in 0..self.scenario.servers {
                    simulation.shared.borrow_mut().oracle.trouble_ends((Some(site), server));
                }
            }
            Later::RestoreMemory(server) => {
                simulation.hosts[server].server.data().is_out_of_memory = false;
                simulation.shared.borrow_mut().oracle.trouble_ends((None, server));
            }
            Later::Allow(server, command) => {
                simulation.hosts[server].server.data().denied.remove(command);
                simulation.shared.borrow_mut().oracle.trouble_ends((None, server));
            }
            Later::Save => self.save(simulation),
            Later::Guardian(actor) => self.start_guardian(simulation, actor),
            Later::CheckRelease { actor, by, since } => {
                self.check_claims(simulation, actor, Some((by, since)), "not-released");
            }
            Later::CheckExpiry { actor } => self.check_claims(simulation, actor, None, "outlived"),
        }
    }

    fn save(&mut self, simulation: &Simulation) {
        let now = simulation.now();
        for (saved, host) in self.saved.iter_mut().zip(&simulation.hosts) {
            saved.push((now, host.server.data().databases.clone()));
        }
        if self.next < self.scenario.steps.len() {
            self.at(now + SAVED_EVERY_US, Later::Save);
        }
    }
}

impl Plan for Driver<'_> {
    fn next_moment(&self) -> Option<u64> {
        let step = self.scenario.steps.get(self.next).map(|step| step.at_us);
        let later = self.later.keys().next().map(|(at, _)| *at);
        [step, later].into_iter().flatten().min()
    }

    fn happen(&mut self, simulation: &mut Simulation) {
        let now = simulation.now();
        self.reap(simulation);
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let later = entry.remove();
            self.on_later(simulation, later);
        }
        while let Some(step) = self.scenario.steps.get(self.next).filter(|step| step.at_us <= now) {
            self.next += 1;
            match &step.what {
                What::Start(actor) => self.start(simulation, actor),
                What::Fault(fault) => {
                    if self.cause(simulation, fault) {
                        self.faults += 1;
                        simulation.note(|| format!("fault: {fault:?}"));
                    }
                }
                What::Quiet => simulation.shared.borrow_mut().oracle.is_quiet = true,
                What::Served(actor) => self.check_served(simulation, *actor),
            }
        }
    }
}

/// Lets the scenario happen.
pub fn run(scenario: &Scenario, mutant: Option<&'static Mutant>, is_traced: bool) -> Report {
    let _entered = mutant.map(Mutant::enter);
    let mut dice = Dice::new(scenario.seed, 0);
    let patches = mutant.map_or(&[][..], |mutant| mutant.patches);
    let hosts = scenario.server_clocks.iter().map(|clock| {
        let mut server = VirtualServer::new(identity(&mut dice), patches);
        server.password = scenario.password.clone().map(String::into_bytes);
        server.idle_limit_us = scenario.idle_limit_us;
        (server, *clock)
    });
    let mut simulation = Simulation::new(scenario.seed, hosts.collect());
    {
        let mut shared = simulation.shared.borrow_mut();
        shared.trace.is_kept = is_traced;
        shared.oracle.servers = scenario.servers;
        shared.oracle.has_preferences = [Feature::Preferences, Feature::Superseding, Feature::Cancelling]
            .iter()
            .any(|feature| scenario.features.contains(feature));
        shared.oracle.is_order_strict = scenario.is_order_strict();
        shared.oracle.has_faults = scenario.steps.iter().any(|step| matches!(step.what, What::Fault(_)));
        for server in 0..scenario.servers {
            for alias in [0, 1] {
                shared.addresses.insert(address(server, alias, scenario.servers), server);
            }
        }
    }
    let mut driver = Driver {
        scenario,
        next: 0,
        later: BTreeMap::new(),
        later_count: 0,
        dice: Dice::new(scenario.seed, 5),
        faults: 0,
        running: BTreeMap::new(),
        actors: BTreeMap::new(),
        latencies: BTreeMap::new(),
        saved: vec![Vec::new(); scenario.servers],
        was_extended: BTreeSet::new(),
        mutant,
    };
    driver.at(0, Later::Save);
    let last = scenario.steps.last().map_or(0, |step| step.at_us);
    let end = last + PATIENCE_US;
    simulation.run_until(end, &mut driver);
    let stuck = simulation.living();
    if !stuck.is_empty() {
        simulation.shared.borrow_mut().oracle.violation("stuck", format!("processes {stuck:?} never end"));
    }
    driver.audit(&mut simulation);
    let now = simulation.now();
    let left: Vec<String> =
        simulation.hosts.iter().flat_map(|host| leftovers(host, now + PATIENCE_US)).collect();
    for key in left {
        simulation.shared.borrow_mut().oracle.violation("left-over", key);
    }
    let mut shared = simulation.shared.borrow_mut();
    Report {
        grants: shared.oracle.grants,
        faults: driver.faults,
        nested: shared.oracle.nested_runs(),
        simulated_us: shared.now_us,
        violations: std::mem::take(&mut shared.oracle.violations),
        trace_hash: shared.trace.hash(),
        trace: shared.trace.lines().collect(),
    }
}
