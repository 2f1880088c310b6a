//! Settings of `redlock acquire`.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::lock::LockSettings;
use super::sources::Sources;
use super::{OnLost, OnUnavailable, stop_signal, usage, validate_keys};
use crate::cli::AcquireArgs;
use crate::exit::{Failure, HELD};

#[derive(Debug)]
pub(crate) struct AcquireSettings {
    pub lock: LockSettings,
    /// How long the lock is held, unless it is renewed; `None` = forever.
    pub ttl: Option<Duration>,
    /// The ttl is the default.
    pub has_default_ttl: bool,
    pub format: TokenFormat,
    pub watched: Option<Watched>,
    /// What a keeper does if the lock is lost, and the signal that it then sends.
    pub on_lost: OnLost,
    pub stop_signal: Signal,
}

/// How the token is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenFormat {
    Plain,
    Json,
    Shell,
}

/// The process for which a keeper keeps the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Parent,
    Process(Pid),
}

impl AcquireSettings {
    pub(crate) fn resolve(args: AcquireArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let AcquireArgs { take, json, shell, for_shell, watch_pid } = args;
        if take.keys.is_empty() {
            return Err(usage("--key KEY is required: redlock acquire --key KEY"));
        }
        let mut lock = LockSettings::resolve(validate_keys(take.keys.clone(), &[])?, &take, false, sources)?;
        lock.on_unavailable = on_unavailable(lock.on_unavailable, sources)?;
        lock.conflict_exit_code = conflict_exit_code(lock.conflict_exit_code, sources)?;
        let format = match sources.one_of(&[("json", json), ("shell", shell)])? {
            Some("json") => TokenFormat::Json,
            Some(_) => TokenFormat::Shell,
            None => TokenFormat::Plain,
        };
        let watched = match (for_shell, watch_pid) {
            (true, Some(_)) => return Err(sources.exclusive("for_shell", "watch_pid")),
            (true, None) => Some(Watched::Parent),
            (false, Some(text)) => Some(Watched::Process(pid(&text, sources)?)),
            (false, None) => None,
        };
        if let Some(option) = ["on_lost", "signal"].into_iter().find(|id| sources.was_typed(id))
            && watched.is_none()
        {
            let name = sources.name(option);
            return Err(usage(format!(
                "{name} requires --for-shell or --watch-pid: without a keeper nothing notices that the lock is lost"
            )));
        }
        Ok(Self {
            ttl: lock.location.backend.lease(&take.lease, sources)?,
            has_default_ttl: take.lease.ttl.is_none(),
            lock,
            format,
            watched,
            on_lost: take.failure.on_lost.unwrap_or(OnLost::Stop),
            stop_signal: stop_signal(&take, sources)?,
        })
    }
}

/// Only a run can go on without a lock. An inherited value is meant for runs.
fn on_unavailable(given: OnUnavailable, sources: Sources<'_>) -> Result<OnUnavailable, Failure> {
    match given {
        OnUnavailable::Wait | OnUnavailable::Fail => Ok(given),
        OnUnavailable::Skip | OnUnavailable::Run if sources.was_typed("on_unavailable") => {
            Err(sources.must("on_unavailable", "be fail or wait: there is no token without the lock"))
        }
        OnUnavailable::Skip | OnUnavailable::Run => Ok(OnUnavailable::Fail),
    }
}

/// Zero means that the lock was taken. An inherited zero is meant for runs, which then skip the
/// command.
fn conflict_exit_code(given: u8, sources: Sources<'_>) -> Result<u8, Failure> {
    match given {
        0 if sources.was_typed("conflict_exit_code") => {
            Err(sources.must("conflict_exit_code", "be 1 to 255, not 0: there is no token without the lock"))
        }
        0 => Ok(HELD),
        code => Ok(code),
    }
}

fn pid(text: &str, sources: Sources<'_>) -> Result<Pid, Failure> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number
        .map(Pid::from_raw)
        .ok_or_else(|| sources.must("watch_pid", &format!("be a process ID, not {text:?}")))
}
