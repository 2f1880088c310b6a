//! How to ask for the lock: in which mode, and with how much patience.

use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::usage;
use super::values::{Given, whole_number};
use crate::cli::{self, ModeArgs, RunArgs, WaitArgs};
use crate::exit::Failure;
use crate::lock::{MOST_SLOTS, Mode, Patience, Prefer, Retries};

const DEFAULT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_RETRY_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Asking {
    pub mode: Mode,
    pub prefer: Prefer,
    pub patience: Patience,
    /// Instead of queueing.
    pub retries: Option<Retries>,
    /// Before asking, a random time of at most this; may be zero.
    pub jitter: Duration,
}

impl Asking {
    pub fn resolve(args: &mut RunArgs, given: Given<'_>) -> Result<Self, Failure> {
        let retries = retries(&mut args.wait, given)?;
        Ok(Self {
            mode: mode(&mut args.mode, given)?,
            prefer: match given.choice("prefer", args.mode.prefer)? {
                None | Some(cli::Prefer::Fair) => Prefer::Fair,
                Some(cli::Prefer::Writers) => Prefer::Writers,
                Some(cli::Prefer::Readers) => Prefer::Readers,
            },
            patience: patience(&mut args.wait, given)?,
            retries,
            jitter: given.duration("jitter", args.wait.jitter.take())?.unwrap_or_default(),
        })
    }
}

fn mode(args: &mut ModeArgs, given: Given<'_>) -> Result<Mode, Failure> {
    let slots = given.text("slots", args.slots.take());
    let wishes = [("shared", args.shared), ("exclusive", args.exclusive), ("slots", slots.is_some())];
    let mode = match (given.one_of(&wishes)?, slots) {
        (Some("shared"), _) => {
            let group = args.reader_group.take().unwrap_or_default().into_vec();
            return Ok(Mode::Shared { group });
        }
        (Some("slots"), Some(text)) => Mode::Slot { of: whole_number("slots", &text, 1, MOST_SLOTS)? },
        _ => Mode::Exclusive,
    };
    if given.was_typed("reader_group") {
        return Err(usage("--reader-group means nothing without --shared"));
    }
    Ok(mode)
}

/// "-n typed beats REDLOCK_WAIT" and the other way round; both typed is a contradiction unless they agree.
fn patience(args: &mut WaitArgs, given: Given<'_>) -> Result<Patience, Failure> {
    let wait = given.duration("wait", args.wait.take())?;
    let patience = match wait {
        None => Patience::Forever,
        Some(Duration::ZERO) => Patience::None,
        Some(wait) => Patience::AtMost(wait),
    };
    match (args.nonblock, wait) {
        (true, Some(wait)) if given.was_typed("nonblock") && given.was_typed("wait") && !wait.is_zero() => {
            Err(usage("--nonblock and --wait contradict each other: give one"))
        }
        (true, Some(_)) if given.was_typed("wait") => Ok(patience),
        (true, _) => Ok(Patience::None),
        (false, _) => Ok(patience),
    }
}

fn retries(args: &mut WaitArgs, given: Given<'_>) -> Result<Option<Retries>, Failure> {
    let count = given.text("retries", args.retries.take());
    let chosen = given.one_of(&[("nonblock", args.nonblock), ("retries", count.is_some())])?;
    let interval = given.duration("retry_interval", args.retry_interval.take())?;
    match (chosen, count) {
        (Some("retries"), Some(count)) => {
            args.nonblock = false;
            let interval = interval.unwrap_or(DEFAULT_RETRY_INTERVAL);
            if interval < SHORTEST_RETRY_INTERVAL {
                return Err(usage("--retry-interval must be at least 1ms"));
            }
            Ok(Some(Retries { count: whole_number("retries", &count, 0, u32::MAX - 1)?, interval }))
        }
        _ if given.was_typed("retry_interval") => {
            Err(usage("--retry-interval means nothing without --retries"))
        }
        _ => Ok(None),
    }
}
