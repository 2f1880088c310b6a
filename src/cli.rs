//! The command line, declared. What the values mean is checked in settings.rs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  redlock run --key deploy -- ./deploy.sh                      # on this host, no server needed
  redlock run --redis redis://localhost --key deploy -- ./deploy.sh
  redlock run --redis redis://a,redis://b,redis://c --key deploy -- ./deploy.sh
  redlock run --key backup -n -E 0 -- pg_dump -f db.sql app    # skip quietly if one is running
  redlock run --key migrate -w 5m --ttl 1m -- ./migrate        # wait at most five minutes
  redlock run --key tick -n -E 0 --min-hold 55s -- ./tick      # from cron on every host: once a minute, on one
  redlock run --key gpu --slots 4 -- ./train                   # four at once; which one is in REDLOCK_SLOT
  REDLOCK_REDIS=redis://cache:6379/2 redlock run --key cron -c 'sync && purge'

A command inside reads REDLOCK_FENCE, a number that grows with every grant: hand it to the storage it
writes to, and have that refuse smaller numbers.";

const EXIT_CODES: &str = "\
Exit codes:
  the command's own; if a signal killed it, redlock dies by the same signal
  64   usage, or a run inside a run of the same key
  69   the servers cannot be reached or cannot serve now
  75   somebody else holds the lock (-E changes it)
  77   a server or the file system refused us: password, permissions
  78   servers or settings that cannot work: a replica, something else at the key, another --slots
  79   the lock was lost while the command ran, and the command was stopped
  124  --max-hold was over, and the command was stopped
  125  redlock itself failed
  126  the command cannot be executed
  127  the command was not found";

const ENVIRONMENT: &str = "\
Environment:
  Every option has a variable, REDLOCK_TTL for --ttl, and a key in the config file, ttl; not --key, --command
  and --yes. What is typed beats the environment, which beats the file. Set but empty is not set.
  The command finds:
  REDLOCK_KEY       the key; of several, one a line
  REDLOCK_FENCE     a number that grows with every grant; of several keys one each, separated by spaces
  REDLOCK_TOKEN     what stands for this grant
  REDLOCK_ATTEMPTS  how often was asked
  REDLOCK_SLOT      which of the --slots it has, 0 to N-1
  REDLOCK_HELD      what it and those above it hold, for runs inside it

Files:
  $REDLOCK_CONFIG, else $XDG_CONFIG_HOME/redlock/config.toml, else /etc/redlock/config.toml
  redlock-* in /run/lock, /dev/shm or /tmp: locks on this host";

/// Take a lock, run a command while the lock is kept alive, release it
#[derive(Debug, Parser)]
#[command(name = "redlock", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take the lock, run the command, release the lock
    #[command(after_help = EXAMPLES, after_long_help = what_options_do_not_say())]
    Run(Box<RunArgs>),
    /// Take a lock on servers from whoever holds it, and wake the next one
    ///
    /// For what a killed run with --ttl none has left, or a job that must not be waited for. A run that still holds
    /// the lock notices at its next refresh, within a third of its ttl, and stops its command; one with --ttl none never does.
    Break(BreakArgs),
    /// Print the completion script for a shell
    Completions {
        /// The shell that is to complete redlock's command line
        shell: Shell,
    },
}

fn what_options_do_not_say() -> String {
    format!("{EXIT_CODES}\n\n{ENVIRONMENT}\n\n{EXAMPLES}")
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the lock: any bytes, at most 1024; several times for several locks, all or none
    #[arg(short, long = "key", value_name = "KEY", required = true)]
    pub keys: Vec<OsString>,

    /// Run STRING with $SHELL -c instead of a command
    #[arg(short = 'c', long = "command", value_name = "STRING")]
    pub shell_command: Option<OsString>,

    /// The command and its arguments, after --
    #[arg(last = true, value_name = "COMMAND")]
    pub argv: Vec<OsString>,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub place: PlaceArgs,

    #[command(flatten)]
    pub mode: ModeArgs,

    #[command(flatten)]
    pub wait: WaitArgs,

    #[command(flatten)]
    pub hold: HoldArgs,

    #[command(flatten)]
    pub trouble: TroubleArgs,

    #[command(flatten)]
    pub words: WordsArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Where the lock is")]
pub struct PlaceArgs {
    /// Lock on this host, as without a server, also if servers are configured
    #[arg(long, env = "REDLOCK_LOCAL", value_parser = FalseyValueParser::new())]
    pub local: bool,

    /// Folder of the lock files on this host [default: /run/lock, /dev/shm or /tmp]
    #[arg(long, value_name = "FOLDER", env = "REDLOCK_LOCAL_DIR")]
    pub local_dir: Option<PathBuf>,

    /// Exit 78 if no server is configured, instead of locking on this host
    #[arg(long, env = "REDLOCK_REQUIRE_SERVER", value_parser = FalseyValueParser::new())]
    pub require_server: bool,

    /// How long a server that may have lost its locks does not vote, or off [default: 30s with several servers, off with one]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_QUARANTINE", allow_negative_numbers = true)]
    pub quarantine: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Who may hold it together")]
pub struct ModeArgs {
    /// Share the lock with others who ask for it shared
    #[arg(short, long, env = "REDLOCK_SHARED", value_parser = FalseyValueParser::new())]
    pub shared: bool,

    /// Have the lock alone; this is the default
    #[arg(short = 'x', long, env = "REDLOCK_EXCLUSIVE", value_parser = FalseyValueParser::new())]
    pub exclusive: bool,

    /// Who goes before whom: first come first served; waiting writers first; readers while readers have it [default: fair]
    #[arg(long, value_name = "WHO", env = "REDLOCK_PREFER")]
    pub prefer: Option<Prefer>,

    /// With --shared: share with those of the same group only
    #[arg(long, value_name = "NAME", env = "REDLOCK_READER_GROUP")]
    pub reader_group: Option<OsString>,

    /// Up to N holders at once, each with its number, 0 to N-1, in REDLOCK_SLOT
    #[arg(long, value_name = "N", env = "REDLOCK_SLOTS", allow_negative_numbers = true)]
    pub slots: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "If somebody else holds it")]
pub struct WaitArgs {
    /// Do not wait if somebody else holds the lock
    #[arg(short, long, env = "REDLOCK_NONBLOCK", value_parser = FalseyValueParser::new())]
    pub nonblock: bool,

    /// Wait at most so long; 0 is --nonblock [default: for ever]
    #[arg(short, long, value_name = "DURATION", env = "REDLOCK_WAIT", allow_negative_numbers = true)]
    pub wait: Option<String>,

    /// Ask at most N times more, without queueing
    #[arg(long, value_name = "N", env = "REDLOCK_RETRIES", allow_negative_numbers = true)]
    pub retries: Option<String>,

    /// Between two such attempts, give or take a half [default: 1s]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_RETRY_INTERVAL", allow_negative_numbers = true)]
    pub retry_interval: Option<String>,

    /// Sleep a random time up to this before asking, so that not everyone asks at once
    #[arg(long, value_name = "DURATION", env = "REDLOCK_JITTER", allow_negative_numbers = true)]
    pub jitter: Option<String>,

    /// Exit code when somebody else holds the lock [default: 75]
    #[arg(
        short = 'E',
        long,
        value_name = "CODE",
        env = "REDLOCK_CONFLICT_EXIT_CODE",
        allow_negative_numbers = true
    )]
    pub conflict_exit_code: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How long it is held")]
pub struct HoldArgs {
    /// How long the lock outlives a dead redlock; renewed at a third of it; none for a lock that never expires [default: 30s]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_TTL")]
    pub ttl: Option<String>,

    /// Stop the command and release the lock after so long, exit 124
    #[arg(long, value_name = "DURATION", env = "REDLOCK_MAX_HOLD", allow_negative_numbers = true)]
    pub max_hold: Option<String>,

    /// Leave the lock taken until so long after it was taken, also if the command ends earlier
    #[arg(long, value_name = "DURATION", env = "REDLOCK_MIN_HOLD", allow_negative_numbers = true)]
    pub min_hold: Option<String>,

    /// Hold the lock until the command's last descendant has ended
    #[arg(long, env = "REDLOCK_WAIT_TREE", value_parser = FalseyValueParser::new())]
    pub wait_tree: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "In trouble")]
pub struct TroubleArgs {
    /// What to do when the lock is lost while the command runs [default: stop]
    #[arg(long, value_name = "ACTION", env = "REDLOCK_ON_LOST")]
    pub on_lost: Option<OnLost>,

    /// The first signal when the command is stopped: the lock is lost, or --max-hold over [default: TERM]
    #[arg(long, value_name = "SIGNAL", env = "REDLOCK_SIGNAL")]
    pub signal: Option<String>,

    /// Between the first signal and SIGKILL when the command is stopped [default: 5s, at most a third of the ttl]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_KILL_AFTER", allow_negative_numbers = true)]
    pub kill_after: Option<String>,

    /// What to do when the servers cannot be reached or cannot serve [default: fail]
    #[arg(long, value_name = "ACTION", env = "REDLOCK_ON_UNAVAILABLE")]
    pub on_unavailable: Option<OnUnavailable>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Words")]
pub struct WordsArgs {
    /// A word about this run, shown to those who wait
    #[arg(long, value_name = "TEXT", env = "REDLOCK_LABEL")]
    pub label: Option<String>,

    /// Append a JSON line for each event to FILE
    #[arg(long, value_name = "FILE", env = "REDLOCK_EVENTS")]
    pub events: Option<PathBuf>,

    /// Say nothing but errors
    #[arg(short, long, env = "REDLOCK_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,

    /// Tell what happens
    #[arg(short, long, env = "REDLOCK_VERBOSE", value_parser = FalseyValueParser::new())]
    pub verbose: bool,
}

/// Of every subcommand that asks servers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where the lock is")]
pub struct ServerArgs {
    /// A server, redis://[user:password@]host[:port][/db] or unix:///path; several, best 3 or 5, for locks that survive the loss of a minority
    #[arg(
        short,
        long,
        value_name = "URL",
        env = "REDLOCK_REDIS",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub redis: Vec<String>,

    /// First part of our keys' names; '' makes the lock the bare KEY [default: lock]
    #[arg(long, value_name = "PREFIX", env = "REDLOCK_PREFIX")]
    pub prefix: Option<String>,

    /// What a server may take to answer [default: a twentieth of the ttl, 100ms to 1s]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_NODE_TIMEOUT", allow_negative_numbers = true)]
    pub node_timeout: Option<String>,
}

#[derive(Debug, Args)]
pub struct BreakArgs {
    /// Name of the lock
    #[arg(short, long, value_name = "KEY", required = true)]
    pub key: OsString,

    #[command(flatten)]
    pub servers: ServerArgs,

    /// Do it; without, only say who holds the lock
    #[arg(long)]
    pub yes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Stop the command's whole tree before the lease ends, exit 79
    // A variable that is set but empty is not set.
    #[value(alias = "")]
    Stop,
    /// Only tell, and let it run
    Warn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUnavailable {
    /// Exit 69
    #[value(alias = "")]
    Fail,
    /// Exit 0 without running the command
    Skip,
    /// Run the command without a lock
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Prefer {
    /// First come, first served
    #[value(alias = "")]
    Fair,
    /// An exclusive request goes before all that wait without this wish
    Writers,
    /// A shared request enters while others hold the lock shared, whoever waits
    Readers,
}
