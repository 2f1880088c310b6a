//! Parse, resolve, run, exit.

// Of the program itself, not of its tests.
#![cfg_attr(not(test), warn(unreachable_pub, clippy::pedantic, clippy::wildcard_enum_match_arm))]
// Prose in comments, names that differ by a letter on purpose, and format! where it reads best.
#![allow(clippy::doc_markdown, clippy::similar_names, clippy::format_push_string)]

mod child;
mod cli;
mod clock;
mod commands;
mod duration;
mod exit;
mod keeper;
mod lock;
mod report;
mod secrets;
mod settings;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use child::signals::exit_by_signal;
use cli::Cli;
use commands::ignore_closed_pipe;
use exit::{Exit, Failure};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(stop_everything));
    let exit = start().unwrap_or_else(|error| {
        report::print(&format!("{error:#}"));
        Exit::Code(error.downcast_ref::<Failure>().map_or(exit::INTERNAL, |failure| failure.code))
    });
    report::finish();
    match exit {
        Exit::Code(code) => code.into(),
        Exit::Signal(number) => exit_by_signal(number),
    }
}

fn start() -> anyhow::Result<Exit> {
    // Help and completions work even if the config file is broken.
    let subcommand = std::env::args_os().nth(1).and_then(|name| name.into_string().ok()).unwrap_or_default();
    let command = settings::apply_config_file(Cli::command(), &subcommand)?;
    let parsed =
        command.try_get_matches().and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    match parsed {
        Ok((cli, matches)) => commands::dispatch(cli.command, &matches),
        Err(error) => usage(&error),
    }
}

/// --help and --version are answers; anything else is a mistake in the call.
fn usage(error: &clap::Error) -> anyhow::Result<Exit> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        ignore_closed_pipe(error.print())?;
        return Ok(Exit::Code(0));
    }
    let text = error.render().to_string();
    let text = secrets::without_passwords(text.trim_end().trim_start_matches("error: "));
    text.lines().filter(|line| !line.is_empty()).for_each(report::print);
    Ok(Exit::Code(exit::USAGE))
}

/// A panic, in whatever thread: no thread can be trusted with the lock any more, so the command must go first.
fn stop_everything(panic: &std::panic::PanicHookInfo<'_>) {
    let consequence = if child::stop_in_emergency() { "; the command was stopped" } else { "" };
    let location = panic.location().map_or_else(String::new, |at| format!(" ({}:{})", at.file(), at.line()));
    report::print(&format!("internal error{location}{consequence}. Please report this"));
    report::finish();
    std::process::exit(exit::INTERNAL.into())
}
