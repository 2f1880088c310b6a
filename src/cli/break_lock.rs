//! The options of `redlock break`.

use clap::Args;

use super::shared::{HelpArgs, HostArgs, KeyArgs, ServerArgs};
use super::text::Block::{Code, Terms};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Take a lock away from its holder
///
/// Shows who holds the lock and asks, on a terminal, whether to break it; elsewhere --yes is needed. The holder is told
/// at once: it stops its command, as if the lock had been lost, gives the lock back and exits with 79; its last line says
/// who broke the lock. Then the next waiter gets it. redlock break waits for that and says what has happened.
///
/// A holder that does not listen (stopped, cut off, of an older version) cannot renew the lock any more: it is free when the
/// lease is over, and the holder's guardian stops the command before that. So the next command never starts beside the old
/// one, unless you say --now, or the holder was started with --on-lost warn, which lets its command run on.
///
/// A lock without an expiry (--ttl none) whose holder is dead is freed by --now only: it cannot be told from one whose
/// holder is stopped or cut off. So is a lock of another program. What only --min-hold keeps is freed at once.
///
/// If several runs hold the lock (--shared, --slots), all are told, or the one that --slot or --token names.
///
/// On this host the holder is told by a signal, for which you must be root or its user.
#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    pub key: KeyArgs,

    /// Break the lock without asking
    #[arg(short_alias = 'y', short_alias = 'f', long, alias = "force")]
    pub yes: bool,

    /// Break this grant only, never a later one
    ///
    /// The token as REDLOCK_TOKEN has it and redlock status shows it. If the grant is over, the exit code is 79.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,

    /// Break the holder of this slot only
    ///
    /// From 0 on, as REDLOCK_SLOT has it and redlock status shows it. If no run holds it, the exit code is 0; if the lock does
    /// not have as many slots, or is held without slots, 78.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub slot: Option<String>,

    /// Free the lock at once, without its holder
    ///
    /// The holder is told as well, but the next command may start before the old one has ended: for as long as the holder
    /// takes to stop it. On this host, where no lock can be taken from a living process, the old command is killed instead,
    /// without the time that --kill-after would leave it.
    ///
    /// Of several servers a majority must agree before any of them frees it: otherwise nothing is changed.
    #[arg(long)]
    pub now: bool,

    /// Wait at most this long for the outcome
    ///
    /// Without this, until the lock is given back or its lease is over; if it has no lease, 10s.
    #[arg(short, long, value_name = "DURATION", allow_negative_numbers = true)]
    pub wait: Option<String>,

    #[command(flatten)]
    pub help: HelpArgs,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub host: HostArgs,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &["redlock break [OPTIONS] KEY [--yes]"],
    summary_end: "More options and exit codes: redlock break --help",
    sections: &[VALUES, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Terms(&[
        ("0", "the lock was free, or was broken and its holder no longer has it"),
        (
            "75",
            "it is still held: --yes is missing, or the answer was no; or its holder was told and has not given it back \
             yet; or it can be freed by --now only",
        ),
        ("79", "--token: that grant does not hold the lock (any more)"),
        ("64", "usage error"),
        (
            "69",
            "the servers, or a majority of them, cannot be reached or cannot serve now; nothing was broken",
        ),
        ("77", "a server refused us: password, permissions; or the holder on this host is another user's"),
        ("78", "servers or settings that cannot work; or --slot, and the lock has no such slot"),
    ])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[Code(
        "redlock break deploy              # who holds it? asks on a terminal\n\
         redlock break deploy --yes\n\
         redlock break gpu --yes --slot 2\n\
         redlock break deploy --yes --now  # never expires, holder is dead",
    )],
};
