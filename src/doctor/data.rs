//! What a server does with its data: may a lock that is held vanish?

use super::server::MORE_MEMORY;
use super::text::bytes;
use super::{Check, Finding};
use crate::duration::format;
use crate::lock::checkup::{Config, Info, ServerKind, ServersCheckup};
use crate::lock::{BackendError, Timing};

const MAY_BE_DELETED: &str = "a lock that is held may be deleted and granted again";
const NOEVICTION: &str = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; or use a \
                          dedicated server for locks";

pub(super) fn eviction(info: &Info) -> Finding {
    let check = Check::EVICTION;
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

pub(super) fn memory(info: &Info) -> Option<Finding> {
    let (used, limit) = info.used_memory.zip(info.max_memory)?;
    (limit > 0 && used > limit / 10 * 9).then(|| {
        let text = format!("{} of {} of memory are used", bytes(used), bytes(limit));
        Check::MEMORY.warning(text, "a server without free memory grants no locks", MORE_MEMORY)
    })
}

/// A restart that loses data does no harm if the server then grants nothing until all earlier
/// leases have expired.
pub(super) fn persistence(
    info: &Info,
    config: Result<&Config, &BackendError>,
    several: bool,
    timing: &Timing,
) -> Finding {
    let check = Check::PERSISTENCE;
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

pub(super) fn saving(info: &Info) -> Option<Finding> {
    info.cannot_save.then(|| {
        Check::PERSISTENCE.warning(
            "could not write its data to disk",
            "until it can, it may refuse writes or lose its data",
            "check its log and its free disk space",
        )
    })
}

/// Replicas matter where one may take the server's place.
pub(super) fn replicas(
    checkup: &ServersCheckup,
    at: usize,
    info: &Info,
    config: Result<&Config, &BackendError>,
) -> Option<Finding> {
    let check = Check::REPLICAS;
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
