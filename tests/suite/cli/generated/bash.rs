//! Completion for bash.

use clap::Command;

use super::cli::help::visible_subcommands;
use super::{Values, arguments, options, spellings, values};

pub fn script(command: &Command) -> String {
    let names: Vec<&str> = visible_subcommands(command).map(Command::get_name).collect();
    let mut cases = String::new();
    for subcommand in visible_subcommands(command) {
        let options = options(subcommand);
        let all: Vec<String> = options.iter().flat_map(|option| spellings(option)).collect();
        let valued = options.iter().filter(|option| values(option).is_some());
        let valued: Vec<String> = valued.flat_map(|option| spellings(option)).collect();
        cases += &format!(
            "        {})\n            options=\"{}\"\n            valued=\"{}\"\n            arguments=\"{}\"\n            ;;\n",
            subcommand.get_name(),
            all.join(" "),
            valued.join(" "),
            arguments(subcommand, command).join(" ")
        );
    }
    let mut kinds = String::new();
    let mut seen: Vec<String> = Vec::new();
    for option in visible_subcommands(command).flat_map(options) {
        let pattern = spellings(option).join(" | ");
        let reply = match values(option) {
            Some(Values::Words(words)) => {
                format!("COMPREPLY=($(compgen -W \"{}\" -- \"$cur\"))", words.join(" "))
            }
            Some(Values::Files) => "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))".to_owned(),
            Some(Values::Directories) => {
                "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\"))".to_owned()
            }
            Some(Values::Free) | None => continue,
        };
        if !seen.contains(&pattern) {
            kinds += &format!("        {pattern}) {reply} ;;\n");
            seen.push(pattern);
        }
    }
    TEMPLATE
        .replace("@COMMANDS@", &names.join(" "))
        .replace("@CASES@", cases.trim_end())
        .replace("@KINDS@", kinds.trim_end())
}

const TEMPLATE: &str = r#"# Completion of redlock for bash. Made from src/cli by tests/suite/cli/generated; do not edit.

# The command that is run, which begins at this word, as if it stood alone.
_redlock_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif [ "$1" -eq "$COMP_CWORD" ]; then
        COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
    else
        compopt -o filenames
        COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    fi
}

# The values of an option.
_redlock_values() {
    local cur=$2
    case $1 in
@KINDS@
    esac
}

_redlock() {
    local cur=${COMP_WORDS[COMP_CWORD]} options valued arguments word option i
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$cur"))
        return
    fi
    case ${COMP_WORDS[1]} in
@CASES@
        *) return ;;
    esac

    # Where options end, and which of them waits for its value. bash makes words of --ttl=5s: "--ttl" "=" "5s".
    option=
    for ((i = 2; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [ -n "$option" ]; then
            if [ "$word" != = ]; then option=; fi
            continue
        fi
        case $word in
            --)
                if [ "${COMP_WORDS[1]}" = run ]; then _redlock_command $((i + 1)); fi
                return
                ;;
            --*) case " $valued " in *" $word "*) option=$word ;; esac ;;
            -*) case " $valued " in *" -${word: -1} "*) option=-${word: -1} ;; esac ;;
            *)
                if [ "${COMP_WORDS[1]}" = run ]; then _redlock_command "$i"; fi
                return
                ;;
        esac
    done

    if [ -n "$option" ]; then
        if [ "$cur" = = ]; then cur=; fi
        _redlock_values "$option" "$cur"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    elif [ "${COMP_WORDS[1]}" = run ]; then
        _redlock_command "$COMP_CWORD"
    else
        COMPREPLY=($(compgen -W "$arguments" -- "$cur"))
    fi
}

complete -F _redlock redlock
"#;
