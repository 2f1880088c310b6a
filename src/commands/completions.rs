//! `redlock completions`: the scripts in completions/, which tests/suite/cli/generated keeps up to date.

use crate::cli::Shell;

pub(super) fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("../../completions/redlock.bash"),
        Shell::Zsh => include_str!("../../completions/_redlock"),
        Shell::Fish => include_str!("../../completions/redlock.fish"),
    }
}
