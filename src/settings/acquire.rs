//! What `redlock acquire` needs to know.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::lock::{LockArgs, LockSettings};
use super::sources::Sources;
use super::{OnLost, OnUnavailable, signal, usage, validate_keys};
use crate::cli::AcquireArgs;
use crate::exit::{Failure, HELD};

#[derive(Debug)]
pub(crate) struct AcquireSettings {
    pub lock: LockSettings,
    /// How long the lock is held, unless it is renewed; `None` = forever.
    pub ttl: Option<Duration>,
    pub format: TokenFormat,
    pub watched: Option<Watched>,
    /// What a keeper does when the lock is lost, and the signal that it sends then.
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

/// For which process a keeper keeps the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Parent,
    Process(Pid),
}

impl AcquireSettings {
    pub(crate) fn resolve(args: AcquireArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let AcquireArgs { keys, json, shell, mode, wait, lease, keeper, servers, backend, output } = args;
        if keys.is_empty() {
            return Err(usage("which lock? Give --key KEY: redlock acquire --key KEY"));
        }
        let lock = LockArgs {
            keys: validate_keys(keys, &[])?,
            servers,
            backend,
            mode,
            wait,
            ttl: lease.ttl.clone(),
            min_hold: lease.min_hold,
            reentrant: false,
            on_unavailable: on_unavailable(keeper.on_unavailable, sources)?,
            output,
        };
        let mut lock = LockSettings::resolve(lock, sources)?;
        lock.conflict_exit_code = conflict_exit_code(lock.conflict_exit_code, sources)?;
        let format = match sources.one_of(&[("json", json), ("shell", shell)])? {
            Some("json") => TokenFormat::Json,
            Some(_) => TokenFormat::Shell,
            None => TokenFormat::Plain,
        };
        let watched = match (keeper.for_shell, keeper.watch_pid) {
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
                "{name} requires --for-shell or --watch-pid: without a keeper nobody notices that the lock is lost"
            )));
        }
        Ok(Self {
            ttl: lock.backend.lease(lease.ttl.as_deref(), sources)?,
            lock,
            format,
            watched,
            on_lost: keeper.on_lost.unwrap_or(OnLost::Warn),
            stop_signal: keeper.signal.map_or(Ok(Signal::SIGTERM), |text| signal(&text, sources))?,
        })
    }
}

/// What a run does without a lock is no choice here. What is inherited is meant for runs.
fn on_unavailable(given: Option<OnUnavailable>, sources: Sources<'_>) -> Result<OnUnavailable, Failure> {
    match given {
        Some(OnUnavailable::Wait) => Ok(OnUnavailable::Wait),
        Some(OnUnavailable::Skip | OnUnavailable::Run) if sources.was_typed("on_unavailable") => {
            Err(sources.must("on_unavailable", "be fail or wait: there is no token without the lock"))
        }
        Some(OnUnavailable::Fail | OnUnavailable::Skip | OnUnavailable::Run) | None => {
            Ok(OnUnavailable::Fail)
        }
    }
}

/// Zero is the code of a lock that was taken. What is inherited is meant for runs, whose command is then skipped.
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
        .ok_or_else(|| sources.must("watch_pid", &format!("be the number of a process, not {text:?}")))
}
