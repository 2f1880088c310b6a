//! Completions and manual pages are generated from the declaration of the command line and
//! committed. These tests fail when they are out of date; `UPDATE=1 cargo test --test suite
//! generated` regenerates them.

mod bash;
// Shared with the program; these tests need only its declarations.
#[allow(dead_code, unused_imports)]
#[path = "../../../../src/cli/mod.rs"]
mod cli;
#[allow(dead_code)]
#[path = "../../../../src/exit.rs"]
mod exit;
mod fish;
mod man;
mod zsh;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Arg, ArgAction, Command, CommandFactory};

#[track_caller]
fn check(file: &str, wanted: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{file} does not match the command line: run UPDATE=1 cargo test --test suite generated"
    );
}

fn declared() -> Command {
    cli::Cli::command()
}

#[test]
fn completions_match_the_command_line() {
    let command = declared();
    check("completions/redlock.bash", &bash::script(&command));
    check("completions/_redlock", &zsh::script(&command));
    check("completions/redlock.fish", &fish::script(&command));
    check("completions/redlock.elv", &from_clap(clap_complete::Shell::Elvish));
    check("completions/_redlock.ps1", &from_clap(clap_complete::Shell::PowerShell));
}

/// The script of clap's generator: options and subcommands, not the keys of locks. None for nushell:
/// clap's is a declaration, with which nushell (0.108) passes "--" on as "-", and turns options of the
/// command into ours: "redlock run -k a grep -n x" becomes "... grep --nonblock x".
fn from_clap(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut declared(), "redlock", &mut script);
    String::from_utf8(script).expect("UTF-8")
}

#[test]
fn manual_pages_match_the_command_line() {
    let command = declared();
    check("man/redlock.1", &man::page(&command));
    for subcommand in cli::help::visible_subcommands(&command).filter(|known| known.get_name() != "help") {
        check(&format!("man/redlock-{}.1", subcommand.get_name()), &man::page(subcommand));
    }
    check("man/redlock.toml.5", &man::config_page(&command));
}

#[test]
fn the_documents_list_every_option_without_a_variable() {
    let command = declared();
    let all = || command.get_subcommands().flat_map(Command::get_arguments);
    let settings: BTreeSet<&str> =
        all().filter(|arg| cli::is_setting(arg)).filter_map(Arg::get_long).collect();
    let mut once: BTreeSet<&str> = all().filter_map(Arg::get_long).collect();
    once.retain(|long| !settings.contains(long) && !["help", "version"].contains(long));
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md"));
    let document = document.unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    let listed = document.split("These options apply to one invocation, and have neither: ").nth(1).unwrap();
    let listed = listed.split_once('.').unwrap().0;
    let once: Vec<String> = once.iter().map(|long| format!("`--{long}`")).collect();
    assert_eq!(listed, once.join(", "));
}

/// The typesetter prints no warning, and no line is wider than a terminal.
#[test]
fn manual_pages_are_typeset_without_warnings() {
    if !crate::support::processes::is_installed("groff") {
        skip!("groff is not installed");
    }
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man")).unwrap() {
        let path = entry.unwrap().path();
        let set = Process::new("groff")
            .args(["-man", "-Tascii", "-P-c", "-rLL=78n", "-ww"])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&set.stderr), "", "{}", path.display());
        let text = without_overstrikes(&String::from_utf8_lossy(&set.stdout));
        let wide = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{}", path.display());
        assert!(!text.replace("...", "").contains(".."), "{}", path.display());
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            assert!(text.contains(heading), "{heading} is missing in {}", path.display());
        }
    }
}

/// Bold and underlined text is printed twice in the same place.
fn without_overstrikes(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        if c == '\u{8}' {
            plain.pop();
        } else {
            plain.push(c);
        }
    }
    plain
}

/// The completions that a shell offers for the value of an option.
enum Values {
    /// These words.
    Words(Vec<String>),
    Files,
    Directories,
    /// The keys of held locks.
    Keys,
    /// A number, a time, a name: nothing to offer.
    Free,
}

/// `None` for a flag.
fn values(option: &Arg) -> Option<Values> {
    let name = cli::help::value_name(option)?;
    let words: Vec<String> =
        option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    Some(match name {
        _ if !words.is_empty() => Values::Words(words),
        "SIGNAL" => Values::Words("TERM INT HUP QUIT KILL USR1 USR2".split(' ').map(str::to_owned).collect()),
        "FILE" => Values::Files,
        "DIR" => Values::Directories,
        "KEY" => Values::Keys,
        _ => Values::Free,
    })
}

/// "-k" and "--key".
fn spellings(option: &Arg) -> Vec<String> {
    if option.get_id() == "help_short" {
        return vec!["-h".into(), "--help".into()];
    }
    let short = option.get_short().map(|short| format!("-{short}"));
    short.into_iter().chain(option.get_long().map(|long| format!("--{long}"))).collect()
}

fn options(command: &Command) -> Vec<&Arg> {
    let shown = |arg: &&Arg| {
        !arg.is_positional() && !arg.is_hide_set() && !matches!(arg.get_action(), ArgAction::Version)
    };
    command.get_arguments().filter(shown).collect()
}

/// The words that a subcommand accepts as its argument.
fn arguments(command: &Command, all: &Command) -> Vec<String> {
    let positional = command.get_positionals().next();
    let words = positional.map(Arg::get_possible_values).unwrap_or_default();
    match command.get_name() {
        "help" => cli::help::visible_subcommands(all).map(|known| known.get_name().to_owned()).collect(),
        _ => words.iter().map(|value| value.get_name().to_owned()).collect(),
    }
}

/// Whether a subcommand takes a key as its argument.
fn takes_key(command: &Command) -> bool {
    let positional = command.get_positionals().next();
    positional.and_then(cli::help::value_name) == Some("KEY")
}

/// The options that say where the locks are, so that completion passes them to `redlock list`: with
/// a value, and without.
fn place_options(command: &Command) -> (Vec<String>, Vec<String>) {
    let list = command.find_subcommand("list").expect("redlock list");
    let is_place = |option: &&Arg| {
        option.get_help_heading() == Some("Lock backend")
            && !matches!(option.get_id().as_str(), "node_timeout" | "require_server")
    };
    let (valued, flags): (Vec<&Arg>, Vec<&Arg>) =
        options(list).into_iter().filter(is_place).partition(|option| values(option).is_some());
    let all = |options: Vec<&Arg>| options.into_iter().flat_map(spellings).collect();
    (all(valued), all(flags))
}

fn about(option: &Arg) -> String {
    option.get_help().map(ToString::to_string).unwrap_or_default()
}

/// fuzz/ compiles the program's modules in a package of its own.
#[test]
fn the_fuzz_targets_have_the_programs_dependencies() {
    let dependencies = |path: &str| -> Vec<String> {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let tables = text
            .split("\n[")
            .filter(|table| table.starts_with("dependencies]") || table.starts_with("build-dependencies]"));
        let lines = tables.flat_map(str::lines).map(|line| line.split('#').next().unwrap_or_default().trim());
        lines.filter(|line| !line.is_empty() && !line.starts_with("libfuzzer-sys")).map(Into::into).collect()
    };
    let of_program = dependencies("Cargo.toml");
    assert!(of_program.iter().any(|line| line.starts_with("redis =")), "{of_program:?}");
    assert_eq!(dependencies("fuzz/Cargo.toml"), of_program);
}

/// tests/sim compiles some of the program's modules in a package of its own.
#[test]
fn the_simulator_has_the_programs_dependencies() {
    let read =
        |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let of_program = read("Cargo.toml");
    let simulator = read("tests/sim/Cargo.toml");
    let table = simulator.split("[dev-dependencies]").nth(1).unwrap().split("# Only here.").next().unwrap();
    let lines: Vec<&str> = table.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.len() > 5, "{lines:?}");
    for line in lines {
        assert!(of_program.lines().any(|other| other.starts_with(line)), "{line}");
    }
}
