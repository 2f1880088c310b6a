//! The options of `redlock run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::{HelpArgs, HostArgs, ServerArgs};
use super::text::Block::{Code, Terms, Text};
use super::text::{CommandText, FILES, REDLOCK_CONFIG, REDLOCK_PASSWORD, SOURCES, Section, VALUES};

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
    pub nested: NestedArgs,

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
    #[command(flatten)]
    pub host: HostArgs,

    /// Keep a restarted server from voting for this long
    ///
    /// How long a server that may have lost its data (new, restarted, flushed, promoted) is kept from voting; "off"
    /// disables this. At least as long as the --ttl. [default: 30s with several servers, Sentinel or Cluster; off with
    /// one server]
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

    /// Random delay before the first attempt, at most this
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub jitter: Option<String>,

    /// Exit code if the lock is held [default: 75]
    ///
    /// With 0 the command of redlock run is skipped without a message.
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true)]
    pub conflict_exit_code: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct NestedArgs {
    /// Run at once under the lock of an outer run
    ///
    /// The outer run must hold all of the keys, exclusively or in the same mode (--shared of the same group, the same
    /// --slots), and the command gets its token and fence. It renews and releases the lock, and keeps it until this
    /// run has ended. Without this option a nested run that would wait for its outer run fails (exit 64).
    #[arg(long)]
    pub reentrant: bool,
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

    /// Finished runs to keep for "redlock history"
    ///
    /// How many of the last runs of this lock are remembered, about; 0 leaves nothing there of this run. On this host it
    /// is the last 256, or none. [default: 200]
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    pub history: Option<String>,

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

pub(super) static TEXT: CommandText = CommandText {
    usage: &[
        "redlock run [OPTIONS] --key KEY [--] COMMAND [ARG]...",
        "redlock run [OPTIONS] --key KEY -c STRING",
    ],
    summary_end: "\
DURATION is 90s, 5m, 1h30m or seconds; URL is redis://HOST[:PORT][/DB].
Every option is also a variable (REDLOCK_TTL) and a config file key (ttl).
More options, exit codes and examples: redlock run --help",
    sections: &[VALUES, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

pub(super) const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[
        Text("The command's own; if a signal killed it, redlock dies by the same signal. Otherwise:"),
        Terms(&[
            ("64", "usage error, or a nested run on a key that is already held (see --reentrant)"),
            ("69", "the servers, or a majority of them, cannot be reached or cannot serve now"),
            (
                "75",
                "the lock is held by another run or program, or a newer run took our place (-E changes it)",
            ),
            ("77", "a server or the file system refused us: password, permissions"),
            (
                "78",
                "servers or settings that cannot work: a bad config file, a replica, the same server twice, something \
                 else at the key, another --slots",
            ),
            ("79", "the lock was lost while the command ran, and the command was stopped"),
            ("124", "--max-hold expired, and the command was stopped"),
            ("125", "redlock itself failed"),
            ("126", "the command cannot be executed"),
            ("127", "the command was not found"),
        ]),
    ],
};

const ENVIRONMENT: Section = Section {
    title: "Environment",
    blocks: &[
        SOURCES,
        Terms(&[REDLOCK_CONFIG, REDLOCK_PASSWORD]),
        Text("Set for the command:"),
        Terms(&[
            ("REDLOCK_KEY", "the key; of several, one a line"),
            (
                "REDLOCK_FENCE",
                "a number that grows with every grant, for storage that can refuse stale writers; of several keys one \
                 each, separated by spaces",
            ),
            ("REDLOCK_TOKEN", "identifies this grant"),
            ("REDLOCK_ATTEMPTS", "number of attempts"),
            ("REDLOCK_SLOT", "which of the --slots it has, 0 to N-1"),
            ("REDLOCK_HELD", "locks held by this run and its ancestors (for nested runs)"),
        ]),
    ],
};

pub(super) const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Text(
            "On this host, no server needed; then on all hosts that use the same server, or the same three:",
        ),
        Code(
            "redlock run --key deploy -- ./deploy.sh\n\
             redlock run --redis redis://cache --key deploy -- ./deploy.sh\n\
             redlock run -r redis://a,redis://b,redis://c -k deploy ./deploy.sh",
        ),
        Text("Skip this run without a message if the last one is still going:"),
        Code("redlock run --key backup -n -E 0 -- pg_dump -f db.sql app"),
        Text("Wait at most five minutes, then exit 75:"),
        Code("redlock run --key migrate --wait 5m -- ./migrate"),
        Text("From cron on every host, once a minute on one of them:"),
        Code("redlock run --key tick -n -E 0 --min-hold 55s -- ./tick"),
        Text("Four at once; which of the four is in REDLOCK_SLOT:"),
        Code("redlock run --key gpu --slots 4 -- ./train"),
        Text("A shell line:"),
        Code("redlock run --key nightly -c 'sync && purge'"),
    ],
};
