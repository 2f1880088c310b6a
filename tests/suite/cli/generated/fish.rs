//! Completion for fish.

use clap::Command;

use super::cli::help::visible_subcommands;
use super::{Values, about, arguments, options, place_options, spellings, takes_key, values};

pub fn script(command: &Command) -> String {
    let mut lines = String::new();
    for subcommand in visible_subcommands(command) {
        let text = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
        let name = subcommand.get_name();
        lines += &format!("complete -c redlock -n __fish_use_subcommand -a {name} -d {}\n", quoted(&text));
    }
    lines += "complete -c redlock -n __fish_use_subcommand -s h -l help -d 'Print help'\n";
    lines += "complete -c redlock -n __fish_use_subcommand -s V -l version -d 'Print the version'\n";
    let mut valued: Vec<String> = Vec::new();
    for subcommand in visible_subcommands(command) {
        let name = subcommand.get_name();
        lines += &format!("\n# redlock {name}\n");
        for option in options(subcommand) {
            let mut line = format!("complete -c redlock -n '__redlock_in_options {name}'");
            for spelling in spellings(option) {
                match spelling.strip_prefix("--") {
                    Some(long) => line += &format!(" -l {long}"),
                    None => line += &format!(" -s {}", &spelling[1..]),
                }
            }
            line += &match values(option) {
                None => String::new(),
                Some(Values::Words(words)) => format!(" -x -a '{}'", words.join(" ")),
                Some(Values::Files) => " -r -F".into(),
                Some(Values::Directories) => " -x -a '(__fish_complete_directories)'".into(),
                Some(Values::Keys) => " -x -a '(__redlock_keys)'".into(),
                Some(Values::Free) => " -x".into(),
            };
            if name == "run" && values(option).is_some() {
                valued.extend(spellings(option));
            }
            lines += &format!("{line} -d {}\n", quoted(&about(option)));
        }
        if takes_key(subcommand) {
            lines += &format!("complete -c redlock -n '__redlock_in_options {name}' -a '(__redlock_keys)'\n");
        }
        let words = arguments(subcommand, command).join(" ");
        if !words.is_empty() {
            lines += &format!("complete -c redlock -n '__redlock_in_options {name}' -a '{words}'\n");
        }
    }
    let (where_valued, where_flags) = place_options(command);
    TEMPLATE
        .replace("@WHERE_VALUED@", &where_valued.join(" "))
        .replace("@WHERE_FLAGS@", &where_flags.join(" "))
        .replace("@VALUED@", &valued.join(" "))
        .replace("@LINES@", lines.trim_end())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

const TEMPLATE: &str = r#"# Completion of redlock for fish. Made from src/cli by tests/suite/cli/generated; do not edit.

# Where, in the words before the cursor, the command begins that is run; 0 if it does not begin there.
function __redlock_command_begins
    set -l words $argv
    set -l valued @VALUED@
    set -l i 3
    while test $i -le (count $words)
        set -l word $words[$i]
        if test "$word" = --
            echo (math $i + 1)
            return
        else if contains -- $word $valued
            set i (math $i + 2)
        else if string match -qr -- '^-[^-]' $word; and contains -- -(string sub -s -1 -- $word) $valued
            set i (math $i + 2)
        else if string match -q -- '-*' $word
            set i (math $i + 1)
        else
            echo $i
            return
        end
    end
    echo 0
end

# Still among the options of this subcommand?
function __redlock_in_options
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test "$words[2]" = $argv[1]; or return 1
    test $argv[1] != run; or test (__redlock_command_begins $words) -eq 0
end

# The keys of locks that are taken, where the options that were typed say. Bounded in time, and silent if there is none.
function __redlock_keys
    set -l words (commandline -opc)
    set -l valued @WHERE_VALUED@
    set -l flags @WHERE_FLAGS@
    set -l where
    set -l i 3
    while test $i -le (count $words)
        set -l word $words[$i]
        if test "$word" = --
            break
        else if contains -- $word $valued; and test $i -lt (count $words)
            set i (math $i + 1)
            set -a where $word $words[$i]
        else if contains -- $word $flags; or contains -- (string split -m 1 = -- $word)[1] $valued; or string match -q -- '-r?*' $word
            set -a where $word
        end
        set i (math $i + 1)
    end
    timeout 2 redlock list --keys --node-timeout 500ms $where 2>/dev/null </dev/null
end

# At the command that is run, or in its arguments?
function __redlock_in_command
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test "$words[2]" = run
end

function __redlock_complete_command
    set -l words (commandline -opc)
    set -l begin (__redlock_command_begins $words)
    set -l command
    if test $begin -gt 0; and test $begin -le (count $words)
        set command (string escape -- $words[$begin..-1])
    end
    set -l current (commandline -ct)
    # Before the command, what begins with a dash is an option of redlock.
    if set -q command[1]; or not string match -q -- '-*' $current
        complete --do-complete=(string join ' ' -- $command $current)
    end
end

complete -c redlock -f
@LINES@
complete -c redlock -n __redlock_in_command -x -a '(__redlock_complete_command)'
"#;
