//! From what was typed and what was inherited to one validated value. Below this nothing checks again.

mod asking;
mod place;
mod values;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use nix::sys::signal::Signal;

use crate::cli::{BreakArgs, OnLost, OnUnavailable, RunArgs, ServerArgs};
use crate::exit::{Failure, HELD, USAGE};
use crate::lock::{Server, Timing};
use crate::report::{Voice, human};
pub use asking::Asking;
pub use place::{Choice, Place};
use values::{Given, signal, whole_number};

const LONGEST_KEY: usize = 1024;
/// All of them are one request.
const MOST_KEYS: usize = 64;
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);
/// Of the lease, for a killed tree to be gone: a fraction of it, within bounds.
const MARGIN_FRACTION: u32 = 20;
const MARGIN_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// All that `redlock run` needs to know.
#[derive(Debug)]
pub struct RunSettings {
    /// At least one, none twice, in the order given.
    pub keys: Vec<Vec<u8>>,
    pub place: Place,
    /// First part of our keys' names; may be empty.
    pub prefix: String,
    pub asking: Asking,
    /// Exit code if the lock is somebody else's.
    pub conflict_exit_code: u8,
    pub on_unavailable: OnUnavailable,
    /// The command, not empty.
    pub argv: Vec<OsString>,
    /// First signal to a command whose lock is lost, and the time until SIGKILL: at most a third of a ttl.
    pub stop_signal: Signal,
    pub kill_after: Duration,
    pub on_lost: OnLost,
    /// The command is stopped when it has had the lock for so long.
    pub max_hold: Option<Duration>,
    /// How long the lock stays taken in any case; may be zero.
    pub min_hold: Duration,
    /// Hold the lock until the last descendant has ended.
    pub wait_tree: bool,
    /// Shown to those who wait; may be empty.
    pub label: String,
    pub voice: Voice,
    pub events: Option<PathBuf>,
}

impl RunSettings {
    /// `matches` tells what was typed from what was inherited by the environment.
    pub fn resolve(mut args: RunArgs, matches: &ArgMatches) -> Result<Self, Failure> {
        let given = Given(matches);
        let asking = Asking::resolve(&mut args, given)?;
        let place = Place::resolve(&mut args, given, &asking.mode)?;
        let longest_grace = place.ttl().map_or(Duration::MAX, |ttl| ttl / 3);
        let conflict_exit_code = given.text("conflict_exit_code", args.wait.conflict_exit_code);
        Ok(Self {
            keys: keys(args.keys)?,
            place,
            prefix: prefix(args.servers.prefix, given),
            asking,
            conflict_exit_code: match conflict_exit_code {
                Some(text) => {
                    u8::try_from(whole_number("conflict_exit_code", &text, 0, 255)?).unwrap_or(HELD)
                }
                None => HELD,
            },
            on_unavailable: given
                .choice("on_unavailable", args.trouble.on_unavailable)?
                .unwrap_or(OnUnavailable::Fail),
            argv: argv(args.argv, args.shell_command)?,
            stop_signal: given
                .text("signal", args.trouble.signal)
                .map_or(Ok(Signal::SIGTERM), |text| signal(&text))?,
            kill_after: kill_after(given.duration("kill_after", args.trouble.kill_after)?, longest_grace)?,
            on_lost: given.choice("on_lost", args.trouble.on_lost)?.unwrap_or(OnLost::Stop),
            max_hold: max_hold(given.duration("max_hold", args.hold.max_hold)?)?,
            min_hold: given.duration("min_hold", args.hold.min_hold)?.unwrap_or_default(),
            wait_tree: args.hold.wait_tree,
            label: args.words.label.unwrap_or_default(),
            voice: voice(args.words.quiet, args.words.verbose, given)?,
            events: args.words.events.filter(|path| !path.as_os_str().is_empty()),
        })
    }

    /// Left of the lease for a killed tree to be gone.
    pub fn margin(&self) -> Duration {
        (self.place.ttl().unwrap_or_default() / MARGIN_FRACTION).clamp(MARGIN_BOUNDS.0, MARGIN_BOUNDS.1)
    }
}

/// All that `redlock break` needs to know.
#[derive(Debug)]
pub struct BreakSettings {
    pub key: Vec<u8>,
    pub servers: Vec<Server>,
    pub timing: Timing,
    pub prefix: String,
    /// Otherwise only look.
    pub yes: bool,
}

impl BreakSettings {
    pub fn resolve(mut args: BreakArgs, matches: &ArgMatches) -> Result<Self, Failure> {
        let given = Given(matches);
        let (servers, timing) = Place::only_servers(&mut args.servers, given)?;
        let prefix = prefix(args.servers.prefix, given);
        Ok(Self { key: keys(vec![args.key])?.remove(0), servers, timing, prefix, yes: args.yes })
    }
}

fn prefix(text: Option<String>, given: Given<'_>) -> String {
    given.text("prefix", text).unwrap_or_else(|| "lock".into())
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

fn keys(keys: Vec<OsString>) -> Result<Vec<Vec<u8>>, Failure> {
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

fn max_hold(time: Option<Duration>) -> Result<Option<Duration>, Failure> {
    match time {
        Some(Duration::ZERO) => Err(usage("--max-hold must be more than 0")),
        time => Ok(time),
    }
}

fn voice(quiet: bool, verbose: bool, given: Given<'_>) -> Result<Voice, Failure> {
    Ok(match given.one_of(&[("quiet", quiet), ("verbose", verbose)])? {
        Some("quiet") => Voice::Quiet,
        Some(_) => Voice::Verbose,
        None => Voice::Normal,
    })
}

fn argv(argv: Vec<OsString>, shell_command: Option<OsString>) -> Result<Vec<OsString>, Failure> {
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

fn kill_after(time: Option<Duration>, most: Duration) -> Result<Duration, Failure> {
    match time {
        None => Ok(DEFAULT_KILL_AFTER.min(most)),
        Some(time) if time > most => {
            Err(usage(format!("--kill-after must be at most a third of --ttl, which is {}", human(most))))
        }
        Some(time) => Ok(time),
    }
}

/// The passwords in URLs that were typed, as they stand in our own arguments.
pub fn typed_secrets<'a>(args: &'a ServerArgs, matches: &ArgMatches) -> Vec<&'a OsStr> {
    match matches.value_source("redis") {
        Some(ValueSource::CommandLine) => {
            let has_password =
                |url: &&String| Server::parse(url).map_or(true, |server| server.password().is_some());
            args.redis.iter().filter(has_password).map(|url| OsStr::from_bytes(url.as_bytes())).collect()
        }
        _ => Vec::new(),
    }
}
