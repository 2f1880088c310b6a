//! Completions and manual pages are made from the command line's declaration and committed. This test
//! says when they are out of date; `UPDATE=1 cargo test --test suite generated` makes them anew.

// The file is shared, and this test needs only its declarations.
#[allow(dead_code)]
#[path = "../../../src/cli.rs"]
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
        "{file} does not match the command line: run UPDATE=1 cargo test --test suite generated"
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
    check("man/redlock.1", &manual_page(&command).unwrap());
    for subcommand in command.get_subcommands() {
        let name = format!("redlock-{}", subcommand.get_name());
        let titled = subcommand.clone().name(name.clone());
        check(&format!("man/{name}.1"), &manual_page(&titled).unwrap());
    }
}

fn manual_page(command: &Command) -> std::io::Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone()).date("");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let more = command.get_after_long_help().or(command.get_after_help());
    page.extend(sections(&more.map(ToString::to_string).unwrap_or_default()).into_bytes());
    Ok(page)
}

/// What stands behind the options: its headlines as such, its columns as they are.
fn sections(text: &str) -> String {
    let mut roff = String::new();
    for line in text.lines() {
        match line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
            Some("Exit codes") => roff += ".fi\n.SH EXIT STATUS\n.nf\n",
            Some(headline) => roff += &format!(".fi\n.SH {}\n.nf\n", headline.to_uppercase()),
            // What begins with a point or a quote would be an order to the typesetter.
            None => roff += &format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")),
        }
    }
    roff + if text.is_empty() { "" } else { ".fi\n" }
}
