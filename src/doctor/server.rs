//! The checks of one server, and of one Sentinel.

use std::time::{Duration, SystemTime};

use super::quorum::CLOCK_TOLERANCE_MS;
use super::text::{bytes, days, milliseconds, short};
use super::{Check, Finding, Level, refusal};
use crate::duration::{format, format_seconds};
use crate::lock::checkup::{
    Config, Found, Info, Marker, ServerFacts, ServerKind, ServersCheckup, Trial, TrialFailure, TrialStep,
};
use crate::lock::{
    BackendError, Fault, Problem, ServerError, ServerErrorKind, Timing, TlsProblem, USUAL_LEASE,
};
use crate::report::{problem, sanitize};

/// With one server its clock is only shown to people.
const SHOWN_CLOCK_TOLERANCE_MS: u64 = 60_000;
/// A round trip is slow if fewer than this many fit into the node timeout, or into the ttl.
const ROUND_TRIPS_IN_TIMEOUT: u32 = 3;
const ROUND_TRIPS_IN_TTL: u32 = 10;
/// The oldest Redis that the scripts run on.
const OLDEST_MAJOR: u64 = 6;
const TESTED: [&str; 2] = ["Redis", "Valkey"];
/// Warn this long before a certificate expires.
const RENEW_CERTIFICATE: Duration = Duration::from_hours(14 * 24);
/// The scripts add this to a quarantine.
const AFTER_QUARANTINE: Duration = Duration::from_secs(1);

const CANNOT_VOTE: &str = "it cannot vote";
const MAY_BE_DELETED: &str = "a lock that is held may be deleted and granted again";
const NOEVICTION: &str = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; or use a \
                          dedicated server for locks";
const MORE_MEMORY: &str = "raise maxmemory, or use a dedicated server for locks";
const PERMISSIONS: &str = "grant the user all permissions that redlock needs: docs/install.md, Permissions";

/// Whether a server can vote for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CanVote {
    No,
    /// After the quarantine that its first use starts.
    AfterFirstUse,
    Now,
}

pub(super) fn check(
    checkup: &ServersCheckup,
    at: usize,
    timing: &Timing,
    now: SystemTime,
) -> (Vec<Finding>, CanVote) {
    let server = &checkup.servers[at];
    let found = match &server.found {
        Ok(found) => found,
        Err(error) => return (vec![unreachable(error)], CanVote::No),
    };
    let several = checkup.configured > 1;
    // Votes are counted, and quarantines start, by run_id.
    let needs_identity = several || !timing.quarantine.is_zero();
    let mut findings = Vec::new();
    let info = found.info.as_ref();
    if let Ok(info) = info {
        findings.push(version(info));
        findings.push(role(info, server.kind));
        findings.extend(identity(checkup, at, info, needs_identity));
    }
    let (quarantine, vote) = quarantine(found, server, needs_identity, timing);
    findings.extend(quarantine);
    findings.push(latency(found.rtt, timing));
    findings.push(clock(found, several));
    match info {
        Ok(info) => {
            let config = found.config.as_ref();
            findings.push(eviction(info));
            findings.extend(memory(info));
            findings.push(persistence(info, config, several, timing));
            findings.extend(saving(info));
            findings.extend(replicas(checkup, at, info, config));
        }
        Err(error) => findings.extend(without_info(error, server.kind, needs_identity)),
    }
    findings.extend(server.others.as_ref().map(|error| Check::Masters.unknown(Some(error))));
    findings.extend(certificate(found.certificate_expires, now));
    findings.extend(trial(found));
    // An eviction, for one, takes away locks that were granted; it does not prevent a vote.
    let prevents_a_vote = |finding: &Finding| {
        finding.level == Level::Problem
            && matches!(finding.check, Check::Role | Check::Identity | Check::Permissions)
    };
    let is_broken = findings.iter().any(prevents_a_vote);
    (findings, if is_broken { CanVote::No } else { vote })
}

#[allow(clippy::wildcard_enum_match_arm, reason = "most problems need no advice of their own")]
fn unreachable(error: &BackendError) -> Finding {
    let by_fault = match error.fault() {
        Fault::Unavailable => "start it, or correct its URL",
        Fault::Refused => "correct the user, the password or the certificate",
        Fault::Unfit => "correct its URL",
    };
    let (why, fix) = match &error.problem {
        Problem::Server(ServerError { kind: ServerErrorKind::NotACluster, .. }) => (
            "its locks have other names than those of clients that use redis://, and do not keep them out",
            "use redis:// with this host and port",
        ),
        Problem::Tls(TlsProblem::Expired(_) | TlsProblem::NotYetValid(_)) => {
            (CANNOT_VOTE, "renew its certificate, or set the clock")
        }
        Problem::Tls(TlsProblem::IsAuthority | TlsProblem::Certificate(_)) => {
            (CANNOT_VOTE, "give the server another certificate")
        }
        Problem::Tls(TlsProblem::OtherName { .. }) => {
            (CANNOT_VOTE, "use a name from the certificate in the URL, or as --tls-server-name")
        }
        Problem::Tls(TlsProblem::UnknownIssuer { .. }) => {
            (CANNOT_VOTE, "name the file with the certificate of its authority: --tls-ca FILE")
        }
        Problem::Tls(TlsProblem::IdentityWanted | TlsProblem::IdentityRefused(_)) => {
            (CANNOT_VOTE, "use a certificate that the server accepts: --tls-cert FILE --tls-key FILE")
        }
        _ => (CANNOT_VOTE, by_fault),
    };
    Check::Reachable.problem(problem(&error.problem), why, fix)
}

fn version(info: &Info) -> Finding {
    let check = Check::Version;
    let name = info.engine.as_str();
    let Some(version) = &info.version else { return check.unknown(None) };
    let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    if !TESTED.contains(&name) {
        check.warning(
            format!("{name} {version} was not tested with redlock"),
            "it may differ from Redis where a lock depends on it",
            "use Redis or Valkey",
        )
    } else if name == "Redis" && major.is_some_and(|major| major < OLDEST_MAJOR) {
        check.problem(
            format!("{name} {version} is too old"),
            "the lock's scripts need Redis 6.0",
            "upgrade the server",
        )
    } else {
        check.ok(format!("{name} {version}"))
    }
}

fn role(info: &Info, kind: ServerKind) -> Finding {
    let check = Check::Role;
    if info.mode.as_deref() == Some("sentinel") {
        return check.problem(
            "is a Sentinel",
            "a Sentinel holds no data",
            "use redis+sentinel://HOST:PORT/SERVICE with this host and port",
        );
    }
    if info.is_cluster && kind != ServerKind::OfCluster {
        return check.problem(
            "is a node of a Redis Cluster",
            "it has only some of the slots, and redirects clients for the others",
            "use redis+cluster://HOST:PORT with this host and port",
        );
    }
    match (info.is_replica, info.replicas) {
        (None, _) => check.unknown(None),
        (Some(true), _) => {
            let of = info.master.as_ref().map(|of| format!(" of {of}")).unwrap_or_default();
            let fix = "name the master, or its Sentinels";
            check.problem(format!("is a replica{of}"), "a replica grants no locks", fix)
        }
        (Some(false), Some(1)) => check.ok("master with 1 replica"),
        (Some(false), Some(count @ 2..)) => check.ok(format!("master with {count} replicas")),
        (Some(false), Some(0) | None) => check.ok("master"),
    }
}

fn no_identity(error: Option<&BackendError>) -> Finding {
    let reply = error.map(|error| format!(": {}", refusal(error))).unwrap_or_default();
    Check::Identity.problem(
        format!("does not report its run_id{reply}"),
        "several servers, Sentinel, Cluster and --quarantine need it to tell servers and restarts apart",
        "allow INFO (+info in the ACL)",
    )
}

fn identity(checkup: &ServersCheckup, at: usize, info: &Info, is_needed: bool) -> Option<Finding> {
    let Some(run_id) = &info.run_id else { return is_needed.then(|| no_identity(None)) };
    let same = |other: &&ServerFacts| {
        let info = other.found.as_ref().ok().and_then(|found| found.info.as_ref().ok());
        info.and_then(|info| info.run_id.as_ref()) == Some(run_id)
    };
    match checkup.servers[..at].iter().find(same) {
        Some(twin) => Some(Check::Identity.problem(
            format!("is the same server as {}", twin.name),
            "its vote would count twice",
            "name each server once, by one address and one database",
        )),
        None => (checkup.servers.len() > 1).then(|| Check::Identity.ok("listed once")),
    }
}

fn eviction(info: &Info) -> Finding {
    let check = Check::Eviction;
    let evicted = info.evicted_keys.filter(|&count| count > 0);
    let evicted_text = evicted.map(|count| format!("{count} keys were evicted since its start"));
    match (&info.eviction_policy, info.max_memory) {
        (Some(policy), _) if policy == "noeviction" => check.ok("noeviction"),
        (Some(policy), Some(0)) if evicted.is_none() => check.ok(format!("{policy}, but no maxmemory")),
        (Some(policy), _) => {
            let evicted = evicted_text.map(|text| format!(", and {text}")).unwrap_or_default();
            check.problem(format!("maxmemory-policy is {policy}{evicted}"), MAY_BE_DELETED, NOEVICTION)
        }
        (None, _) => match evicted_text {
            Some(text) => check.warning(text, MAY_BE_DELETED, NOEVICTION),
            None => check.unknown(None),
        },
    }
}

fn memory(info: &Info) -> Option<Finding> {
    let (used, limit) = info.used_memory.zip(info.max_memory)?;
    (limit > 0 && used > limit / 10 * 9).then(|| {
        let text = format!("{} of {} of memory are used", bytes(used), bytes(limit));
        Check::Memory.warning(text, "a server without free memory grants no locks", MORE_MEMORY)
    })
}

/// A restart that loses data does no harm if the server then grants nothing until all earlier
/// leases have expired.
fn persistence(
    info: &Info,
    config: Result<&Config, &BackendError>,
    several: bool,
    timing: &Timing,
) -> Finding {
    let check = Check::Persistence;
    if !timing.quarantine.is_zero() {
        return check.ok("the quarantine covers a restart");
    }
    let forgets = |text: &str| {
        let why = "after a restart a lock that is still in use may be granted again; its holder notices at the \
                   next renewal";
        let fix = if several {
            "leave --quarantine on for all runs, or set appendonly yes and appendfsync everysec"
        } else {
            "set appendonly yes and appendfsync everysec, or --quarantine 30s for all runs, or use three servers"
        };
        check.warning(text, why, fix)
    };
    match (info.has_append_only_file, config) {
        (None, _) => check.unknown(None),
        // It is not known how often the file is synced.
        (Some(true), Err(error)) => check.unknown(Some(error)),
        (Some(true), Ok(config)) => match config.append_fsync.as_deref() {
            Some("no") => forgets("appendfsync is no: a crash of its host loses up to 30 seconds of data"),
            Some(fsync) => check.ok(format!("append-only file, fsync {fsync}")),
            None => check.ok("append-only file"),
        },
        (Some(false), config) => {
            let save = config.ok().and_then(|config| config.save.as_deref());
            if save.is_some_and(|save| !save.is_empty()) {
                forgets("has no append-only file, only snapshots")
            } else {
                forgets("keeps no data over a restart")
            }
        }
    }
}

fn saving(info: &Info) -> Option<Finding> {
    info.cannot_save.then(|| {
        Check::Persistence.warning(
            "could not write its data to disk",
            "until it can, it may refuse writes or lose its data",
            "check its log and its free disk space",
        )
    })
}

/// Replicas matter where one may take the server's place.
fn replicas(
    checkup: &ServersCheckup,
    at: usize,
    info: &Info,
    config: Result<&Config, &BackendError>,
) -> Option<Finding> {
    let check = Check::Replicas;
    let server = &checkup.servers[at];
    let of_sentinels = checkup.sentinels.iter().filter(|sentinel| sentinel.configured == server.configured);
    let takeover_after = match server.kind {
        ServerKind::Plain => return None,
        ServerKind::OfSentinels => of_sentinels.filter_map(|sentinel| sentinel.down_after).min(),
        ServerKind::OfCluster => config.ok().and_then(|config| config.cluster_node_timeout),
    };
    let Some(replicas) = info.replicas else { return Some(check.unknown(None)) };
    if !info.demands_replicas {
        return Some(if replicas == 0 {
            check.warning(
                "has no replica",
                "no server can take its place",
                "start a replica, and set min-replicas-to-write 1",
            )
        } else {
            check.warning(
                "min-replicas-to-write is 0",
                "an old master that is cut off from its replicas keeps granting locks, unknown to the new one",
                "CONFIG SET min-replicas-to-write 1 on master and replicas, and the same in redis.conf",
            )
        });
    }
    let Config { min_replicas, max_lag, .. } = match config {
        Ok(config) => config,
        Err(error) => return Some(check.unknown(Some(error))),
    };
    Some(match max_lag.zip(takeover_after) {
        None => check.unknown(None),
        Some((max_lag, takeover_after)) if max_lag > takeover_after => check.warning(
            format!(
                "min-replicas-max-lag is {}, but another server takes over after {}",
                format(max_lag),
                format(takeover_after)
            ),
            "in between, an old master that is cut off still grants locks",
            "set min-replicas-max-lag no longer than Sentinel's down-after-milliseconds, or cluster-node-timeout",
        ),
        Some(_) => match min_replicas {
            Some(count) => check.ok(format!("min-replicas-to-write {count}")),
            None => check.ok("min-replicas-to-write is set"),
        },
    })
}

fn without_info(error: &BackendError, kind: ServerKind, needs_identity: bool) -> Vec<Finding> {
    let mut checks = vec![Check::Version, Check::Role, Check::Eviction, Check::Persistence];
    if kind != ServerKind::Plain {
        checks.push(Check::Replicas);
    }
    let mut findings: Vec<Finding> = checks.into_iter().map(|check| check.unknown(Some(error))).collect();
    if needs_identity {
        findings.push(no_identity(Some(error)));
    }
    findings
}

/// How long after its first use a server starts voting.
pub(super) fn first_quarantine(timing: &Timing) -> Duration {
    timing.quarantine.saturating_add(AFTER_QUARANTINE)
}

/// "leases of up to 2h until 1h 3m from now, requested by alice@bastion", if such leases are in force.
fn long_leases(marker: &Marker, now_ms: u64) -> Option<String> {
    let longest = Duration::from_millis(marker.longest_ms);
    let left = Duration::from_millis(marker.ends_ms.saturating_sub(now_ms));
    if longest <= USUAL_LEASE || left.is_zero() {
        return None;
    }
    let client = marker.raised_by.as_str();
    let client = if client.is_empty() {
        String::new()
    } else {
        format!(", requested by {}", sanitize(client.as_bytes()))
    };
    Some(format!("leases of up to {} for another {}{client}", format(longest), format_seconds(left)))
}

/// Computes the quarantine as lua/include/marker.lua does.
fn quarantine(
    found: &Found,
    server: &ServerFacts,
    needs_identity: bool,
    timing: &Timing,
) -> (Option<Finding>, CanVote) {
    let check = Check::Quarantine;
    let info = found.info.as_ref().ok();
    let uptime = info.and_then(|info| info.uptime);
    let up = uptime.map(|uptime| format!("up {}", format_seconds(uptime)));
    let is_off = timing.quarantine.is_zero();
    let in_cluster = server.kind == ServerKind::OfCluster;
    if (in_cluster && is_off) || !needs_identity {
        return (up.map(|up| check.ok(up)), CanVote::Now);
    }
    let votes = |up: Option<String>| (Some(check.ok(up.unwrap_or_else(|| "votes".into()))), CanVote::Now);
    let reign = info.and_then(|info| Some((info.run_id.as_ref()?, info.replication_id.as_deref())));
    let reign = reign.map(|(run_id, history)| format!("{run_id}.{}", history.unwrap_or_default()));
    let now_ms = found.clock.as_ref().ok().map(|clock| clock.now_ms);
    match (&found.marker, reign.zip(now_ms)) {
        // Without the marker of all its slots there are markers of single slots, which are not
        // read.
        (Err(error), _) if in_cluster => (Some(check.unknown(Some(error))), CanVote::Now),
        (Err(error), _) => {
            let text = format!("the key lock-node cannot be read: {}", problem(&error.problem));
            let why = "lock-node proves that a server has kept its data; without it no lock can be taken";
            (Some(check.problem(text, why, PERMISSIONS)), CanVote::No)
        }
        (Ok(None), _) if is_off => votes(up),
        (Ok(None), _) => {
            let after = format_seconds(first_quarantine(timing));
            let finding = check.warning(
                format!("has no lock so far: it starts voting {after} after the first run"),
                "it may have been emptied, and have forgotten locks",
                &format!(
                    "start one run that is allowed to wait: redlock run --key {} -- true",
                    server.first_key
                ),
            );
            (Some(finding), CanVote::AfterFirstUse)
        }
        (Ok(Some(_)), None) => {
            let error = found.clock.as_ref().err().or(found.info.as_ref().err());
            (Some(check.unknown(error)), CanVote::Now)
        }
        (Ok(Some(marker)), Some((reign, now_ms))) => match left_ms(marker, &reign, now_ms, timing) {
            0 => {
                votes(up.into_iter().chain(long_leases(marker, now_ms)).reduce(|up, more| up + "; " + &more))
            }
            left => {
                let left = format_seconds(Duration::from_millis(left.saturating_add(999)));
                let about: Vec<String> = up.into_iter().chain(long_leases(marker, now_ms)).collect();
                let up = if about.is_empty() { String::new() } else { format!(", {}", about.join("; ")) };
                let finding = check.warning(
                    format!("does not vote for another {left}{up}"),
                    "it is new, restarted or promoted, and may have forgotten locks",
                    "wait; see --quarantine",
                );
                // A slot that was used before may have an older marker.
                (Some(finding), if in_cluster { CanVote::AfterFirstUse } else { CanVote::No })
            }
        },
    }
}

fn left_ms(marker: &Marker, reign: &str, now_ms: u64, timing: &Timing) -> u64 {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let in_force = if marker.ends_ms >= now_ms { marker.longest_ms } else { 0 };
    let longest = in_force.max(millis(timing.quarantine));
    let known_for = if marker.reign == reign { now_ms.saturating_sub(marker.since_ms) } else { 0 };
    // As LongestLease and lua/include/marker.lua decide it.
    let usual = millis(USUAL_LEASE);
    let raised_ago = if in_force > usual { now_ms.saturating_sub(marker.raised_ms) } else { 0 };
    let needed = longest.min(raised_ago.max(usual));
    if longest == 0 || known_for >= needed.saturating_add(millis(AFTER_QUARANTINE)) {
        return 0;
    }
    longest.saturating_add(millis(AFTER_QUARANTINE)).saturating_sub(known_for)
}

fn latency(rtt: Duration, timing: &Timing) -> Finding {
    let is_slow = rtt * ROUND_TRIPS_IN_TIMEOUT > timing.node_timeout
        || timing.ttl.is_some_and(|ttl| rtt * ROUND_TRIPS_IN_TTL > ttl);
    if !is_slow {
        return Check::Latency.ok(format!("round trip {}", short(rtt)));
    }
    let timeout = format(timing.node_timeout);
    Check::Latency.warning(
        format!("a round trip takes {}, with a --node-timeout of {timeout}", short(rtt)),
        "its votes are almost late, and renewals have little time to spare",
        "use a server that is nearer, or a longer --ttl and --node-timeout",
    )
}

fn clock(found: &Found, several: bool) -> Finding {
    let clock = match &found.clock {
        Ok(clock) => clock,
        Err(error) => return Check::Clock.unknown(Some(error)),
    };
    let difference = clock.ahead_ms.unsigned_abs();
    let uncertainty = u64::try_from(clock.uncertainty.as_millis()).unwrap_or(u64::MAX);
    let tolerance = if several { CLOCK_TOLERANCE_MS } else { SHOWN_CLOCK_TOLERANCE_MS };
    let is_behind = clock.ahead_ms < 0;
    if difference.saturating_sub(uncertainty) <= tolerance {
        let sign = if is_behind { '-' } else { '+' };
        return Check::Clock.ok(format!("clock {sign}{}", milliseconds(difference)));
    }
    let direction = if is_behind { "behind" } else { "ahead of" };
    Check::Clock.warning(
        format!("its clock is {} {direction} this host's", milliseconds(difference)),
        "redlock prints wrong times, and a lock on several servers may cost another round trip",
        "synchronise both clocks (chrony, systemd-timesyncd)",
    )
}

fn certificate(expires: Option<SystemTime>, now: SystemTime) -> Option<Finding> {
    let left = expires?.duration_since(now).unwrap_or_default();
    Some(if left >= RENEW_CERTIFICATE {
        Check::Certificate.ok(format!("certificate valid for {}", days(left)))
    } else {
        let text = format!("its certificate expires in {}", days(left));
        Check::Certificate.warning(text, "no connection is possible after that", "renew the certificate")
    })
}

fn trial(found: &Found) -> Vec<Finding> {
    match &found.trial {
        // Another finding says why.
        None => Vec::new(),
        Some(Err(failure)) => vec![failed_trial(failure)],
        Some(Ok(Trial { took, is_in_history })) => {
            let text = format!("took, extended and released a test lock in {}", short(*took));
            let mut findings = vec![Check::Permissions.ok(text)];
            if !is_in_history {
                findings.push(Check::History.warning(
                    "finished runs are not recorded",
                    "redlock history has nothing to show",
                    "allow XADD (+xadd in the ACL), or ignore this",
                ));
            }
            findings
        }
    }
}

fn failed_trial(TrialFailure { step, why }: &TrialFailure) -> Finding {
    let step = match step {
        TrialStep::Take => "cannot be taken",
        TrialStep::Wait => "cannot be waited for",
        TrialStep::Extend => "cannot be extended",
        TrialStep::Release => "cannot be released",
        TrialStep::CleanUp => "was released, but not all of its keys could be deleted",
    };
    let is = |kind| matches!(&why.problem, Problem::Server(error) if error.kind == kind);
    let fix = if is(ServerErrorKind::PermissionDenied) {
        PERMISSIONS
    } else if is(ServerErrorKind::CommandMissing) {
        "do not rename or disable this command"
    } else if is(ServerErrorKind::OutOfMemory) {
        MORE_MEMORY
    } else {
        ""
    };
    let text = format!("a test lock {step}: {}", problem(&why.problem));
    Check::Permissions.problem(text, "a run would fail in the same way", fix)
}

/// A failed Sentinel is only a warning: another one may answer, and if none does, the master is
/// unreachable.
pub(super) fn sentinel(checkup: &ServersCheckup, at: usize) -> Finding {
    let check = Check::Sentinel;
    let sentinel = &checkup.sentinels[at];
    let used = checkup.servers.iter().find(|server| server.configured == sentinel.configured);
    let used = used.filter(|server| server.found.is_ok()).map(|server| &server.name);
    match (&sentinel.master, used) {
        (Err(error), _) => check.warning(
            problem(&error.problem),
            "with too few Sentinels there is no failover, and clients cannot find the master",
            "start it, or correct its address or password",
        ),
        (Ok(master), Some(used)) if !used.ends_with(&format!("({master})")) => check.warning(
            format!("names {master} as the master, not {used}"),
            "runs that ask it first use another server; this is normal for seconds during a failover",
            "compare SENTINEL MASTERS on all Sentinels",
        ),
        (Ok(master), _) => check.ok(format!("names {master}")),
    }
}
