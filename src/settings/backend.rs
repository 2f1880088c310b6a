//! Where the lock is: which servers, or which directory of this host, and on what terms. For every command.

use std::path::PathBuf;
use std::time::Duration;

use super::sources::Sources;
use super::usage;
use crate::cli::{BackendArgs, ServerArgs};
use crate::duration::format;
use crate::exit::{Failure, UNFIT};
use crate::lock::{Mode, Server, Timing, default_directory};

/// Why a lease makes no sense on this host.
const LOCAL_LOCKS_LAST: &str = "the kernel frees a lock on this host when its holder has ended";

const SHORTEST_TTL: Duration = Duration::from_millis(100);
const LONGEST_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_QUARANTINE: Duration = Duration::from_secs(30);
const MOST_SERVERS: usize = 9;
/// With several servers, where the others answer instead of a slow one.
const NODE_TIMEOUT_BOUNDS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// With one server there is no other to turn to, and a line across an ocean needs several round trips to begin.
const ONLY_NODE_TIMEOUT_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

#[derive(Debug)]
pub(crate) enum Backend {
    Servers { servers: Vec<Server>, timing: Timing },
    Host { directory: PathBuf, reason: LocalReason },
}

/// Why the lock is on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalReason {
    Requested,
    NothingElseConfigured,
}

impl Backend {
    /// For a command that takes a lock. `ttl` is the option's text.
    pub(crate) fn resolve(
        servers: &ServerArgs,
        backend: BackendArgs,
        ttl: Option<&str>,
        mode: &Mode,
        sources: Sources<'_>,
    ) -> Result<Self, Failure> {
        if is_local(servers, &backend, sources)? {
            for option in ["ttl", "node_timeout", "quarantine"] {
                if sources.was_typed(option) {
                    let option = option.replace('_', "-");
                    return Err(usage(format!(
                        "--{option} means nothing without a server: {LOCAL_LOCKS_LAST}"
                    )));
                }
            }
            let reason =
                if backend.local { LocalReason::Requested } else { LocalReason::NothingElseConfigured };
            return Ok(Self::Host { directory: directory(backend.local_dir)?, reason });
        }
        let urls = parse_urls(&servers.redis)?;
        if let (Mode::Slot { .. }, true) = (mode, urls.len() > 1) {
            return Err(usage(
                "--slots works with one server only (a vote of 3 servers with 2 permits each could admit 3 holders)",
            ));
        }
        let ttl = parse_ttl(ttl, sources, urls.len())?;
        let timing = Timing {
            ttl,
            node_timeout: node_timeout(servers, sources, ttl, urls.len())?,
            quarantine: quarantine(backend.quarantine.as_deref(), sources, ttl, urls.len())?,
        };
        Ok(Self::Servers { servers: urls, timing })
    }

    /// For a command that has nothing to do on this host.
    pub(crate) fn only_servers(
        args: &ServerArgs,
        sources: Sources<'_>,
    ) -> Result<(Vec<Server>, Timing), Failure> {
        let servers = parse_urls(&args.redis)?;
        if servers.is_empty() {
            let message = format!("no server given: {LOCAL_LOCKS_LAST}; on a server, give --redis URL");
            return Err(usage(message));
        }
        let node_timeout = node_timeout(args, sources, None, servers.len())?;
        Ok((servers, Timing { ttl: None, node_timeout, quarantine: Duration::ZERO }))
    }

    /// The longest that a lock can outlive us, if there is a longest.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Servers { timing, .. } => timing.ttl,
            Self::Host { .. } => None,
        }
    }
}

/// No server at all means this host, unless that is forbidden.
fn is_local(servers: &ServerArgs, backend: &BackendArgs, sources: Sources<'_>) -> Result<bool, Failure> {
    let has_server = servers.redis.iter().any(|url| !url.is_empty());
    if sources.was_typed("redis") && !has_server {
        return Err(usage("--redis must not be empty"));
    }
    let is_local = match (backend.local, has_server) {
        (true, true) if sources.was_typed("local") && sources.was_typed("redis") => {
            return Err(usage("--local and --redis cannot be used together"));
        }
        (true, true) => !sources.was_typed("redis"),
        (local, has_server) => local || !has_server,
    };
    if is_local && backend.require_server && !sources.was_typed("local") {
        let message =
            "no server configured, and --require-server is set: give --redis URL or set REDLOCK_REDIS";
        return Err(Failure::new(UNFIT, message));
    }
    Ok(is_local)
}

fn directory(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    given.filter(|directory| !directory.as_os_str().is_empty()).or_else(default_directory).ok_or_else(|| {
        Failure::new(
            UNFIT,
            "this host has no directory in which all users can share locks: give --local-dir DIR",
        )
    })
}

fn parse_urls(urls: &[String]) -> Result<Vec<Server>, Failure> {
    let urls: Vec<&String> = urls.iter().filter(|url| !url.is_empty()).collect();
    if urls.len() > MOST_SERVERS {
        return Err(usage(format!("{} servers given, {MOST_SERVERS} are allowed", urls.len())));
    }
    let parse = |(at, url): (usize, &&String)| {
        Server::parse(url).map_err(|why| match urls.len() {
            1 => usage(format!("--redis: {why}")),
            _ => usage(format!("--redis, server {}: {why}", at + 1)),
        })
    };
    urls.iter().enumerate().map(parse).collect()
}

fn parse_ttl(text: Option<&str>, sources: Sources<'_>, servers: usize) -> Result<Option<Duration>, Failure> {
    match text {
        Some("none") if servers > 1 => Err(usage(
            "--ttl none is not possible with several servers: one that lost its data could never vote again",
        )),
        Some("none") => Ok(None),
        text => {
            let ttl = sources.duration("ttl", text)?.unwrap_or(DEFAULT_TTL);
            if !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
                return Err(usage(format!(
                    "--ttl must be between 100ms and 365d, or none, not {}",
                    format(ttl)
                )));
            }
            Ok(Some(ttl))
        }
    }
}

fn node_timeout(
    args: &ServerArgs,
    sources: Sources<'_>,
    ttl: Option<Duration>,
    servers: usize,
) -> Result<Duration, Failure> {
    let (part, (least, most)) =
        if servers > 1 { (20, NODE_TIMEOUT_BOUNDS) } else { (3, ONLY_NODE_TIMEOUT_BOUNDS) };
    let default = ttl.map_or(most, |ttl| (ttl / part).clamp(least, most));
    let timeout = sources.duration("node_timeout", args.node_timeout.as_deref())?.unwrap_or(default);
    if timeout.is_zero() {
        return Err(usage("--node-timeout must be more than 0"));
    }
    // A later answer would leave too little of the lease to be of use.
    let longest = ttl.map(|ttl| if servers > 1 { ttl / 3 } else { ttl * 2 / 3 });
    Ok(longest.map_or(timeout, |longest| timeout.min(longest)))
}

fn quarantine(
    text: Option<&str>,
    sources: Sources<'_>,
    ttl: Option<Duration>,
    servers: usize,
) -> Result<Duration, Failure> {
    let quarantine = match text {
        Some("off") => Some(Duration::ZERO),
        text => sources.duration("quarantine", text)?,
    };
    let quarantine = quarantine.unwrap_or(if servers > 1 { DEFAULT_QUARANTINE } else { Duration::ZERO });
    // A server that has waited it out must have outlasted every lease.
    match ttl {
        Some(ttl) if servers > 1 && !quarantine.is_zero() && ttl > quarantine => {
            let (ttl, quarantine) = (format(ttl), format(quarantine));
            Err(usage(format!("--ttl ({ttl}) must not be longer than --quarantine ({quarantine})")))
        }
        _ => Ok(quarantine),
    }
}
