//! Where the lock is to be: which servers, or which folder of this host, and on what terms.

use std::path::PathBuf;
use std::time::Duration;

use super::usage;
use super::values::Given;
use crate::cli::{RunArgs, ServerArgs};
use crate::exit::{Failure, UNFIT};
use crate::lock::{Mode, Server, Timing, default_folder};
use crate::report::human;

/// Why a lease makes no sense on this host.
const LOCAL_LOCKS_LAST: &str = "the kernel frees a lock on this host when its holder has ended";

const SHORTEST_TTL: Duration = Duration::from_millis(100);
const LONGEST_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_QUARANTINE: Duration = Duration::from_secs(30);
const MOST_SERVERS: usize = 9;
const NODE_TIMEOUT_BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Where the lock is.
#[derive(Debug)]
pub enum Place {
    Servers { servers: Vec<Server>, timing: Timing },
    Host { folder: PathBuf, by: Choice },
}

/// How it came that we lock on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Asked,
    NothingElseConfigured,
}

impl Place {
    /// For what cannot be done on this host.
    pub fn only_servers(args: &mut ServerArgs, given: Given<'_>) -> Result<(Vec<Server>, Timing), Failure> {
        let servers = servers(&args.redis)?;
        if servers.is_empty() {
            let message = format!("no server given: {LOCAL_LOCKS_LAST}; on a server, give --redis URL");
            return Err(usage(message));
        }
        let node_timeout = node_timeout(args, given, None)?;
        Ok((servers, Timing { ttl: None, node_timeout, quarantine: Duration::ZERO }))
    }

    pub fn resolve(args: &mut RunArgs, given: Given<'_>, mode: &Mode) -> Result<Self, Failure> {
        if is_local(args, given)? {
            for option in ["ttl", "node_timeout", "quarantine", "on_unavailable"] {
                if given.was_typed(option) {
                    let option = option.replace('_', "-");
                    return Err(usage(format!(
                        "--{option} means nothing without a server: {LOCAL_LOCKS_LAST}"
                    )));
                }
            }
            let by = if args.place.local { Choice::Asked } else { Choice::NothingElseConfigured };
            return Ok(Self::Host { folder: folder(args.place.local_dir.take())?, by });
        }
        let servers = servers(&args.servers.redis)?;
        if let (Mode::Slot { .. }, true) = (mode, servers.len() > 1) {
            return Err(usage(
                "--slots cannot be had by a vote (3 servers with 2 permits each would admit 3 holders): give one server",
            ));
        }
        let ttl = ttl(args, given, servers.len())?;
        let timing = Timing {
            ttl,
            node_timeout: node_timeout(&mut args.servers, given, ttl)?,
            quarantine: quarantine(args, given, ttl, servers.len())?,
        };
        Ok(Self::Servers { servers, timing })
    }

    /// The longest that a lock can outlive us, if there is a longest.
    pub fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Servers { timing, .. } => timing.ttl,
            Self::Host { .. } => None,
        }
    }
}

/// Typed beats inherited; nothing at all means this host, unless that is forbidden.
fn is_local(args: &RunArgs, given: Given<'_>) -> Result<bool, Failure> {
    let has_server = args.servers.redis.iter().any(|url| !url.is_empty());
    if given.was_typed("redis") && !has_server {
        return Err(usage("--redis must not be empty"));
    }
    let is_local = match (args.place.local, has_server) {
        (true, true) if given.was_typed("local") && given.was_typed("redis") => {
            return Err(usage("--local and --redis contradict each other: give one"));
        }
        (true, true) => !given.was_typed("redis"),
        (local, has_server) => local || !has_server,
    };
    if is_local && args.place.require_server && !given.was_typed("local") {
        let advice = "give --redis URL or set REDLOCK_REDIS";
        return Err(Failure::new(
            UNFIT,
            format!("no server to lock on, and --require-server forbids to do without: {advice}"),
        ));
    }
    Ok(is_local)
}

fn folder(folder: Option<PathBuf>) -> Result<PathBuf, Failure> {
    folder.filter(|folder| !folder.as_os_str().is_empty()).or_else(default_folder).ok_or_else(|| {
        Failure::new(
            UNFIT,
            "this host has no folder in which all users can share locks: give --local-dir FOLDER",
        )
    })
}

fn servers(urls: &[String]) -> Result<Vec<Server>, Failure> {
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

fn ttl(args: &mut RunArgs, given: Given<'_>, servers: usize) -> Result<Option<Duration>, Failure> {
    match given.text("ttl", args.hold.ttl.take()) {
        Some(none) if none == "none" && servers > 1 => Err(usage(
            "--ttl none cannot be had on several servers: one that lost its memory could never vote again",
        )),
        Some(none) if none == "none" => Ok(None),
        text => {
            let ttl = given.duration("ttl", text)?.unwrap_or(DEFAULT_TTL);
            if !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
                return Err(usage(format!(
                    "--ttl must be between 100ms and 365d, or none, not {}",
                    human(ttl)
                )));
            }
            Ok(Some(ttl))
        }
    }
}

fn node_timeout(args: &mut ServerArgs, given: Given<'_>, ttl: Option<Duration>) -> Result<Duration, Failure> {
    let (least, most) = NODE_TIMEOUT_BOUNDS;
    let usual = ttl.map_or(most, |ttl| (ttl / 20).clamp(least, most));
    let timeout = given.duration("node_timeout", args.node_timeout.take())?.unwrap_or(usual);
    if timeout.is_zero() {
        return Err(usage("--node-timeout must be more than 0"));
    }
    // A later answer would leave too little of the lease to be of use.
    Ok(ttl.map_or(timeout, |ttl| timeout.min(ttl / 3)))
}

fn quarantine(
    args: &mut RunArgs,
    given: Given<'_>,
    ttl: Option<Duration>,
    servers: usize,
) -> Result<Duration, Failure> {
    let quarantine = match given.text("quarantine", args.place.quarantine.take()) {
        Some(off) if off == "off" => Some(Duration::ZERO),
        text => given.duration("quarantine", text)?,
    };
    let quarantine = quarantine.unwrap_or(if servers > 1 { DEFAULT_QUARANTINE } else { Duration::ZERO });
    // Whoever waits it out must have outwaited every lease.
    match ttl {
        Some(ttl) if servers > 1 && !quarantine.is_zero() && ttl > quarantine => {
            let (ttl, quarantine) = (human(ttl), human(quarantine));
            Err(usage(format!("--ttl ({ttl}) must not be longer than --quarantine ({quarantine})")))
        }
        _ => Ok(quarantine),
    }
}
