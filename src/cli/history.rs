//! `redlock history`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::ONCE;
use super::shared::LookArgs;
use super::text::Block::{Code, Exits, Terms, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Show who held locks, how long, and how it ended
///
/// Without an argument it shows the runs of all locks, and with a PATTERN those of the matching
/// ones: for each lock how many runs there were, how many failed and how long they took, and below
/// the last runs one by one. A PATTERN must match the whole key: * matches any text, ? one
/// character, [a-z] one of these, [^a-z] any other; \ escapes the next character.
///
/// With a KEY it shows that lock alone.
///
/// Draws a timeline of the last runs: how holders followed each other, when others waited, when the
/// lock was free and which runs failed. Below it are the waiting and holding times, and the last
/// runs one by one, the newest first. On a terminal, WHO, EXIT and KEY are shortened to its width;
/// --json has them whole.
///
/// Each run leaves an entry when it ends: the time, how long it waited and held the lock, who it
/// was (never the arguments of its command), how it ended, and its fencing token. "run --history N"
/// sets how many are kept. redlock history is read-only.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Name of the lock, or a pattern: *, ?, [a-z]
    #[arg(value_name = "KEY")]
    pub pattern: Option<OsString>,

    /// Name of the lock, as an option
    ///
    /// Taken literally, whatever characters it has.
    #[arg(id = "key", short, long, value_name = "KEY", hide_long_help = ONCE)]
    pub keys: Vec<OsString>,

    /// Only runs that failed
    ///
    /// Their command failed, or was stopped, or the lock was lost. The timeline of one lock shows
    /// all runs.
    #[arg(long, hide_long_help = ONCE)]
    pub failed: bool,

    /// Only runs that ended after this time
    ///
    /// An age, such as 90m or 7d; or a moment: today, yesterday, 07:00 (the last time it was seven),
    /// "yesterday 07:00", 2026-11-16 or "2026-11-16 09:00" in local time, or 2026-11-16T09:00:00Z.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, hide_long_help = ONCE)]
    pub since: Option<String>,

    /// Only the last N runs
    ///
    /// Without this option the timeline covers all runs, and the last 10 are listed; --json lists
    /// them all.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub limit: Option<String>,

    /// Write the timeline to FILE as a picture
    ///
    /// A standalone SVG, for a report or a web page; "-" is stdout. Nothing else is printed.
    #[arg(long, value_name = "FILE", hide_long_help = ONCE)]
    pub svg: Option<PathBuf>,

    #[command(flatten)]
    pub look: LookArgs,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &["redlock history [OPTIONS] [KEY | PATTERN]"],
    summary_end: "More options, exit codes and examples: redlock history --help",
    sections: &[ENDINGS, VALUES, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const ENDINGS: Section = Section {
    title: "How a run ends",
    blocks: &[
        Text(
            "The column EXIT has the exit code, or the signal that redlock died of, and, unless the command ended by itself:",
        ),
        Terms(&[
            ("lost", "the lock was lost while the command ran, and the command was stopped"),
            ("killed", "redlock was killed; its guardian stopped the command and released the lock"),
            (
                "expired",
                "the lease ended without a release: the holder was killed, or cut off from the server",
            ),
            ("broken by", "\"redlock break\" took the lock away"),
            ("max-hold", "the command was stopped by --max-hold"),
            ("not started", "the lock was taken, but the command could not be started"),
            ("gave up", "the lock was not free within the waiting time"),
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
            "One object per line, in the order in which the runs began, with the fields of the events of \"run \
             --events\". Unknown values are absent. Times are milliseconds, moments RFC 3339 in UTC.",
        ),
        Terms(&[
            ("key", "the key; bytes that are not UTF-8 are written as \\xff, and key_hex has all bytes"),
            ("time", "when it ended; for a current holder or waiter, since when it holds or waits"),
            ("event", "ended; acquired, for a current holder; waiting"),
            ("run", "host, pid, user, label, command, job_url"),
            (
                "outcome",
                "ran, not_started, held (it gave up), superseded, lost, max_hold, cancelled, as in the event ended; \
                 killed; expired",
            ),
            ("exit, signal", "redlock's exit code, or the signal that it died of"),
            ("waited_ms, held_ms, attempts, fences, released", "as in the event ended"),
            ("token, mode, slot", "mode is exclusive, shared or slots"),
            (
                "broken_by, superseded_by",
                "the run, or the user, that took away the lock or the place in the queue",
            ),
        ]),
    ],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Exits(&[(0, "shown, even if there is none"), (64, ""), (69, ""), (77, ""), (78, "")])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code(
            "redlock history --since yesterday --failed\nredlock history 'nightly-*' --since 07:00\nredlock history deploy\nredlock history deploy --since 24h\nredlock history deploy --since 2026-11-16 --svg deploy.svg",
        ),
        Text("The CI jobs that failed:"),
        Code("redlock history deploy --json | jq -r 'select(.exit > 0).run.job_url'"),
    ],
};
