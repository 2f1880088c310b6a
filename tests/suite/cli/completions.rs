//! Completions in the shells themselves: options and values of redlock, then those of the command that is run.

use std::process::Command;

use crate::support::{Pty, wait_until};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/completions");

fn is_installed(shell: &str) -> bool {
    Command::new(shell).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A line that ends where TAB is pressed, and what the shell makes of it.
const COMPLETED: [(&str, &str); 11] = [
    ("redlock ru", "redlock run "),
    ("redlock run --conf", "redlock run --conf"), // --config or --conflict-exit-code
    ("redlock run --nonb", "redlock run --nonblock "),
    ("redlock run --prefer wr", "redlock run --prefer writers "),
    ("redlock run --on-unavailable sk", "redlock run --on-unavailable skip "),
    ("redlock run --signal US", "redlock run --signal USR"),
    ("redlock run --local-dir /et", "redlock run --local-dir /etc/"),
    ("redlock run -nk a -- setpri", "redlock run -nk a -- setpriv "),
    ("redlock run -w 5 --key a setpri", "redlock run -w 5 --key a setpriv "),
    ("redlock run --key a -- cat /etc/hostn", "redlock run --key a -- cat /etc/hostname "),
    ("redlock completions fi", "redlock completions fish "),
];

/// After these there is nothing to offer.
const SILENT: [&str; 4] =
    ["redlock run --ttl ", "redlock run --key ", "redlock run -w ", "redlock break --yes "];

/// Shells paint a line piece by piece, with more blanks than it has.
#[track_caller]
fn shows(shell: &Pty, line: &str) {
    let text = || shell.screen().replace('\u{8}', "").split_whitespace().collect::<Vec<_>>().join(" ");
    wait_until(&format!("{line:?} on the screen"), || text().contains(line));
}

/// Types each line and TAB, then a mark, and compares what stands on the screen; ^U clears the line.
fn check(shell: &Pty) {
    for (number, (typed, completed)) in COMPLETED.iter().enumerate() {
        let mark = format!("MARK{number}");
        shell.type_in(&format!("{typed}\t{mark}"));
        shows(shell, &format!("{completed}{mark}"));
        shell.type_in("\x15");
    }
    for (number, typed) in SILENT.iter().enumerate() {
        let mark = format!("NONE{number}");
        shell.type_in(&format!("{typed}\t\t{mark}"));
        shows(shell, &format!("{typed}{mark}"));
        shell.type_in("\x15");
    }
}

#[test]
fn bash_completes_options_values_and_the_command() {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"])
        .env("PS1", "$ ")
        .env("HISTFILE", "/dev/null")
        .env("TERM", "dumb");
    let shell = Pty::program(bash);
    shell.type_in("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'\n");
    shell.type_in(&format!("source '{DIRECTORY}/redlock.bash'; echo REA''DY\n"));
    shell.wait_for("READY");
    check(&shell);
}

#[test]
fn zsh_completes_options_values_and_the_command() {
    if !is_installed("zsh") {
        skip!("zsh is not installed");
    }
    let mut zsh = Command::new("zsh");
    zsh.args(["-f", "-i"]).env("PS1", "$ ").env("TERM", "dumb");
    let shell = Pty::program(zsh);
    let options =
        "unset zle_bracketed_paste; setopt no_beep no_list_ambiguous no_auto_remove_slash; PROMPT_EOL_MARK=";
    let load = format!("fpath=('{DIRECTORY}' $fpath); autoload -U compinit; compinit -u -D");
    shell.type_in(&format!("{options}; {load}; echo REA''DY\n"));
    shell.wait_for("READY");
    check(&shell);
}

#[test]
fn fish_completes_options_values_and_the_command() {
    if !is_installed("fish") {
        skip!("fish is not installed");
    }
    let home = tempfile::tempdir().unwrap();
    let offered = |line: &str| {
        let script = format!("source '{DIRECTORY}/redlock.fish'; complete -C '{line}'");
        let output = Command::new("fish").args(["-c", &script]).env("HOME", home.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        let offered = String::from_utf8_lossy(&output.stdout).into_owned();
        offered.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (typed, completed) in COMPLETED {
        let word = completed.trim_end().rsplit(' ').next().unwrap();
        let offered = offered(typed);
        assert!(offered.iter().any(|offer| offer.starts_with(word)), "{typed:?}: {offered:?}");
    }
    for typed in SILENT.iter().filter(|typed| !typed.contains("break")) {
        assert_eq!(offered(typed), Vec::<String>::new(), "{typed:?}");
    }
    assert!(offered("redlock run --key a -- tar --creat").contains(&"--create".to_owned()));
    assert!(
        offered("redlock run --key a -- tar --ttl").is_empty(),
        "redlock's options end before the command"
    );
}
