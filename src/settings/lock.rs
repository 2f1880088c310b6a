//! Settings of the commands that take a lock: which locks, where they are, and how to wait for
//! them.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use super::backend::{Backend, Location};
use super::sources::Sources;
use super::{usage, verbosity};
use crate::cli::{ModeArgs, OnUnavailable, PreferArg, TakeArgs, WaitArgs};
use crate::exit::{Failure, HELD};
use crate::lock::{MOST_SLOTS, Mode, Prefer, WaitPolicy};

const DEFAULT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Number of finished runs kept for `redlock history`. Replies must have a bound.
const DEFAULT_HISTORY: u32 = 200;
const LONGEST_HISTORY: u32 = 10_000;
/// In bytes; as long as a key.
const LONGEST_LABEL: usize = 1024;

#[derive(Debug)]
pub(crate) struct LockSettings {
    /// At least one, without duplicates, in the order given.
    pub keys: Vec<Vec<u8>>,
    pub location: Location,
    pub mode: Mode,
    pub prefer: Prefer,
    pub wait: WaitPolicy,
    /// Give up when a newer waiter with this setting arrives.
    pub supersede: bool,
    /// Stop a holder with this setting, or be stopped by a newer run with it.
    pub cancel: bool,
    /// Do not run if a run with this setting has succeeded within this time.
    pub once: Option<Duration>,
    /// Run under the lock of an outer run, if it has the lock.
    pub reentrant: bool,
    /// Maximum random delay before the first attempt; may be zero.
    pub jitter: Duration,
    /// Exit code if the lock is held.
    pub conflict_exit_code: u8,
    pub on_unavailable: OnUnavailable,
    /// Minimum time for which the lock stays taken; may be zero.
    pub min_hold: Duration,
    /// Number of finished runs kept for `redlock history`; zero = none.
    pub history: u32,
    /// Shown to waiters; may be empty.
    pub label: String,
    pub events: Option<PathBuf>,
    /// The shell command that gets each event.
    pub hook: Option<String>,
    /// Typed options that have no effect on this backend.
    pub meaningless: Vec<String>,
}

impl LockSettings {
    /// `keys` are validated.
    pub(super) fn resolve(
        keys: Vec<Vec<u8>>,
        args: &TakeArgs,
        reentrant: bool,
        sources: Sources<'_>,
    ) -> Result<Self, Failure> {
        let TakeArgs { mode: modes, wait, lease, min_hold, backend: place, failure, output, .. } = args;
        let prefer = match modes.prefer {
            None | Some(PreferArg::Fair) => Prefer::Fair,
            Some(PreferArg::Writers) => Prefer::Writers,
            Some(PreferArg::Readers) => Prefer::Readers,
        };
        let mode = mode(modes, sources)?;
        let backend = Backend::resolve(place, lease, sources)?;
        let location = Location::new(backend, place, verbosity(&output.verbosity, sources)?, sources)?;
        location.check_names(&keys, sources)?;
        let duration = |id, text: &Option<String>| sources.duration(id, text.as_deref());
        let conflict =
            sources.whole_number("conflict_exit_code", wait.conflict_exit_code.as_deref(), 0, 255)?;
        let history = sources.whole_number("history", output.history.as_deref(), 0, LONGEST_HISTORY)?;
        let label = output.label.clone().unwrap_or_default();
        if label.len() > LONGEST_LABEL {
            return Err(
                sources.must("label", &format!("have at most {LONGEST_LABEL} bytes, not {}", label.len()))
            );
        }
        Ok(Self {
            keys,
            meaningless: location.backend.meaningless(sources),
            location,
            mode,
            prefer,
            wait: wait_policy(wait, sources)?,
            supersede: wait.supersede,
            cancel: false,
            once: None,
            reentrant,
            jitter: duration("jitter", &wait.jitter)?.unwrap_or_default(),
            conflict_exit_code: conflict.and_then(|code| u8::try_from(code).ok()).unwrap_or(HELD),
            on_unavailable: failure.on_unavailable.unwrap_or(OnUnavailable::Fail),
            min_hold: duration("min_hold", min_hold)?.unwrap_or_default(),
            history: history.unwrap_or(DEFAULT_HISTORY),
            label,
            hook: output.hook.clone().filter(|hook| !hook.is_empty()),
            events: output.events.clone().filter(|path| !path.as_os_str().is_empty()),
        })
    }
}

fn mode(args: &ModeArgs, sources: Sources<'_>) -> Result<Mode, Failure> {
    let slots = args.slots.as_deref();
    let options = [("shared", args.shared), ("exclusive", args.exclusive), ("slots", slots.is_some())];
    let chosen = sources.one_of(&options)?;
    if chosen == Some("shared") {
        return Ok(Mode::Shared { group: args.reader_group.clone().unwrap_or_default().into_vec() });
    }
    if sources.was_typed("reader_group") {
        return Err(usage("--reader-group requires --shared"));
    }
    match sources.whole_number("slots", slots.filter(|_| chosen == Some("slots")), 1, MOST_SLOTS)? {
        Some(of) => Ok(Mode::Slot { of }),
        None => Ok(Mode::Exclusive),
    }
}

/// A typed option beats an inherited one: `-n` beats REDLOCK_WAIT, and `--wait` beats
/// REDLOCK_NONBLOCK.
fn wait_policy(args: &WaitArgs, sources: Sources<'_>) -> Result<WaitPolicy, Failure> {
    let at_most = sources.duration("wait", args.wait.as_deref())?;
    let interval = sources.duration("retry_interval", args.retry_interval.as_deref())?;
    let retries = args.retries.as_deref();
    let chosen = sources.one_of(&[("nonblock", args.nonblock), ("retries", retries.is_some())])?;
    let retries = retries.filter(|_| chosen == Some("retries"));
    if let Some(count) = sources.whole_number("retries", retries, 0, u32::MAX - 1)? {
        let interval = interval.unwrap_or(DEFAULT_RETRY_INTERVAL);
        if interval < SHORTEST_RETRY_INTERVAL {
            return Err(sources.must("retry_interval", "be at least 1ms"));
        }
        return Ok(WaitPolicy::Retry { count, interval, at_most });
    }
    if sources.was_typed("retry_interval") {
        return Err(usage("--retry-interval requires --retries"));
    }
    // Zero means --nonblock, so these two agree.
    let waits = at_most.is_none_or(|at_most| !at_most.is_zero());
    if args.nonblock && at_most.is_some() && waits {
        return match sources.one_of(&[("nonblock", true), ("wait", true)])? {
            Some("wait") => Ok(WaitPolicy::Queue { at_most }),
            _ => Ok(WaitPolicy::No),
        };
    }
    Ok(if args.nonblock || !waits { WaitPolicy::No } else { WaitPolicy::Queue { at_most } })
}
