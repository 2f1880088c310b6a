//! `redlock acquire`.

use clap::Args;

use super::ONCE;
use super::shared::TakeArgs;
use super::text::Block::{Code, Exits, Terms, Text};
use super::text::{CommandText, FILES, REDLOCK_CONFIG, REDLOCK_PASSWORD, SOURCES, Section, VALUES};

/// Take a lock for several steps, and print its token
///
/// Takes the lock and exits: the lock stays taken. redlock extend and redlock release need the
/// printed token and the key, on any host. Waiting, sharing and exit codes are those of redlock
/// run.
///
/// The lock is not renewed: it is free again when the --ttl has passed, however much work is left.
/// Choose a --ttl that is longer than the work, or extend it in time. Or let a keeper renew it,
/// which stays in the background as long as a process lives (--for-shell, --watch-pid) and then
/// releases the lock. If the lock is lost, the keeper sends the process a signal (--on-lost).
///
/// The lock is an outer run's for what runs below that process, or has the variables of --shell:
/// redlock run on the same key fails at once, and redlock run --reentrant runs under the lock.
///
/// On this host, where a lock ends with the process that holds it, there is always a keeper:
/// without --for-shell or --watch-pid it exits when the --ttl has passed.
#[derive(Debug, Args)]
#[command(mut_arg("on_unavailable", |arg| arg
    .hide_possible_values(true)
    .help("If the servers are down: fail, or wait")
    .long_help("If the servers are down: fail, or wait\n\n\
        There is no token without the lock, so skip and run of redlock run mean fail. [default: fail]")))]
#[command(mut_arg("on_lost", |arg| arg
    .hide_possible_values(true)
    .help_heading("Keeper")
    .help("If the keeper loses the lock: stop PID, or warn")
    .long_help("If the keeper loses the lock: stop PID, or warn\n\n\
        With \"stop\" the process gets --signal: at once, or, if the lease cannot be renewed, 5s before it ends (a \
        third of --ttl, if that is less), so that the process can exit by then. It is not killed. Either way the \
        system log gets a line, and so does --events. [default: stop]")))]
#[command(mut_arg("signal", |arg| arg
    .help_heading("Keeper")
    .help("Signal of --on-lost stop [default: TERM]")
    .long_help("Signal of --on-lost stop [default: TERM]")))]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub take: TakeArgs,

    /// Print a JSON object instead of the token
    #[arg(long, help_heading = "Lock", hide_long_help = ONCE)]
    pub json: bool,

    /// Print lines for eval: export REDLOCK_TOKEN=...
    ///
    /// REDLOCK_KEY, REDLOCK_TOKEN, REDLOCK_FENCE, REDLOCK_SLOT and REDLOCK_HELD, quoted for any
    /// POSIX shell. If the lock is not taken the line is "(exit 75)" or similar, which makes the
    /// eval fail as well.
    #[arg(long, help_heading = "Lock", hide_long_help = ONCE)]
    pub shell: bool,

    /// Keep the lock until the calling shell exits
    ///
    /// A keeper stays in the background. It renews the lock until the parent process of redlock
    /// exits or redlock release is called, and then releases it. SIGTERM makes it release the lock
    /// at once.
    #[arg(long, help_heading = "Keeper", hide_long_help = ONCE)]
    pub for_shell: bool,

    /// Keep the lock until this process exits
    ///
    /// Like --for-shell, for another process on this host.
    #[arg(
        long,
        value_name = "PID",
        allow_negative_numbers = true,
        help_heading = "Keeper",
        hide_long_help = ONCE
    )]
    pub watch_pid: Option<String>,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &[
        "redlock acquire [OPTIONS] --key KEY",
        "redlock acquire [OPTIONS] --key KEY --for-shell | --watch-pid PID",
    ],
    summary_end: "\
Without --for-shell or --watch-pid the lock is not renewed: it ends after --ttl.
More options, exit codes and examples: redlock acquire --help",
    sections: &[VALUES, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const JSON: Section = Section {
    title: "JSON",
    blocks: &[Terms(&[
        ("key, keys", "the first key; all of them"),
        ("token", "for redlock extend and redlock release"),
        ("fences, slots", "one for each key; slots only with --slots"),
        ("expires_ms, expires_at", "when the lease ends unless renewed; absent if it never does"),
        ("keeper", "process ID of the keeper, if there is one"),
    ])],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[
        Exits(&[
            (0, "the lock is taken, and its token was printed"),
            (64, "usage error, or an outer run already holds the lock"),
            (69, ""),
            (75, ""),
            (
                77,
                "a server or the file system refused access: password, permissions; or --on-lost stop may not signal PID",
            ),
            (78, ""),
            (125, "redlock itself failed, or could not print the token; the lock was released"),
        ]),
        Text("A signal while it waits, or before the token is printed, releases everything."),
    ],
};

const ENVIRONMENT: Section = Section {
    title: "Environment",
    blocks: &[
        SOURCES,
        Terms(&[
            REDLOCK_CONFIG,
            REDLOCK_PASSWORD,
            ("REDLOCK_HELD", "locks held by outer runs; waiting for one of them is an error"),
        ]),
    ],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Text("A shell script that holds the lock for all its steps, however it ends:"),
        Code(
            "set -e\n\
             eval \"$(redlock acquire -k deploy --for-shell --shell)\"\n\
             ./build\n\
             ./upload",
        ),
        Text("The same by hand, which also works across hosts:"),
        Code(
            "token=$(redlock acquire -k deploy --ttl 15m) || exit\n\
             trap 'redlock release deploy --token $token' EXIT\n\
             ./build\n\
             redlock extend deploy --token $token --ttl 15m || exit\n\
             ./upload",
        ),
        Text("No deploys for two hours; waiters see who, why and until when:"),
        Code("redlock acquire --key deploy --ttl 2h --label \"release freeze\""),
    ],
};
