//! The command line, declared. Values are text here; settings/ parses them, since only there is it known whether
//! a bad one came from the command line, the environment or a config file.
//!
//! The first line of an option's documentation is all that `-h` shows of it; `--help` and the manual page show
//! the whole.

pub(crate) mod help;
pub(crate) mod mistakes;
pub(crate) mod text;

mod acquire;
mod break_lock;
mod doctor;
mod history;
mod list;
mod run;
mod shared;
mod status;
mod tls;
mod token;

use std::ffi::OsString;

use clap::{ArgAction, CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use acquire::AcquireArgs;
pub(crate) use break_lock::BreakArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use history::HistoryArgs;
pub(crate) use list::ListArgs;
pub(crate) use run::{BackendArgs, ModeArgs, OnLost, OnUnavailable, OutputArgs, Prefer, RunArgs, WaitArgs};
pub(crate) use shared::{HelpArgs, HostArgs, KeyArgs, ServerArgs, VerbosityArgs, WatchArgs};
pub(crate) use status::{Check, StatusArgs};
pub(crate) use tls::TlsArgs;
pub(crate) use token::{ExtendArgs, ReleaseArgs, TokenArgs};

/// Options that name or confirm one deed, or say where settings are: no settings themselves.
const NOT_SETTINGS: &[&str] = &[
    "key",
    "command",
    "yes",
    "now",
    "slot",
    "check",
    "token",
    "wait-free",
    "watch-pid",
    "for-shell",
    "shell",
    "watch",
    "json",
    "keys",
    "since",
    "limit",
    "svg",
    "config",
    "help",
    "version",
];

/// Whether this option has a variable and a key in the config file.
pub(crate) fn is_setting(arg: &clap::Arg) -> bool {
    arg.get_long().is_some_and(|long| !NOT_SETTINGS.contains(&long))
}

/// The variable of a setting: REDLOCK_MAX_HOLD for --max-hold.
pub(crate) fn variable(long: &str) -> String {
    format!("REDLOCK_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// Take a lock, run a command while the lock is kept alive, release it
///
/// redlock keeps two runs of a job from overlapping: on this host, or, with one or more Redis servers, on all
/// hosts. It takes the lock, waiting in a fair queue if another run holds it; runs the command while it keeps the
/// lock alive; and releases the lock when the command has ended, for whatever reason.
#[derive(Debug, Parser)]
#[command(name = "redlock", version, propagate_version = true)]
#[command(disable_help_subcommand = true, disable_help_flag = true, disable_version_flag = true)]
#[command(args_override_self = true)]
pub(crate) struct CommandLine<C: Subcommand> {
    #[command(flatten)]
    pub help: HelpArgs,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, global = true)]
    version: Option<bool>,

    #[command(subcommand)]
    pub command: C,
}

pub(crate) type Cli = CommandLine<Command>;

/// The command line as far as a call of this command needs it. Most calls are runs, and to declare the options of all
/// other commands takes longer than to parse the line.
pub(crate) fn declare(command: &str) -> clap::Command {
    #[derive(Subcommand)]
    enum OnlyRun {
        Run(Box<RunArgs>),
    }
    if command == "run" { CommandLine::<OnlyRun>::command() } else { Cli::command() }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    Acquire(Box<AcquireArgs>),
    Extend(Box<ExtendArgs>),
    Release(Box<ReleaseArgs>),
    Status(Box<StatusArgs>),
    List(Box<ListArgs>),
    Doctor(Box<DoctorArgs>),
    History(Box<HistoryArgs>),
    Break(Box<BreakArgs>),
    /// Print the completion script for a shell
    ///
    /// The script completes commands, options and their values, and, after the options of "redlock run", the command
    /// that is to be run with its own arguments.
    Completions {
        #[command(flatten)]
        help: HelpArgs,
        /// Shell
        shell: Shell,
    },
    /// Explain a command and its options
    Help {
        #[command(flatten)]
        help: HelpArgs,
        /// Command to explain
        command: Option<String>,
    },
}

impl Command {
    /// The servers that were named, if the command has to do with any.
    pub(crate) fn servers(&self) -> Option<&ServerArgs> {
        match self {
            Self::Run(args) => Some(&args.servers),
            Self::Acquire(args) => Some(&args.servers),
            Self::Extend(args) => Some(&args.servers),
            Self::Release(args) => Some(&args.servers),
            Self::Status(args) => Some(&args.servers),
            Self::List(args) => Some(&args.servers),
            Self::Doctor(args) => Some(&args.servers),
            Self::History(args) => Some(&args.servers),
            Self::Break(args) => Some(&args.servers),
            Self::Completions { .. } | Self::Help { .. } => None,
        }
    }

    /// The command that is to be run, and its arguments.
    pub(crate) fn argv(&self) -> &[OsString] {
        if let Self::Run(args) = self { &args.argv } else { &[] }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}
