//! Completion for bash.

use clap::Command;

use super::cli::help::visible_subcommands;
use super::{Values, arguments, options, place_options, spellings, takes_key, values};

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
            if takes_key(subcommand) { "KEY".to_owned() } else { arguments(subcommand, command).join(" ") }
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
            Some(Values::Keys) => "_redlock_keys \"$cur\"".to_owned(),
            Some(Values::Free) | None => continue,
        };
        if !seen.contains(&pattern) {
            kinds += &format!("        {pattern}) {reply} ;;\n");
            seen.push(pattern);
        }
    }
    let (valued, flags) = place_options(command);
    TEMPLATE
        .replace("@VALUED@", &valued.join(" | "))
        .replace("@FLAGS@", &flags.join(" | "))
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

# The keys of locks that are taken, where the options that were typed say. Bounded in time, and silent if there is none.
_redlock_keys() {
    local cur=$1 where=() word key i breaks=
    for ((i = 2; i < ${#words[@]} - 1; i++)); do
        word=${words[i]//[\"\']/}
        case $word in
            --) break ;;
            @FLAGS@ | -r?*) where+=("$word") ;;
            @VALUED@) where+=("$word" "${words[++i]//[\"\']/}") ;;
            --*=*) case ${word%%=*} in @VALUED@) where+=("$word") ;; esac ;;
        esac
    done
    # bash replaces only what stands behind a colon.
    if [[ $COMP_WORDBREAKS == *:* ]]; then breaks=${cur%"${cur##*:}"}; fi
    cur=${cur//\\/}
    while IFS= read -r key; do
        if [[ $key == "$cur"* ]]; then COMPREPLY+=("$(printf %q "${key#"$breaks"}")"); fi
    done < <(timeout 2 redlock list --keys --node-timeout 500ms "${where[@]}" 2>/dev/null </dev/null)
}

# The values of an option.
_redlock_values() {
    local cur=$2
    case $1 in
@KINDS@
    esac
}

_redlock() {
    local line=$COMP_LINE rest words=() first=() cur options valued arguments word option= i
    COMPREPLY=()
    # COMP_WORDS, with what bash takes apart at : and = put together again, and where each of them begins.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%[![:blank:]]*}"}
        if [ "$i" -eq 0 ] || [ "$rest" != "$line" ]; then
            words+=("")
            first+=("$i")
        fi
        words[${#words[@]} - 1]+=${COMP_WORDS[i]}
        line=${rest#"${COMP_WORDS[i]}"}
    done
    cur=${words[${#words[@]} - 1]}
    if [ "${#words[@]}" -eq 2 ]; then
        COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$cur"))
        return
    fi
    case ${words[1]} in
@CASES@
        *) return ;;
    esac

    # Where options end, and which of them waits for its value.
    for ((i = 2; i < ${#words[@]} - 1; i++)); do
        word=${words[i]}
        if [ -n "$option" ]; then
            option=
            continue
        fi
        case $word in
            --)
                if [ "${words[1]}" = run ]; then _redlock_command "${first[i + 1]}"; fi
                return
                ;;
            --*) case " $valued " in *" $word "*) option=$word ;; esac ;;
            -*) case " $valued " in *" -${word: -1} "*) option=-${word: -1} ;; esac ;;
            *)
                if [ "${words[1]}" = run ]; then
                    _redlock_command "${first[i]}"
                    return
                fi
                ;;
        esac
    done

    if [[ -z $option && $cur == --*=* ]]; then
        option=${cur%%=*} cur=${cur#*=}
    fi
    if [ -n "$option" ]; then
        _redlock_values "$option" "$cur"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    elif [ "${words[1]}" = run ]; then
        _redlock_command "$COMP_CWORD"
    elif [ "$arguments" = KEY ]; then
        _redlock_keys "$cur"
    else
        COMPREPLY=($(compgen -W "$arguments" -- "$cur"))
    fi
}

complete -F _redlock redlock
"#;
