//! A check-up of the servers and of this host: what was found out, as values. judge/ says what it means for locks;
//! redis/ and local/ find it out.

mod judge;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::{BackendError, Blocked, HolderInfo, Mode, Mount, Observer, Prefer, Request, WaitPolicy};
use crate::exit;

pub(crate) use judge::{About, Check, Finding, Judgement, Kept, Level, Quorum, Terms, What, judge};

/// What was found out about the servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServersCheckup {
    /// How many are configured. A cluster is one, whatever the number of its masters.
    pub configured: usize,
    pub servers: Vec<ServerFacts>,
    pub sentinels: Vec<SentinelFacts>,
}

/// A server that holds locks: a configured one, the master that Sentinels name, or one of a cluster's masters.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    pub name: String,
    /// Which of the configured servers it is, or is a part of.
    pub configured: usize,
    pub kind: ServerKind,
    /// Why the other masters of its cluster are not known, if they are not.
    pub others: Option<BackendError>,
    /// A key whose lock is on it, to begin with.
    pub first_key: String,
    /// An error if it cannot be asked anything.
    pub found: Result<Found, BackendError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Plain,
    OfSentinels,
    OfCluster,
}

/// What a server that answers tells. An error where it tells nothing: denied, or not offered.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub rtt: Duration,
    pub clock: Result<Clock, BackendError>,
    pub info: Result<Info, BackendError>,
    pub config: Result<Config, BackendError>,
    /// On a cluster that of all its slots.
    pub marker: Result<Option<Marker>, BackendError>,
    /// Of the certificate of a server with TLS.
    pub certificate_expires: Option<SystemTime>,
    /// `None` if it was not tried, since it could not work.
    pub trial: Option<Result<Trial, TrialFailure>>,
}

/// A server's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    pub now_ms: u64,
    /// Compared with this host's; negative if it is behind.
    pub ahead_ms: i64,
    /// The difference may be off by this much: the reply was under way.
    pub uncertainty: Duration,
}

/// What INFO tells; `None` where it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info {
    pub engine: String,
    pub version: Option<String>,
    pub mode: Option<String>,
    pub run_id: Option<String>,
    /// Of its replication history: a new one each time it becomes a master.
    pub replication_id: Option<String>,
    pub uptime: Option<Duration>,
    pub is_replica: Option<bool>,
    /// host:port
    pub master: Option<String>,
    pub replicas: Option<u64>,
    /// It refuses writes if it has too few replicas.
    pub demands_replicas: bool,
    /// Zero without a limit.
    pub max_memory: Option<u64>,
    pub used_memory: Option<u64>,
    pub eviction_policy: Option<String>,
    pub evicted_keys: Option<u64>,
    pub has_append_only_file: Option<bool>,
    /// The last attempt to write to the disk failed.
    pub cannot_save: bool,
    pub is_cluster: bool,
}

/// What CONFIG GET tells; `None` where it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub append_fsync: Option<String>,
    /// When snapshots are taken; empty if never.
    pub save: Option<String>,
    pub min_replicas: Option<u64>,
    /// A replica that was silent for longer does not count.
    pub max_lag: Option<Duration>,
    /// In a cluster: after this silence another server is made the master.
    pub cluster_node_timeout: Option<Duration>,
}

/// By which a server proves that it has kept its data: see lua/include/server.lua.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub reign: String,
    pub since_ms: u64,
    /// The longest quarantine that any client came with.
    pub longest_ms: u64,
}

/// A lock on a key of our own was taken, waited for, extended and released, and every trace of it deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    /// Without the wait.
    pub took: Duration,
    /// The run was written into the log of finished runs.
    pub is_in_history: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct TrialFailure {
    pub step: TrialStep,
    pub why: BackendError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialStep {
    Take,
    Wait,
    Extend,
    Release,
    CleanUp,
}

/// One of the Sentinels of a configured server.
#[derive(Clone, Debug)]
pub(crate) struct SentinelFacts {
    pub name: String,
    pub configured: usize,
    /// The master that it names, host:port.
    pub master: Result<String, BackendError>,
    /// After this silence another server is made the master, if it tells.
    pub down_after: Option<Duration>,
}

/// What was found out about this host.
#[derive(Clone, Debug)]
pub(crate) struct HostFacts {
    /// Where locks of this host are; `None` if there is no directory that all users share.
    pub directory: Option<PathBuf>,
    /// A lock was taken and released there.
    pub trial: Option<Result<HostTrial, BackendError>>,
    /// A process can adopt the orphans of its descendants.
    pub has_subreaper: bool,
    /// /proc shows the processes of this PID namespace.
    pub has_proc: bool,
    /// A signal can be sent to a process instead of a number.
    pub has_pidfd: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostTrial {
    pub mount: Mount,
    pub took: Duration,
}

/// What is asked for on a key of our own.
pub(super) fn trial_request(wait: WaitPolicy) -> Request {
    Request {
        mode: Mode::Exclusive,
        prefer: Prefer::Fair,
        wait,
        waits_for_backend: false,
        supersedes: false,
        min_hold: Duration::ZERO,
        history: 1,
        exit_if_held: exit::HELD,
        holder: HolderInfo { label: "redlock doctor".into(), ..HolderInfo::default() },
        ancestors: Vec::new(),
    }
}

const A_DAY: Duration = Duration::from_hours(24);

/// For waits that nobody follows.
pub(super) struct Unobserved;

impl Observer for Unobserved {
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn cancelled(&mut self) -> Option<Signal> {
        None
    }

    fn waiting(&mut self, _: &Blocked, _: Duration) {}

    fn next_update_in(&self, _: Duration) -> Duration {
        A_DAY
    }

    fn on_unavailable(&mut self, _: &BackendError, _: Duration) {}
}
