//! Parse, resolve, run, exit.

// For the program itself, not for its tests.
#![cfg_attr(not(test), warn(unreachable_pub, clippy::pedantic, clippy::wildcard_enum_match_arm))]
// Prose in comments, names that differ by one letter on purpose, and format! where it reads best.
#![allow(clippy::doc_markdown, clippy::similar_names, clippy::format_push_string)]

/// The entry for the targets in fuzz/.
#[cfg(fuzzing)]
#[path = "../fuzz/src/mod.rs"]
pub mod fuzz;

mod arguments;
mod child;
mod cli;
mod clock;
mod commands;
mod doctor;
mod duration;
mod exit;
mod fault;
mod keeper;
mod lock;
mod moment;
mod poll;
mod report;
mod secrets;
mod settings;
mod world;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use child::signals::exit_by_signal;
use cli::{Cli, mistakes};
use exit::Exit;

/// See Cargo.toml.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[cfg_attr(fuzzing, allow(dead_code, reason = "fuzz targets have their own entry points"))]
fn main() {
    std::panic::set_hook(Box::new(exit_on_panic));
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let exit = start(&arguments).unwrap_or_else(|error| {
        // The message may quote a setting, and any setting may be a URL by mistake.
        report::print(&secrets::without_passwords(&format!("{error:#}")));
        Exit::Code(exit::code_of(&error))
    });
    report::finish();
    match exit {
        Exit::Code(code) => std::process::exit(code.into()),
        Exit::Signal(number) => exit_by_signal(number),
    }
}

fn start(arguments: &[OsString]) -> anyhow::Result<Exit> {
    let (command, inherited) = match settings::inherit(arguments) {
        Ok(inherited) => inherited,
        // Help works even if a config file is broken.
        Err(failure) => {
            return match Cli::command().try_get_matches_from(arguments) {
                Err(error) => not_parsed(&error, arguments),
                Ok(_) => Err(failure.into()),
            };
        }
    };
    let parsed = command
        .try_get_matches_from(arguments)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    match parsed {
        Ok((cli, matches)) => commands::dispatch(cli.command, &matches, &inherited),
        Err(error) => not_parsed(&error, arguments),
    }
}

/// --help and --version are requests; anything else is a usage error.
fn not_parsed(error: &clap::Error, arguments: &[OsString]) -> anyhow::Result<Exit> {
    let declared = Cli::command();
    let subcommand = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    match error.kind() {
        ErrorKind::DisplayHelp => {
            let in_full = arguments.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help");
            commands::help::show(&declared, subcommand, in_full)
        }
        ErrorKind::DisplayVersion => commands::print(concat!("redlock ", env!("CARGO_PKG_VERSION"), "\n")),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            report::print_text(&commands::help::summary(&declared, ""));
            Ok(Exit::Code(exit::USAGE))
        }
        _ => {
            report::print(&secrets::without_passwords(&mistakes::explain(error, &declared, subcommand)));
            let of = declared.find_subcommand(subcommand).map_or("", |_| subcommand);
            report::print_text(&format!(
                "Try 'redlock {of}{}--help'.\n",
                if of.is_empty() { "" } else { " " }
            ));
            Ok(Exit::Code(exit::USAGE))
        }
    }
}

/// A panic in any thread ends the process. Its guardian then kills the command and releases the
/// lock.
fn exit_on_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let location = panic.location().map_or_else(String::new, |at| format!(" ({}:{})", at.file(), at.line()));
    let consequence = if child::command_was_started() { "; the command is stopped" } else { "" };
    report::panicked(&format!("internal error{location}{consequence}. Please report this"));
    std::process::exit(exit::INTERNAL.into())
}
