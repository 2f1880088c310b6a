//! Subcommands and their dispatch.

mod acquire;
mod backend;
mod break_lock;
mod cancel;
mod doctor;
mod estimate;
pub(crate) mod help;
mod history;
mod hold;
mod identity;
mod list;
mod nesting;
mod run;
mod status;
mod take;
mod token;
mod watch;

use std::io::{self, ErrorKind, Write};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::Context;
use clap::ArgMatches;

use crate::cli::{Command, Shell};
use crate::exit::{self, Exit};
use crate::lock::Fault;
use crate::secrets;
use crate::settings::{
    AcquireSettings, BreakSettings, DoctorSettings, ExtendSettings, HistorySettings, Inherited, ListSettings,
    RunSettings, Sources, StatusSettings, TokenSettings, typed_secrets,
};

/// `matches`: of the whole command line.
pub(crate) fn dispatch(
    command: Command,
    matches: &ArgMatches,
    inherited: &Inherited,
) -> anyhow::Result<Exit> {
    let (_, matches) = matches.subcommand().expect("clap requires a subcommand");
    let sources = Sources { matches, inherited };
    if let Some(servers) = command.backend() {
        // If that is impossible (a hardened /proc) the lock is still worth having.
        let _ = secrets::hide(&typed_secrets(servers, sources), command.argv().len());
    }
    match command {
        Command::Run(args) => run::run(&RunSettings::resolve(*args, sources)?),
        Command::Acquire(args) => acquire::run(&AcquireSettings::resolve(*args, sources)?),
        Command::Extend(args) => token::extend(&ExtendSettings::resolve(*args, sources)?),
        Command::Release(args) => token::release(&TokenSettings::of_release(*args, sources)?),
        Command::Status(args) => status::run(&StatusSettings::resolve(*args, sources)?),
        Command::List(args) => list::run(&ListSettings::resolve(*args, sources)?),
        Command::History(args) => history::run(&HistorySettings::resolve(*args, sources)?),
        Command::Doctor(args) => doctor::run(&DoctorSettings::resolve(*args, sources)?),
        Command::Break(args) => break_lock::run(&BreakSettings::resolve(*args, sources)?),
        Command::Completions { shell, .. } => print(completion_script(shell)),
        Command::Help { command, .. } => help::explain(command.as_deref()),
    }
}

/// The scripts in completions/, which tests/suite/cli/generated keeps up to date.
fn completion_script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("../../completions/redlock.bash"),
        Shell::Zsh => include_str!("../../completions/_redlock"),
        Shell::Fish => include_str!("../../completions/redlock.fish"),
        Shell::Elvish => include_str!("../../completions/redlock.elv"),
        Shell::PowerShell => include_str!("../../completions/_redlock.ps1"),
    }
}

/// Print to stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<Exit> {
    ignore_closed_pipe(io::stdout().write_all(text.as_bytes())).context("cannot write to stdout")?;
    Ok(Exit::Code(0))
}

/// A reader such as `head` closes the pipe early: that is no error.
fn ignore_closed_pipe(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// A thread does work that takes a few round trips, and sends its result. `None` if no thread can be
/// started.
fn in_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<Receiver<T>> {
    let (sender, receiver) = channel();
    let started = thread::Builder::new().name(name.into()).spawn(move || drop(sender.send(work())));
    started.is_ok().then_some(receiver)
}

fn exit_code(fault: Fault) -> u8 {
    match fault {
        Fault::Unavailable => exit::UNAVAILABLE,
        Fault::Refused => exit::REFUSED,
        Fault::Unfit => exit::UNFIT,
    }
}
