//! What was found, why it matters and what to do about it, in sentences.

use std::time::Duration;

use crate::duration::{format, format_seconds};
use crate::lock::checkup::{Check, Kept, Quorum, TrialFailure, TrialStep, What};
use crate::lock::{BackendError, Fault, Problem, ServerError, ServerErrorKind, TlsProblem};
use crate::report::problem::problem;
use crate::report::{backend_error, cannot_see_processes, sanitize};

/// A finding in words. Of one that is ok only the text is shown.
pub(super) struct Sentences {
    pub text: String,
    pub why: &'static str,
    pub fix: String,
}

fn fine(text: impl Into<String>) -> Sentences {
    Sentences { text: text.into(), why: "", fix: String::new() }
}

fn found(text: impl Into<String>, why: &'static str, fix: impl Into<String>) -> Sentences {
    Sentences { text: text.into(), why, fix: fix.into() }
}

const CANNOT_VOTE: &str = "it cannot vote";
const MAY_BE_DELETED: &str = "a lock that is held may be deleted, and another run get it";
const NO_MARKER: &str =
    "by lock-node a server proves that it has kept its data; without it no lock can be taken";
const TREE: &str =
    "a process that the command has started could not be stopped with it when the lock is lost";

pub(super) fn sentences(what: &What) -> Sentences {
    let mut said = said(what);
    said.text = sanitize(said.text.as_bytes());
    said.fix = sanitize(said.fix.as_bytes());
    said
}

/// Nothing can be asked, or nothing that is answered means anything.
#[allow(clippy::wildcard_enum_match_arm, reason = "most problems need no advice of their own")]
fn unreachable(error: &BackendError) -> Sentences {
    let by_fault = || match error.fault() {
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
            (CANNOT_VOTE, "use a name of the certificate in the URL, or as --tls-server-name")
        }
        Problem::Tls(TlsProblem::UnknownIssuer { .. }) => {
            (CANNOT_VOTE, "name the file with the certificate of its authority: --tls-ca FILE")
        }
        Problem::Tls(TlsProblem::IdentityWanted | TlsProblem::IdentityRefused(_)) => {
            (CANNOT_VOTE, "use a certificate that the server accepts: --tls-cert FILE --tls-key FILE")
        }
        _ => (CANNOT_VOTE, by_fault()),
    };
    found(problem(&error.problem), why, fix)
}

#[allow(clippy::too_many_lines, reason = "an arm for each finding, and nothing else")]
fn said(what: &What) -> Sentences {
    match what {
        What::Setting(text) => found(text.clone(), "", ""),
        What::UnknownVariable(name) => found(
            format!("the variable {name} is no setting of redlock"),
            "a setting that is misspelt is not in force",
            "unset it, or correct its name: redlock run --help lists the options",
        ),
        What::NoServer => found(
            "no server is configured: locks are on this host only",
            "runs on other hosts are not kept out",
            "set REDLOCK_REDIS, or redis in the config file; --local, or local = true, if this is meant",
        ),
        What::NeverExpires => found(
            "--ttl is none: locks never expire",
            "the lock of a run that was killed stays until redlock break frees it",
            "set a --ttl",
        ),
        What::Unreachable(error) => unreachable(error),
        What::RoundTrip(rtt) => fine(format!("round trip {}", short(*rtt))),
        What::Slow { rtt, node_timeout } => found(
            format!("a round trip takes {}, with a --node-timeout of {}", short(*rtt), format(*node_timeout)),
            "a little more and its votes come too late; renewals have little time to spare",
            "use a server that is nearer, or a longer --ttl and --node-timeout",
        ),
        What::Engine { name, version } => fine(format!("{name} {version}")),
        What::TooOld { name, version } => found(
            format!("{name} {version} is too old"),
            "the lock's scripts need Redis 6.0",
            "upgrade the server",
        ),
        What::Untested { name, version } => found(
            format!("{name} {version} was not tested with redlock"),
            "it may differ from Redis where a lock depends on it",
            "use Redis or Valkey",
        ),
        What::Master { replicas: Some(1) } => fine("master with 1 replica"),
        What::Master { replicas: Some(count @ 1..) } => fine(format!("master with {count} replicas")),
        What::Master { .. } => fine("master"),
        What::Replica { of } => {
            let of = of.as_ref().map(|of| format!(" of {of}")).unwrap_or_default();
            found(
                format!("is a replica{of}"),
                "a replica takes no locks",
                "name the master, or its Sentinels",
            )
        }
        What::SentinelProcess => found(
            "is a Sentinel",
            "a Sentinel holds no data",
            "use redis+sentinel://HOST:PORT/SERVICE with this host and port",
        ),
        What::ClusterNode => found(
            "is a node of a Redis Cluster",
            "it has only some of the slots, and sends us elsewhere for the others",
            "use redis+cluster://HOST:PORT with this host and port",
        ),
        What::NoIdentity(why) => found(
            format!("does not tell its run_id{}", because(why.as_ref())),
            "several servers, Sentinel, Cluster and --quarantine need it to tell servers and restarts apart",
            "allow INFO (+info in the ACL)",
        ),
        What::Twin { other } => found(
            format!("is the same server as {other}"),
            "its vote would count twice",
            "name each server once, by one address and one database",
        ),
        What::ListedOnce => fine("listed once"),
        What::Votes { uptime: Some(uptime) } => fine(format!("up {}", format_seconds(*uptime))),
        What::Votes { uptime: None } => fine("votes"),
        What::Quarantined { left, uptime } => {
            let left = format_seconds(*left + Duration::from_millis(999));
            let up = uptime.map(|up| format!(", up {}", format_seconds(up))).unwrap_or_default();
            found(
                format!("does not vote for another {left}{up}"),
                "it is new, restarted or promoted, and may have forgotten locks",
                "wait; see --quarantine",
            )
        }
        What::NeverUsed { quarantine, first_key } => found(
            format!(
                "no lock was taken here yet: it does not vote for {} after the first use",
                format_seconds(*quarantine)
            ),
            "it may have been emptied, and have forgotten locks",
            format!("let a run start that may wait: redlock run --key {first_key} -- true"),
        ),
        What::MarkerDenied(error) => found(
            format!("the key lock-node cannot be read: {}", problem(&error.problem)),
            NO_MARKER,
            PERMISSIONS,
        ),
        What::NoEviction => fine("noeviction"),
        What::NoLimit { policy } => fine(format!("{policy}, but no maxmemory")),
        What::Evicts { policy, evicted } => {
            let evicted = match evicted {
                Some(count @ 1..) => format!(", and {count} keys were evicted since its start"),
                _ => String::new(),
            };
            found(format!("maxmemory-policy is {policy}{evicted}"), MAY_BE_DELETED, NOEVICTION)
        }
        What::HasEvicted(count) => {
            found(format!("{count} keys were evicted since its start"), MAY_BE_DELETED, NOEVICTION)
        }
        What::AlmostFull { used, limit } => found(
            format!("{} of {} of memory are used", bytes(*used), bytes(*limit)),
            "a server that is full grants no locks",
            "raise maxmemory, or use a server of its own for locks",
        ),
        What::QuarantineCovers => fine("a restart is covered by the quarantine"),
        What::AppendOnly { fsync: Some(fsync) } => fine(format!("append-only file, fsync {fsync}")),
        What::AppendOnly { fsync: None } => fine("append-only file"),
        What::Forgets { keeps, several } => found(
            match keeps {
                Kept::Nothing => "keeps no data over a restart",
                Kept::Snapshots => "has no append-only file, only snapshots",
                Kept::Unsynced => "appendfsync is no: a crash of its host costs up to half a minute of data",
            },
            "after a restart the lock of a run that goes on may be granted to another one; the first notices at its next \
             renewal",
            if *several {
                "leave --quarantine on for all runs, or set appendonly yes and appendfsync everysec"
            } else {
                "set appendonly yes and appendfsync everysec, or --quarantine 30s for all runs, or use three servers"
            },
        ),
        What::CannotSave => found(
            "could not write its data to the disk",
            "it may refuse writes until it can, or lose its data",
            "look into its log and at the space on its disk",
        ),
        What::Clock { ahead_ms } => fine(format!("clock {}", signed(*ahead_ms))),
        What::ClockDiffers { ahead_ms } => found(
            format!(
                "its clock is {} {} this host's",
                apart(ahead_ms.unsigned_abs()),
                if *ahead_ms > 0 { "ahead of" } else { "behind" }
            ),
            "times that are shown are wrong, and taking a lock on several servers may cost another round trip",
            "let a time service set both clocks (chrony, systemd-timesyncd)",
        ),
        What::ClocksDiffer { by_ms } => found(
            format!("their clocks differ by {}", apart(*by_ms)),
            "after a loss of data fencing tokens are taken from them, and may then go back",
            "let a time service set their clocks (chrony, systemd-timesyncd)",
        ),
        What::ReplicasDemanded(Some(count)) => fine(format!("min-replicas-to-write {count}")),
        What::ReplicasDemanded(None) => fine("min-replicas-to-write is set"),
        What::ReplicasNotDemanded => found(
            "min-replicas-to-write is 0",
            "an old master that is cut off from its replicas goes on granting locks that the new one does not know",
            "CONFIG SET min-replicas-to-write 1 on master and replicas, and the same in redis.conf",
        ),
        What::LagTooLong { max_lag, takeover_after } => found(
            format!(
                "min-replicas-max-lag is {}, and another server takes over after {}",
                format(*max_lag),
                format(*takeover_after)
            ),
            "an old master that is cut off grants locks for the time between the two",
            "set min-replicas-max-lag no longer than down-after-milliseconds of Sentinel, or cluster-node-timeout",
        ),
        What::NoReplica => found(
            "has no replica",
            "there is no server to take its place",
            "start a replica, and set min-replicas-to-write 1",
        ),
        What::Certificate { left } => fine(format!("certificate valid for {}", days(*left))),
        What::CertificateEnds { left } => found(
            format!("its certificate expires in {}", days(*left)),
            "from then on no connection is made",
            "renew the certificate",
        ),
        What::Trial { took } => fine(format!("took, extended and released a test lock in {}", short(*took))),
        What::TrialFailed(failure) => trial_failed(failure),
        What::NoHistory => found(
            "finished runs are not written down",
            "redlock history has nothing to show",
            "allow XADD (+xadd in the ACL), or ignore this",
        ),
        What::SentinelNames(master) => fine(format!("names {master}")),
        What::SentinelFails(error) => found(
            problem(&error.problem),
            "with too few Sentinels there is no failover, and nobody to ask for the master",
            "start it, or correct its address or password",
        ),
        What::SentinelDiffers { names, used } => found(
            format!("names {names} as the master, not {used}"),
            "runs that ask it first use another server; during a failover this is normal for seconds",
            "look at SENTINEL MASTERS on all of them",
        ),
        What::Quorum(quorum) => quorum_sentences(*quorum),
        What::EvenNumber(count) => found(
            format!("{count} is an even number of servers"),
            "it tolerates no more failures than one fewer",
            "use 3 or 5 servers",
        ),
        What::Directory { path, took } => fine(format!("{path}: locks work ({})", short(*took))),
        What::OverNetwork(path) => found(
            format!("{path} is on a network file system"),
            "locks there may not be seen by other hosts, and may be lost with the connection",
            "name a local directory with --local-dir",
        ),
        What::PrivateToService(path) => found(
            format!("{path} is private to this service"),
            "no run outside of it is kept out",
            "set PrivateTmp=no, or name another directory with --local-dir",
        ),
        What::DirectoryFails(error) => found(
            backend_error(error),
            "locks on this host cannot be taken",
            "name a directory that all users can write to, with the sticky bit, with --local-dir",
        ),
        What::NoDirectory => found(
            "there is no directory in which all users can share locks",
            "locks on this host cannot be taken",
            "name one with --local-dir",
        ),
        What::Subreaper(true) => fine("subreaper"),
        What::Subreaper(false) => found(
            "the kernel refuses PR_SET_CHILD_SUBREAPER",
            TREE,
            "use Linux 3.4 or later, without a filter for it",
        ),
        What::Proc(true) => fine("/proc"),
        What::Proc(false) => {
            found("/proc cannot be used", "redlock run refuses to start (78)", cannot_see_processes())
        }
        What::Pidfd(true) => fine("pidfd"),
        What::Pidfd(false) => {
            found("the kernel refuses pidfd_open", TREE, "use Linux 5.3 or later, without a filter for it")
        }
        What::Unknown { check, why } => found(
            format!("{}{}", topic(*check), because(why.as_ref())),
            "the server does not tell",
            "allow INFO, CONFIG GET and CLUSTER NODES for this check (+info +config|get +cluster|nodes in the ACL), or \
             ask its operator",
        ),
    }
}

const NOEVICTION: &str = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; or use a server of its own \
                          for locks";
const PERMISSIONS: &str = "give the user all permissions that redlock needs: docs/operations.md, Permissions";

fn trial_failed(TrialFailure { step, why }: &TrialFailure) -> Sentences {
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
        "let the server offer it under its own name"
    } else if is(ServerErrorKind::OutOfMemory) {
        "raise maxmemory, or use a server of its own for locks"
    } else {
        ""
    };
    found(format!("a test lock {step}: {}", problem(&why.problem)), "a run would fail in the same way", fix)
}

fn quorum_sentences(quorum: Quorum) -> Sentences {
    let why = if quorum.servers > 1 {
        "a lock needs the votes of a majority of all configured servers"
    } else {
        ""
    };
    found(quorum_text(quorum), why, "see what is said about each server")
}

/// "2 of 3 servers can vote, 0 more may fail"
pub(super) fn quorum_text(quorum: Quorum) -> String {
    let Quorum { servers, needed, can_vote, unused } = quorum;
    match (servers, can_vote, unused) {
        (1, 1, _) => "the server grants locks".into(),
        (1, _, 1) => "the server grants locks some time after its first use".into(),
        (1, ..) => "the server cannot grant locks now".into(),
        _ if can_vote + unused < needed => {
            format!("{can_vote} of {servers} servers can vote, {needed} are needed")
        }
        (_, _, 1..) => {
            format!("{can_vote} of {servers} servers can vote, {unused} more some time after their first use")
        }
        _ => format!("{can_vote} of {servers} servers can vote, {} more may fail", quorum.may_fail()),
    }
}

fn because(why: Option<&BackendError>) -> String {
    why.map(|why| format!(": {}", reply(why))).unwrap_or_default()
}

/// What the server said: that a check is denied calls for no advice about runs.
pub(super) fn reply(why: &BackendError) -> String {
    if let Problem::Server(error) = &why.problem { error.reply.clone() } else { problem(&why.problem) }
}

/// As in a list of what is not known.
pub(super) fn topic(check: Check) -> &'static str {
    match check {
        Check::Settings => "settings",
        Check::Reachable => "reachable",
        Check::Latency => "latency",
        Check::Version => "version",
        Check::Role => "role",
        Check::Identity => "identity",
        Check::Quarantine => "quarantine",
        Check::Eviction => "eviction",
        Check::Memory => "memory",
        Check::Persistence => "persistence",
        Check::Clock => "clock",
        Check::Replicas => "replicas",
        Check::Certificate => "certificate",
        Check::Permissions => "permissions",
        Check::Masters => "masters",
        Check::History => "history",
        Check::Sentinel => "sentinel",
        Check::Quorum => "quorum",
        Check::LockDirectory => "lock_directory",
        Check::Subreaper => "subreaper",
        Check::Proc => "proc",
        Check::Pidfd => "pidfd",
    }
}

/// "0.4ms", "12ms", "1.5s"
fn short(time: Duration) -> String {
    if time < Duration::from_millis(10) { format!("{:.1}ms", time.as_secs_f64() * 1e3) } else { format(time) }
}

fn signed(millis: i64) -> String {
    let sign = if millis < 0 { "-" } else { "+" };
    format!("{sign}{}", apart(millis.unsigned_abs()))
}

fn apart(millis: u64) -> String {
    if millis == 0 { "0ms".into() } else { format(Duration::from_millis(millis)) }
}

fn days(left: Duration) -> String {
    match left.as_secs() / (24 * 3600) {
        0 => format_seconds(left),
        1 => "1 day".into(),
        days => format!("{days} days"),
    }
}

fn bytes(count: u64) -> String {
    const MIB: u64 = 1 << 20;
    if count >= MIB { format!("{} MiB", count / MIB) } else { format!("{} KiB", count / 1024) }
}
