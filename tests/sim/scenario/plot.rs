//! Plots: what only a chain of events reaches, and random scenarios hardly ever. Times, servers and
//! lines are drawn; the chain is given. The clients follow all rules in a plot, so nothing may go
//! wrong; if one rule is left out, most seeds of its plot must show it.

mod bounded;
mod gates;
mod late;
mod nested;

use std::time::Duration;

use super::draw::Draft;
use super::{Actor, Cut, FIRST_START_US, Fault, Feature as F, Keeps, Scenario, What, address};
use crate::client::{Job, Run, Subject};
use crate::lock::{Timing, WaitPolicy};
use crate::network::ServerId;

/// Far enough that nothing arrives in time.
const UNREACHABLE_US: u64 = 90_000_000;
const QUEUES: WaitPolicy = WaitPolicy::Queue { at_most: None };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// A majority forgets a lease that is longer than usual, and its holder cannot know.
    ForgottenLongLease,
    /// A client asks for a much longer lease where leases longer than usual are already in use, and two
    /// servers have lost their data since these came into use.
    SecondBound,
    /// A majority forgets a usual lease, and clients with shorter quarantines ask.
    ForgottenLease,
    /// `extend` reaches only the keeper's side of a partition.
    ExtendedInMinority,
    /// `extend` asks for a longer lease than usual, which one server never acknowledges.
    UnacknowledgedExtension,
    /// A renewal is delivered after an extension with a longer ttl.
    LateRenewal,
    /// An operator flushes all servers.
    Flushed,
    /// A server that lacks a vote is healed while it is the gate of another client.
    HealedAmongOthers,
    /// A grant takes long, and its client is suspended when it has it.
    LateReply,
    /// A client that has one vote loses its power.
    LoneVote,
    /// The same, after it has renewed the vote while it waited for the others.
    RenewedVote,
    /// The requests of an attempt arrive after the next attempt, or after the client has left.
    LateRequests,
    /// The gate is stopped while a token that it never granted is extended and released.
    ReleasedWhileExtended,
    /// The gate is stopped while a client asks it for a token, and later executes that request.
    LateToken,
    /// The line to the gate is cut in one direction, and a waiter has its lock at the next gate for a
    /// moment.
    CutGate,
    /// A stopped server executes a request of a client that was refused meanwhile, and tries again under
    /// another name.
    FormerName,
    /// The requests for votes are delivered when a later attempt has been granted.
    LateVotes,
    /// A token that has the gate's vote only is broken, while its requests for the others are under way.
    BrokenVote,
    /// Two clients with different gates have a vote each, and the third server is away.
    TwoGates,
    /// The same with five servers: the younger client meets only votes that were given before the older
    /// one knew its place.
    TwoGatesOfFive,
    /// A client of two keys waits for one client of each, and both wait behind it.
    TwoKeysOfFive,
    /// The holder, or a waiter that becomes it, is a client with which the others cannot share a lock.
    DistantProtocol,
    /// Each of several runs holds a lock, and inside it asks for that of the next one.
    Circle,
    /// Nested runs that ask for any locks. Some of them ask in one order, so that there is no circle, and
    /// in some seeds a machine is switched off.
    Nested,
    /// No client waits, and the servers are far away.
    FarNewcomer,
    /// Of two newcomers one has the gate's vote, and the other one has both other servers'.
    StrayVotes,
    /// A client that reaches only the gate tries again and again.
    LoneGateVote,
    /// The gate is quarantined.
    RestartedGate,
    /// When it is a waiter's turn, the other servers are slow for a moment.
    SlowVoters,
    /// A run with --cancel-in-progress finds a holder that is newer than itself.
    NewerHolder,
}

pub const ALL: [Plot; 30] = [
    Plot::LateReply,
    Plot::LoneVote,
    Plot::RenewedVote,
    Plot::ForgottenLongLease,
    Plot::SecondBound,
    Plot::ForgottenLease,
    Plot::ExtendedInMinority,
    Plot::UnacknowledgedExtension,
    Plot::LateRenewal,
    Plot::Flushed,
    Plot::HealedAmongOthers,
    Plot::LateRequests,
    Plot::ReleasedWhileExtended,
    Plot::LateToken,
    Plot::CutGate,
    Plot::FormerName,
    Plot::LateVotes,
    Plot::BrokenVote,
    Plot::TwoGates,
    Plot::TwoGatesOfFive,
    Plot::TwoKeysOfFive,
    Plot::DistantProtocol,
    Plot::Circle,
    Plot::Nested,
    Plot::FarNewcomer,
    Plot::StrayVotes,
    Plot::LoneGateVote,
    Plot::RestartedGate,
    Plot::SlowVoters,
    Plot::NewerHolder,
];

impl Plot {
    pub fn draw(self, seed: u64) -> Scenario {
        let features = [F::Cuts, F::DataLoss, F::SlowLines, F::Pauses];
        let servers = match self {
            Self::TwoGatesOfFive | Self::TwoKeysOfFive => 5,
            Self::Circle | Self::Nested if seed % 2 == 1 => 1,
            _ => 3,
        };
        let mut stage = Stage(Draft::new(seed, servers, &features));
        stage.0.scenario.keys = vec!["a".to_owned()];
        stage.warm_up();
        match self {
            Self::ForgottenLongLease => stage.forgotten_long_lease(),
            Self::SecondBound => stage.second_bound(),
            Self::ForgottenLease => stage.forgotten_lease(),
            Self::ExtendedInMinority => stage.extended_in_minority(),
            Self::UnacknowledgedExtension => stage.unacknowledged_extension(),
            Self::LateRenewal => stage.late_renewal(),
            Self::Flushed => stage.flushed(),
            Self::HealedAmongOthers => stage.healed_among_others(),
            Self::LateReply => stage.late_reply(),
            Self::LoneVote => stage.lone_vote(),
            Self::RenewedVote => stage.renewed_vote(),
            Self::LateRequests => stage.late_requests(),
            Self::ReleasedWhileExtended => stage.released_while_extended(),
            Self::LateToken => stage.late_token(),
            Self::CutGate => stage.cut_gate(),
            Self::FormerName => stage.former_name(),
            Self::LateVotes => stage.late_votes(),
            Self::BrokenVote => stage.broken_vote(),
            Self::TwoGates => stage.two_gates(),
            Self::TwoGatesOfFive => stage.two_gates_of_five(),
            Self::TwoKeysOfFive => stage.two_keys_of_five(),
            Self::DistantProtocol => stage.distant_protocol(),
            Self::Circle => nested::circle(&mut stage),
            Self::Nested => nested::nested(&mut stage),
            Self::FarNewcomer => stage.far_newcomer(),
            Self::StrayVotes => stage.stray_votes(),
            Self::LoneGateVote => stage.lone_gate_vote(),
            Self::RestartedGate => stage.restarted_gate(),
            Self::SlowVoters => stage.slow_voters(),
            Self::NewerHolder => stage.newer_holder(),
        }
        stage.0.scenario.steps.sort_by_key(|step| step.at_us);
        stage.0.scenario
    }
}

struct Stage(Draft);

impl Stage {
    fn between_ms(&mut self, low: u64, high: u64) -> u64 {
        self.0.dice.between(low * 1000, high * 1000)
    }

    /// The first request begins the servers' quarantine.
    fn warm_up(&mut self) {
        let actor = self.run(WaitPolicy::No, Subject::Command(Duration::ZERO), 5, 30);
        self.0.push(0, What::Start(Box::new(actor)));
    }

    /// A client of the key, close to all servers.
    fn run(&mut self, wait: WaitPolicy, subject: Subject, ttl_s: u64, quarantine_s: u64) -> Actor {
        let job = Job::Run(Run { subject, ..self.0.plain_run(wait) });
        self.client(job, ttl_s, quarantine_s)
    }

    fn client(&mut self, job: Job, ttl_s: u64, quarantine_s: u64) -> Actor {
        let mut actor = self.0.actor_with(job);
        let node_timeout = Duration::from_millis((ttl_s * 50).clamp(200, 1000));
        let (ttl, quarantine) = (Duration::from_secs(ttl_s), Duration::from_secs(quarantine_s));
        actor.access.timing = Timing { ttl: Some(ttl), node_timeout, quarantine };
        actor.latencies_us = vec![100; self.0.scenario.servers];
        actor
    }

    /// Returns its number.
    fn start(&mut self, at_us: u64, actor: Actor) -> u64 {
        let number = actor.number;
        self.0.push(FIRST_START_US + at_us, What::Start(Box::new(actor)));
        number
    }

    fn fault(&mut self, at_us: u64, fault: Fault) {
        self.0.push(FIRST_START_US + at_us, What::Fault(fault));
    }

    fn command(seconds: u64) -> Subject {
        Subject::Command(Duration::from_secs(seconds))
    }

    fn any_server(&mut self) -> ServerId {
        self.0.dice.next() as usize % 3
    }

    /// Two servers forget everything; returns the other one.
    fn majority_forgets(&mut self, at_us: u64) -> ServerId {
        let spared = self.any_server();
        for server in (0..3).filter(|server| *server != spared) {
            let later = self.between_ms(0, 20);
            self.fault(at_us + later, Fault::Flush { server });
        }
        spared
    }

    fn forgotten_long_lease(&mut self) {
        let holder = self.run(QUEUES, Self::command(58), 60, 120);
        let holder = self.start(0, holder);
        let stops = self.between_ms(500, 2000);
        self.fault(stops, Fault::Pause { actor: holder, for_us: 57_000_000 });
        self.majority_forgets(stops + 100_000);
        // The one that has not may hear of a longer bound.
        let asks_at = self.between_ms(2000, 50_000);
        self.asks_for_long_lease(asks_at);
        let at_most = Some(Duration::from_secs(5));
        for _ in 0..6 {
            let (at, policy) = (self.between_ms(2000, 50_000), WaitPolicy::Queue { at_most });
            let waiter = self.run(policy, Self::command(1), 5, 30);
            self.start(at, waiter);
        }
    }

    /// Of another key.
    fn asks_for_long_lease(&mut self, at_us: u64) {
        let job = Run { keys: vec!["b".to_owned()], ..self.0.plain_run(WaitPolicy::No) };
        let client = self.client(Job::Run(job), 7200, 60);
        self.start(at_us, client);
    }

    fn forgotten_lease(&mut self) {
        let holder = self.run(QUEUES, Self::command(20), 30, 30);
        self.start(0, holder);
        let forgets = self.between_ms(500, 2000);
        let spared = self.majority_forgets(forgets);
        for _ in 0..4 {
            let (ttl, quarantine) = self.0.dice.one_of(&[(2, 0), (2, 2), (2, 2)]);
            let mut waiter = self.run(QUEUES, Self::command(1), ttl, quarantine);
            waiter.latencies_us[spared] = self.0.dice.one_of(&[100, 2000, 10_000]);
            let after = self.between_ms(20, 6000);
            self.start(forgets + after, waiter);
        }
    }

    fn extended_in_minority(&mut self) {
        let side = self.any_server();
        let others: Vec<ServerId> = (0..3).filter(|server| *server != side).collect();
        let keeper = self.run(QUEUES, Subject::Watched(Duration::from_secs(25)), 5, 30);
        let keeper = self.start(0, keeper);
        let cut = self.between_ms(1000, 1500);
        self.fault(
            cut,
            Fault::Cut { actor: keeper, servers: others.clone(), how: Cut::Both, for_us: 40_000_000 },
        );
        let mut extend = self.client(Job::Extend { of: keeper, keys: vec!["a".into()] }, 30, 30);
        others.iter().for_each(|&server| extend.latencies_us[server] = UNREACHABLE_US);
        let after = self.between_ms(50, 2000);
        self.start(cut + after, extend);
        for _ in 0..3 {
            let mut waiter = self.run(QUEUES, Self::command(1), 5, 30);
            waiter.latencies_us[side] = UNREACHABLE_US;
            let at = self.between_ms(2000, 8000);
            self.start(at, waiter);
        }
    }

    fn unacknowledged_extension(&mut self) {
        let cut_off = self.any_server();
        let (flushed, other) = ((cut_off + 1) % 3, (cut_off + 2) % 3);
        let keeper = self.run(QUEUES, Subject::Watched(Duration::from_secs(150)), 5, 30);
        let keeper = self.start(0, keeper);
        let cut = self.between_ms(500, 1500);
        self.fault(
            cut,
            Fault::Cut { actor: keeper, servers: vec![cut_off], how: Cut::Both, for_us: 200_000_000 },
        );
        let mut extend = self.client(Job::Extend { of: keeper, keys: vec!["a".into()] }, 600, 30);
        extend.latencies_us[cut_off] = UNREACHABLE_US;
        let after = self.between_ms(50, 2000);
        self.start(cut + after, extend);
        let later = self.between_ms(2000, 10_000);
        self.fault(cut + after + later, Fault::Flush { server: flushed });
        for _ in 0..2 {
            let mut waiter = self.run(QUEUES, Self::command(1), 5, 30);
            waiter.latencies_us[other] = UNREACHABLE_US;
            let at = self.between_ms(20_000, 60_000);
            self.start(at, waiter);
        }
    }

    fn late_renewal(&mut self) {
        let near = self.any_server();
        let far: Vec<ServerId> = (0..3).filter(|server| *server != near).collect();
        let keeper = self.run(QUEUES, Subject::Watched(Duration::from_secs(25)), 5, 30);
        let keeper = self.start(0, keeper);
        let (cut, lasts) = (self.between_ms(1400, 1660), self.between_ms(200, 1500));
        self.fault(cut, Fault::Cut { actor: keeper, servers: far, how: Cut::ToServer, for_us: lasts });
        let extend = self.client(Job::Extend { of: keeper, keys: vec!["a".into()] }, 30, 30);
        let after = self.between_ms(0, 600);
        self.start(cut + lasts + after - 100_000.min(lasts), extend);
        for _ in 0..3 {
            let (at, waiter) = (self.between_ms(2000, 4000), self.run(QUEUES, Self::command(1), 5, 30));
            self.start(at, waiter);
        }
    }

    fn flushed(&mut self) {
        let holder = self.run(QUEUES, Self::command(20), 5, 30);
        self.start(0, holder);
        let at = self.between_ms(500, 5000);
        self.fault(at, Fault::FlushAll);
        // One server gets its data back, another one is away.
        let restored = self.any_server();
        let keeps = Keeps::OldCopy(1_200_000);
        self.fault(at + 50_000, Fault::Restart { server: restored, keeps, for_us: 10_000 });
        self.fault(at + 50_000, Fault::PauseServer { server: (restored + 1) % 3, for_us: 4_000_000 });
    }

    fn healed_among_others(&mut self) {
        let mut holder = self.run(QUEUES, Self::command(6), 5, 30);
        holder.latencies_us[2] = self.between_ms(10, 30);
        let holder = self.start(0, holder);
        // Its request never arrives: the connection is repeated after one second and after three. The
        // second renewal finds that, and heals the server.
        self.fault(10, Fault::Cut { actor: holder, servers: vec![2], how: Cut::Both, for_us: 1_300_000 });
        // By these names the server is the first one, and the gate.
        let mut other = self.run(QUEUES, Self::command(1), 5, 30);
        Self::reverse_order(&mut other);
        let at = self.between_ms(3330, 3420);
        self.start(at, other);
    }

    fn late_reply(&mut self) {
        let mut holder = self.run(QUEUES, Self::command(8), 3, 30);
        let latency = self.between_ms(30, 70);
        holder.latencies_us = vec![latency; 3];
        let holder = self.start(0, holder);
        self.fault(9 * latency, Fault::Pause { actor: holder, for_us: 6_000_000 });
        for _ in 0..2 {
            let (at, waiter) = (self.between_ms(100, 2000), self.run(QUEUES, Self::command(1), 5, 30));
            self.start(at, waiter);
        }
    }

    fn lone_vote(&mut self) {
        let mut client = self.run(QUEUES, Self::command(1), 3, 30);
        if let Job::Run(run) = &mut client.job {
            run.min_hold = Duration::from_secs(40);
        }
        let reached = self.any_server();
        let client = self.start(0, client);
        let servers = (0..3).filter(|server| *server != reached).collect();
        self.fault(10, Fault::Cut { actor: client, servers, how: Cut::Both, for_us: 40_000_000 });
        let at = self.between_ms(1, 180);
        self.fault(at, Fault::Kill { actor: client, has_guardian: false });
    }

    fn renewed_vote(&mut self) {
        let mut theirs = self.run(QUEUES, Self::command(30), 5, 30);
        Self::reverse_order(&mut theirs);
        theirs.latencies_us[0] = UNREACHABLE_US;
        self.start(0, theirs);
        let mut client = self.run(QUEUES, Self::command(1), 5, 30);
        if let Job::Run(run) = &mut client.job {
            run.min_hold = Duration::from_secs(40);
        }
        let client = self.start(1000, client);
        let at = self.between_ms(2000, 12_000);
        self.fault(at, Fault::Kill { actor: client, has_guardian: false });
    }

    /// Calls the servers by other names: the last one is the first.
    fn reverse_order(actor: &mut Actor) {
        let servers = actor.latencies_us.len();
        actor.access.urls = (0..servers).map(|at| format!("redis://{}", address(at, 1, servers))).collect();
    }

    fn distant_protocol(&mut self) {
        let first = self.run(QUEUES, Self::command(1), 5, 30);
        self.start(0, first);
        let mut distant = self.run(QUEUES, Self::command(2), 5, 30);
        distant.access.protocol += 2;
        let at = self.between_ms(0, 1500);
        self.start(at, distant);
        for _ in 0..3 {
            let (at, client) = (self.between_ms(0, 4000), self.run(QUEUES, Self::command(0), 5, 30));
            self.start(at, client);
        }
    }
}
