//! `redlock status`.

use clap::{Args, ValueEnum};

use super::ONCE;
use super::shared::{KeyArgs, LookArgs, WatchArgs};
use super::text::Block::{Code, Exits, Terms, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Show who holds a lock, and who waits for it
///
/// Shows the state of the lock, its holders, the queue in order, and, with several servers, what
/// each of them reports. It is read-only: no key is written, no lease renewed, no waiter disturbed,
/// and it needs no permission to write.
///
/// With several servers the majority decides; a server that reports something else, or does not
/// reply, is shown. If an unreachable server could complete a majority, the lock counts as held. If
/// a majority does not reply, the state is unknown: the other servers' reports are shown as such,
/// and the exit code is 69.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub key: KeyArgs,

    /// Exit 0 if true, 1 if not
    ///
    /// Prints nothing without --verbose or --json.
    #[arg(long, value_name = "STATE", hide_long_help = ONCE)]
    pub check: Option<CheckArg>,

    /// Token for --check owned
    ///
    /// [default: $REDLOCK_TOKEN]
    #[arg(long, value_name = "TOKEN", hide_long_help = ONCE)]
    pub token: Option<String>,

    /// Wait until the lock is free and has no waiters
    ///
    /// Does not take the lock, and has no place in the queue. Prints nothing without --verbose or
    /// --json.
    #[arg(long, hide_long_help = ONCE)]
    pub wait_free: bool,

    /// With --wait-free: at most this long (exit 75)
    ///
    /// [default: forever]
    #[arg(short, long, alias = "timeout", value_name = "DURATION", allow_negative_numbers = true)]
    pub wait: Option<String>,

    #[command(flatten)]
    pub watch: WatchArgs,

    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckArg {
    /// A client holds it: redlock, even if only --min-hold keeps it, or another program
    Held,
    /// No client holds it
    Free,
    /// The run with the token holds it, and has not ended
    Owned,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &[
        "redlock status [OPTIONS] KEY",
        "redlock status [OPTIONS] KEY --check held|free|owned",
        "redlock status [OPTIONS] KEY --wait-free [--wait DURATION]",
        "redlock status [OPTIONS] KEY --watch",
    ],
    summary_end: "More options, exit codes and examples: redlock status --help",
    sections: &[VALUES, STATES, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

/// Also for `list`.
pub(super) const STATES: Section = Section {
    title: "States",
    blocks: &[Terms(&[
        ("free", "held by no client"),
        ("held", "held by one run"),
        ("shared", "held by runs with --shared"),
        ("slots", "held by one or more runs with --slots"),
        ("kept", "its runs have ended, but their --min-hold has not passed"),
        ("foreign", "held by a program other than redlock"),
    ])],
};

/// Also for `list`.
pub(super) const JSON: Section = Section {
    title: "JSON",
    blocks: &[
        Text("Unknown values are absent. Times are milliseconds, moments RFC 3339 in UTC."),
        Terms(&[
            ("key", "the key; bytes that are not UTF-8 are written as \\xff, and key_hex has all bytes"),
            (
                "state",
                "as above; absent if too few servers vote or reply to tell; with slots, of is their number",
            ),
            (
                "holders",
                "host, pid, user, label, command, job_url, version and protocol of its redlock, token, fence, slot, \
                 since, held_ms, expires_ms; keeper, the pid of the process that keeps it for another one; renewed is \
                 false if nothing renews its lease; ended is true if only its --min-hold keeps the lock; broken_by, \
                 the client that asked it to release the lock",
            ),
            (
                "waiters",
                "host, pid, user, label, command, job_url, version, protocol, mode (exclusive, shared, slots), position \
                 from 1, waited_ms",
            ),
            (
                "usual",
                "how long runs hold the lock: p50_ms, p95_ms, runs, the number of runs that were counted (redlock list \
                 has it for locks on this host only)",
            ),
            (
                "done",
                "the last run with --once that succeeded: host, pid, user, label, command, job_url; at, when it ended; \
                 ago_ms",
            ),
            (
                "servers",
                "url; state (ok, replica, quarantined, down, refused, unfit); vote, whether it agrees with the \
                 majority; cause, what is wrong or what it reports instead; rtt_ms",
            ),
        ]),
    ],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Exits(&[
        (0, "shown; with --check, true; with --wait-free, the lock is free"),
        (1, "with --check, not true"),
        (64, ""),
        (
            69,
            "the servers, or a majority of them, cannot be reached or cannot serve now; the others' reports are shown, \
             but decide nothing",
        ),
        (75, "with --wait-free, the lock was not free before --wait expired"),
        (77, ""),
        (78, ""),
    ])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code("redlock status deploy"),
        Text("Only if no deploy is running:"),
        Code("redlock status deploy --check free && ./maintenance.sh"),
        Text("Wait until no deploy is running or waiting:"),
        Code("redlock status deploy --wait-free --wait 30m && ./maintenance.sh"),
        Text("In a command that redlock runs, before a step that needs the lock:"),
        Code("redlock status \"$REDLOCK_KEY\" --check owned || exit 1"),
    ],
};
