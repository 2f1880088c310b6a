//! `redlock help`, and the help of every command.

use clap::{Command, CommandFactory};

use super::print;
use crate::child::terminal;
use crate::cli::{Cli, help, mistakes};
use crate::exit::{Exit, Failure, USAGE};

/// `redlock help [COMMAND]`.
pub(super) fn explain(name: Option<&str>) -> anyhow::Result<Exit> {
    let all = Cli::command();
    match name {
        Some(name) if all.find_subcommand(name).is_none() => {
            Err(Failure::new(USAGE, mistakes::unknown_command(name, &all)).into())
        }
        name => print(&explanation(&all, name.unwrap_or_default())),
    }
}

/// Print what `-h` or, in full, `--help` shows for this subcommand; for redlock itself if there is
/// no such subcommand.
pub(crate) fn show(all: &Command, subcommand: &str, in_full: bool) -> anyhow::Result<Exit> {
    let text = if in_full { explanation(all, subcommand) } else { summary(all, subcommand) };
    print(&text)
}

pub(crate) fn summary(all: &Command, subcommand: &str) -> String {
    help::summary(all.find_subcommand(subcommand).unwrap_or(all))
}

fn explanation(all: &Command, subcommand: &str) -> String {
    let width = terminal::width(&std::io::stdout()).unwrap_or(terminal::USUAL_WIDTH);
    help::explanation(all.find_subcommand(subcommand).unwrap_or(all), width)
}
