//! The settings of `redlock status`, and where commands that only look do so.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use super::backend::Backend;
use super::sources::Sources;
use super::{one_key, prefix, usage, verbosity};
use crate::cli::{Check, HostArgs, ServerArgs, StatusArgs, VerbosityArgs, WatchArgs};
use crate::exit::Failure;
use crate::lock::Claim;
use crate::report::Verbosity;

const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const TOKEN: &str = "REDLOCK_TOKEN";

/// Where locks are looked at, and how much is said about it.
#[derive(Debug)]
pub(crate) struct Location {
    pub backend: Backend,
    pub prefix: String,
    pub verbosity: Verbosity,
    /// The config files that were read.
    pub config_files: Vec<PathBuf>,
    /// What is wrong with the settings without making them unusable.
    pub warnings: Vec<String>,
}

impl Location {
    pub(super) fn resolve(
        servers: ServerArgs,
        host: HostArgs,
        output: &VerbosityArgs,
        sources: Sources<'_>,
    ) -> Result<Self, Failure> {
        let backend = Backend::to_look_at(&servers, host, sources)?;
        Ok(Self {
            warnings: backend.warnings(&servers, sources),
            backend,
            verbosity: verbosity(output.quiet, output.verbose, sources)?,
            config_files: sources.config_files().to_vec(),
            prefix: prefix(servers.prefix),
        })
    }
}

/// All that `redlock status` needs to know.
#[derive(Debug)]
pub(crate) struct StatusSettings {
    pub key: Vec<u8>,
    pub location: Location,
    pub purpose: Purpose,
    pub json: bool,
}

/// What is wanted of the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Show,
    /// Again and again, with this between two times.
    Watch(Duration),
    Check(Checked),
    /// Until it is free, but no longer than this.
    WaitFree(Option<Duration>),
}

/// What is to be true.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checked {
    Held,
    Free,
    /// By the run with this token.
    Owned(Claim),
}

impl StatusSettings {
    pub(crate) fn resolve(args: StatusArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let StatusArgs { key, check, token, wait_free, wait, watch, json, verbosity, servers, host, help: _ } =
            args;
        let key = one_key(key)?;
        if token.is_some() && check != Some(Check::Owned) {
            return Err(usage("--token requires --check owned"));
        }
        if sources.was_typed("wait") && !wait_free {
            return Err(usage("--wait requires --wait-free"));
        }
        let modes = [("check", check.is_some()), ("wait_free", wait_free), ("watch", watch.watch)];
        let purpose = match (sources.one_of(&modes)?, check) {
            (Some("wait_free"), _) => Purpose::WaitFree(sources.duration("wait", wait.as_deref())?),
            (Some("watch"), _) => Purpose::Watch(interval(&watch, sources)?),
            (_, None) => Purpose::Show,
            (_, Some(Check::Held)) => Purpose::Check(Checked::Held),
            (_, Some(Check::Free)) => Purpose::Check(Checked::Free),
            (_, Some(Check::Owned)) => Purpose::Check(Checked::Owned(claim(token)?)),
        };
        Ok(Self {
            key,
            purpose,
            json: json.json,
            location: Location::resolve(servers, host, &verbosity, sources)?,
        })
    }
}

/// The time between two looks.
pub(super) fn interval(args: &WatchArgs, sources: Sources<'_>) -> Result<Duration, Failure> {
    if sources.was_typed("interval") && !args.watch {
        return Err(usage("--interval requires --watch"));
    }
    let interval = sources.duration("interval", args.interval.as_deref())?.unwrap_or(DEFAULT_INTERVAL);
    if interval < SHORTEST_INTERVAL {
        return Err(sources.must("interval", "be at least 100ms"));
    }
    Ok(interval)
}

/// The token that was typed, or that of the run around us.
pub(super) fn claim(typed: Option<String>) -> Result<Claim, Failure> {
    let (name, text) = match typed {
        Some(text) => ("--token", text),
        None => (TOKEN, env::var(TOKEN).unwrap_or_default()),
    };
    if text.is_empty() {
        return Err(usage(format!("which token? Give --token, or set {TOKEN}")));
    }
    text.parse().map_err(|()| usage(format!("{name}: not a token: it is what redlock sets {TOKEN} to")))
}
