//! One file for each subcommand, and the way to it.

mod break_lock;
mod completions;
pub(crate) mod help;
mod identity;
mod run;

use std::io::{self, ErrorKind, Write};

use clap::ArgMatches;

use crate::cli::Command;
use crate::exit::{self, Exit};
use crate::lock::Fault;
use crate::secrets;
use crate::settings::{BreakSettings, Inherited, RunSettings, Sources, typed_secrets};

/// `matches` are those of the whole command line.
pub(crate) fn dispatch(
    command: Command,
    matches: &ArgMatches,
    inherited: &Inherited,
) -> anyhow::Result<Exit> {
    let (_, matches) = matches.subcommand().expect("clap requires a subcommand");
    let sources = Sources { matches, inherited };
    match command {
        Command::Run(args) => {
            // Where it cannot be done (a hardened /proc) the lock is still worth having.
            let _ = secrets::hide(&typed_secrets(&args.servers, sources), args.argv.len());
            run::run(&RunSettings::resolve(*args, sources)?)
        }
        Command::Break(args) => {
            let _ = secrets::hide(&typed_secrets(&args.servers, sources), 0);
            let outcome = break_lock::run(BreakSettings::resolve(args, sources)?)?;
            print(&format!("{outcome}\n"))
        }
        Command::Completions { shell, .. } => print(completions::script(shell)),
        Command::Help { command, .. } => help::explain(command.as_deref()),
    }
}

/// Text for stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<Exit> {
    ignore_closed_pipe(io::stdout().write_all(text.as_bytes()))?;
    Ok(Exit::Code(0))
}

/// A reader that closes the pipe after the first lines has had enough.
fn ignore_closed_pipe(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

fn exit_code(fault: Fault) -> u8 {
    match fault {
        Fault::Unavailable => exit::UNAVAILABLE,
        Fault::Refused => exit::REFUSED,
        Fault::Unfit => exit::UNFIT,
    }
}
