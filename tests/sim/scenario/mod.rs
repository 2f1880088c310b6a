//! A scenario: the servers, the processes, their settings and every fault, all drawn from a seed
//! before anything happens, so that a failing one can be made shorter step by step.
//!
//! Each seed uses a random part of the features below (swarm testing): what never meets in one
//! scenario meets in another, and a scenario with few features shows their effect undisturbed.

mod draw;
pub mod plot;

use std::collections::BTreeSet;

use crate::client::{Access, Job};
use crate::network::ServerId;
use crate::scheduler::{Clock, Site};

/// New servers are quarantined until then.
pub const FIRST_START_US: u64 = 36_000_000;
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    // What clients do.
    Sharing,
    Slots,
    SeveralKeys,
    Superseding,
    Once,
    Cancelling,
    MinHold,
    Preferences,
    Impatience,
    Tokens,
    Keepers,
    Breaks,
    ImmediateBreaks,
    MixedQuarantines,
    LongQuarantine,
    OtherNames,
    LongCommands,
    // What happens to them.
    Kills,
    PowerLoss,
    Pauses,
    Signals,
    Cuts,
    SlowLines,
    // What happens to servers.
    ServerPauses,
    Restarts,
    DataLoss,
    Refusals,
    ClockSkew,
    ClockSteps,
    // What must do no harm.
    ClosedConnections,
    IdleLimit,
    ScriptFlush,
    NewHistory,
    Login,
    /// Processes and servers get no processor for a while, but for less than any of their limits.
    Stalls,
}

impl Feature {
    /// By its name in this file.
    pub fn parse(name: &str) -> Option<Self> {
        FEATURES.iter().map(|(feature, _)| *feature).find(|feature| format!("{feature:?}") == name)
    }
}

use Feature as F;

const FEATURES: [(Feature, u64); 35] = [
    (F::Sharing, 30),
    (F::Slots, 20),
    (F::SeveralKeys, 25),
    (F::Superseding, 15),
    (F::Once, 15),
    (F::Cancelling, 15),
    (F::MinHold, 20),
    (F::Preferences, 15),
    (F::Impatience, 40),
    (F::Tokens, 30),
    (F::Keepers, 35),
    (F::Breaks, 20),
    (F::ImmediateBreaks, 10),
    (F::MixedQuarantines, 15),
    (F::LongQuarantine, 5),
    (F::OtherNames, 10),
    (F::LongCommands, 70),
    (F::Kills, 30),
    (F::PowerLoss, 25),
    (F::Pauses, 30),
    (F::Signals, 30),
    (F::Cuts, 40),
    (F::SlowLines, 30),
    (F::ServerPauses, 30),
    (F::Restarts, 30),
    (F::DataLoss, 30),
    (F::Refusals, 15),
    (F::ClockSkew, 30),
    (F::ClockSteps, 10),
    (F::ClosedConnections, 30),
    (F::IdleLimit, 25),
    (F::ScriptFlush, 25),
    (F::NewHistory, 20),
    (F::Login, 30),
    (F::Stalls, 25),
];

/// Features that may change the order of service, or make a client fail.
const HARMFUL: [Feature; 18] = [
    F::ClosedConnections,
    F::PowerLoss,
    F::Kills,
    F::Pauses,
    F::Cuts,
    F::SlowLines,
    F::ServerPauses,
    F::Restarts,
    F::DataLoss,
    F::Refusals,
    F::ClockSteps,
    F::OtherNames,
    F::Preferences,
    F::ImmediateBreaks,
    F::LongQuarantine,
    F::MixedQuarantines,
    F::Superseding,
    F::Cancelling,
];

#[derive(Clone, Debug)]
pub struct Actor {
    pub number: u64,
    pub site: Site,
    pub access: Access,
    /// To each server and back, each way.
    pub latencies_us: Vec<u64>,
    pub job: Job,
}

/// What a server keeps of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    All,
    Nothing,
    /// A copy that is this old, in us.
    OldCopy(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    ToServer,
    ToClient,
    Both,
}

#[derive(Clone, Debug)]
pub enum Fault {
    /// The host of an actor is cut off from these servers.
    Cut {
        actor: u64,
        servers: Vec<ServerId>,
        how: Cut,
        for_us: u64,
    },
    /// Its lines become slower.
    Slow {
        actor: u64,
        servers: Vec<ServerId>,
        latency_us: u64,
        for_us: u64,
    },
    /// SIGKILL. The guardian releases, unless the machine is gone as well.
    Kill {
        actor: u64,
        has_guardian: bool,
    },
    Pause {
        actor: u64,
        for_us: u64,
    },
    Signal {
        actor: u64,
    },
    PauseServer {
        server: ServerId,
        for_us: u64,
    },
    /// `promoted`: a replica takes its place, under the same address.
    Restart {
        server: ServerId,
        keeps: Keeps,
        for_us: u64,
    },
    Flush {
        server: ServerId,
    },
    /// An operator flushes every server.
    FlushAll,
    CloseConnections {
        server: ServerId,
    },
    ForgetScripts {
        server: ServerId,
    },
    /// The replication backlog is freed: the replication ID changes, nothing else.
    NewHistory {
        server: ServerId,
    },
    OutOfMemory {
        server: ServerId,
        for_us: u64,
    },
    /// An ACL refuses this command for a while.
    Deny {
        server: ServerId,
        command: &'static str,
        for_us: u64,
    },
    StepClock {
        server: ServerId,
        by_us: i64,
    },
}

impl Fault {
    /// Whether it strikes one process, or its lines, rather than a server.
    fn strikes_process(&self) -> bool {
        matches!(
            self,
            Self::Cut { .. }
                | Self::Slow { .. }
                | Self::Kill { .. }
                | Self::Pause { .. }
                | Self::Signal { .. }
        )
    }
}

#[derive(Clone, Debug)]
pub enum What {
    Start(Box<Actor>),
    Fault(Fault),
    /// From here on nothing more goes wrong.
    Quiet,
    /// By now this actor must have its lock.
    Served(u64),
}

#[derive(Clone, Debug)]
pub struct Step {
    pub at_us: u64,
    pub what: What,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub servers: usize,
    pub features: BTreeSet<Feature>,
    pub keys: Vec<String>,
    pub password: Option<String>,
    pub idle_limit_us: Option<u64>,
    pub server_clocks: Vec<Clock>,
    pub steps: Vec<Step>,
}

impl Scenario {
    pub fn is_order_strict(&self) -> bool {
        !HARMFUL.iter().any(|feature| self.features.contains(feature))
    }

    /// `only`: these features and no others.
    pub fn draw(seed: u64, servers: usize, only: &[Feature]) -> Self {
        draw::draw(seed, servers, only)
    }
}

/// The address of a server; with alias 1 the order of the addresses is reversed.
pub fn address(at: usize, alias: u64, servers: usize) -> String {
    match alias {
        0 => format!("10.0.0.{}:6379", at + 1),
        _ => format!("10.1.0.{}:6379", servers - at),
    }
}
