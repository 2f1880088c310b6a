//! The options of `redlock extend` and `redlock release`, which need a token.

use std::ffi::OsString;

use clap::Args;

use super::run::BackendArgs;
use super::shared::{HelpArgs, HostArgs, ServerArgs, VerbosityArgs};
use super::text::Block::{Code, Terms, Text};
use super::text::{CommandText, FILES, REDLOCK_CONFIG, REDLOCK_PASSWORD, SOURCES, Section, VALUES};

// Which grant, of which locks.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Name of the lock [default: $REDLOCK_KEY]
    #[arg(id = "key_argument", value_name = "KEY")]
    pub arguments: Vec<OsString>,

    /// Name of the lock, as an option
    ///
    /// Repeat for a token of several locks, which stands for all of them: less is an error (64), unless it is that of a
    /// redlock run.
    #[arg(id = "key", short, long, value_name = "KEY")]
    pub options: Vec<OsString>,

    /// The token [default: $REDLOCK_TOKEN]
    ///
    /// As redlock acquire printed it, or redlock run set it.
    #[arg(short, long, value_name = "TOKEN")]
    pub token: Option<String>,
}

/// Set the lease of a lock anew, by its token
///
/// The lock is held for --ttl from now on, which may be longer or shorter than what was left. A lock that is over is never
/// taken again: then the exit code is 79. Key and token are enough: how the lock is shared and on how many servers is found
/// there. Of several servers a majority must agree.
///
/// A keeper (redlock acquire --for-shell) goes on with the new --ttl. The lease of a redlock run, which renews it itself, is
/// never made shorter.
#[derive(Debug, Args)]
pub(crate) struct ExtendArgs {
    #[command(flatten)]
    pub token: TokenArgs,

    /// How long it is held from now on [default: 30s]
    ///
    /// From 100ms to 365d; "none" is a lock that never expires (with one server, or on this host).
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub ttl: Option<String>,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,

    #[command(flatten)]
    pub help: HelpArgs,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub backend: BackendArgs,
}

/// Give a lock back, by its token
///
/// Only what the token stands for is released: a lock that has expired, or that another client holds by now, is left alone,
/// and the exit code is 79. A second release changes nothing. The next waiter is woken at once, unless --min-hold was asked
/// for when the lock was acquired, and is not over.
///
/// A keeper (redlock acquire --for-shell) is told, and ends. A redlock run whose token is released stops its command,
/// gives the lock back when that has ended, and exits with 79; the release waits for it.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub token: TokenArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,

    #[command(flatten)]
    pub help: HelpArgs,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub host: HostArgs,
}

pub(super) static EXTEND: CommandText = CommandText {
    usage: &["redlock extend [OPTIONS] [KEY] [--token TOKEN] [--ttl DURATION]"],
    summary_end: "More options, exit codes and examples: redlock extend --help",
    sections: &[VALUES, EXIT_STATUS, ENVIRONMENT, FILES, EXTEND_EXAMPLES],
};

pub(super) static RELEASE: CommandText = CommandText {
    usage: &["redlock release [OPTIONS] [KEY] [--token TOKEN]"],
    summary_end: "More options, exit codes and examples: redlock release --help",
    sections: &[VALUES, EXIT_STATUS, ENVIRONMENT, FILES, RELEASE_EXAMPLES],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Terms(&[
        ("0", "done"),
        (
            "79",
            "it is not this token's lock (any more): expired, released, broken, or held by another client",
        ),
        ("64", "usage error: no key, or what cannot be a token; or the token is of another number of locks"),
        ("69", "the servers, or a majority of them, cannot be reached or cannot serve now"),
        ("77", "a server refused us: password, permissions; or the keeper on this host is another user's"),
        ("78", "servers or settings that cannot work; or the lock is spread over another number of servers"),
    ])],
};

const ENVIRONMENT: Section = Section {
    title: "Environment",
    blocks: &[
        SOURCES,
        Terms(&[
            ("REDLOCK_KEY", "the key, if none is given; of several, one a line"),
            ("REDLOCK_FENCE", "has a number for each of them, if it is set: a key may have several lines"),
            ("REDLOCK_TOKEN", "the token, if none is given"),
            REDLOCK_CONFIG,
            REDLOCK_PASSWORD,
        ]),
    ],
};

const EXTEND_EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code("redlock extend deploy --token \"$token\" --ttl 15m || exit"),
        Text("After eval \"$(redlock acquire --shell ...)\" the key and the token are known:"),
        Code("redlock extend --ttl 15m"),
    ],
};

const RELEASE_EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code("redlock release deploy --token \"$token\""),
        Text("After eval \"$(redlock acquire --shell ...)\" the key and the token are known:"),
        Code("trap 'redlock release' EXIT"),
    ],
};
