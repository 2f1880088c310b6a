//! The options of `redlock list`.

use std::ffi::OsString;

use clap::Args;

use super::shared::{HelpArgs, HostArgs, JsonArgs, ServerArgs, VerbosityArgs, WatchArgs};
use super::status::{JSON, STATES};
use super::text::Block::{Code, Terms, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// List the locks that are taken
///
/// One line for each lock: its key, its state, a holder, since when and for how long it is held, and how many wait for
/// it; the one that has been held longest first. Looking changes nothing.
///
/// With a PATTERN only keys that match it as a whole: * stands for any text, ? for one character, [a-z] for one of
/// these, [^a-z] for any other; \ before a sign means the sign itself.
///
/// If a majority of several servers does not answer, what the others know is listed with a question mark, as it decides
/// nothing, and the exit code is 69.
///
/// On servers the locks are found with SCAN, in small steps between which a server serves others. With --prefix ''
/// those of other programs are not found, as their names tell nothing.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only keys that match: *, ?, [a-z]; \ before a sign
    #[arg(value_name = "PATTERN")]
    pub pattern: Option<OsString>,

    /// Print only the keys, one a line
    ///
    /// Without keys that are not a line of printable text; --json has them all.
    #[arg(long)]
    pub keys: bool,

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

pub(super) static TEXT: CommandText = CommandText {
    usage: &["redlock list [OPTIONS] [PATTERN] [--watch]"],
    summary_end: "More options and exit codes: redlock list --help",
    sections: &[VALUES, STATES, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Terms(&[
        ("0", "listed, even if there is none"),
        ("64", "usage error"),
        (
            "69",
            "the servers, or a majority of them, or some masters of a cluster, cannot be reached or cannot serve now; what \
             the others know is listed",
        ),
        ("77", "a server refused us: password, permissions"),
        ("78", "servers or settings that cannot work"),
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
