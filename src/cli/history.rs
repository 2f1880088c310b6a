//! The options of `redlock history`.

use std::path::PathBuf;

use clap::Args;

use super::shared::{HelpArgs, HostArgs, JsonArgs, KeyArgs, ServerArgs, VerbosityArgs};
use super::text::Block::{Code, Terms, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Show who held a lock, how long, and how it ended
///
/// Draws a timeline of the last runs: how holders followed each other, when others waited, when the lock was free and which
/// runs failed. Below it how long runs waited and held the lock, and the last runs one by one, the newest first.
///
/// Each run leaves a line behind when it ends: when, how long it waited and held the lock, who it was (never the
/// arguments of its command), how it ended, and its fencing token. "run --history N" says how many are kept. Looking changes nothing.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub key: KeyArgs,

    /// Only runs that ended after this time
    ///
    /// This long ago, as 90m or 7d; or a moment: 2026-11-16, "2026-11-16 09:00", both in local time, or
    /// 2026-11-16T09:00:00Z.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<String>,

    /// Only the last N runs
    ///
    /// Without this option the timeline is about all runs, and the last 10 of them are listed; with --json, all of them.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub limit: Option<String>,

    /// Write the timeline to FILE as a picture
    ///
    /// A standalone SVG, for a report or a web page; "-" is stdout. Nothing else is printed.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

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

pub(super) static TEXT: CommandText = CommandText {
    usage: &["redlock history [OPTIONS] KEY"],
    summary_end: "More options, exit codes and examples: redlock history --help",
    sections: &[ENDINGS, VALUES, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const ENDINGS: Section = Section {
    title: "How a run ends",
    blocks: &[
        Text(
            "The column EXIT has the exit code, or the signal that redlock died of, and, if it was not the command that ended:",
        ),
        Terms(&[
            ("lost", "the lock was lost while the command ran, and the command was stopped"),
            (
                "expired",
                "the lease ended without a word of the holder: it was killed, or cut off from the server",
            ),
            ("broken by", "\"redlock break\" took the lock away"),
            ("max-hold", "the command was stopped by --max-hold"),
            ("not started", "the lock was taken, but the command could not be started"),
            ("gave up", "the lock was not free within the time that the run would wait"),
            ("superseded by", "a newer run with --supersede took the place in the queue"),
            ("cancelled", "by a signal, before the command was started"),
            ("running, waiting", "it holds the lock now, or waits for it"),
        ]),
    ],
};

const JSON: Section = Section {
    title: "JSON",
    blocks: &[
        Text(
            "One object a line, the first to begin first, with the fields of the events of \"run --events\". What is not \
             known is absent. Times are milliseconds, moments RFC 3339 in UTC.",
        ),
        Terms(&[
            ("key", "the key; what is not UTF-8 is written as \\xff, and key_hex has its bytes"),
            (
                "time",
                "when it ended; of a run that holds the lock since when, of one that waits since when it does",
            ),
            ("event", "ended; acquired, for one that holds the lock now; waiting"),
            ("run", "host, pid, user, label, command, job_url"),
            (
                "outcome",
                "ran, not_started, held (it gave up), superseded, lost, max_hold, cancelled, as in the event ended; expired",
            ),
            ("exit, signal", "what redlock exited with, or the signal that it died of"),
            ("waited_ms, held_ms, attempts, fences, released", "as in the event ended"),
            ("token, mode, slot", "mode is exclusive, shared or slots"),
            (
                "broken_by, superseded_by",
                "the run, or the user, that took the lock or the place in the queue away",
            ),
        ]),
    ],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Terms(&[
        ("0", "shown, even if there is none"),
        ("64", "usage error"),
        ("69", "the servers, or a majority of them, cannot be reached or cannot serve now"),
        ("77", "a server refused us: password, permissions"),
        ("78", "servers or settings that cannot work"),
    ])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code(
            "redlock history deploy\nredlock history deploy --since 24h\nredlock history deploy --since 2026-11-16 --svg deploy.svg",
        ),
        Text("The CI jobs that failed:"),
        Code("redlock history deploy --json | jq -r 'select(.exit > 0).run.job_url'"),
    ],
};
