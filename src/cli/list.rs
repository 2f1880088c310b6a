//! `redlock list`.

use std::ffi::OsString;

use clap::Args;

use super::ONCE;
use super::shared::{LookArgs, WatchArgs};
use super::status::{JSON, STATES};
use super::text::Block::{Code, Exits, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// List the locks that are taken
///
/// Prints one line for each lock: its key, its state, a holder, since when and for how long it has
/// been held, and the number of waiters. The lock with the most waiters comes first, then the one
/// that has been held longest. It is read-only.
///
/// On a terminal, keys and holders are shortened to its width; --json has them whole.
///
/// A PATTERN must match the whole key: * matches any text, ? one character, [a-z] one of these,
/// [^a-z] any other; \ escapes the next character.
///
/// If a majority of several servers does not reply, the locks that the others know are listed with
/// a question mark, because they decide nothing, and the exit code is 69.
///
/// On servers the locks are found with SCAN, in small steps between which a server serves others.
/// With --prefix '' locks of other programs are not found: their names do not show that they are
/// locks.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only matching keys: *, ?, [a-z]; \ escapes
    #[arg(value_name = "PATTERN")]
    pub pattern: Option<OsString>,

    /// Only locks that others wait for
    #[arg(long, hide_long_help = ONCE)]
    pub waiting: bool,

    /// Print only the keys, one per line
    ///
    /// Leaves out keys that are not one line of printable text; --json has them all.
    #[arg(long, hide_long_help = ONCE)]
    pub keys: bool,

    /// Print metrics for Prometheus
    ///
    /// OpenMetrics text: which locks are held, for how long, who waits, which servers vote, and what
    /// the history says about finished runs. For node_exporter's textfile collector.
    #[arg(long, hide_long_help = ONCE)]
    pub openmetrics: bool,

    #[command(flatten)]
    pub watch: WatchArgs,

    #[command(flatten)]
    pub look: LookArgs,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &["redlock list [OPTIONS] [PATTERN] [--watch | --openmetrics]"],
    summary_end: "More options and exit codes: redlock list --help",
    sections: &[VALUES, STATES, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Exits(&[
        (0, "listed, even if there is none"),
        (64, ""),
        (
            69,
            "the servers, or a majority of them, or some masters of a cluster, cannot be reached or cannot serve now; \
             the locks that the others know are listed",
        ),
        (77, ""),
        (78, ""),
    ])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code("redlock list\nredlock list 'deploy-*'\nredlock list --watch"),
        Text("Locks that have been held for more than an hour:"),
        Code("redlock list --json | jq -r 'select(.holders[0].held_ms > 36e5).key'"),
    ],
};
