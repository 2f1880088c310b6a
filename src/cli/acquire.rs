//! The options of `redlock acquire`.

use std::ffi::OsString;

use clap::Args;

use super::run::{BackendArgs, ModeArgs, OnLost, OnUnavailable, OutputArgs, WaitArgs};
use super::shared::ServerArgs;
use super::text::Block::{Code, Terms, Text};
use super::text::{CommandText, FILES, REDLOCK_CONFIG, REDLOCK_PASSWORD, SOURCES, Section, VALUES};

/// Take a lock for several steps, and print its token
///
/// Takes the lock and exits: the lock stays taken. The token that is printed is what redlock extend and redlock release
/// need beside the key, on whatever host. Waiting, sharing and exit codes are those of redlock run.
///
/// Nobody renews the lock: it is free again when the --ttl is over, however far the work is. Choose a --ttl that is longer
/// than the work, or extend it in time; or let a keeper renew it, which stays in the background as long as a process
/// lives (--for-shell, --watch-pid) and then gives the lock back.
///
/// On this host, where a lock ends with the process that holds it, there is always such a process: without --for-shell or
/// --watch-pid it ends when the --ttl is over.
#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    /// Name of the lock; repeat to take several at once
    ///
    /// Any bytes, at most 1024. Several locks are taken together or not at all, and have one token.
    #[arg(short, long = "key", value_name = "KEY", help_heading = "Lock")]
    pub keys: Vec<OsString>,

    /// Print a JSON object instead of the token
    #[arg(long, help_heading = "Lock")]
    pub json: bool,

    /// Print lines for eval: export REDLOCK_TOKEN=...
    ///
    /// REDLOCK_KEY, REDLOCK_TOKEN, REDLOCK_FENCE, REDLOCK_SLOT and REDLOCK_HELD, quoted for any shell of the POSIX family.
    /// If the lock is not taken the line is "(exit 75)" or the like, which makes the eval fail as well.
    #[arg(long, help_heading = "Lock")]
    pub shell: bool,

    #[command(flatten)]
    pub mode: ModeArgs,

    #[command(flatten)]
    pub wait: WaitArgs,

    #[command(flatten)]
    pub lease: LeaseArgs,

    #[command(flatten)]
    pub keeper: KeeperArgs,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub backend: BackendArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Lease and hold time")]
pub(crate) struct LeaseArgs {
    /// How long the lock is held [default: 30s]
    ///
    /// Nobody renews it, unless there is a keeper (--for-shell, --watch-pid), which does so every third of it. From 100ms to
    /// 365d; "none" is a lock that never expires (with one server, or on this host).
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub ttl: Option<String>,

    /// Keep the lock at least this long
    ///
    /// Even if it is released sooner: the lock stays taken until this long after it was acquired.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub min_hold: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Keeper")]
pub(crate) struct KeeperArgs {
    /// Keep the lock until the calling shell has ended
    ///
    /// A keeper stays in the background, renews the lock until the parent process of redlock has ended or redlock release
    /// is called, and gives it back. SIGTERM to the keeper gives the lock back at once.
    #[arg(long)]
    pub for_shell: bool,

    /// Keep the lock until this process has ended
    ///
    /// As --for-shell, for another process of this host.
    #[arg(long, value_name = "PID", allow_negative_numbers = true)]
    pub watch_pid: Option<String>,

    /// If the keeper loses the lock: stop PID, or warn
    ///
    /// With "stop" the process is sent --signal: at once, or, if the lock cannot be renewed, 5s before its lease is over (a
    /// third of --ttl, if that is less), so that it can be gone by then. It is not killed. Either way a line goes to the system log, and to --events. [default: warn]
    #[arg(long, value_name = "ACTION")]
    pub on_lost: Option<OnLost>,

    /// Signal of --on-lost stop [default: TERM]
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<String>,

    /// If the servers are down: fail, or wait
    ///
    /// There is no token without the lock, so skip and run of redlock run mean fail. [default: fail]
    #[arg(long, value_name = "ACTION", help_heading = "Failure handling")]
    pub on_unavailable: Option<OnUnavailable>,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &[
        "redlock acquire [OPTIONS] --key KEY",
        "redlock acquire [OPTIONS] --key KEY --for-shell | --watch-pid PID",
    ],
    summary_end: "\
Without --for-shell or --watch-pid nobody renews the lock: it ends after --ttl.
More options, exit codes and examples: redlock acquire --help",
    sections: &[VALUES, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const JSON: Section = Section {
    title: "JSON",
    blocks: &[Terms(&[
        ("key, keys", "the first key; all of them"),
        ("token", "for redlock extend and redlock release"),
        ("fences, slots", "one for each key; slots only with --slots"),
        ("expires_ms, expires_at", "when the lease ends, if nobody renews it; absent if it never does"),
        ("keeper", "the process that keeps the lock, if there is one"),
    ])],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[
        Terms(&[
            ("0", "the lock is taken, and its token was printed"),
            ("64", "usage error, or an outer run holds the lock already"),
            ("69", "the servers, or a majority of them, cannot be reached or cannot serve now"),
            (
                "75",
                "the lock is held by another run or program, or a newer run took our place (-E changes it)",
            ),
            (
                "77",
                "a server or the file system refused us: password, permissions; or --on-lost stop may not signal PID",
            ),
            ("78", "servers or settings that cannot work"),
            ("125", "redlock itself failed, or could not print the token; the lock was given back"),
        ]),
        Text("A signal while it waits, or before the token is printed, gives everything back."),
    ],
};

const ENVIRONMENT: Section = Section {
    title: "Environment",
    blocks: &[
        SOURCES,
        Terms(&[
            REDLOCK_CONFIG,
            REDLOCK_PASSWORD,
            ("REDLOCK_HELD", "locks held by outer runs: one that would have to wait for itself is an error"),
        ]),
    ],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Text("A shell script whose every step is under the lock, however it ends:"),
        Code(
            "set -e\n\
             eval \"$(redlock acquire -k deploy --for-shell --shell)\"\n\
             ./build\n\
             ./upload",
        ),
        Text("The same by hand, from several hosts if need be:"),
        Code(
            "token=$(redlock acquire -k deploy --ttl 15m) || exit\n\
             trap 'redlock release deploy --token $token' EXIT\n\
             ./build\n\
             redlock extend deploy --token $token --ttl 15m || exit\n\
             ./upload",
        ),
        Text("No deploys for two hours; waiters read who, why and until when:"),
        Code("redlock acquire --key deploy --ttl 2h --label \"release freeze\""),
    ],
};
