//! `redlock completions`: the scripts in completions/, which tests/generated.rs keeps up to date.

use std::io::Write;

use crate::cli::Shell;

pub(super) fn print(shell: Shell) -> std::io::Result<()> {
    let script = match shell {
        Shell::Bash => include_str!("../../completions/redlock.bash"),
        Shell::Zsh => include_str!("../../completions/_redlock"),
        Shell::Fish => include_str!("../../completions/redlock.fish"),
    };
    std::io::stdout().write_all(script.as_bytes())
}
