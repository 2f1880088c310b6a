//! Completions and manual pages are made from the command line's declaration and committed. This test
//! says when they are out of date; `UPDATE=1 cargo test --test generated` makes them anew.

// The file is shared, and this test needs only its declarations.
#[allow(dead_code)]
#[path = "../src/cli.rs"]
mod cli;

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};

fn check(file: &str, wanted: &[u8]) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{file} does not match the command line: run UPDATE=1 cargo test --test generated"
    );
}

/// What people see must not depend on the environment the test runs in.
fn declared() -> Command {
    let mut command = cli::Cli::command();
    command.build();
    command
}

#[test]
fn completions_match_the_command_line() {
    for (shell, file) in [
        (Shell::Bash, "completions/redlock.bash"),
        (Shell::Zsh, "completions/_redlock"),
        (Shell::Fish, "completions/redlock.fish"),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut cli::Cli::command(), "redlock", &mut script);
        check(file, &script);
    }
}

#[test]
fn manual_pages_match_the_command_line() {
    let command = declared();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).date("").render(&mut page).unwrap();
    check("man/redlock.1", &page);
    for subcommand in command.get_subcommands() {
        let name = format!("redlock-{}", subcommand.get_name());
        let mut page = Vec::new();
        let titled = subcommand.clone().name(name.clone());
        clap_mangen::Man::new(titled).date("").render(&mut page).unwrap();
        check(&format!("man/{name}.1"), &page);
    }
}
