//! One server.

use std::time::{Duration, SystemTime};

use super::quorum::CLOCK_TOLERANCE_MS;
use super::{Check, Judged, Kept, Level, Terms, What};
use crate::lock::BackendError;
use crate::lock::checkup::{Config, Found, Info, Marker, ServerFacts, ServerKind, ServersCheckup, Trial};

/// With one server its clock is only shown to people.
const SHOWN_CLOCK_TOLERANCE_MS: u64 = 60_000;
/// A round trip that takes more than these parts of the node timeout and of the ttl is slow.
const ROUND_TRIPS_IN_TIMEOUT: u32 = 3;
const ROUND_TRIPS_IN_TTL: u32 = 10;
/// The scripts need what Redis has had since this version.
const OLDEST_MAJOR: u64 = 6;
const TESTED: [&str; 2] = ["Redis", "Valkey"];
/// A certificate is to be renewed in time.
const RENEW_CERTIFICATE: Duration = Duration::from_hours(14 * 24);
/// The scripts add this to a quarantine.
const AFTER_QUARANTINE_MS: u64 = 1000;

/// Whether a server can vote for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Vote {
    Cannot,
    /// When the quarantine is over that begins with its first use.
    AfterFirstUse,
    Can,
}

pub(super) struct JudgedServer {
    pub findings: Vec<Judged>,
    pub vote: Vote,
}

pub(super) fn judge(checkup: &ServersCheckup, at: usize, terms: &Terms, now: SystemTime) -> JudgedServer {
    let server = &checkup.servers[at];
    let found = match &server.found {
        Ok(found) => found,
        Err(error) => {
            let findings = vec![(Level::Problem, What::Unreachable(error.clone()))];
            return JudgedServer { findings, vote: Vote::Cannot };
        }
    };
    let several = checkup.configured > 1;
    let mut findings = Vec::new();
    let info = found.info.as_ref();
    if let Ok(info) = info {
        findings.push(version(info));
        findings.push(role(info, server.kind));
        findings.extend(identity(checkup, at, info, needs_identity(several, terms)));
    }
    let (quarantine, vote) = quarantine(found, server, several, terms);
    findings.extend(quarantine);
    findings.push(latency(found.rtt, terms));
    findings.push(clock(found, several));
    match info {
        Ok(info) => {
            let config = found.config.as_ref();
            findings.extend(eviction(info));
            findings.push(persistence(info, config, several, terms));
            if info.cannot_save {
                findings.push((Level::Warning, What::CannotSave));
            }
            findings.extend(replicas(checkup, at, info, config));
        }
        Err(error) => findings.extend(without_info(error, server.kind, needs_identity(several, terms))),
    }
    if let Some(error) = &server.others {
        let what = What::Unknown { check: Check::Masters, why: Some(error.clone()) };
        findings.push((Level::Unknown, what));
    }
    findings.extend(certificate(found.certificate_expires, now));
    findings.extend(trial(found));
    let is_broken = findings.iter().any(|(level, what)| *level == Level::Problem && prevents_a_vote(what));
    JudgedServer { findings, vote: if is_broken { Vote::Cannot } else { vote } }
}

/// Votes are counted, and quarantines begin, by run_id.
fn needs_identity(several: bool, terms: &Terms) -> bool {
    several || !terms.quarantine.is_zero()
}

/// An eviction, for one, does not: it takes locks away that were granted.
fn prevents_a_vote(what: &What) -> bool {
    matches!(what.check(), Check::Role | Check::Identity | Check::Permissions)
}

fn version(info: &Info) -> Judged {
    let name = info.engine.clone();
    let Some(version) = info.version.clone() else {
        return (Level::Unknown, What::Unknown { check: Check::Version, why: None });
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    if !TESTED.contains(&name.as_str()) {
        (Level::Warning, What::Untested { name, version })
    } else if name == "Redis" && major.is_some_and(|major| major < OLDEST_MAJOR) {
        (Level::Problem, What::TooOld { name, version })
    } else {
        (Level::Ok, What::Engine { name, version })
    }
}

fn role(info: &Info, kind: ServerKind) -> Judged {
    match info {
        Info { mode: Some(mode), .. } if mode == "sentinel" => (Level::Problem, What::SentinelProcess),
        Info { is_cluster: true, .. } if kind != ServerKind::OfCluster => (Level::Problem, What::ClusterNode),
        Info { is_replica: Some(true), master, .. } => (Level::Problem, What::Replica { of: master.clone() }),
        Info { is_replica: Some(false), replicas, .. } => (Level::Ok, What::Master { replicas: *replicas }),
        Info { is_replica: None, .. } => (Level::Unknown, What::Unknown { check: Check::Role, why: None }),
    }
}

fn identity(checkup: &ServersCheckup, at: usize, info: &Info, is_needed: bool) -> Option<Judged> {
    let Some(run_id) = &info.run_id else {
        return is_needed.then_some((Level::Problem, What::NoIdentity(None)));
    };
    let same = |other: &&ServerFacts| {
        let info = other.found.as_ref().ok().and_then(|found| found.info.as_ref().ok());
        info.and_then(|info| info.run_id.as_ref()) == Some(run_id)
    };
    match checkup.servers[..at].iter().find(same) {
        Some(twin) => Some((Level::Problem, What::Twin { other: twin.name.clone() })),
        None => (checkup.servers.len() > 1).then_some((Level::Ok, What::ListedOnce)),
    }
}

fn eviction(info: &Info) -> Vec<Judged> {
    let mut judged = Vec::new();
    let has_evicted = info.evicted_keys.filter(|&count| count > 0);
    match (&info.eviction_policy, info.max_memory) {
        (Some(policy), _) if policy == "noeviction" => judged.push((Level::Ok, What::NoEviction)),
        (Some(policy), Some(0)) if has_evicted.is_none() => {
            judged.push((Level::Ok, What::NoLimit { policy: policy.clone() }));
        }
        (Some(policy), _) => {
            let what = What::Evicts { policy: policy.clone(), evicted: info.evicted_keys };
            judged.push((Level::Problem, what));
        }
        (None, _) => match has_evicted {
            Some(count) => judged.push((Level::Warning, What::HasEvicted(count))),
            None => judged.push((Level::Unknown, What::Unknown { check: Check::Eviction, why: None })),
        },
    }
    if let (Some(used), Some(limit @ 1..)) = (info.used_memory, info.max_memory)
        && used > limit / 10 * 9
    {
        judged.push((Level::Warning, What::AlmostFull { used, limit }));
    }
    judged
}

/// What is lost in a restart does no harm if the server then grants nothing until all older leases are over.
fn persistence(info: &Info, config: Result<&Config, &BackendError>, several: bool, terms: &Terms) -> Judged {
    if !terms.quarantine.is_zero() {
        return (Level::Ok, What::QuarantineCovers);
    }
    let unknown = |why| (Level::Unknown, What::Unknown { check: Check::Persistence, why });
    match (info.has_append_only_file, config) {
        (None, _) => unknown(None),
        // How often it is written to the disk.
        (Some(true), Err(error)) => unknown(Some(error.clone())),
        (Some(true), Ok(Config { append_fsync, .. })) if append_fsync.as_deref() == Some("no") => {
            (Level::Warning, What::Forgets { keeps: Kept::Unsynced, several })
        }
        (Some(true), Ok(config)) => (Level::Ok, What::AppendOnly { fsync: config.append_fsync.clone() }),
        (Some(false), config) => {
            let save = config.ok().and_then(|config| config.save.as_deref());
            let keeps =
                if save.is_some_and(|save| !save.is_empty()) { Kept::Snapshots } else { Kept::Nothing };
            (Level::Warning, What::Forgets { keeps, several })
        }
    }
}

/// Where another server may take this one's place.
fn replicas(
    checkup: &ServersCheckup,
    at: usize,
    info: &Info,
    config: Result<&Config, &BackendError>,
) -> Option<Judged> {
    let server = &checkup.servers[at];
    let of_sentinels = checkup.sentinels.iter().filter(|sentinel| sentinel.configured == server.configured);
    let takeover_after = match server.kind {
        ServerKind::Plain => return None,
        ServerKind::OfSentinels => of_sentinels.filter_map(|sentinel| sentinel.down_after).min(),
        ServerKind::OfCluster => config.ok().and_then(|config| config.cluster_node_timeout),
    };
    let unknown = |why| (Level::Unknown, What::Unknown { check: Check::Replicas, why });
    Some(match (info.replicas, config) {
        (None, _) => unknown(None),
        (Some(0), _) if !info.demands_replicas => (Level::Warning, What::NoReplica),
        (Some(_), _) if !info.demands_replicas => (Level::Warning, What::ReplicasNotDemanded),
        (Some(_), Err(error)) => unknown(Some(error.clone())),
        (Some(_), Ok(Config { min_replicas, max_lag, .. })) => match max_lag.zip(takeover_after) {
            None => unknown(None),
            Some((max_lag, takeover_after)) if max_lag > takeover_after => {
                (Level::Warning, What::LagTooLong { max_lag, takeover_after })
            }
            Some(_) => (Level::Ok, What::ReplicasDemanded(*min_replicas)),
        },
    })
}

/// Nothing of what INFO tells is known.
fn without_info(error: &BackendError, kind: ServerKind, needs_identity: bool) -> Vec<Judged> {
    let mut checks = vec![Check::Version, Check::Role, Check::Eviction, Check::Persistence];
    if kind != ServerKind::Plain {
        checks.push(Check::Replicas);
    }
    let unknown = |check| (Level::Unknown, What::Unknown { check, why: Some(error.clone()) });
    let mut judged: Vec<Judged> = checks.into_iter().map(unknown).collect();
    if needs_identity {
        judged.push((Level::Problem, What::NoIdentity(Some(error.clone()))));
    }
    judged
}

/// As lua/include/server.lua counts it.
fn quarantine(found: &Found, server: &ServerFacts, several: bool, terms: &Terms) -> (Option<Judged>, Vote) {
    let info = found.info.as_ref().ok();
    let uptime = info.and_then(|info| info.uptime);
    let ok = (Level::Ok, What::Votes { uptime });
    let own = u64::try_from(terms.quarantine.as_millis()).unwrap_or(u64::MAX);
    let in_cluster = server.kind == ServerKind::OfCluster;
    if (in_cluster && own == 0) || !needs_identity(several, terms) {
        return (uptime.map(|_| ok), Vote::Can);
    }
    let reign = info.and_then(|info| Some((info.run_id.as_ref()?, info.replication_id.as_deref())));
    let reign = reign.map(|(run_id, history)| format!("{run_id}.{}", history.unwrap_or_default()));
    let now_ms = found.clock.as_ref().ok().map(|clock| clock.now_ms);
    let unknown = |why: Option<&BackendError>| {
        let what = What::Unknown { check: Check::Quarantine, why: why.cloned() };
        (Some((Level::Unknown, what)), Vote::Can)
    };
    match (&found.marker, reign.zip(now_ms)) {
        // Without the marker of all its slots there are those of each, of which nothing is known here.
        (Err(error), _) if in_cluster => unknown(Some(error)),
        (Err(error), _) => (Some((Level::Problem, What::MarkerDenied(error.clone()))), Vote::Cannot),
        (Ok(None), _) if own == 0 => (Some(ok), Vote::Can),
        (Ok(None), _) => {
            let quarantine = Duration::from_millis(own.saturating_add(AFTER_QUARANTINE_MS));
            let what = What::NeverUsed { quarantine, first_key: server.first_key.clone() };
            (Some((Level::Warning, what)), Vote::AfterFirstUse)
        }
        (Ok(Some(_)), None) => unknown(found.clock.as_ref().err().or(found.info.as_ref().err())),
        (Ok(Some(marker)), Some((reign, now_ms))) => match left_ms(marker, &reign, now_ms, own) {
            0 => (Some(ok), Vote::Can),
            left => {
                let what = What::Quarantined { left: Duration::from_millis(left), uptime };
                // A slot that was used before may have a marker that is older.
                let vote = if in_cluster { Vote::AfterFirstUse } else { Vote::Cannot };
                (Some((Level::Warning, what)), vote)
            }
        },
    }
}

fn left_ms(marker: &Marker, reign: &str, now_ms: u64, own_ms: u64) -> u64 {
    let longest = marker.longest_ms.max(own_ms);
    if longest == 0 {
        return 0;
    }
    let known_for = if marker.reign == reign { now_ms.saturating_sub(marker.since_ms) } else { 0 };
    longest.saturating_add(AFTER_QUARANTINE_MS).saturating_sub(known_for)
}

fn latency(rtt: Duration, terms: &Terms) -> Judged {
    let is_slow = rtt * ROUND_TRIPS_IN_TIMEOUT > terms.node_timeout
        || terms.ttl.is_some_and(|ttl| rtt * ROUND_TRIPS_IN_TTL > ttl);
    if is_slow {
        (Level::Warning, What::Slow { rtt, node_timeout: terms.node_timeout })
    } else {
        (Level::Ok, What::RoundTrip(rtt))
    }
}

fn clock(found: &Found, several: bool) -> Judged {
    let clock = match &found.clock {
        Ok(clock) => clock,
        Err(error) => {
            let what = What::Unknown { check: Check::Clock, why: Some(error.clone()) };
            return (Level::Unknown, what);
        }
    };
    let uncertainty = u64::try_from(clock.uncertainty.as_millis()).unwrap_or(u64::MAX);
    let at_least = clock.ahead_ms.unsigned_abs().saturating_sub(uncertainty);
    let tolerance = if several { CLOCK_TOLERANCE_MS } else { SHOWN_CLOCK_TOLERANCE_MS };
    if at_least > tolerance {
        (Level::Warning, What::ClockDiffers { ahead_ms: clock.ahead_ms })
    } else {
        (Level::Ok, What::Clock { ahead_ms: clock.ahead_ms })
    }
}

fn certificate(expires: Option<SystemTime>, now: SystemTime) -> Option<Judged> {
    let left = expires?.duration_since(now).unwrap_or_default();
    Some(if left < RENEW_CERTIFICATE {
        (Level::Warning, What::CertificateEnds { left })
    } else {
        (Level::Ok, What::Certificate { left })
    })
}

fn trial(found: &Found) -> Vec<Judged> {
    match &found.trial {
        // What is in the way is said.
        None => Vec::new(),
        Some(Err(failure)) => vec![(Level::Problem, What::TrialFailed(Box::new(failure.clone())))],
        Some(Ok(Trial { took, is_in_history })) => {
            let mut judged = vec![(Level::Ok, What::Trial { took: *took })];
            if !is_in_history {
                judged.push((Level::Warning, What::NoHistory));
            }
            judged
        }
    }
}
