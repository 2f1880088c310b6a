//! `redlock run`.

use std::ffi::OsString;

use clap::Args;

use super::ONCE;
use super::shared::TakeArgs;
use super::text::Block::{Code, Exits, Terms, Text};
use super::text::{CommandText, FILES, REDLOCK_CONFIG, REDLOCK_PASSWORD, SOURCES, Section, VALUES};

/// Take a lock, run a command, release the lock
///
/// Takes the lock, runs COMMAND while the lock is kept alive, and releases the lock when COMMAND
/// has ended. The exit code is the command's own.
///
/// Where the lock is depends on the servers given with --redis: with none it is on this host (a
/// file lock); with one it is on that server; with three or five it is on all of them, and holds as
/// long as a majority can be reached (the Redlock algorithm).
///
/// If another run holds the lock, redlock waits in a queue, first come, first served. It waits
/// forever unless --wait, --nonblock or --retries say otherwise.
///
/// On servers the lock is a lease of --ttl, which redlock renews every third of it. If the lease
/// cannot be renewed, the command and all its descendants are stopped before it ends, so that the
/// next holder never runs beside them; redlock then exits with 79. A small process, the guardian,
/// ensures this even if redlock itself is stopped. If redlock is killed, the guardian stops the
/// command and releases the lock.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub take: TakeArgs,

    /// Run STRING with $SHELL -c instead of a command
    #[arg(
        short = 'c',
        long = "command",
        value_name = "STRING",
        help_heading = "Lock",
        hide_long_help = ONCE
    )]
    pub shell_command: Option<OsString>,

    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub argv: Vec<OsString>,

    /// Run at once under the lock of an outer run
    ///
    /// The outer run must hold all of the keys, exclusively or in the same mode (--shared with the
    /// same group, the same --slots). It renews and releases the lock, and keeps it until this run
    /// has ended; the command gets its token and fence. Without this option a nested run that would
    /// wait for its outer run fails (exit 64).
    #[arg(long, help_heading = "Waiting")]
    pub reentrant: bool,

    /// Newest run wins: stop the run in progress
    ///
    /// As --supersede; and if the holder was started with this option, too, it is asked to stop as
    /// "redlock break" asks it, whatever its --on-lost says, when this run is the next in the queue. It
    /// exits with 79, and COMMAND starts when it is gone. A holder without the option is never
    /// stopped. Not with --shared or --slots.
    #[arg(long, help_heading = "Waiting")]
    pub cancel_in_progress: bool,

    /// Skip if a run has succeeded within this time
    ///
    /// One run does it, the others wait and skip. If a run of the same key with this option has ended
    /// with 0 within DURATION, COMMAND is not run: redlock exits with 0, and a line says who did it,
    /// and when. If that run fails or is killed, the next one runs COMMAND. At most 366d. With
    /// several keys, all must have been done. Not with --shared or --slots.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, help_heading = "Waiting")]
    pub once: Option<String>,

    /// Stop the command after this long (exit 124)
    #[arg(
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        help_heading = "Lease and hold time"
    )]
    pub max_hold: Option<String>,

    /// Hold the lock until background processes end
    ///
    /// The lock is released when the last descendant of the command has ended, not when the command
    /// has.
    #[arg(long, help_heading = "Lease and hold time")]
    pub wait_tree: bool,

    /// Time from that signal to SIGKILL [default: 5s]
    ///
    /// At most a third of the --ttl.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, help_heading = "Failure handling")]
    pub kill_after: Option<String>,
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
        Exits(&[
            (64, "usage error, or a nested run on a key that is already held (see --reentrant)"),
            (69, ""),
            (75, ""),
            (77, ""),
            (
                78,
                "servers or settings that cannot work: a bad config file, a replica, the same server twice, something \
                 else at the key, another --slots",
            ),
            (79, ""),
            (124, ""),
            (125, ""),
            (126, ""),
            (127, ""),
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
            ("REDLOCK_KEY", "the key; of several, one per line"),
            (
                "REDLOCK_FENCE",
                "a number that grows with every grant, so that storage can refuse stale writers; with several keys, \
                 one for each, separated by spaces",
            ),
            ("REDLOCK_TOKEN", "identifies this grant"),
            ("REDLOCK_ATTEMPTS", "number of attempts"),
            ("REDLOCK_SLOT", "with --slots, its slot: 0 to N-1"),
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
        Text("On every replica at its start, once for all of them:"),
        Code("redlock run --key migrate-42 --once 1d -- ./migrate"),
        Text("Four at once; REDLOCK_SLOT says which of the four:"),
        Code("redlock run --key gpu --slots 4 -- ./train"),
        Text("A shell command line:"),
        Code("redlock run --key nightly -c 'sync && purge'"),
    ],
};
