//! `redlock extend` and `redlock release`, which need a token.

use std::ffi::OsString;

use clap::Args;

use super::ONCE;
use super::shared::{BackendArgs, LeaseArgs, VerbosityArgs};
use super::text::Block::{Code, Exits, Terms, Text};
use super::text::{CommandText, FILES, REDLOCK_CONFIG, REDLOCK_PASSWORD, SOURCES, Section, VALUES};

// A grant, and its locks.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Name of the lock [default: $REDLOCK_KEY]
    #[arg(id = "key_argument", value_name = "KEY")]
    pub arguments: Vec<OsString>,

    /// Name of the lock, as an option
    ///
    /// Repeat for a token that covers several locks: all of them must be named (64), unless redlock
    /// run made the token.
    #[arg(id = "key", short, long, value_name = "KEY", hide_long_help = ONCE)]
    pub options: Vec<OsString>,

    /// The token [default: $REDLOCK_TOKEN]
    ///
    /// As redlock acquire printed it, or redlock run set it.
    #[arg(short, long, value_name = "TOKEN", hide_long_help = ONCE)]
    pub token: Option<String>,
}

/// Renew a lock's lease
///
/// The lock is held for --ttl from now on, which may be longer or shorter than the time that was
/// left. A lock that has expired is never taken again: the exit code is 79. Key and token are
/// enough; sharing mode and number of servers are stored with the lock. Of several servers a
/// majority must agree.
///
/// A keeper (redlock acquire --for-shell) continues with the new --ttl. The lease of a redlock run,
/// which renews it itself, is never made shorter.
#[derive(Debug, Args)]
#[command(mut_arg("ttl", |arg| arg
    .help_heading("Options")
    .help("New lease, from now on [default: 30s]")
    .long_help("New lease, from now on [default: 30s]\n\n\
        From 100ms to 365d; \"none\" never expires (with one server, or on this host).")))]
pub(crate) struct ExtendArgs {
    #[command(flatten)]
    pub token: TokenArgs,

    #[command(flatten)]
    pub lease: LeaseArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,

    #[command(flatten)]
    pub backend: BackendArgs,
}

/// Release a lock
///
/// Releases only what the token stands for: a lock that has expired, or that another client holds
/// by now, is left alone, and the exit code is 79. A second release changes nothing. The next
/// waiter is woken at once, unless the lock was taken with a --min-hold that has not passed.
///
/// A keeper (redlock acquire --for-shell) is notified, and exits. A redlock run whose token is
/// released stops its command, releases the lock when the command has ended, and exits with 79;
/// redlock release waits for that.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub token: TokenArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,

    #[command(flatten)]
    pub backend: BackendArgs,
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
    blocks: &[Exits(&[
        (0, "done"),
        (79, "the token does not hold the lock: expired, released, broken, or held by another client"),
        (64, "usage error: no key, not a token, or a token that covers another number of locks"),
        (69, ""),
        (77, "a server refused access: password, permissions; or another user owns the holder on this host"),
        (78, "servers or settings that cannot work; or the lock is on another number of servers"),
    ])],
};

const ENVIRONMENT: Section = Section {
    title: "Environment",
    blocks: &[
        SOURCES,
        Terms(&[
            ("REDLOCK_KEY", "the key, if none is given; of several, one per line"),
            ("REDLOCK_FENCE", "if set, one number for each key: a key may contain line breaks"),
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
        Text("After eval \"$(redlock acquire --shell ...)\" the key and the token are set:"),
        Code("redlock extend --ttl 15m"),
    ],
};

const RELEASE_EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code("redlock release deploy --token \"$token\""),
        Text("After eval \"$(redlock acquire --shell ...)\" the key and the token are set:"),
        Code("trap 'redlock release' EXIT"),
    ],
};
