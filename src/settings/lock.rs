//! Which locks, where they are and how they are asked for: for the commands that take a lock.

use std::path::PathBuf;
use std::time::Duration;

use super::backend::Backend;
use super::sources::Sources;
use super::{prefix, request, verbosity};
use crate::cli::{BackendArgs, ModeArgs, OnUnavailable, OutputArgs, ServerArgs, WaitArgs};
use crate::exit::{Failure, HELD};
use crate::lock::{Mode, Prefer, WaitPolicy};
use crate::report::Verbosity;

/// How many finished runs are kept for `redlock history`, and how many can be: a reply has to have a bound.
const DEFAULT_HISTORY: u32 = 200;
const LONGEST_HISTORY: u32 = 10_000;

#[derive(Debug)]
pub(crate) struct LockSettings {
    /// At least one, none twice, in the order given.
    pub keys: Vec<Vec<u8>>,
    pub backend: Backend,
    /// Prefix of our keys' names; may be empty.
    pub prefix: String,
    pub mode: Mode,
    pub prefer: Prefer,
    pub wait: WaitPolicy,
    /// Of the waiters with this only the newest stays.
    pub supersede: bool,
    /// Run under the lock of a run around this one, if that has it.
    pub reentrant: bool,
    /// Random delay before the first attempt, at most this long; may be zero.
    pub jitter: Duration,
    /// Exit code if the lock is held.
    pub conflict_exit_code: u8,
    pub on_unavailable: OnUnavailable,
    /// How long the lock stays taken in any case; may be zero.
    pub min_hold: Duration,
    /// How many finished runs are kept for `redlock history`; zero = none.
    pub history: u32,
    /// Shown to waiters; may be empty.
    pub label: String,
    pub verbosity: Verbosity,
    pub events: Option<PathBuf>,
    /// The config files that were read.
    pub config_files: Vec<PathBuf>,
    /// Options that were typed and mean nothing where the lock is.
    pub meaningless: Vec<String>,
    /// What is wrong with the settings without making them unusable.
    pub warnings: Vec<String>,
}

/// The options that these settings come from; the values are still text.
pub(super) struct LockArgs {
    /// Checked.
    pub keys: Vec<Vec<u8>>,
    pub servers: ServerArgs,
    pub backend: BackendArgs,
    pub mode: ModeArgs,
    pub wait: WaitArgs,
    pub ttl: Option<String>,
    pub min_hold: Option<String>,
    pub reentrant: bool,
    pub on_unavailable: OnUnavailable,
    pub output: OutputArgs,
}

impl LockSettings {
    pub(super) fn resolve(args: LockArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let LockArgs { keys, servers, backend, mode, wait, ttl, min_hold, reentrant, on_unavailable, output } =
            args;
        let prefer = request::prefer(mode.prefer);
        let mode = request::mode(mode, sources)?;
        let backend = Backend::resolve(&servers, backend, ttl.as_deref(), &mode, sources)?;
        let prefix = prefix(servers.prefix.clone());
        backend.check_names(&prefix, &keys, sources)?;
        let duration = |id, text: Option<String>| sources.duration(id, text.as_deref());
        let conflict =
            sources.whole_number("conflict_exit_code", wait.conflict_exit_code.as_deref(), 0, 255)?;
        Ok(Self {
            keys,
            meaningless: backend.meaningless(sources),
            warnings: backend.warnings(&servers, sources),
            config_files: sources.config_files().to_vec(),
            backend,
            prefix,
            mode,
            prefer,
            wait: request::wait_policy(&wait, sources)?,
            supersede: wait.supersede,
            reentrant,
            jitter: duration("jitter", wait.jitter)?.unwrap_or_default(),
            conflict_exit_code: conflict.and_then(|code| u8::try_from(code).ok()).unwrap_or(HELD),
            on_unavailable,
            min_hold: duration("min_hold", min_hold)?.unwrap_or_default(),
            history: sources
                .whole_number("history", output.history.as_deref(), 0, LONGEST_HISTORY)?
                .unwrap_or(DEFAULT_HISTORY),
            verbosity: verbosity(output.quiet, output.verbose, sources)?,
            label: output.label.unwrap_or_default(),
            events: output.events.filter(|path| !path.as_os_str().is_empty()),
        })
    }
}
