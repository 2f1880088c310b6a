use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{assert_printable, is_only_password, memory};
use crate::cli::{Cli, Command, mistakes};
use crate::exit::Failure;
use crate::secrets;
use crate::settings::{BreakSettings, RunSettings, Sources, inherit};

/// The path where redlock finds the input as its config file.
static FILE: LazyLock<File> = LazyLock::new(|| {
    let file = File::from(memfd_create(c"config", MFdFlags::empty()).expect("memfd"));
    // SAFETY: the fuzzer runs targets in one thread.
    unsafe { std::env::set_var("REDLOCK_CONFIG", format!("/proc/self/fd/{}", file.as_raw_fd())) };
    file
});

/// The config file, up to the settings of a command.
pub fn config(data: &[u8]) {
    FILE.set_len(0).and_then(|()| FILE.write_all_at(data, 0)).expect("written");
    let is_secret = is_only_password(&String::from_utf8_lossy(data));
    for arguments in
        [&["redlock", "run", "--key", "k", "--", "true"][..], &["redlock", "break", "--key", "k"]]
    {
        let settings = memory::at_most(4 * 1024 * 1024 + 64 * data.len(), || resolve(arguments));
        if let Err(message) = settings {
            assert_printable(&message, is_secret);
        }
    }
}

/// As in main.rs; the error as it is printed.
fn resolve(arguments: &[&str]) -> Result<(), String> {
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let failed = |failure: Failure| secrets::without_passwords(&failure.to_string());
    let (command, inherited) = inherit(&arguments).map_err(failed)?;
    let usage = |error: clap::Error| {
        secrets::without_passwords(&mistakes::explain(
            &error,
            &Cli::command(),
            &arguments[1].to_string_lossy(),
        ))
    };
    let matches = command.try_get_matches_from(&arguments).map_err(usage)?;
    let cli = Cli::from_arg_matches(&matches).map_err(usage)?;
    let (_, matches) = matches.subcommand().expect("one was given");
    let sources = Sources { matches, inherited: &inherited };
    let resolved = match cli.command {
        Command::Run(args) => RunSettings::resolve(*args, sources).map(drop),
        Command::Break(args) => BreakSettings::resolve(*args, sources).map(drop),
        _ => Ok(()),
    };
    resolved.map_err(failed)
}
