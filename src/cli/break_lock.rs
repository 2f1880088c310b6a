//! `redlock break`.

use clap::Args;

use super::ONCE;
use super::shared::{BackendArgs, HelpArgs, KeyArgs};
use super::text::Block::{Code, Exits};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Take a lock away from its holder
///
/// Shows who holds the lock and asks, on a terminal, whether to break it; elsewhere --yes is
/// needed. The holder is notified at once: it stops its command, as if the lock had been lost,
/// releases the lock and exits with 79; its last line names who broke the lock. Then the next
/// waiter gets the lock. redlock break waits for that and reports what happened.
///
/// A holder that does not react (stopped, cut off, an older version) can no longer renew the lock:
/// it is free when the lease ends, and the holder's guardian stops the command before that. So the
/// next command never starts beside the old one, unless you pass --now, or the holder was started
/// with --on-lost warn, which lets its command run on.
///
/// A lock that never expires (--ttl none) and whose holder is dead is freed only by --now: it looks
/// the same as one whose holder is stopped or cut off. The same is true of a lock of another
/// program. A lock that only --min-hold keeps is freed at once.
///
/// If several runs hold the lock (--shared, --slots), all of them are notified, or the one that
/// --slot or --token names.
///
/// On this host the holder is notified by a signal, for which you must be root or its user.
#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    pub key: KeyArgs,

    /// Break the lock without asking
    #[arg(short_alias = 'y', short_alias = 'f', long, alias = "force", hide_long_help = ONCE)]
    pub yes: bool,

    /// Break this grant only, never a later one
    ///
    /// The token is in REDLOCK_TOKEN, and redlock status shows it. If the grant has ended, the exit
    /// code is 79.
    #[arg(long, value_name = "TOKEN", hide_long_help = ONCE)]
    pub token: Option<String>,

    /// Break the holder of this slot only
    ///
    /// The slot, counted from 0, is in REDLOCK_SLOT, and redlock status shows it. If the slot is
    /// free, the exit code is 0; if the lock has fewer slots, or is held without slots, 78.
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide_long_help = ONCE)]
    pub slot: Option<String>,

    /// Free the lock without waiting for its holder
    ///
    /// The holder is notified as well, but the next command may start before it has stopped the old
    /// one. On this host, where no lock can be taken from a living process, the old command is
    /// killed at once instead, without the grace of --kill-after.
    ///
    /// Of several servers a majority must agree before any of them frees the lock; otherwise
    /// nothing changes.
    #[arg(long, hide_long_help = ONCE)]
    pub now: bool,

    /// Wait at most this long for the outcome
    ///
    /// [default: until the lock is released or its lease ends; without a lease, 10s]
    #[arg(short, long, value_name = "DURATION", allow_negative_numbers = true)]
    pub wait: Option<String>,

    #[command(flatten)]
    pub help: HelpArgs,

    #[command(flatten)]
    pub backend: BackendArgs,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &["redlock break [OPTIONS] KEY [--yes]"],
    summary_end: "More options and exit codes: redlock break --help",
    sections: &[VALUES, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Exits(&[
        (0, "the lock was free, or was broken and its holder no longer has it"),
        (
            75,
            "the lock is still held: --yes is missing, or the answer was no; or the holder was notified and has not \
             released it yet; or only --now can free it",
        ),
        (79, "--token: that grant does not hold the lock"),
        (64, ""),
        (69, "the servers, or a majority of them, cannot be reached or cannot serve now; nothing was broken"),
        (77, "a server refused access: password, permissions; or the holder on this host is another user's"),
        (78, "servers or settings that cannot work; or the lock has no such --slot"),
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
