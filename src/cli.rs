//! The command line, declared. Values are text here; settings/ parses them, since only there is it known whether
//! a bad one came from the command line, the environment or the config file.

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
  64   usage error, or a nested run on a key that is already held (see --reentrant)
  69   the servers cannot be reached or cannot serve now
  75   the lock is held by another run or program (-E changes it)
  77   a server or the file system refused us: password, permissions
  78   servers or settings that cannot work: a replica, something else at the key, another --slots
  79   the lock was lost while the command ran, and the command was stopped
  124  --max-hold expired, and the command was stopped
  125  redlock itself failed
  126  the command cannot be executed
  127  the command was not found";

const ENVIRONMENT: &str = "\
Environment:
  Every option has a variable, REDLOCK_TTL for --ttl, and a key in the config file, ttl; not --key, --command
  and --yes. Command line > environment > config file. An empty variable counts as unset.
  Set for the command:
  REDLOCK_KEY       the key; of several, one a line
  REDLOCK_FENCE     a number that grows with every grant; of several keys one each, separated by spaces
  REDLOCK_TOKEN     identifies this grant
  REDLOCK_ATTEMPTS  number of attempts
  REDLOCK_SLOT      which of the --slots it has, 0 to N-1
  REDLOCK_HELD      locks held by this run and its ancestors (for nested runs)

Files:
  $REDLOCK_CONFIG, else $XDG_CONFIG_HOME/redlock/config.toml, else /etc/redlock/config.toml
  redlock-* in /run/lock, /dev/shm or /tmp: locks on this host";

/// Take a lock, run a command while the lock is kept alive, release it
#[derive(Debug, Parser)]
#[command(name = "redlock", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take the lock, run the command, release the lock
    #[command(after_help = EXAMPLES, after_long_help = more_help())]
    Run(Box<RunArgs>),
    /// Force a lock open on the servers and wake the next waiter
    ///
    /// For a lock left by a killed run with --ttl none, or a holder you cannot wait for. A run that still holds
    /// the lock notices at its next refresh, within a third of its ttl, and stops its command; one with --ttl none never does.
    Break(BreakArgs),
    /// Print the completion script for a shell
    Completions {
        /// Shell
        shell: Shell,
    },
}

fn more_help() -> String {
    format!("{EXIT_CODES}\n\n{ENVIRONMENT}\n\n{EXAMPLES}")
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Lock name (any bytes, up to 1024); repeat to take several locks, all or nothing
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
    pub backend: BackendArgs,

    #[command(flatten)]
    pub mode: ModeArgs,

    #[command(flatten)]
    pub wait: WaitArgs,

    #[command(flatten)]
    pub hold: HoldArgs,

    #[command(flatten)]
    pub failure: FailureArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct BackendArgs {
    /// Lock on this host even if servers are configured
    #[arg(long, env = "REDLOCK_LOCAL", value_parser = FalseyValueParser::new())]
    pub local: bool,

    /// Directory for lock files [default: /run/lock, /dev/shm or /tmp]
    #[arg(long, value_name = "DIR", env = "REDLOCK_LOCAL_DIR")]
    pub local_dir: Option<PathBuf>,

    /// Exit 78 if no server is configured, instead of locking on this host
    #[arg(long, env = "REDLOCK_REQUIRE_SERVER", value_parser = FalseyValueParser::new())]
    pub require_server: bool,

    /// How long a server that may have lost its data is kept from voting; "off" disables this [default: 30s with several servers, off with one]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_QUARANTINE", allow_negative_numbers = true)]
    pub quarantine: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct ModeArgs {
    /// Take the lock in shared mode
    #[arg(short, long, env = "REDLOCK_SHARED", value_parser = FalseyValueParser::new())]
    pub shared: bool,

    /// Take the lock in exclusive mode (default)
    #[arg(short = 'x', long, env = "REDLOCK_EXCLUSIVE", value_parser = FalseyValueParser::new())]
    pub exclusive: bool,

    /// Queueing order: fair (FIFO), writers first, or readers first [default: fair]
    #[arg(long, value_name = "POLICY", env = "REDLOCK_PREFER")]
    pub prefer: Option<Prefer>,

    /// With --shared: share with the same group only
    #[arg(long, value_name = "NAME", env = "REDLOCK_READER_GROUP")]
    pub reader_group: Option<OsString>,

    /// Up to N holders at once, each with its number, 0 to N-1, in REDLOCK_SLOT
    #[arg(long, value_name = "N", env = "REDLOCK_SLOTS", allow_negative_numbers = true)]
    pub slots: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct WaitArgs {
    /// Fail at once if the lock is held
    #[arg(short, long, env = "REDLOCK_NONBLOCK", value_parser = FalseyValueParser::new())]
    pub nonblock: bool,

    /// Wait at most this long; 0 means --nonblock [default: forever]
    #[arg(short, long, value_name = "DURATION", env = "REDLOCK_WAIT", allow_negative_numbers = true)]
    pub wait: Option<String>,

    /// Retry up to N times instead of queueing
    #[arg(long, value_name = "N", env = "REDLOCK_RETRIES", allow_negative_numbers = true)]
    pub retries: Option<String>,

    /// Pause between retries (+/- 50%) [default: 1s]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_RETRY_INTERVAL", allow_negative_numbers = true)]
    pub retry_interval: Option<String>,

    /// Run at once if an outer run holds the lock, under its lock
    ///
    /// The outer run must hold all of the keys, exclusively or in the same mode (--shared of the same group, the same
    /// --slots), and the command gets its token and fence. It renews and releases the lock, and keeps it until this run
    /// has ended. Without this option a nested run that would wait for its outer run fails (exit 64).
    #[arg(long, env = "REDLOCK_REENTRANT", value_parser = FalseyValueParser::new())]
    pub reentrant: bool,

    /// Random delay before the first attempt, up to this long
    #[arg(long, value_name = "DURATION", env = "REDLOCK_JITTER", allow_negative_numbers = true)]
    pub jitter: Option<String>,

    /// Exit code if the lock is held [default: 75]
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
#[command(next_help_heading = "Lease and hold time")]
pub(crate) struct HoldArgs {
    /// Lease: how long the lock survives if redlock dies; renewed every third of it; "none" never expires [default: 30s]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_TTL")]
    pub ttl: Option<String>,

    /// Stop the command and release the lock after this long (exit 124)
    #[arg(long, value_name = "DURATION", env = "REDLOCK_MAX_HOLD", allow_negative_numbers = true)]
    pub max_hold: Option<String>,

    /// Keep the lock at least this long, even if the command ends sooner
    #[arg(long, value_name = "DURATION", env = "REDLOCK_MIN_HOLD", allow_negative_numbers = true)]
    pub min_hold: Option<String>,

    /// Hold the lock until the command's last descendant has ended
    #[arg(long, env = "REDLOCK_WAIT_TREE", value_parser = FalseyValueParser::new())]
    pub wait_tree: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Failure handling")]
pub(crate) struct FailureArgs {
    /// What to do when the lock is lost while the command runs [default: stop]
    #[arg(long, value_name = "ACTION", env = "REDLOCK_ON_LOST")]
    pub on_lost: Option<OnLost>,

    /// Signal sent first to stop the command (lock lost or --max-hold expired) [default: TERM]
    #[arg(long, value_name = "SIGNAL", env = "REDLOCK_SIGNAL")]
    pub signal: Option<String>,

    /// Time from that signal to SIGKILL [default: 5s, at most a third of the ttl]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_KILL_AFTER", allow_negative_numbers = true)]
    pub kill_after: Option<String>,

    /// What to do when the servers cannot be reached or cannot serve [default: fail]
    #[arg(long, value_name = "ACTION", env = "REDLOCK_ON_UNAVAILABLE")]
    pub on_unavailable: Option<OnUnavailable>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Label shown to waiters
    #[arg(long, value_name = "TEXT", env = "REDLOCK_LABEL")]
    pub label: Option<String>,

    /// Append a JSON line for each event to FILE
    #[arg(long, value_name = "FILE", env = "REDLOCK_EVENTS")]
    pub events: Option<PathBuf>,

    /// Print errors only
    #[arg(short, long, env = "REDLOCK_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,

    /// Print every step
    #[arg(short, long, env = "REDLOCK_VERBOSE", value_parser = FalseyValueParser::new())]
    pub verbose: bool,
}

/// Shared by every subcommand that asks servers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct ServerArgs {
    /// A server, redis://[user:password@]host[:port][/db] or unix:///path; repeat (3 or 5) for a lock that survives the loss of a minority
    #[arg(
        short,
        long,
        value_name = "URL",
        env = "REDLOCK_REDIS",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub redis: Vec<String>,

    /// Prefix of the Redis keys; '' uses the bare KEY as the lock [default: lock]
    #[arg(long, value_name = "PREFIX", env = "REDLOCK_PREFIX")]
    pub prefix: Option<String>,

    /// Timeout for one request to a server [default: ttl/20 within 200ms..1s; with one server ttl/3 within 1s..5s]
    #[arg(long, value_name = "DURATION", env = "REDLOCK_NODE_TIMEOUT", allow_negative_numbers = true)]
    pub node_timeout: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    /// Lock name
    #[arg(short, long, value_name = "KEY", required = true)]
    pub key: OsString,

    #[command(flatten)]
    pub servers: ServerArgs,

    /// Break the lock; without this flag, only show the holder
    #[arg(long)]
    pub yes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Stop the command's whole tree before the lease ends, exit 79
    Stop,
    /// Warn and let the command run
    Warn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnUnavailable {
    /// Exit 69
    Fail,
    /// Exit 0 without running the command
    Skip,
    /// Run the command without a lock
    Run,
    /// Keep trying until --wait is over, then exit 69 (with -n: at once)
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Prefer {
    /// First in, first out
    Fair,
    /// An exclusive request goes ahead of every waiter that did not ask for this
    Writers,
    /// A shared request joins current readers, even if writers are waiting
    Readers,
}
