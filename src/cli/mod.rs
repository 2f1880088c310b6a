//! The declaration of the command line. Values are text here. settings/ parses them, because it
//! knows whether a bad one came from the command line, the environment or a config file.
//!
//! An option is one field, with its name, its help and its values. The first line of its
//! documentation is what `-h` shows; `--help` and the manual page show all of it.

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
mod token;

use std::ffi::OsString;

use clap::{ArgAction, CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use acquire::AcquireArgs;
pub(crate) use break_lock::BreakArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use history::HistoryArgs;
pub(crate) use list::ListArgs;
pub(crate) use run::RunArgs;
pub(crate) use shared::{
    BackendArgs, HelpArgs, KeyArgs, LeaseArgs, LookArgs, ModeArgs, OnLost, OnUnavailable, PreferArg,
    TakeArgs, VerbosityArgs, WaitArgs, WatchArgs,
};
pub(crate) use status::{CheckArg, StatusArgs};
pub(crate) use token::{ExtendArgs, ReleaseArgs, TokenArgs};

/// Marks an option that applies to one invocation: it has no variable and no key in the config
/// file. The mark is a property of clap's own help, which is not used.
const ONCE: bool = true;

/// Whether this option has a variable and a key in the config file.
pub(crate) fn is_setting(arg: &clap::Arg) -> bool {
    arg.get_long().is_some() && !arg.is_hide_long_help_set()
}

/// The variable of a setting: REDLOCK_MAX_HOLD for --max-hold.
pub(crate) fn variable(long: &str) -> String {
    format!("REDLOCK_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// Take a lock, run a command while the lock is kept alive, release it
///
/// redlock keeps two runs of a job from overlapping: on this host, or, with one or more Redis
/// servers, on all hosts. It takes the lock, waiting in a fair queue if another run holds it; runs
/// the command while it keeps the lock alive; and releases the lock when the command has ended, for
/// whatever reason.
#[derive(Debug, Parser)]
#[command(name = "redlock", version, propagate_version = true)]
#[command(disable_help_subcommand = true, disable_help_flag = true, disable_version_flag = true)]
#[command(args_override_self = true)]
pub(crate) struct CommandLine<C: Subcommand> {
    #[command(flatten)]
    pub help: HelpArgs,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, global = true, hide_long_help = ONCE)]
    version: Option<bool>,

    #[command(subcommand)]
    pub command: C,
}

pub(crate) type Cli = CommandLine<Command>;

/// The part of the command line that this command needs. Most calls are runs, and declaring the
/// options of all other commands takes longer than parsing the line.
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
    /// The script completes commands, options and their values, and, after the options of "redlock
    /// run", the command to run and its arguments.
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
    /// Where the lock is; `None` for a command that needs no lock.
    pub(crate) fn backend(&self) -> Option<&BackendArgs> {
        match self {
            Self::Run(args) => Some(&args.take.backend),
            Self::Acquire(args) => Some(&args.take.backend),
            Self::Extend(args) => Some(&args.backend),
            Self::Release(args) => Some(&args.backend),
            Self::Status(args) => Some(&args.look.backend),
            Self::List(args) => Some(&args.look.backend),
            Self::Doctor(args) => Some(&args.look.backend),
            Self::History(args) => Some(&args.look.backend),
            Self::Break(args) => Some(&args.backend),
            Self::Completions { .. } | Self::Help { .. } => None,
        }
    }

    /// The command to run, and its arguments.
    pub(crate) fn argv(&self) -> &[OsString] {
        if let Self::Run(args) = self { &args.argv } else { &[] }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(clippy::enum_variant_names, reason = "PowerShell is a name")]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
    Elvish,
    #[value(name = "powershell")]
    PowerShell,
}
