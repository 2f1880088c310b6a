//! From the command line, the environment and the config file to one validated value. Below this nothing
//! checks again.

mod backend;
mod file;
mod request;
mod sources;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ArgMatches;
use nix::sys::signal::Signal;

use crate::cli::{BreakArgs, OutputArgs, RunArgs, ServerArgs};
use crate::clock::BootTime;
use crate::duration::format;
use crate::exit::{Failure, HELD, USAGE};
use crate::lock::{Grant, Mode, Prefer, Server, Timing, WaitPolicy};
use crate::report::Verbosity;

pub(crate) use crate::cli::{OnLost, OnUnavailable};
pub(crate) use backend::{Backend, LocalReason};
pub(crate) use file::apply as apply_config_file;
use sources::Sources;

const LONGEST_KEY: usize = 1024;
/// All keys go into one request, so their number is bounded.
const MOST_KEYS: usize = 64;
const DEFAULT_PREFIX: &str = "lock";
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);
/// Share of the lease reserved for a killed tree to exit, within bounds.
const MARGIN_FRACTION: u32 = 20;
const MARGIN_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// All that `redlock run` needs to know.
#[derive(Debug)]
pub(crate) struct RunSettings {
    /// At least one, none twice, in the order given.
    pub keys: Vec<Vec<u8>>,
    pub backend: Backend,
    /// Prefix of our keys' names; may be empty.
    pub prefix: String,
    pub mode: Mode,
    pub prefer: Prefer,
    pub wait: WaitPolicy,
    /// Run under the lock of a run around this one, if that has it.
    pub reentrant: bool,
    /// Random delay before the first attempt, at most this long; may be zero.
    pub jitter: Duration,
    /// Exit code if the lock is held.
    pub conflict_exit_code: u8,
    pub on_unavailable: OnUnavailable,
    /// The command, not empty.
    pub argv: Vec<OsString>,
    /// First signal to a command that must stop, and the time until SIGKILL: at most a third of a ttl.
    pub stop_signal: Signal,
    pub kill_after: Duration,
    pub on_lost: OnLost,
    /// The command is stopped when it has had the lock for this long.
    pub max_hold: Option<Duration>,
    /// How long the lock stays taken in any case; may be zero.
    pub min_hold: Duration,
    /// Hold the lock until the last descendant has ended.
    pub wait_tree: bool,
    /// Shown to waiters; may be empty.
    pub label: String,
    pub verbosity: Verbosity,
    pub events: Option<PathBuf>,
}

impl RunSettings {
    /// `matches` tells what was typed from what was inherited.
    pub(crate) fn resolve(args: RunArgs, matches: &ArgMatches) -> Result<Self, Failure> {
        let RunArgs { keys, shell_command, argv, servers, backend, mode, wait, hold, failure, output } = args;
        let sources = Sources(matches);
        let prefer = request::prefer(mode.prefer);
        let mode = request::mode(mode, sources)?;
        let backend = Backend::resolve(&servers, backend, hold.ttl.as_deref(), &mode, sources)?;
        let longest_grace = backend.ttl().map_or(Duration::MAX, |ttl| ttl / 3);
        let duration = |id, text: Option<String>| sources.duration(id, text.as_deref());
        let conflict =
            sources.whole_number("conflict_exit_code", wait.conflict_exit_code.as_deref(), 0, 255)?;
        Ok(Self {
            keys: validate_keys(keys)?,
            backend,
            prefix: prefix(servers),
            mode,
            prefer,
            wait: request::wait_policy(&wait, sources)?,
            reentrant: wait.reentrant,
            jitter: duration("jitter", wait.jitter)?.unwrap_or_default(),
            conflict_exit_code: conflict.and_then(|code| u8::try_from(code).ok()).unwrap_or(HELD),
            on_unavailable: failure.on_unavailable.unwrap_or(OnUnavailable::Fail),
            argv: command(argv, shell_command)?,
            stop_signal: failure.signal.map_or(Ok(Signal::SIGTERM), |text| signal(&text))?,
            kill_after: kill_after(duration("kill_after", failure.kill_after)?, longest_grace)?,
            on_lost: failure.on_lost.unwrap_or(OnLost::Stop),
            max_hold: max_hold(duration("max_hold", hold.max_hold)?)?,
            min_hold: duration("min_hold", hold.min_hold)?.unwrap_or_default(),
            wait_tree: hold.wait_tree,
            verbosity: verbosity(&output, sources)?,
            label: output.label.unwrap_or_default(),
            events: output.events.filter(|path| !path.as_os_str().is_empty()),
        })
    }

    /// Left of the lease for a killed tree to exit.
    pub(crate) fn margin(&self) -> Duration {
        (self.backend.ttl().unwrap_or_default() / MARGIN_FRACTION).clamp(MARGIN_BOUNDS.0, MARGIN_BOUNDS.1)
    }
}

impl OnLost {
    /// When the command must be gone: the lease's deadline, if losing the lock stops the command.
    pub(crate) fn deadline(self, grant: &Grant) -> Option<BootTime> {
        match self {
            Self::Stop => grant.lease.map(|lease| lease.deadline()),
            Self::Warn => None,
        }
    }
}

/// All that `redlock break` needs to know.
#[derive(Debug)]
pub(crate) struct BreakSettings {
    pub key: Vec<u8>,
    pub servers: Vec<Server>,
    pub timing: Timing,
    pub prefix: String,
    /// Otherwise only show the holder.
    pub yes: bool,
}

impl BreakSettings {
    pub(crate) fn resolve(args: BreakArgs, matches: &ArgMatches) -> Result<Self, Failure> {
        let (servers, timing) = Backend::only_servers(&args.servers, Sources(matches))?;
        let key = validate_keys(vec![args.key])?.remove(0);
        Ok(Self { key, servers, timing, prefix: prefix(args.servers), yes: args.yes })
    }
}

/// The URLs with a password that were typed, as they stand in our own arguments.
pub(crate) fn typed_secrets<'a>(args: &'a ServerArgs, matches: &ArgMatches) -> Vec<&'a OsStr> {
    if !Sources(matches).was_typed("redis") {
        return Vec::new();
    }
    let has_password = |url: &&String| Server::parse(url).map_or(true, |server| server.password().is_some());
    args.redis.iter().filter(has_password).map(|url| OsStr::from_bytes(url.as_bytes())).collect()
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

fn prefix(args: ServerArgs) -> String {
    args.prefix.unwrap_or_else(|| DEFAULT_PREFIX.into())
}

fn validate_keys(keys: Vec<OsString>) -> Result<Vec<Vec<u8>>, Failure> {
    let keys: Vec<Vec<u8>> = keys.into_iter().map(OsStringExt::into_vec).collect();
    if keys.len() > MOST_KEYS {
        return Err(usage(format!("{} keys given, {MOST_KEYS} are allowed", keys.len())));
    }
    let mut known = HashSet::new();
    for key in &keys {
        if key.is_empty() {
            return Err(usage("--key must not be empty"));
        }
        if key.len() > LONGEST_KEY {
            let length = key.len();
            return Err(usage(format!("--key is {length} bytes long, {LONGEST_KEY} are allowed")));
        }
        if !known.insert(key) {
            return Err(usage(format!("--key {:?} is given twice", String::from_utf8_lossy(key))));
        }
    }
    Ok(keys)
}

fn verbosity(args: &OutputArgs, sources: Sources<'_>) -> Result<Verbosity, Failure> {
    Ok(match sources.one_of(&[("quiet", args.quiet), ("verbose", args.verbose)])? {
        Some("quiet") => Verbosity::Quiet,
        Some(_) => Verbosity::Verbose,
        None => Verbosity::Normal,
    })
}

fn command(argv: Vec<OsString>, shell_command: Option<OsString>) -> Result<Vec<OsString>, Failure> {
    match (argv.is_empty(), shell_command) {
        (false, None) => Ok(argv),
        (false, Some(_)) => Err(usage("give either a command after -- or -c STRING, not both")),
        (true, Some(line)) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            Ok(vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line])
        }
        (true, None) => Err(usage("the command is missing: redlock run --key KEY -- COMMAND [ARG...]")),
    }
}

/// "TERM", "SIGTERM" or "15".
fn signal(text: &str) -> Result<Signal, Failure> {
    let named = |name: &str| Signal::from_str(&format!("SIG{}", name.trim_start_matches("SIG"))).ok();
    let number = text.parse::<i32>().ok().and_then(|number| Signal::try_from(number).ok());
    match number.or_else(|| named(&text.to_ascii_uppercase())) {
        Some(signal) if signal != Signal::SIGSTOP => Ok(signal),
        _ => Err(usage(format!(
            "--signal must be a signal that ends a command, such as TERM or 15, not {text:?}"
        ))),
    }
}

fn max_hold(time: Option<Duration>) -> Result<Option<Duration>, Failure> {
    match time {
        Some(Duration::ZERO) => Err(usage("--max-hold must be more than 0")),
        time => Ok(time),
    }
}

fn kill_after(time: Option<Duration>, most: Duration) -> Result<Duration, Failure> {
    match time {
        None => Ok(DEFAULT_KILL_AFTER.min(most)),
        Some(time) if time > most => {
            Err(usage(format!("--kill-after must be at most a third of --ttl, which is {}", format(most))))
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
            assert_eq!(signal(text).unwrap(), Signal::SIGTERM, "{text}");
        }
        for text in ["", "0", "STOP", "SIGSIG", "99", "FOO"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }
}
