//! Where the lock is: which servers, or which directory of this host, and on what terms. For every command.

use std::path::PathBuf;
use std::time::Duration;

use super::servers::servers;
use super::sources::Sources;
use super::usage;
use crate::cli::{BackendArgs, ServerArgs};
use crate::duration::format;
use crate::exit::{Failure, UNFIT};
use crate::lock::{Mode, Server, Timing, default_directory};

/// Options that mean nothing on this host. They are accepted, so that a script runs with and without servers.
const OF_SERVERS: [&str; 5] = ["ttl", "node_timeout", "quarantine", "username", "password_file"];

const SHORTEST_TTL: Duration = Duration::from_millis(100);
const LONGEST_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_QUARANTINE: Duration = Duration::from_secs(30);
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
        args: &ServerArgs,
        backend: BackendArgs,
        ttl: Option<&str>,
        mode: &Mode,
        sources: Sources<'_>,
    ) -> Result<Self, Failure> {
        if let Some(reason) = is_local(args, &backend, sources)? {
            // What is typed must make sense, even where it has no meaning.
            if sources.was_typed("ttl") {
                parse_ttl(ttl, sources, 1)?;
            }
            for (id, text) in [("node_timeout", &args.node_timeout), ("quarantine", &backend.quarantine)] {
                if sources.was_typed(id) && text.as_deref() != Some("off") {
                    sources.duration(id, text.as_deref())?;
                }
            }
            return Ok(Self::Host { directory: directory(backend.local_dir)?, reason });
        }
        let servers = servers(args, sources)?;
        let count = servers.len();
        if let (Mode::Slot { .. }, true) = (mode, count > 1) {
            return Err(sources.bad(
                "slots",
                "--slots works with one server only (a vote of 3 servers with 2 permits each could admit 3 holders)",
            ));
        }
        let ttl = parse_ttl(ttl, sources, count)?;
        let timing = Timing {
            ttl,
            node_timeout: node_timeout(args, sources, ttl, count)?,
            quarantine: quarantine(backend.quarantine.as_deref(), sources, ttl, count)?,
        };
        Ok(Self::Servers { servers, timing })
    }

    /// For a command that has nothing to do on this host.
    pub(crate) fn only_servers(
        args: &ServerArgs,
        sources: Sources<'_>,
    ) -> Result<(Vec<Server>, Timing), Failure> {
        let servers = servers(args, sources)?;
        if servers.is_empty() {
            let message = "no server given: the kernel frees a lock on this host when its holder has ended; \
                           on a server, give --redis URL";
            return Err(usage(message));
        }
        let node_timeout = node_timeout(args, sources, None, servers.len())?;
        Ok((servers, Timing { ttl: None, node_timeout, quarantine: Duration::ZERO }))
    }

    /// The options that were typed and mean nothing here.
    pub(crate) fn meaningless(&self, sources: Sources<'_>) -> Vec<String> {
        match self {
            Self::Servers { .. } => Vec::new(),
            Self::Host { .. } => {
                let typed = OF_SERVERS.iter().filter(|id| sources.was_typed(id));
                typed.map(|id| sources.name(id)).collect()
            }
        }
    }

    /// The longest that a lock can outlive us, if there is a longest.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Servers { timing, .. } => timing.ttl,
            Self::Host { .. } => None,
        }
    }
}

/// Why the lock is on this host, if it is. No server at all means this host, unless that is forbidden.
fn is_local(
    args: &ServerArgs,
    backend: &BackendArgs,
    sources: Sources<'_>,
) -> Result<Option<LocalReason>, Failure> {
    let has_server = args.redis.iter().any(|url| !url.is_empty());
    if sources.was_typed("redis") && !has_server {
        return Err(usage("--redis must not be empty"));
    }
    // A directory that is inherited only says where, if it is to be on this host.
    let typed_directory = sources.was_typed("local_dir");
    let local = if backend.local { "local" } else { "local_dir" };
    let is_requested = backend.local || typed_directory;
    if is_requested && has_server && sources.was_typed("redis") && sources.was_typed(local) {
        return Err(sources.exclusive(local, "redis"));
    }
    if is_requested
        && backend.require_server
        && sources.was_typed(local)
        && sources.was_typed("require_server")
    {
        return Err(sources.exclusive(local, "require_server"));
    }
    let is_local = !has_server || is_requested && sources.distance(local) <= sources.distance("redis");
    if is_local && backend.require_server && !(is_requested && sources.was_typed(local)) {
        let name = sources.name("require_server");
        let message =
            format!("no server configured, and {name} is set: give --redis URL or set REDLOCK_REDIS");
        return Err(Failure::new(UNFIT, message));
    }
    let reason = if is_requested || backend.local_dir.is_some() {
        LocalReason::Requested
    } else {
        LocalReason::NothingElseConfigured
    };
    Ok(is_local.then_some(reason))
}

fn directory(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    given.filter(|directory| !directory.as_os_str().is_empty()).or_else(default_directory).ok_or_else(|| {
        Failure::new(
            UNFIT,
            "this host has no directory in which all users can share locks: give --local-dir DIR",
        )
    })
}

fn parse_ttl(text: Option<&str>, sources: Sources<'_>, servers: usize) -> Result<Option<Duration>, Failure> {
    match text {
        Some("none") if servers > 1 => Err(sources.bad(
            "ttl",
            "--ttl none is not possible with several servers: one that lost its data could never vote again",
        )),
        Some("none") => Ok(None),
        text => {
            let ttl = sources.duration("ttl", text)?.unwrap_or(DEFAULT_TTL);
            if !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
                let rule = format!("be between 100ms and 365d, or none, not {}", format(ttl));
                return Err(sources.must("ttl", &rule));
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
        return Err(sources.must("node_timeout", "be more than 0"));
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
            let at_fault = if sources.origin("ttl").is_none() { "ttl" } else { "quarantine" };
            Err(sources
                .bad(at_fault, format!("--ttl ({ttl}) must not be longer than --quarantine ({quarantine})")))
        }
        _ => Ok(quarantine),
    }
}
