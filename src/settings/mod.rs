//! From the command line, the environment and the config file to one validated value. Below this nothing
//! checks again.

mod backend;
mod file;
mod inherited;
mod request;
mod servers;
mod sources;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::cli::{BreakArgs, OutputArgs, RunArgs, ServerArgs};
use crate::clock::BootTime;
use crate::duration::format;
use crate::exit::{Failure, HELD, USAGE};
use crate::lock::{Grant, Mode, Prefer, Server, Timing, WaitPolicy};
use crate::report::Verbosity;

pub(crate) use crate::cli::{OnLost, OnUnavailable};
pub(crate) use backend::{Backend, LocalReason};
pub(crate) use inherited::{Inherited, inherit};
pub(crate) use sources::Sources;

const LONGEST_KEY: usize = 1024;
/// All keys go into one request, so their number is bounded.
const MOST_KEYS: usize = 64;
const DEFAULT_PREFIX: &str = "lock";
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);
/// Share of the lease reserved for a killed tree to exit, within bounds.
const MARGIN_FRACTION: u32 = 10;
const MARGIN_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

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
    /// Of the waiters with this only the newest stays.
    pub supersede: bool,
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
    /// The config files that were read.
    pub config_files: Vec<PathBuf>,
    /// Options that were typed and mean nothing where the lock is.
    pub meaningless: Vec<String>,
    /// What is wrong with the settings without making them unusable.
    pub warnings: Vec<String>,
}

impl RunSettings {
    pub(crate) fn resolve(args: RunArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let RunArgs { keys, shell_command, argv, servers, backend, mode, wait, hold, failure, output } = args;
        let keys = validate_keys(keys, &argv)?;
        let prefer = request::prefer(mode.prefer);
        let mode = request::mode(mode, sources)?;
        let backend = Backend::resolve(&servers, backend, hold.ttl.as_deref(), &mode, sources)?;
        let longest_grace = backend.ttl().map_or(Duration::MAX, |ttl| ttl / 3);
        let duration = |id, text: Option<String>| sources.duration(id, text.as_deref());
        let conflict =
            sources.whole_number("conflict_exit_code", wait.conflict_exit_code.as_deref(), 0, 255)?;
        Ok(Self {
            keys,
            meaningless: backend.meaningless(sources),
            warnings: match &backend {
                Backend::Servers { .. } => servers::warnings(&servers, sources),
                Backend::Host { .. } => Vec::new(),
            },
            config_files: sources.config_files().to_vec(),
            backend,
            prefix: prefix(servers),
            mode,
            prefer,
            wait: request::wait_policy(&wait, sources)?,
            supersede: wait.supersede,
            reentrant: wait.reentrant,
            jitter: duration("jitter", wait.jitter)?.unwrap_or_default(),
            conflict_exit_code: conflict.and_then(|code| u8::try_from(code).ok()).unwrap_or(HELD),
            on_unavailable: failure.on_unavailable.unwrap_or(OnUnavailable::Fail),
            argv: command(argv, shell_command)?,
            stop_signal: failure.signal.map_or(Ok(Signal::SIGTERM), |text| signal(&text, sources))?,
            kill_after: kill_after(duration("kill_after", failure.kill_after)?, longest_grace, sources)?,
            on_lost: failure.on_lost.unwrap_or(OnLost::Stop),
            max_hold: max_hold(duration("max_hold", hold.max_hold)?, sources)?,
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
    /// What is wrong with the settings without making them unusable.
    pub warnings: Vec<String>,
}

impl BreakSettings {
    pub(crate) fn resolve(args: BreakArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let key = one_key(args.key_argument, args.key)?;
        let (servers, timing) = Backend::only_servers(&args.servers, sources)?;
        let warnings = servers::warnings(&args.servers, sources);
        Ok(Self { key, servers, timing, prefix: prefix(args.servers), yes: args.yes, warnings })
    }
}

/// The key as an argument, or as an option.
fn one_key(argument: Option<OsString>, option: Option<OsString>) -> Result<Vec<u8>, Failure> {
    let key = match (argument, option) {
        (Some(argument), Some(option)) if argument != option => {
            return Err(usage("give one key: as an argument, or with --key"));
        }
        (argument, option) => argument.or(option).ok_or_else(|| usage("which lock? Give its key"))?,
    };
    Ok(validate_keys(vec![key], &[])?.remove(0))
}

/// The URLs that were typed, as they stand in our own arguments, if they may hold a password.
pub(crate) fn typed_secrets<'a>(args: &'a ServerArgs, sources: Sources<'_>) -> Vec<&'a OsStr> {
    let typed = if sources.was_typed("redis") { &args.redis[..] } else { &[] };
    typed.iter().flat_map(|urls| servers::typed_secrets(urls)).map(OsStr::new).collect()
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

fn prefix(args: ServerArgs) -> String {
    args.prefix.unwrap_or_else(|| DEFAULT_PREFIX.into())
}

/// `argv` is the command, to explain where the key went.
fn validate_keys(keys: Vec<OsString>, argv: &[OsString]) -> Result<Vec<Vec<u8>>, Failure> {
    if keys.is_empty() {
        return Err(key_missing(argv));
    }
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

fn key_missing(argv: &[OsString]) -> Failure {
    let is = |word: &OsString, text: &str| word.as_os_str() == text;
    let has_option = |word: &OsString| is(word, "-k") || word.as_encoded_bytes().starts_with(b"--key");
    match argv {
        [name, dashes, ..] if is(dashes, "--") => {
            let name = name.to_string_lossy();
            usage(format!("did you mean --key {name}? redlock run --key {name} -- COMMAND [ARG]..."))
        }
        [_, rest @ ..] if rest.iter().any(has_option) => {
            usage("--key must stand before the command: redlock run --key KEY -- COMMAND [ARG]...")
        }
        _ => usage("which lock? Give --key KEY: redlock run --key KEY -- COMMAND [ARG]..."),
    }
}

fn verbosity(args: &OutputArgs, sources: Sources<'_>) -> Result<Verbosity, Failure> {
    Ok(match sources.one_of(&[("quiet", args.quiet), ("verbose", args.verbose)])? {
        Some("quiet") => Verbosity::Quiet,
        Some(_) => Verbosity::Verbose,
        None => Verbosity::Normal,
    })
}

fn command(argv: Vec<OsString>, shell_command: Option<OsString>) -> Result<Vec<OsString>, Failure> {
    if argv.first().is_some_and(|name| servers::is_url(name)) {
        return Err(usage("there is a server's URL where the command should be: give it with --redis"));
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

fn signal(text: &str, sources: Sources<'_>) -> Result<Signal, Failure> {
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
