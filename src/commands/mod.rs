//! One file for each subcommand, and the way to it.

mod break_lock;
mod completions;
mod identity;
mod run;

use std::io::{self, ErrorKind, Write};

use clap::ArgMatches;

use crate::cli::Command;
use crate::exit::{self, Exit};
use crate::lock::Fault;
use crate::secrets;
use crate::settings::{BreakSettings, RunSettings, typed_secrets};

/// `matches` are those of the whole command line.
pub(crate) fn dispatch(command: Command, matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (_, matches) = matches.subcommand().expect("clap requires a subcommand");
    match command {
        Command::Run(args) => {
            // Where it cannot be done (a hardened /proc) the lock is still worth having.
            let _ = secrets::hide(&typed_secrets(&args.servers, matches));
            run::run(&RunSettings::resolve(*args, matches)?)
        }
        Command::Break(args) => {
            let _ = secrets::hide(&typed_secrets(&args.servers, matches));
            let outcome = break_lock::run(BreakSettings::resolve(args, matches)?)?;
            ignore_closed_pipe(writeln!(io::stdout(), "{outcome}"))?;
            Ok(Exit::Code(0))
        }
        Command::Completions { shell } => {
            ignore_closed_pipe(completions::print(shell))?;
            Ok(Exit::Code(0))
        }
    }
}

/// A reader that closes the pipe after the first lines has had enough.
pub(crate) fn ignore_closed_pipe(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

fn exit_code(fault: Fault) -> u8 {
    match fault {
        Fault::Unavailable => exit::UNAVAILABLE,
        Fault::Refused => exit::REFUSED,
        Fault::Unfit => exit::UNFIT,
    }
}
