//! Facts about servers and lock directories, for `redlock doctor`. redis/checkup/ gathers
//! those of servers; src/doctor/ judges them.
//!
//! A server may deny access to some facts or not support them: such a fact is an error, never a
//! guess.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::claim::WaiterId;
use super::{
    BackendError, Blocked, Ended, Error, HolderInfo, HostLock, Lock, Mode, Mount, Observer, Outcome, Prefer,
    Problem, Request, WaitPolicy,
};
use crate::clock::BootTime;
use crate::exit;

#[derive(Clone, Debug, Default)]
pub(crate) struct ServersCheckup {
    /// Number of configured servers. A cluster counts as one, however many masters it has.
    pub configured: usize,
    pub servers: Vec<ServerFacts>,
    pub sentinels: Vec<SentinelFacts>,
}

/// A server that holds locks: a configured one, the master that Sentinels name, or one of a
/// cluster's masters.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    pub name: String,
    /// Index of the configured server that this one is, or is part of.
    pub configured: usize,
    pub kind: ServerKind,
    /// Why the other masters of its cluster are unknown.
    pub others: Option<BackendError>,
    /// A key whose lock lives on this server.
    pub first_key: String,
    /// An error if the server cannot be queried at all.
    pub found: Result<Found, BackendError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Plain,
    OfSentinels,
    OfCluster,
}

/// The facts about a server that replies.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub rtt: Duration,
    pub clock: Result<ServerClock, BackendError>,
    pub info: Result<Info, BackendError>,
    pub config: Result<Config, BackendError>,
    /// On a cluster, the marker of all its slots.
    pub marker: Result<Option<Marker>, BackendError>,
    /// Only known with TLS.
    pub certificate_expires: Option<SystemTime>,
    /// `None` if no trial was made because it could not have worked.
    pub trial: Option<Result<Trial, TrialFailure>>,
}

/// A server's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerClock {
    pub now_ms: u64,
    /// Relative to this host's clock; negative if it is behind.
    pub ahead_ms: i64,
    /// Error bound of `ahead_ms`: the reply was in transit.
    pub uncertainty: Duration,
}

/// The fields of INFO; `None` where a field is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info {
    pub engine: String,
    pub version: Option<String>,
    pub mode: Option<String>,
    pub run_id: Option<String>,
    /// Changes each time the server becomes a master.
    pub replication_id: Option<String>,
    pub uptime: Option<Duration>,
    pub is_replica: Option<bool>,
    /// host:port
    pub master: Option<String>,
    pub replicas: Option<u64>,
    /// The server refuses writes if it has too few replicas.
    pub demands_replicas: bool,
    /// Zero means no limit.
    pub max_memory: Option<u64>,
    pub used_memory: Option<u64>,
    pub eviction_policy: Option<String>,
    pub evicted_keys: Option<u64>,
    pub has_append_only_file: Option<bool>,
    /// The last attempt to write to disk failed.
    pub cannot_save: bool,
    pub is_cluster: bool,
}

/// The values of CONFIG GET; `None` where one is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub append_fsync: Option<String>,
    /// When snapshots are taken; empty if never.
    pub save: Option<String>,
    pub min_replicas: Option<u64>,
    /// A replica that has not replied for longer does not count.
    pub max_lag: Option<Duration>,
    /// In a cluster, another server becomes the master after a silence of this length.
    pub cluster_node_timeout: Option<Duration>,
}

/// Proof that a server has kept its data: see lua/include/marker.lua.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marker {
    pub reign: String,
    pub since_ms: u64,
    /// The longest lease that any client may have, or the longest quarantine, until `ends_ms`.
    pub longest_ms: u64,
    pub ends_ms: u64,
    /// Since when there may be leases longer than usual.
    pub raised_ms: u64,
    /// The client that asked for the longest one, if known: "user@host".
    pub raised_by: String,
}

/// A lock on a random key was taken, waited for, extended and released, and its keys were deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    /// Excludes the wait.
    pub took: Duration,
    /// The run was added to the log.
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
    /// Another server becomes the master after a silence of this length; `None` if unknown.
    pub down_after: Option<Duration>,
}

/// A lock was taken and released in a directory of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostTrial {
    pub mount: Mount,
    pub took: Duration,
}

/// Takes and releases a lock on a file with a random name: can the directory be used, and does its
/// file system support kernel locks? The file is deleted afterwards; a file of names that was created
/// beside it stays, for later runs.
pub(crate) fn check_directory_for_locks(directory: &Path) -> Result<HostTrial, BackendError> {
    let name = format!("doctor-{}", WaiterId::random()).into_bytes();
    let started = BootTime::now();
    let mut lock = HostLock::open(directory, &[name])?;
    let mount = lock.mount();
    let result = lock.acquire(&trial_request(WaitPolicy::No), &mut Unobserved);
    let result = result.map(|grant| lock.release(&grant, &Ended::new(Outcome::Released), Duration::ZERO));
    for path in lock.paths() {
        let _ = fs::remove_file(path);
    }
    match result {
        Ok(_) => Ok(HostTrial { mount, took: started.elapsed() }),
        Err(Error::Backend(error)) => Err(error),
        // No other client knows the file.
        Err(
            Error::Held(_)
            | Error::Nested
            | Error::Deadlock(_)
            | Error::Superseded(_)
            | Error::Done(_)
            | Error::Cancelled(_),
        ) => Err(BackendError::new(directory.display().to_string(), Problem::ClaimVanished)),
    }
}

/// The request of a trial, on a key that no other client uses.
pub(super) fn trial_request(wait: WaitPolicy) -> Request {
    Request {
        mode: Mode::Exclusive,
        prefer: Prefer::Fair,
        wait,
        waits_for_backend: false,
        supersedes: false,
        once: None,
        min_hold: Duration::ZERO,
        history: 1,
        exit_if_held: exit::HELD,
        holder: HolderInfo { label: "redlock doctor".into(), ..HolderInfo::default() },
        ancestors: Vec::new(),
    }
}

const A_DAY: Duration = Duration::from_hours(24);

/// Ignores the progress of a wait.
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
