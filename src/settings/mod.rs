//! Turns command line, environment and config files into validated values. Nothing below checks
//! again.

mod acquire;
mod backend;
mod doctor;
mod file;
mod inherited;
mod lock;
mod look;
mod servers;
mod sources;
mod tls;
mod token;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::cli::{BackendArgs, KeyArgs, RunArgs, TakeArgs, VerbosityArgs};
use crate::clock::BootTime;
use crate::duration::format;
use crate::exit::{Failure, USAGE};
use crate::lock::{BARE, Grant, Mode};
use crate::report::Verbosity;

pub(crate) use crate::cli::{OnLost, OnUnavailable};
pub(crate) use acquire::{AcquireSettings, TokenFormat, Watched};
pub(crate) use backend::{Backend, Location};
pub(crate) use doctor::DoctorSettings;
#[cfg(test)]
pub(crate) use doctor::Origins;
pub(crate) use inherited::{Inherited, inherit};
pub(crate) use lock::LockSettings;
pub(crate) use look::{
    BreakSettings, Checked, Form, HistoryScope, HistorySettings, ListForm, ListSettings, Purpose,
    StatusSettings,
};
pub(crate) use sources::Sources;
pub(crate) use token::{ExtendSettings, TokenSettings};

const LONGEST_KEY: usize = 1024;
/// All keys go into one request, so their number is bounded.
const MOST_KEYS: usize = 64;
/// A mark is kept for at least as long as its run asks.
const LONGEST_ONCE: Duration = Duration::from_hours(366 * 24);
const DEFAULT_PREFIX: &str = "lock";
pub(crate) const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);
/// Share of the lease reserved for a killed tree to exit, within bounds.
const MARGIN_FRACTION: u32 = 10;
const MARGIN_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Settings of `redlock run`.
#[derive(Debug)]
pub(crate) struct RunSettings {
    pub lock: LockSettings,
    /// The command, not empty.
    pub argv: Vec<OsString>,
    /// First signal to a command that must stop, and the time until SIGKILL: at most a third of a
    /// ttl.
    pub stop_signal: Signal,
    pub kill_after: Duration,
    pub on_lost: OnLost,
    /// Stop the command when it has held the lock for this long.
    pub max_hold: Option<Duration>,
    /// Hold the lock until the last descendant has ended.
    pub wait_tree: bool,
}

impl RunSettings {
    pub(crate) fn resolve(args: RunArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let RunArgs {
            take,
            shell_command,
            argv,
            reentrant,
            once,
            cancel_in_progress,
            max_hold: longest,
            wait_tree,
            kill_after: grace,
        } = args;
        let keys = validate_keys(take.keys.clone(), &argv)?;
        let mut lock = LockSettings::resolve(keys, &take, reentrant, sources)?;
        lock.once = within(once.as_deref(), &lock.mode, sources)?;
        if cancel_in_progress {
            require_one_holder("cancel_in_progress", &lock.mode, sources)?;
            (lock.cancel, lock.supersede) = (true, true);
        }
        let longest_grace = lock.location.backend.ttl().map_or(Duration::MAX, |ttl| ttl / 3);
        let duration = |id, text: Option<String>| sources.duration(id, text.as_deref());
        Ok(Self {
            lock,
            argv: command(argv, shell_command)?,
            stop_signal: stop_signal(&take, sources)?,
            kill_after: kill_after(duration("kill_after", grace)?, longest_grace, sources)?,
            on_lost: take.failure.on_lost.unwrap_or(OnLost::Stop),
            max_hold: max_hold(duration("max_hold", longest)?, sources)?,
            wait_tree,
        })
    }
}

/// The part of the lease reserved for a killed tree to exit. The lease of an outer run or of a keeper
/// may be shorter than ours would be.
pub(crate) fn margin(grant: &Grant) -> Duration {
    let lease = grant.lease.map(|lease| lease.ttl()).unwrap_or_default();
    (lease / MARGIN_FRACTION).clamp(MARGIN_BOUNDS.0, MARGIN_BOUNDS.1)
}

impl OnLost {
    /// When the command must be gone: the deadline of the lease, if the command stops with it.
    pub(crate) fn deadline(self, grant: &Grant) -> Option<BootTime> {
        match self {
            Self::Stop => grant.lease.map(|lease| lease.deadline()),
            Self::Warn => None,
        }
    }
}

/// The key as an argument, or as an option.
fn one_key(args: KeyArgs) -> Result<Vec<u8>, Failure> {
    let mut given = args.argument.into_iter().chain(args.options);
    let key = given.next().ok_or_else(|| usage("--key KEY is required"))?;
    if given.any(|other| other != key) {
        return Err(usage("give one key: as an argument, or with --key"));
    }
    Ok(validate_keys(vec![key], &[])?.remove(0))
}

/// The typed URLs that may hold a password, as they are in our own arguments.
pub(crate) fn typed_secrets<'a>(args: &'a BackendArgs, sources: Sources<'_>) -> Vec<&'a OsStr> {
    let typed = if sources.was_typed("redis") { &args.redis[..] } else { &[] };
    typed.iter().flat_map(|urls| servers::typed_secrets(urls)).map(OsStr::new).collect()
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

fn prefix(given: Option<String>, sources: Sources<'_>) -> Result<String, Failure> {
    if given.as_deref() == Some(BARE) {
        return Err(
            sources.must("prefix", "not be bare: the records of locks with --prefix '' begin with it")
        );
    }
    Ok(given.unwrap_or_else(|| DEFAULT_PREFIX.into()))
}

/// `argv` is the command: the key may be there by mistake.
fn validate_keys(keys: Vec<OsString>, argv: &[OsString]) -> Result<Vec<Vec<u8>>, Failure> {
    if keys.is_empty() {
        return Err(key_missing(argv));
    }
    let keys: Vec<Vec<u8>> = keys.into_iter().map(OsStringExt::into_vec).collect();
    if keys.len() > MOST_KEYS {
        return Err(usage(format!("{} keys given, at most {MOST_KEYS} are allowed", keys.len())));
    }
    let mut known = HashSet::new();
    for key in &keys {
        if key.is_empty() {
            return Err(usage("--key must not be empty"));
        }
        if key.len() > LONGEST_KEY {
            let length = key.len();
            return Err(usage(format!("--key has {length} bytes, at most {LONGEST_KEY} are allowed")));
        }
        if !known.insert(key) {
            return Err(usage(format!("--key {:?} is given twice", String::from_utf8_lossy(key))));
        }
    }
    Ok(keys)
}

fn key_missing(argv: &[OsString]) -> Failure {
    let is = |word: &OsString, text: &str| word.as_os_str() == text;
    let has_option = |word: &OsString| is(word, "-k") || word.as_encoded_bytes().starts_with(b"--key");
    match argv {
        [name, dashes, ..] if is(dashes, "--") => {
            let name = name.to_string_lossy();
            usage(format!("did you mean --key {name}? redlock run --key {name} -- COMMAND [ARG]..."))
        }
        [_, rest @ ..] if rest.iter().any(has_option) => {
            usage("--key must come before the command: redlock run --key KEY -- COMMAND [ARG]...")
        }
        _ => usage("--key KEY is required: redlock run --key KEY -- COMMAND [ARG]..."),
    }
}

fn verbosity(args: &VerbosityArgs, sources: Sources<'_>) -> Result<Verbosity, Failure> {
    Ok(match sources.one_of(&[("quiet", args.quiet), ("verbose", args.verbose)])? {
        Some("quiet") => Verbosity::Quiet,
        Some(_) => Verbosity::Verbose,
        None => Verbosity::Normal,
    })
}

fn command(argv: Vec<OsString>, shell_command: Option<OsString>) -> Result<Vec<OsString>, Failure> {
    if argv.first().is_some_and(|name| servers::is_url(name)) {
        return Err(usage("found a server's URL instead of a command: pass it with --redis"));
    }
    match (argv.is_empty(), shell_command) {
        (false, None) => Ok(argv),
        (false, Some(_)) => Err(usage("give either a command or -c STRING, not both")),
        (true, Some(line)) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            Ok(vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line])
        }
        (true, None) => Err(usage("the command is missing: redlock run --key KEY -- COMMAND [ARG]...")),
    }
}

fn stop_signal(args: &TakeArgs, sources: Sources<'_>) -> Result<Signal, Failure> {
    let Some(text) = &args.failure.signal else { return Ok(Signal::SIGTERM) };
    parse_signal(text).ok_or_else(|| {
        sources.must("signal", &format!("be a signal that ends a command, such as TERM or 15, not {text:?}"))
    })
}

/// "TERM", "SIGTERM" or "15".
fn parse_signal(text: &str) -> Option<Signal> {
    let named = |name: &str| Signal::from_str(&format!("SIG{}", name.trim_start_matches("SIG"))).ok();
    let number = text.parse::<i32>().ok().and_then(|number| Signal::try_from(number).ok());
    let signal = number.or_else(|| named(&text.to_ascii_uppercase()));
    signal.filter(|signal| *signal != Signal::SIGSTOP)
}

/// `--once`.
fn within(text: Option<&str>, mode: &Mode, sources: Sources<'_>) -> Result<Option<Duration>, Failure> {
    let Some(time) = sources.duration("once", text)? else { return Ok(None) };
    if time.is_zero() || time > LONGEST_ONCE {
        return Err(sources.must("once", "be more than 0, and at most 366d"));
    }
    require_one_holder("once", mode, sources)?;
    Ok(Some(time))
}

/// For an option that is about the one holder of the lock.
fn require_one_holder(option: &str, mode: &Mode, sources: Sources<'_>) -> Result<(), Failure> {
    match mode {
        Mode::Exclusive | Mode::Slot { of: 1 } => Ok(()),
        Mode::Shared { .. } => Err(sources.exclusive("shared", option)),
        Mode::Slot { .. } => Err(sources.exclusive("slots", option)),
    }
}

fn max_hold(time: Option<Duration>, sources: Sources<'_>) -> Result<Option<Duration>, Failure> {
    match time {
        Some(Duration::ZERO) => Err(sources.must("max_hold", "be more than 0")),
        time => Ok(time),
    }
}

fn kill_after(time: Option<Duration>, most: Duration, sources: Sources<'_>) -> Result<Duration, Failure> {
    match time {
        None => Ok(DEFAULT_KILL_AFTER.min(most)),
        Some(time) if time > most => {
            Err(sources
                .must("kill_after", &format!("be at most a third of --ttl, which is {}", format(most))))
        }
        Some(time) => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_goes_by_name_or_number() {
        for text in ["TERM", "sigterm", "15", "SIGTERM"] {
            assert_eq!(parse_signal(text), Some(Signal::SIGTERM), "{text}");
        }
        for text in ["", "0", "STOP", "SIGSIG", "99", "FOO"] {
            assert_eq!(parse_signal(text), None, "{text}");
        }
    }
}
