//! The command line, declared. Values are text here; settings/ parses them, since only there is it known whether
//! a bad one came from the command line, the environment or a config file.
//!
//! The first line of an option's documentation is all that `-h` shows of it; `--help` and the manual page show
//! the whole.

pub(crate) mod help;
pub(crate) mod mistakes;
pub(crate) mod text;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

/// Options that name or confirm one deed, or say where settings are: no settings themselves.
const NOT_SETTINGS: [&str; 6] = ["key", "command", "yes", "config", "help", "version"];

/// Whether this option has a variable and a key in the config file.
pub(crate) fn is_setting(arg: &clap::Arg) -> bool {
    arg.get_long().is_some_and(|long| !NOT_SETTINGS.contains(&long))
}

/// The variable of a setting: REDLOCK_MAX_HOLD for --max-hold.
pub(crate) fn variable(long: &str) -> String {
    format!("REDLOCK_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// Take a lock, run a command while the lock is kept alive, release it
///
/// redlock keeps two runs of a job from overlapping: on this host, or, with one or more Redis servers, on all
/// hosts. It takes the lock, waiting in a fair queue if another run holds it; runs the command while it keeps the
/// lock alive; and releases the lock when the command has ended, for whatever reason.
#[derive(Debug, Parser)]
#[command(name = "redlock", version, propagate_version = true)]
#[command(disable_help_subcommand = true, disable_help_flag = true, disable_version_flag = true)]
#[command(args_override_self = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub help: HelpArgs,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, global = true)]
    version: Option<bool>,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take a lock, run a command, release the lock
    ///
    /// Takes the lock, runs COMMAND while the lock is kept alive, and releases the lock when COMMAND has ended. The
    /// exit code is the command's own.
    ///
    /// Where the lock is depends on the servers given with --redis: with none it is on this host (a file lock);
    /// with one it is on that server; with three or five it is on all of them, and holds as long as a majority
    /// can be reached (the Redlock algorithm).
    ///
    /// If another run holds the lock, redlock waits in a queue, first come, first served. It waits forever unless
    /// --wait, --nonblock or --retries say otherwise.
    ///
    /// On servers the lock is a lease of --ttl, which redlock renews every third of it. If it cannot be renewed, the
    /// command and all its descendants are stopped before the lease ends, so that the next holder never runs beside
    /// them; redlock then exits with 79. A small process, the guardian, sees to that even if redlock itself is killed
    /// or stopped.
    Run(Box<RunArgs>),
    /// Take a lock on servers away from its holder
    ///
    /// Shows who holds the lock; with --yes, takes it away and wakes the next waiter. For a lock left by a killed run
    /// with --ttl none, or a holder you cannot wait for.
    ///
    /// The old holder notices at its next refresh, within a third of its --ttl, and stops its command; until then the
    /// two may run at the same time. A holder with --ttl none never notices.
    ///
    /// On this host there is nothing to break: the kernel frees a lock when its holder has ended.
    Break(BreakArgs),
    /// Print the completion script for a shell
    ///
    /// The script completes commands, options and their values, and, after the options of "redlock run", the command
    /// that is to be run with its own arguments.
    Completions {
        #[command(flatten)]
        help: HelpArgs,
        /// Shell
        shell: Shell,
    },
    /// Explain a command and its options
    Help {
        #[command(flatten)]
        help: HelpArgs,
        /// Command to explain
        command: Option<String>,
    },
}

/// Not clap's own, whose texts are not ours: see [`help`].
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// Print this summary; --help explains every option
    #[arg(short = 'h', action = ArgAction::HelpShort)]
    help_short: Option<bool>,

    #[arg(long = "help", action = ArgAction::HelpLong, hide = true)]
    help_long: Option<bool>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Name of the lock; repeat to take several at once
    ///
    /// Any bytes, at most 1024. Several locks are taken together or not at all, so the order does not matter.
    #[arg(short, long = "key", value_name = "KEY", help_heading = "Lock")]
    pub keys: Vec<OsString>,

    /// Run STRING with $SHELL -c instead of a command
    #[arg(short = 'c', long = "command", value_name = "STRING", help_heading = "Lock")]
    pub shell_command: Option<OsString>,

    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub argv: Vec<OsString>,

    #[command(flatten)]
    pub mode: ModeArgs,

    #[command(flatten)]
    pub wait: WaitArgs,

    #[command(flatten)]
    pub hold: HoldArgs,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub backend: BackendArgs,

    #[command(flatten)]
    pub failure: FailureArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct BackendArgs {
    /// Lock on this host even if servers are configured
    #[arg(long)]
    pub local: bool,

    /// Directory for lock files; implies --local
    ///
    /// The default is the first of /run/lock, /dev/shm and /tmp that all users of this host share. Runs that use
    /// different directories do not exclude each other.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub local_dir: Option<PathBuf>,

    /// Fail if no server is configured (exit 78)
    ///
    /// Without this a run that finds no server locks on this host only, with a warning.
    #[arg(long)]
    pub require_server: bool,

    /// Keep a restarted server from voting for this long
    ///
    /// How long a server that may have lost its data (new, restarted, flushed) is kept from voting; "off" disables
    /// this. At least as long as the --ttl. [default: 30s with several servers, off with one]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub quarantine: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct ModeArgs {
    /// Take the lock in shared mode
    ///
    /// Any number of shared runs may hold the lock at the same time; an exclusive run holds it alone.
    #[arg(short, long)]
    pub shared: bool,

    /// Take the lock in exclusive mode (default)
    #[arg(short = 'x', short_alias = 'e', long)]
    pub exclusive: bool,

    /// Up to N holders at once; REDLOCK_SLOT is 0 to N-1
    ///
    /// All runs that use the key must give the same N. Not with several servers.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub slots: Option<String>,

    /// Queueing order: fair, writers or readers first
    ///
    /// [default: fair]
    #[arg(long, value_name = "POLICY")]
    pub prefer: Option<Prefer>,

    /// With --shared: share with the same group only
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub reader_group: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct WaitArgs {
    /// Fail at once if the lock is held
    #[arg(short, long, aliases = ["nb", "no-wait"])]
    pub nonblock: bool,

    /// Wait at most this long [default: forever]
    ///
    /// 0 means --nonblock.
    #[arg(short, long, alias = "timeout", value_name = "DURATION", allow_negative_numbers = true)]
    pub wait: Option<String>,

    /// Retry up to N times instead of queueing
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub retries: Option<String>,

    /// Pause between retries (+/- 50%) [default: 1s]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub retry_interval: Option<String>,

    /// Of the waiters with this option, keep the newest
    ///
    /// A run that comes later with this option sends an older one away, which then exits as if the lock were held (75,
    /// or -E). The holder is left alone, and so are waiters without this option. For deploys, of which only the last
    /// one that waits makes sense. Without effect on a run that does not queue (-n, --retries).
    #[arg(long)]
    pub supersede: bool,

    /// Run at once under the lock of an outer run
    ///
    /// The outer run must hold all of the keys, exclusively or in the same mode (--shared of the same group, the same
    /// --slots), and the command gets its token and fence. It renews and releases the lock, and keeps it until this
    /// run has ended. Without this option a nested run that would wait for its outer run fails (exit 64).
    #[arg(long)]
    pub reentrant: bool,

    /// Random delay before the first attempt, at most this
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub jitter: Option<String>,

    /// Exit code if the lock is held [default: 75]
    ///
    /// With 0 the command is skipped without a message.
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true)]
    pub conflict_exit_code: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Lease and hold time")]
pub(crate) struct HoldArgs {
    /// How long the lock outlives a crash [default: 30s]
    ///
    /// The lease on servers: the lock expires this long after redlock or its machine has died. It is renewed every
    /// third of it. From 100ms to 365d; "none" is a lock that never expires (with one server only). On this host the
    /// kernel frees the lock at once.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub ttl: Option<String>,

    /// Stop the command after this long (exit 124)
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub max_hold: Option<String>,

    /// Keep the lock at least this long
    ///
    /// Even if the command ends sooner: the lock stays taken until this long after it was acquired, without a process
    /// waiting for that.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub min_hold: Option<String>,

    /// Hold the lock until background processes ended
    ///
    /// The lock is released when the last descendant of the command has ended, rather than the command itself.
    #[arg(long)]
    pub wait_tree: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Failure handling")]
pub(crate) struct FailureArgs {
    /// If the servers are down: fail, skip, run or wait
    ///
    /// What to do when the servers cannot be reached or cannot serve. A wrong password (77) and settings that cannot
    /// work (78) always fail. [default: fail]
    #[arg(long, value_name = "ACTION")]
    pub on_unavailable: Option<OnUnavailable>,

    /// If the lock is lost: stop the command, or warn
    ///
    /// [default: stop]
    #[arg(long, value_name = "ACTION")]
    pub on_lost: Option<OnLost>,

    /// Signal that stops the command [default: TERM]
    ///
    /// Sent first when the lock is lost or --max-hold has expired. A name or a number.
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<String>,

    /// Time from that signal to SIGKILL [default: 5s]
    ///
    /// At most a third of the --ttl.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub kill_after: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Label shown to waiters
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Append a JSON line for each event to FILE
    ///
    /// "-" is stderr. The last line of every run is the event "ended".
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,

    /// Print errors only
    ///
    /// A lock that is held is no error: the exit code tells.
    #[arg(short, long)]
    pub quiet: bool,

    /// Print every step
    ///
    /// Among others which config files were read, and where the lock is.
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub help: HelpArgs,
}

/// Shared by every subcommand that asks servers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct ServerArgs {
    /// A Redis server; repeat (3 or 5) for Redlock
    ///
    /// Several servers may also be separated by commas. With three or five independent servers the lock survives the
    /// loss of a minority of them; the order does not matter.
    #[arg(short, long, value_name = "URL")]
    pub redis: Vec<String>,

    /// User to log in with, if the URL names none
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub username: Option<String>,

    /// File with the password, if it is not in the URL
    ///
    /// Its first line is the password of all servers whose URL has none. The variable REDLOCK_PASSWORD holds the
    /// password itself.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// Prefix of the Redis keys [default: lock]
    ///
    /// '' uses the bare KEY as the lock, as other Redlock libraries do.
    #[arg(long, value_name = "PREFIX", hide_short_help = true)]
    pub prefix: Option<String>,

    /// Timeout for one request to a server
    ///
    /// [default: ttl/20 within 200ms to 1s; with one server ttl/3 within 1s to 5s]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub node_timeout: Option<String>,

    /// Read this config file and no other
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    /// Name of the lock
    #[arg(value_name = "KEY")]
    pub key_argument: Option<OsString>,

    /// Name of the lock, as an option
    #[arg(short, long, value_name = "KEY")]
    pub key: Option<OsString>,

    /// Break it; without this, only show the holder
    #[arg(short_alias = 'y', short_alias = 'f', long, alias = "force")]
    pub yes: bool,

    #[command(flatten)]
    pub help: HelpArgs,

    #[command(flatten)]
    pub servers: ServerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Stop the command and its descendants before the lease ends, exit 79
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
