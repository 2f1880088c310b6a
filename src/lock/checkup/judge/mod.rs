//! What the facts mean for locks: ok, a warning, a problem, or not known. Pure; the sentences are made in report/.
//!
//! What a server does not tell is never ok. A problem is what keeps locks from being taken, or from being locks; a warning
//! is what may do so one day, or costs time.

mod quorum;
mod server;

use std::time::{Duration, SystemTime};

use super::{HostFacts, HostTrial, SentinelFacts, ServersCheckup, TrialFailure};
use crate::lock::{BackendError, Mount};

pub(crate) use quorum::Quorum;
use server::Vote;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Ok,
    /// Denied, or not offered.
    Unknown,
    Warning,
    Problem,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Settings,
    /// By its number in the check-up.
    Server(usize),
    Sentinel(usize),
    AllServers,
    Host,
}

#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub level: Level,
    pub about: About,
    pub what: What,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Settings,
    Reachable,
    Latency,
    Version,
    Role,
    Identity,
    Quarantine,
    Eviction,
    Memory,
    Persistence,
    Clock,
    Replicas,
    Certificate,
    Permissions,
    Masters,
    History,
    Sentinel,
    Quorum,
    LockDirectory,
    Subreaper,
    Proc,
    Pidfd,
}

/// What was found.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A sentence about the settings.
    Setting(String),
    /// A variable that looks like a setting and is none.
    UnknownVariable(String),
    NoServer,
    NeverExpires,
    Unreachable(BackendError),
    RoundTrip(Duration),
    Slow {
        rtt: Duration,
        node_timeout: Duration,
    },
    Engine {
        name: String,
        version: String,
    },
    TooOld {
        name: String,
        version: String,
    },
    Untested {
        name: String,
        version: String,
    },
    Master {
        replicas: Option<u64>,
    },
    Replica {
        of: Option<String>,
    },
    SentinelProcess,
    ClusterNode,
    /// With several servers, and with a quarantine, it must tell its run_id.
    NoIdentity(Option<BackendError>),
    Twin {
        other: String,
    },
    ListedOnce,
    Votes {
        uptime: Option<Duration>,
    },
    Quarantined {
        left: Duration,
        uptime: Option<Duration>,
    },
    /// It will be in quarantine for this long after its first use.
    NeverUsed {
        quarantine: Duration,
        first_key: String,
    },
    /// The marker of the quarantine may not be read.
    MarkerDenied(BackendError),
    NoEviction,
    /// It would evict, but has no limit that it could reach.
    NoLimit {
        policy: String,
    },
    Evicts {
        policy: String,
        evicted: Option<u64>,
    },
    HasEvicted(u64),
    AlmostFull {
        used: u64,
        limit: u64,
    },
    /// What it keeps of its data over a restart does not matter, since it then grants nothing for a while.
    QuarantineCovers,
    AppendOnly {
        fsync: Option<String>,
    },
    Forgets {
        keeps: Kept,
        /// It is one of several servers.
        several: bool,
    },
    CannotSave,
    Clock {
        ahead_ms: i64,
    },
    ClockDiffers {
        ahead_ms: i64,
    },
    ClocksDiffer {
        by_ms: u64,
    },
    ReplicasDemanded(Option<u64>),
    ReplicasNotDemanded,
    /// A master that is cut off from its replicas serves on after another one has taken its place.
    LagTooLong {
        max_lag: Duration,
        takeover_after: Duration,
    },
    NoReplica,
    Certificate {
        left: Duration,
    },
    CertificateEnds {
        left: Duration,
    },
    Trial {
        took: Duration,
    },
    TrialFailed(Box<TrialFailure>),
    NoHistory,
    SentinelNames(String),
    SentinelFails(BackendError),
    SentinelDiffers {
        names: String,
        used: String,
    },
    Quorum(Quorum),
    EvenNumber(usize),
    Directory {
        path: String,
        took: Duration,
    },
    OverNetwork(String),
    PrivateToService(String),
    DirectoryFails(BackendError),
    NoDirectory,
    Subreaper(bool),
    Proc(bool),
    Pidfd(bool),
    /// It does not tell.
    Unknown {
        check: Check,
        why: Option<BackendError>,
    },
}

/// What is left of a server's data after a restart, if that is not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Nothing,
    Snapshots,
    /// What the system had written to the disk by itself.
    Unsynced,
}

/// The settings that locks would be taken with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub ttl: Option<Duration>,
    pub node_timeout: Duration,
    /// Zero is off.
    pub quarantine: Duration,
}

/// All findings, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judgement {
    pub findings: Vec<Finding>,
    /// Whether each server of the check-up can vote now.
    pub votes: Vec<bool>,
    /// `None` on this host.
    pub quorum: Option<Quorum>,
}

/// `servers`: `None` if locks would be on this host.
pub(crate) fn judge(
    servers: Option<(&ServersCheckup, &Terms)>,
    host: &HostFacts,
    now: SystemTime,
) -> Judgement {
    let mut judgement = Judgement::default();
    if let Some((checkup, terms)) = servers {
        judgement.add_servers(checkup, terms, now);
    }
    judgement.add(About::Host, judge_host(host, servers.is_none()));
    judgement
}

impl Judgement {
    fn add(&mut self, about: About, judged: impl IntoIterator<Item = Judged>) {
        self.findings.extend(judged.into_iter().map(|(level, what)| Finding { level, about, what }));
    }

    fn add_servers(&mut self, checkup: &ServersCheckup, terms: &Terms, now: SystemTime) {
        if terms.ttl.is_none() {
            self.add(About::Settings, [(Level::Warning, What::NeverExpires)]);
        }
        let mut votes = Vec::new();
        for at in 0..checkup.servers.len() {
            let judged = server::judge(checkup, at, terms, now);
            votes.push(judged.vote);
            self.add(About::Server(at), judged.findings);
        }
        for (at, sentinel) in checkup.sentinels.iter().enumerate() {
            self.add(About::Sentinel(at), [judge_sentinel(sentinel, checkup)]);
        }
        let (judged, quorum) = quorum::judge(checkup, &votes);
        self.add(About::AllServers, judged);
        self.votes = votes.iter().map(|vote| *vote == Vote::Can).collect();
        self.quorum = Some(quorum);
    }
}

type Judged = (Level, What);

/// Another Sentinel may stand in for one that fails; whether none can, the master's reachability tells.
fn judge_sentinel(sentinel: &SentinelFacts, checkup: &ServersCheckup) -> Judged {
    let used = checkup.servers.iter().find(|server| server.configured == sentinel.configured);
    match &sentinel.master {
        Err(error) => (Level::Warning, What::SentinelFails(error.clone())),
        Ok(names) => match used.filter(|server| server.found.is_ok()).map(|server| &server.name) {
            Some(used) if !used.ends_with(&format!("({names})")) => {
                (Level::Warning, What::SentinelDiffers { names: names.clone(), used: used.clone() })
            }
            _ => (Level::Ok, What::SentinelNames(names.clone())),
        },
    }
}

/// `is_backend`: locks would be on this host.
fn judge_host(host: &HostFacts, is_backend: bool) -> Vec<Judged> {
    let bad = if is_backend { Level::Problem } else { Level::Warning };
    let path = host.directory.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let mut judged = vec![match &host.trial {
        None => (bad, What::NoDirectory),
        Some(Err(error)) => (bad, What::DirectoryFails(error.clone())),
        Some(Ok(HostTrial { mount: Mount::OnThisHost, took })) => {
            (Level::Ok, What::Directory { path, took: *took })
        }
        Some(Ok(HostTrial { mount: Mount::OverNetwork, .. })) => (Level::Warning, What::OverNetwork(path)),
        Some(Ok(HostTrial { mount: Mount::PrivateToService, .. })) => {
            (Level::Warning, What::PrivateToService(path))
        }
    }];
    let needed = |has: bool| if has { Level::Ok } else { Level::Problem };
    judged.push((needed(host.has_subreaper), What::Subreaper(host.has_subreaper)));
    judged.push((needed(host.has_proc), What::Proc(host.has_proc)));
    judged.push((needed(host.has_pidfd), What::Pidfd(host.has_pidfd)));
    judged
}

impl What {
    pub(crate) fn check(&self) -> Check {
        match self {
            Self::Setting(_) | Self::UnknownVariable(_) | Self::NoServer | Self::NeverExpires => {
                Check::Settings
            }
            Self::Unreachable(_) => Check::Reachable,
            Self::RoundTrip(_) | Self::Slow { .. } => Check::Latency,
            Self::Engine { .. } | Self::TooOld { .. } | Self::Untested { .. } => Check::Version,
            Self::Master { .. } | Self::Replica { .. } | Self::SentinelProcess | Self::ClusterNode => {
                Check::Role
            }
            Self::NoIdentity(_) | Self::Twin { .. } | Self::ListedOnce => Check::Identity,
            Self::Votes { .. }
            | Self::Quarantined { .. }
            | Self::NeverUsed { .. }
            | Self::MarkerDenied(_) => Check::Quarantine,
            Self::NoEviction | Self::NoLimit { .. } | Self::Evicts { .. } | Self::HasEvicted(_) => {
                Check::Eviction
            }
            Self::AlmostFull { .. } => Check::Memory,
            Self::QuarantineCovers | Self::AppendOnly { .. } | Self::Forgets { .. } | Self::CannotSave => {
                Check::Persistence
            }
            Self::Clock { .. } | Self::ClockDiffers { .. } | Self::ClocksDiffer { .. } => Check::Clock,
            Self::ReplicasDemanded(_)
            | Self::ReplicasNotDemanded
            | Self::LagTooLong { .. }
            | Self::NoReplica => Check::Replicas,
            Self::Certificate { .. } | Self::CertificateEnds { .. } => Check::Certificate,
            Self::Trial { .. } | Self::TrialFailed(_) => Check::Permissions,
            Self::NoHistory => Check::History,
            Self::SentinelNames(_) | Self::SentinelFails(_) | Self::SentinelDiffers { .. } => Check::Sentinel,
            Self::Quorum(_) | Self::EvenNumber(_) => Check::Quorum,
            Self::Directory { .. }
            | Self::OverNetwork(_)
            | Self::PrivateToService(_)
            | Self::DirectoryFails(_)
            | Self::NoDirectory => Check::LockDirectory,
            Self::Subreaper(_) => Check::Subreaper,
            Self::Proc(_) => Check::Proc,
            Self::Pidfd(_) => Check::Pidfd,
            Self::Unknown { check, .. } => *check,
        }
    }
}

#[cfg(test)]
mod tests;
