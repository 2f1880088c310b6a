//! How the lock is asked for: mode, queueing order, wait policy. For every command that takes a lock.

use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::sources::Sources;
use super::usage;
use crate::cli::{self, ModeArgs, WaitArgs};
use crate::exit::Failure;
use crate::lock::{MOST_SLOTS, Mode, Prefer, WaitPolicy};

const DEFAULT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_RETRY_INTERVAL: Duration = Duration::from_millis(1);

pub(super) fn mode(args: ModeArgs, sources: Sources<'_>) -> Result<Mode, Failure> {
    let slots = args.slots.as_deref();
    let options = [("shared", args.shared), ("exclusive", args.exclusive), ("slots", slots.is_some())];
    let chosen = sources.one_of(&options)?;
    if chosen == Some("shared") {
        return Ok(Mode::Shared { group: args.reader_group.unwrap_or_default().into_vec() });
    }
    if sources.was_typed("reader_group") {
        return Err(usage("--reader-group requires --shared"));
    }
    match sources.whole_number("slots", slots.filter(|_| chosen == Some("slots")), 1, MOST_SLOTS)? {
        Some(of) => Ok(Mode::Slot { of }),
        None => Ok(Mode::Exclusive),
    }
}

pub(super) fn prefer(choice: Option<cli::Prefer>) -> Prefer {
    match choice {
        None | Some(cli::Prefer::Fair) => Prefer::Fair,
        Some(cli::Prefer::Writers) => Prefer::Writers,
        Some(cli::Prefer::Readers) => Prefer::Readers,
    }
}

/// What was typed beats what was inherited: `-n` typed beats REDLOCK_WAIT, and the other way round.
pub(super) fn wait_policy(args: &WaitArgs, sources: Sources<'_>) -> Result<WaitPolicy, Failure> {
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
    // Zero is --nonblock, so these two agree.
    let waits = at_most.is_none_or(|at_most| !at_most.is_zero());
    if args.nonblock && at_most.is_some() && waits {
        return match sources.one_of(&[("nonblock", true), ("wait", true)])? {
            Some("wait") => Ok(WaitPolicy::Queue { at_most }),
            _ => Ok(WaitPolicy::No),
        };
    }
    let policy = if args.nonblock || !waits { WaitPolicy::No } else { WaitPolicy::Queue { at_most } };
    Ok(policy)
}
