//! The checks of one server, and of one Sentinel.

use std::time::{Duration, SystemTime};

use super::data::{eviction, memory, persistence, replicas, saving};
use super::quarantine::quarantine;
use super::quorum::CLOCK_TOLERANCE_MS;
use super::text::{days, milliseconds, short};
use super::{Check, Finding, Level, refusal};
use crate::duration::{format, millis};
use crate::lock::checkup::{
    Found, Info, ServerFacts, ServerKind, ServersCheckup, Trial, TrialFailure, TrialStep,
};
use crate::lock::{BackendError, Fault, Problem, ServerError, ServerErrorKind, Timing, TlsProblem};
use crate::report::problem;

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

const CANNOT_VOTE: &str = "it cannot vote";
pub(super) const MORE_MEMORY: &str = "raise maxmemory, or use a dedicated server for locks";
pub(super) const PERMISSIONS: &str =
    "grant the user all permissions that redlock needs: docs/install.md, Permissions";

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
    findings.extend(server.others.as_ref().map(|error| Check::MASTERS.unknown(Some(error))));
    findings.extend(certificate(found.certificate_expires, now));
    findings.extend(trial(found));
    // An eviction, for one, takes away locks that were granted; it does not prevent a vote.
    let prevents_a_vote = |finding: &Finding| {
        finding.level == Level::Problem
            && matches!(finding.check, Check::ROLE | Check::IDENTITY | Check::PERMISSIONS)
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
    Check::REACHABLE.problem(problem(&error.problem), why, fix)
}

fn version(info: &Info) -> Finding {
    let check = Check::VERSION;
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
    let check = Check::ROLE;
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
    Check::IDENTITY.problem(
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
        Some(twin) => Some(Check::IDENTITY.problem(
            format!("is the same server as {}", twin.name),
            "its vote would count twice",
            "name each server once, by one address and one database",
        )),
        None => (checkup.servers.len() > 1).then(|| Check::IDENTITY.ok("listed once")),
    }
}

fn without_info(error: &BackendError, kind: ServerKind, needs_identity: bool) -> Vec<Finding> {
    let mut checks = vec![Check::VERSION, Check::ROLE, Check::EVICTION, Check::PERSISTENCE];
    if kind != ServerKind::Plain {
        checks.push(Check::REPLICAS);
    }
    let mut findings: Vec<Finding> = checks.into_iter().map(|check| check.unknown(Some(error))).collect();
    if needs_identity {
        findings.push(no_identity(Some(error)));
    }
    findings
}

fn latency(rtt: Duration, timing: &Timing) -> Finding {
    let is_slow = rtt * ROUND_TRIPS_IN_TIMEOUT > timing.node_timeout
        || timing.ttl.is_some_and(|ttl| rtt * ROUND_TRIPS_IN_TTL > ttl);
    if !is_slow {
        return Check::LATENCY.ok(format!("round trip {}", short(rtt)));
    }
    let timeout = format(timing.node_timeout);
    Check::LATENCY.warning(
        format!("a round trip takes {}, with a --node-timeout of {timeout}", short(rtt)),
        "its votes are almost late, and renewals have little time to spare",
        "use a server that is nearer, or a longer --ttl and --node-timeout",
    )
}

fn clock(found: &Found, several: bool) -> Finding {
    let clock = match &found.clock {
        Ok(clock) => clock,
        Err(error) => return Check::CLOCK.unknown(Some(error)),
    };
    let difference = clock.ahead_ms.unsigned_abs();
    let uncertainty = millis(clock.uncertainty);
    let tolerance = if several { CLOCK_TOLERANCE_MS } else { SHOWN_CLOCK_TOLERANCE_MS };
    let is_behind = clock.ahead_ms < 0;
    if difference.saturating_sub(uncertainty) <= tolerance {
        let sign = if is_behind { '-' } else { '+' };
        return Check::CLOCK.ok(format!("clock {sign}{}", milliseconds(difference)));
    }
    let direction = if is_behind { "behind" } else { "ahead of" };
    Check::CLOCK.warning(
        format!("its clock is {} {direction} this host's", milliseconds(difference)),
        "redlock prints wrong times, and a lock on several servers may cost another round trip",
        "synchronise both clocks (chrony, systemd-timesyncd)",
    )
}

fn certificate(expires: Option<SystemTime>, now: SystemTime) -> Option<Finding> {
    let left = expires?.duration_since(now).unwrap_or_default();
    Some(if left >= RENEW_CERTIFICATE {
        Check::CERTIFICATE.ok(format!("certificate valid for {}", days(left)))
    } else {
        let text = format!("its certificate expires in {}", days(left));
        Check::CERTIFICATE.warning(text, "no connection is possible after that", "renew the certificate")
    })
}

fn trial(found: &Found) -> Vec<Finding> {
    match &found.trial {
        // Another finding says why.
        None => Vec::new(),
        Some(Err(failure)) => vec![failed_trial(failure)],
        Some(Ok(Trial { took, is_in_history })) => {
            let text = format!("took, extended and released a test lock in {}", short(*took));
            let mut findings = vec![Check::PERMISSIONS.ok(text)];
            if !is_in_history {
                findings.push(Check::HISTORY.warning(
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
    Check::PERMISSIONS.problem(text, "a run would fail in the same way", fix)
}

/// A failed Sentinel is only a warning: another one may answer, and if none does, the master is
/// unreachable.
pub(super) fn sentinel(checkup: &ServersCheckup, at: usize) -> Finding {
    let check = Check::SENTINEL;
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
