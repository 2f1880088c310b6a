//! Parse, resolve, run, exit.

mod child;
mod cli;
mod commands;
mod config;
mod exit;
mod keeper;
mod lock;
mod report;
mod secrets;
mod settings;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Command};
use exit::{Exit, Failure};
use settings::{BreakSettings, RunSettings};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(stop_everything));
    let exit = start().unwrap_or_else(|error| {
        report::print(&format!("{error:#}"));
        Exit::Code(error.downcast_ref::<Failure>().map_or(exit::INTERNAL, |failure| failure.code))
    });
    exit.finish()
}

fn start() -> anyhow::Result<Exit> {
    // Help and completions are there also for those whose config file is broken.
    let subcommand = std::env::args_os().nth(1).and_then(|name| name.into_string().ok()).unwrap_or_default();
    let command = config::apply(Cli::command(), &subcommand)?;
    let parsed =
        command.try_get_matches().and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage(&error),
    };
    match (cli.command, matches.subcommand()) {
        (Command::Run(args), Some((_, matches))) => {
            // Where it cannot be done (a hardened /proc) the lock is still worth having.
            let _ = secrets::hide(&settings::typed_secrets(&args.servers, matches));
            commands::run::run(&RunSettings::resolve(*args, matches)?)
        }
        (Command::Break(args), Some((_, matches))) => {
            let _ = secrets::hide(&settings::typed_secrets(&args.servers, matches));
            let done = commands::break_open::break_open(BreakSettings::resolve(args, matches)?)?;
            ignore_closed_pipe(writeln!(std::io::stdout(), "{done}"))?;
            Ok(Exit::Code(0))
        }
        (Command::Completions { shell }, _) => {
            ignore_closed_pipe(commands::completions::print(shell))?;
            Ok(Exit::Code(0))
        }
        (Command::Run(_) | Command::Break(_), None) => unreachable!("clap has found the subcommand"),
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

/// Whoever reads only the first lines has had enough.
fn ignore_closed_pipe(written: std::io::Result<()>) -> std::io::Result<()> {
    written.or_else(|error| if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// A panic, in whatever thread: nobody can be trusted with the lock any more, so the command must go first.
fn stop_everything(panic: &std::panic::PanicHookInfo<'_>) {
    let consequence = if child::stop_in_emergency() { "; the command was stopped" } else { "" };
    let place = panic.location().map_or_else(String::new, |at| format!(" ({}:{})", at.file(), at.line()));
    report::print(&format!("internal error{place}{consequence}. Please report this"));
    std::process::exit(exit::INTERNAL.into())
}
