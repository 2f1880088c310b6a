//! One file for each subcommand, and the way to it.

mod acquire;
mod bearer;
mod break_lock;
mod completions;
mod doctor;
mod environment;
mod extend;
pub(crate) mod help;
mod history;
mod identity;
mod list;
mod look;
mod outer;
mod release;
mod run;
mod status;
mod take;
mod watch;

use std::io::{self, ErrorKind, Write};

use clap::ArgMatches;

use crate::cli::Command;
use crate::exit::{self, Exit};
use crate::lock::{Fault, Server};
use crate::secrets;
use crate::settings::{
    AcquireSettings, BreakSettings, DoctorSettings, ExtendSettings, HistorySettings, Inherited, ListSettings,
    RunSettings, Sources, StatusSettings, TokenSettings, typed_secrets,
};

/// `matches` are those of the whole command line.
pub(crate) fn dispatch(
    command: Command,
    matches: &ArgMatches,
    inherited: &Inherited,
) -> anyhow::Result<Exit> {
    let (_, matches) = matches.subcommand().expect("clap requires a subcommand");
    let sources = Sources { matches, inherited };
    if let Some(servers) = command.servers() {
        // Where it cannot be done (a hardened /proc) the lock is still worth having.
        let _ = secrets::hide(&typed_secrets(servers, sources), command.argv().len());
    }
    match command {
        Command::Run(args) => run::run(&RunSettings::resolve(*args, sources)?),
        Command::Acquire(args) => acquire::run(&AcquireSettings::resolve(*args, sources)?),
        Command::Extend(args) => extend::run(&ExtendSettings::resolve(*args, sources)?),
        Command::Release(args) => release::run(&TokenSettings::of_release(*args, sources)?),
        Command::Status(args) => status::run(&StatusSettings::resolve(*args, sources)?),
        Command::List(args) => list::run(&ListSettings::resolve(*args, sources)?),
        Command::History(args) => history::run(&HistorySettings::resolve(*args, sources)?),
        Command::Doctor(args) => doctor::run(&DoctorSettings::resolve(*args, sources)?),
        Command::Break(args) => break_lock::run(&BreakSettings::resolve(*args, sources)?),
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

fn format_servers(servers: &[Server]) -> String {
    let names: Vec<String> = servers.iter().map(Server::to_string).collect();
    match names.len() {
        1 => names.concat(),
        count => format!("{count} servers ({})", names.join(", ")),
    }
}
