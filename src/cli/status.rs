//! The options of `redlock status`.

use clap::{Args, ValueEnum};

use super::shared::{HelpArgs, HostArgs, JsonArgs, KeyArgs, ServerArgs, VerbosityArgs, WatchArgs};
use super::text::Block::{Code, Terms, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Show who holds a lock, and who waits for it
///
/// Shows the state of the lock, its holders, the queue in order, and, of several servers, what each of them says.
/// Looking changes nothing: no key appears, no lease is renewed, no waiter is disturbed. It needs no permission to write.
///
/// Of several servers the majority decides; a server that says something else, or does not answer, is shown. A lock that
/// a server which does not answer might complete to a majority counts as held. If a majority does not answer, nothing is
/// decided: what the others say is shown as that, and the exit code is 69.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub key: KeyArgs,

    /// Exit with 0 if it is so, with 1 if not
    ///
    /// Prints nothing, unless --verbose or --json ask for it.
    #[arg(long, value_name = "STATE")]
    pub check: Option<Check>,

    /// The token that --check owned is about
    ///
    /// [default: $REDLOCK_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,

    /// Wait until it is free and nobody waits for it
    ///
    /// Without taking it, and without a place in the queue. Prints nothing, unless --verbose or --json ask for it.
    #[arg(long)]
    pub wait_free: bool,

    /// With --wait-free: at most this long (exit 75)
    ///
    /// [default: forever]
    #[arg(short, long, alias = "timeout", value_name = "DURATION", allow_negative_numbers = true)]
    pub wait: Option<String>,

    #[command(flatten)]
    pub watch: WatchArgs,

    #[command(flatten)]
    pub json: JsonArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,

    #[command(flatten)]
    pub help: HelpArgs,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub host: HostArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// Some client has it: redlock, even if only --min-hold keeps it, or another program
    Held,
    /// No client has it
    Free,
    /// The run with the token has it, and has not ended
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

pub(super) const STATES: Section = Section {
    title: "States",
    blocks: &[Terms(&[
        ("free", "no client has it"),
        ("held", "by one run"),
        ("shared", "by runs with --shared"),
        ("slots", "by one or more of the runs with --slots"),
        ("kept", "its runs have ended, and their --min-hold is not over"),
        ("foreign", "by a program other than redlock"),
    ])],
};

/// Of `list`, too.
pub(super) const JSON: Section = Section {
    title: "JSON",
    blocks: &[
        Text("What is not known is absent. Times are milliseconds, moments RFC 3339 in UTC."),
        Terms(&[
            ("key", "the key; what is not UTF-8 is written as \\xff, and key_hex has its bytes"),
            (
                "state",
                "as above; absent if too few servers vote, or answer, to tell; with slots, of is their number",
            ),
            (
                "holders",
                "host, pid, user, label, command, job_url, token, fence, slot, since, held_ms, expires_ms; keeper, the \
                 pid of the process that keeps it for another one; ended is true if only its --min-hold keeps the lock; \
                 broken_by, the client that has told it to give the lock back",
            ),
            (
                "waiters",
                "host, pid, user, label, command, job_url, mode (exclusive, shared, slots), position from 1, waited_ms",
            ),
            (
                "servers",
                "url; state (ok, replica, quarantined, down, refused, unfit); vote, whether it says the same as the \
                 majority; cause, what is wrong or what it says instead; rtt_ms",
            ),
        ]),
    ],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Terms(&[
        ("0", "shown; with --check, it is so; with --wait-free, it is free"),
        ("1", "with --check, it is not so"),
        ("64", "usage error"),
        (
            "69",
            "the servers, or a majority of them, cannot be reached or cannot serve now; what the others say is shown, but \
             decides nothing",
        ),
        ("75", "with --wait-free, it was not free before --wait was over"),
        ("77", "a server refused us: password, permissions"),
        ("78", "servers or settings that cannot work"),
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
        Text("In a command that redlock runs, before a step that must not be done without the lock:"),
        Code("redlock status \"$REDLOCK_KEY\" --check owned || exit 1"),
    ],
};
