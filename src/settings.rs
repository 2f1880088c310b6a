//! From what was typed and what was inherited to one validated value. Below this nothing checks again.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use nix::sys::signal::Signal;

use crate::cli::{OnLost, RunArgs};
use crate::exit::{Failure, HELD, UNFIT, USAGE};
use crate::lock::{Mode, Patience, Server, Timing, default_folder};
use crate::report::{Voice, human};

/// Why a lease makes no sense on this host.
const LOCAL_LOCKS_LAST: &str = "the kernel frees a lock on this host when its holder has ended";

const LONGEST_KEY: usize = 1024;
const SHORTEST_TTL: Duration = Duration::from_millis(100);
const LONGEST_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);
/// Of the lease, for a killed tree to be gone: a fraction of it, within bounds.
const MARGIN_FRACTION: u32 = 20;
const MARGIN_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
const DEFAULT_QUARANTINE: Duration = Duration::from_secs(30);
const MOST_SERVERS: usize = 9;
const NODE_TIMEOUT_BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// All that `redlock run` needs to know.
#[derive(Debug)]
pub struct RunSettings {
    pub key: Vec<u8>,
    pub place: Place,
    /// First part of our keys' names; may be empty.
    pub prefix: String,
    pub mode: Mode,
    pub patience: Patience,
    /// Exit code if the lock is somebody else's.
    pub conflict_exit_code: u8,
    /// The command, not empty.
    pub argv: Vec<OsString>,
    /// First signal to a command whose lock is lost, and the time until SIGKILL: at most a third of a ttl.
    pub stop_signal: Signal,
    pub kill_after: Duration,
    pub on_lost: OnLost,
    /// Hold the lock until the last descendant has ended.
    pub wait_tree: bool,
    /// Shown to those who wait; may be empty.
    pub label: String,
    pub voice: Voice,
    pub events: Option<PathBuf>,
}

/// Where the lock is.
#[derive(Debug)]
pub enum Place {
    Servers { servers: Vec<Server>, timing: Timing },
    Host { folder: PathBuf, by: Choice },
}

/// How it came that we lock on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Asked,
    NothingElseConfigured,
}

impl RunSettings {
    /// `matches` tells what was typed from what was inherited by the environment.
    pub fn resolve(args: RunArgs, matches: &ArgMatches) -> Result<Self, Failure> {
        let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        // Set but empty, as CI systems like to leave variables, is not set; typed but empty is a slip.
        let given = |id: &str, text: Option<String>| text.filter(|text| typed(id) || !text.is_empty());
        let duration = |id: &'static str, text| duration(id, given(id, text).as_deref());
        let place = if is_local(&args, typed)? {
            for option in ["ttl", "node_timeout", "quarantine"] {
                if typed(option) {
                    let option = option.replace('_', "-");
                    return Err(usage(format!(
                        "--{option} means nothing without a server: {LOCAL_LOCKS_LAST}"
                    )));
                }
            }
            let by = if args.local { Choice::Asked } else { Choice::NothingElseConfigured };
            Place::Host { folder: folder(args.local_dir)?, by }
        } else {
            let ttl = duration("ttl", args.ttl)?.unwrap_or(DEFAULT_TTL);
            let node_timeout = duration("node_timeout", args.node_timeout)?;
            if mode(args.shared, args.exclusive, typed)? == Mode::Shared {
                return Err(usage("--shared on a server comes with the next version; on this host it works"));
            }
            let servers = servers(&args.redis)?;
            let quarantine = match given("quarantine", args.quarantine) {
                Some(off) if off == "off" => Some(Duration::ZERO),
                text => duration("quarantine", text)?,
            };
            let timing = timing(ttl, node_timeout, quarantine, servers.len())?;
            Place::Servers { servers, timing }
        };
        let longest_grace = match &place {
            Place::Servers { timing, .. } => timing.ttl / 3,
            Place::Host { .. } => Duration::MAX,
        };
        Ok(Self {
            key: key(args.key)?,
            place,
            prefix: given("prefix", args.prefix).unwrap_or_else(|| "lock".into()),
            mode: mode(args.shared, args.exclusive, typed)?,
            patience: patience(args.nonblock, duration("wait", args.wait)?, typed)?,
            conflict_exit_code: given("conflict_exit_code", args.conflict_exit_code)
                .map_or(Ok(HELD), |text| conflict_exit_code(&text))?,
            argv: argv(args.argv, args.shell_command)?,
            stop_signal: given("signal", args.signal).map_or(Ok(Signal::SIGTERM), |text| signal(&text))?,
            kill_after: kill_after(duration("kill_after", args.kill_after)?, longest_grace)?,
            on_lost: args.on_lost.unwrap_or(OnLost::Stop),
            wait_tree: args.wait_tree,
            label: args.label.unwrap_or_default(),
            voice: voice(args.quiet, args.verbose, typed)?,
            events: args.events.filter(|path| !path.as_os_str().is_empty()),
        })
    }
}

impl RunSettings {
    /// Left of the lease for a killed tree to be gone.
    pub fn margin(&self) -> Duration {
        (self.ttl() / MARGIN_FRACTION).clamp(MARGIN_BOUNDS.0, MARGIN_BOUNDS.1)
    }

    /// The longest that a lock can outlive us.
    pub fn ttl(&self) -> Duration {
        match &self.place {
            Place::Servers { timing, .. } => timing.ttl,
            Place::Host { .. } => Duration::ZERO,
        }
    }
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

fn key(key: OsString) -> Result<Vec<u8>, Failure> {
    let key = key.into_vec();
    match key.len() {
        0 => Err(usage("--key must not be empty")),
        length if length > LONGEST_KEY => {
            Err(usage(format!("--key is {length} bytes long, {LONGEST_KEY} are allowed")))
        }
        _ => Ok(key),
    }
}

/// Typed beats inherited; nothing at all means this host, unless that is forbidden.
fn is_local(args: &RunArgs, typed: impl Fn(&str) -> bool) -> Result<bool, Failure> {
    let has_server = args.redis.iter().any(|url| !url.is_empty());
    if typed("redis") && !has_server {
        return Err(usage("--redis must not be empty"));
    }
    let is_local = match (args.local, has_server) {
        (true, true) if typed("local") && typed("redis") => {
            return Err(usage("--local and --redis contradict each other: give one"));
        }
        (true, true) => !typed("redis"),
        (local, has_server) => local || !has_server,
    };
    if is_local && args.require_server && !typed("local") {
        let advice = "give --redis URL or set REDLOCK_REDIS";
        return Err(Failure::new(
            UNFIT,
            format!("no server to lock on, and --require-server forbids to do without: {advice}"),
        ));
    }
    Ok(is_local)
}

fn folder(folder: Option<PathBuf>) -> Result<PathBuf, Failure> {
    folder.filter(|folder| !folder.as_os_str().is_empty()).or_else(default_folder).ok_or_else(|| {
        Failure::new(
            UNFIT,
            "this host has no folder in which all users can share locks: give --local-dir FOLDER",
        )
    })
}

fn servers(urls: &[String]) -> Result<Vec<Server>, Failure> {
    let urls: Vec<&String> = urls.iter().filter(|url| !url.is_empty()).collect();
    if urls.len() > MOST_SERVERS {
        return Err(usage(format!("{} servers given, {MOST_SERVERS} are allowed", urls.len())));
    }
    let parse = |(at, url): (usize, &&String)| {
        Server::parse(url).map_err(|why| match urls.len() {
            1 => usage(format!("--redis: {why}")),
            _ => usage(format!("--redis, server {}: {why}", at + 1)),
        })
    };
    urls.iter().enumerate().map(parse).collect()
}

fn timing(
    ttl: Duration,
    node_timeout: Option<Duration>,
    quarantine: Option<Duration>,
    servers: usize,
) -> Result<Timing, Failure> {
    if !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
        return Err(usage(format!("--ttl must be between 100ms and 365d, not {}", human(ttl))));
    }
    if node_timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(usage("--node-timeout must be more than 0"));
    }
    let (least, most) = NODE_TIMEOUT_BOUNDS;
    // A later answer would leave too little of the lease to be of use.
    let node_timeout = node_timeout.unwrap_or((ttl / 20).clamp(least, most)).min(ttl / 3);
    let quarantine = quarantine.unwrap_or(if servers > 1 { DEFAULT_QUARANTINE } else { Duration::ZERO });
    // Whoever waits it out must have outwaited every lease.
    if servers > 1 && !quarantine.is_zero() && ttl > quarantine {
        let (ttl, quarantine) = (human(ttl), human(quarantine));
        return Err(usage(format!("--ttl ({ttl}) must not be longer than --quarantine ({quarantine})")));
    }
    Ok(Timing { ttl, node_timeout, quarantine })
}

fn mode(shared: bool, exclusive: bool, typed: impl Fn(&str) -> bool) -> Result<Mode, Failure> {
    match one_of(("shared", shared), ("exclusive", exclusive), typed)? {
        Some("shared") => Ok(Mode::Shared),
        _ => Ok(Mode::Exclusive),
    }
}

/// Which of two flags that exclude each other is set: what was typed beats what was inherited.
fn one_of(
    (a, has_a): (&'static str, bool),
    (b, has_b): (&'static str, bool),
    typed: impl Fn(&str) -> bool,
) -> Result<Option<&'static str>, Failure> {
    match (has_a, has_b) {
        (true, true) if typed(a) == typed(b) => {
            Err(usage(format!("--{a} and --{b} contradict each other: give one")))
        }
        (true, true) => Ok(Some(if typed(a) { a } else { b })),
        (true, false) => Ok(Some(a)),
        (false, true) => Ok(Some(b)),
        (false, false) => Ok(None),
    }
}

/// "-n typed beats REDLOCK_WAIT" and the other way round; both typed is a contradiction unless they agree.
fn patience(
    nonblock: bool,
    wait: Option<Duration>,
    typed: impl Fn(&str) -> bool,
) -> Result<Patience, Failure> {
    let patience = match wait {
        None => Patience::Forever,
        Some(Duration::ZERO) => Patience::None,
        Some(wait) => Patience::AtMost(wait),
    };
    match (nonblock, wait) {
        (true, Some(wait)) if typed("nonblock") && typed("wait") && !wait.is_zero() => {
            Err(usage("--nonblock and --wait contradict each other: give one"))
        }
        (true, Some(_)) if typed("wait") => Ok(patience),
        (true, _) => Ok(Patience::None),
        (false, _) => Ok(patience),
    }
}

fn voice(quiet: bool, verbose: bool, typed: impl Fn(&str) -> bool) -> Result<Voice, Failure> {
    Ok(match one_of(("quiet", quiet), ("verbose", verbose), typed)? {
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

fn conflict_exit_code(text: &str) -> Result<u8, Failure> {
    text.parse().map_err(|_| usage(format!("--conflict-exit-code must be 0 to 255, not {text:?}")))
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

/// "TERM", "SIGTERM" or "15".
fn signal(text: &str) -> Result<Signal, Failure> {
    let named = |name: &str| Signal::from_str(&format!("SIG{}", name.trim_start_matches("SIG"))).ok();
    let number = text.parse::<i32>().ok().and_then(|number| Signal::try_from(number).ok());
    match number.or_else(|| named(&text.to_ascii_uppercase())) {
        Some(signal) if signal != Signal::SIGSTOP => Ok(signal),
        _ => {
            Err(usage(format!("--signal must be a signal that ends a command, as TERM or 15, not {text:?}")))
        }
    }
}

/// `id` is the option's name as clap knows it.
fn duration(id: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let flag = format!("--{}", id.replace('_', "-"));
    match parse_duration(text) {
        Some(duration) if duration <= LONGEST_TTL * 100 => Ok(Some(duration)),
        Some(_) => Err(usage(format!("{flag} is too long: {text:?}"))),
        None => {
            Err(usage(format!("{flag}: {text:?} is not a duration: write 90s, 5m, 1h30m, or seconds as 0.5")))
        }
    }
}

/// humantime's, or bare seconds with a fraction as flock takes them.
fn parse_duration(text: &str) -> Option<Duration> {
    let is_bare =
        text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    if is_bare {
        return text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    }
    humantime::parse_duration(text).ok()
}

/// The passwords in URLs that were typed, as they stand in our own arguments.
pub fn typed_secrets<'a>(args: &'a RunArgs, matches: &ArgMatches) -> Vec<&'a OsStr> {
    match matches.value_source("redis") {
        Some(ValueSource::CommandLine) => {
            let has_password =
                |url: &&String| Server::parse(url).map_or(true, |server| server.password().is_some());
            args.redis.iter().filter(has_password).map(|url| OsStr::from_bytes(url.as_bytes())).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_humantimes_or_bare_seconds() {
        for (text, millis) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("100ms", 100),
            ("2", 2000),
            ("0.25", 250),
            (".5", 500),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_duration() {
        for text in ["-1", "1e30", "5 parsecs", "inf", "NaN", ".", "1.2.3", "0x10", " 5"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert!(duration("ttl", Some("99999999999999999999")).is_err());
    }

    #[test]
    fn a_signal_goes_by_name_or_number() {
        for text in ["TERM", "sigterm", "15", "SIGTERM"] {
            assert_eq!(signal(text).unwrap(), Signal::SIGTERM, "{text}");
        }
        for text in ["", "0", "STOP", "SIGSIG", "99", "FOO"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_can_upset_the_duration_parser(text in ".{0,20}") {
            let _ = duration("ttl", Some(&text));
        }
    }
}
