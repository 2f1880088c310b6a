//! Where the lock is: the servers or the directory of this host, and the lease. For every command.

use std::path::PathBuf;
use std::time::Duration;

use super::servers::{servers, warnings};
use super::sources::Sources;
use super::{prefix, usage, verbosity};
use crate::cli::{BackendArgs, LeaseArgs, LookArgs, VerbosityArgs};
use crate::duration::format;
use crate::exit::{Failure, UNFIT};
use crate::lock::{Keys, Server, Timing, USUAL_LEASE, default_directory};
use crate::report::Verbosity;

/// Options without effect on this host. They are accepted, so that a script runs with and without
/// servers.
const OF_SERVERS: [&str; 11] = [
    "ttl",
    "node_timeout",
    "quarantine",
    "username",
    "password_file",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "sentinel_username",
    "sentinel_password_file",
];

const SHORTEST_TTL: Duration = Duration::from_millis(100);
const LONGEST_TTL: Duration = Duration::from_hours(365 * 24);
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_QUARANTINE: Duration = Duration::from_secs(30);
/// After a failover the old master may grant locks for this long: until every Sentinel, or node of
/// the cluster, knows the new one.
const FAILOVER_LAG: Duration = Duration::from_secs(5);
/// With several servers, where the others reply instead of a slow one.
const NODE_TIMEOUT_BOUNDS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// With one server there is no alternative, and connecting across an ocean takes several round
/// trips.
const ONLY_NODE_TIMEOUT_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Where locks are, and how much is printed about it.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub backend: Backend,
    /// Prefix of the names of our keys; may be empty.
    pub prefix: String,
    pub verbosity: Verbosity,
    /// The config files that were read.
    pub config_files: Vec<PathBuf>,
    /// Flaws of the settings that do not make them unusable.
    pub warnings: Vec<String>,
}

impl Location {
    pub(super) fn new(
        backend: Backend,
        args: &BackendArgs,
        verbosity: Verbosity,
        sources: Sources<'_>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            warnings: match backend {
                Backend::Servers { .. } => warnings(args, sources),
                Backend::Host { .. } => Vec::new(),
            },
            backend,
            verbosity,
            config_files: sources.config_files().to_vec(),
            prefix: prefix(args.prefix.clone(), sources)?,
        })
    }

    /// For a command that takes no lock.
    pub(super) fn resolve(
        args: &BackendArgs,
        output: &VerbosityArgs,
        sources: Sources<'_>,
    ) -> Result<Self, Failure> {
        Self::new(Backend::to_look_at(args, sources)?, args, verbosity(output, sources)?, sources)
    }

    pub(super) fn of(args: &LookArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        Self::resolve(&args.backend, &args.verbosity, sources)
    }

    /// On a cluster all names of a lock, and all locks that are taken together, must be in one
    /// slot.
    pub(super) fn check_names(&self, keys: &[Vec<u8>], sources: Sources<'_>) -> Result<(), Failure> {
        let Backend::Servers { servers, .. } = &self.backend else { return Ok(()) };
        if !servers.iter().any(Server::is_cluster) {
            return Ok(());
        }
        if self.prefix.contains('{') {
            return Err(
                sources.must("prefix", "not contain { on a Redis Cluster, where it begins a hash tag")
            );
        }
        let mut slots = keys.iter().map(|key| Keys::new(servers, &self.prefix, key).slot());
        let first = slots.next();
        if slots.any(|slot| Some(slot) != first) {
            return Err(usage(
                "on a Redis Cluster several keys must have a hash tag in common, as in {app}:a and {app}:b",
            ));
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Servers {
        servers: Vec<Server>,
        timing: Timing,
    },
    /// `is_requested`: not only because no server is configured.
    Host {
        directory: PathBuf,
        is_requested: bool,
    },
}

impl Backend {
    /// For a command that takes a lock.
    pub(super) fn resolve(
        args: &BackendArgs,
        lease: &LeaseArgs,
        sources: Sources<'_>,
    ) -> Result<Self, Failure> {
        let ttl = lease.ttl.as_deref();
        if is_local(args, sources)? {
            // A typed value must be valid, even where it has no effect.
            if sources.was_typed("ttl") {
                parse_ttl(ttl, sources, false)?;
            }
            for (id, text) in [("node_timeout", &args.node_timeout), ("quarantine", &lease.quarantine)] {
                if sources.was_typed(id) && text.as_deref() != Some("off") {
                    sources.duration(id, text.as_deref())?;
                }
            }
            return Self::this_host(args);
        }
        let servers = servers(args, sources)?;
        let count = servers.len();
        // One server may not know what another has granted.
        let may_fail_over = servers.iter().any(Server::may_fail_over);
        let may_forget = count > 1 || may_fail_over;
        let quarantine = quarantine(lease.quarantine.as_deref(), sources, may_forget)?;
        let ttl = parse_ttl(ttl, sources, may_forget || !quarantine.is_zero())?;
        // A server must not forget a lease that may still be in use. Several servers know of those that
        // are longer than usual. A single one forgets them with its data.
        let usual_lease = ttl.map_or(Duration::ZERO, |ttl| ttl.min(USUAL_LEASE));
        let quarantine =
            if count > 1 && !quarantine.is_zero() { quarantine.max(usual_lease) } else { quarantine };
        if let Some(ttl) = ttl.filter(|ttl| count == 1 && !quarantine.is_zero() && *ttl > quarantine) {
            let why = "a server that lost its data would grant the lock again too early. Give all clients \
                       a longer --quarantine";
            let (ttl, quarantine) = (format(ttl), format(quarantine));
            return Err(match lease.ttl {
                Some(_) => {
                    sources.must("ttl", &format!("be at most --quarantine ({quarantine}), not {ttl}: {why}"))
                }
                None => {
                    sources.must("quarantine", &format!("be at least --ttl ({ttl}), not {quarantine}: {why}"))
                }
            });
        }
        let lag = if may_fail_over && !quarantine.is_zero() { FAILOVER_LAG } else { Duration::ZERO };
        let node_timeout = node_timeout(args, sources, ttl, count)?;
        Ok(Self::Servers { servers, timing: Timing { ttl, node_timeout, quarantine: quarantine + lag } })
    }

    /// For a command that takes no lock.
    pub(super) fn to_look_at(args: &BackendArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        if is_local(args, sources)? {
            return Self::this_host(args);
        }
        let servers = servers(args, sources)?;
        let node_timeout = node_timeout(args, sources, None, servers.len())?;
        Ok(Self::Servers { servers, timing: Timing { ttl: None, node_timeout, quarantine: Duration::ZERO } })
    }

    fn this_host(args: &BackendArgs) -> Result<Self, Failure> {
        let is_requested = args.local || args.local_dir.is_some();
        Ok(Self::Host { directory: directory(args)?, is_requested })
    }

    /// Typed options that have no effect here.
    pub(crate) fn meaningless(&self, sources: Sources<'_>) -> Vec<String> {
        match self {
            Self::Servers { .. } => Vec::new(),
            Self::Host { .. } => {
                let typed = OF_SERVERS.iter().filter(|id| sources.was_typed(id));
                typed.map(|id| sources.name(id)).collect()
            }
        }
    }

    /// How long a grant lasts unless it is renewed; `None` = forever. On this host a process holds
    /// the lock for this long.
    pub(super) fn lease(&self, args: &LeaseArgs, sources: Sources<'_>) -> Result<Option<Duration>, Failure> {
        match self {
            Self::Servers { timing, .. } => Ok(timing.ttl),
            Self::Host { .. } => parse_ttl(args.ttl.as_deref(), sources, false),
        }
    }

    /// The lock is on this host only because no server is configured.
    pub(crate) fn is_unconfigured(&self) -> bool {
        matches!(self, Self::Host { is_requested: false, .. })
    }

    pub(crate) fn is_this_host(&self) -> bool {
        matches!(self, Self::Host { .. })
    }

    /// How long a lock can outlive this process; `None` if there is no limit, or on this host.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Servers { timing, .. } => timing.ttl,
            Self::Host { .. } => None,
        }
    }
}

/// Whether the lock is on this host. Without a server it is, unless that is forbidden.
fn is_local(args: &BackendArgs, sources: Sources<'_>) -> Result<bool, Failure> {
    let has_server = args.redis.iter().any(|url| !url.is_empty());
    if sources.was_typed("redis") && !has_server {
        return Err(usage("--redis must not be empty"));
    }
    // An inherited directory does not request a lock on this host.
    let typed_directory = sources.was_typed("local_dir");
    let local = if args.local { "local" } else { "local_dir" };
    let is_requested = args.local || typed_directory;
    if is_requested && has_server && sources.was_typed("redis") && sources.was_typed(local) {
        return Err(sources.exclusive(local, "redis"));
    }
    if is_requested && args.require_server && sources.was_typed(local) && sources.was_typed("require_server")
    {
        return Err(sources.exclusive(local, "require_server"));
    }
    let is_local = !has_server || is_requested && sources.distance(local) <= sources.distance("redis");
    if is_local && args.require_server && !(is_requested && sources.was_typed(local)) {
        let name = sources.name("require_server");
        let message =
            format!("no server configured, and {name} is set: give --redis URL or set REDLOCK_REDIS");
        return Err(Failure::new(UNFIT, message));
    }
    Ok(is_local)
}

/// Where locks on this host are.
pub(super) fn directory(args: &BackendArgs) -> Result<PathBuf, Failure> {
    let given = args.local_dir.clone();
    given.filter(|directory| !directory.as_os_str().is_empty()).or_else(default_directory).ok_or_else(|| {
        Failure::new(
            UNFIT,
            "this host has no directory in which all users can share locks: give --local-dir DIR",
        )
    })
}

/// `may_forget`: there are several servers, another one may take the place of the only one, or that
/// one may restart without its data.
fn parse_ttl(
    text: Option<&str>,
    sources: Sources<'_>,
    may_forget: bool,
) -> Result<Option<Duration>, Failure> {
    match text {
        Some("none") if may_forget => Err(sources.bad(
            "ttl",
            format!(
                "{} none is not possible with several servers, Sentinel, Cluster or --quarantine: a server that lost \
                 its data could never vote again",
                sources.name("ttl")
            ),
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
    args: &BackendArgs,
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
    // A later reply would leave too little of the lease.
    let longest = ttl.map(|ttl| if servers > 1 { ttl / 3 } else { ttl * 2 / 3 });
    Ok(longest.map_or(timeout, |longest| timeout.min(longest)))
}

/// Off by default with one server whose place no other can take.
fn quarantine(text: Option<&str>, sources: Sources<'_>, may_forget: bool) -> Result<Duration, Failure> {
    let quarantine = match text {
        Some("off") => Some(Duration::ZERO),
        text => sources.duration("quarantine", text)?,
    };
    Ok(quarantine.unwrap_or(if may_forget { DEFAULT_QUARANTINE } else { Duration::ZERO }))
}
