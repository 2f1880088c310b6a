//! Completion for zsh.

use clap::{Arg, Command};

use super::cli::help::{value_name, visible_subcommands};
use super::{Values, about, arguments, options, place_options, spellings, takes_key, values};

pub fn script(command: &Command) -> String {
    let mut commands = String::new();
    let mut cases = String::new();
    for subcommand in visible_subcommands(command) {
        let name = subcommand.get_name();
        let text = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
        commands += &format!("        '{name}:{}'\n", quoted(&text));
        let mut specifications: Vec<String> = options(subcommand).into_iter().map(specification).collect();
        let words = arguments(subcommand, command).join(" ");
        specifications.extend(match name {
            "run" => {
                vec!["'(-):command: _command_names -e'".to_owned(), "'*::arguments: _normal'".to_owned()]
            }
            "doctor" => Vec::new(),
            _ if takes_key(subcommand) => vec!["'1::key:_redlock_keys'".to_owned()],
            _ => vec![format!("'1:{name}:({words})'")],
        });
        cases += &format!("        {name})\n            _arguments -s -S : \\\n");
        cases += &format!("                {} && ret=0\n", specifications.join(" \\\n                "));
        cases += "            ;;\n";
    }
    let (valued, flags) = place_options(command);
    TEMPLATE
        .replace("@COMMANDS@", commands.trim_end())
        .replace("@CASES@", cases.trim_end())
        .replace("@VALUED@", &valued.join(" | "))
        .replace("@FLAGS@", &flags.join(" | "))
}

/// In the syntax of _arguments. An option that may be given once excludes its other spelling.
fn specification(option: &Arg) -> String {
    let spellings = spellings(option);
    let text = quoted(&about(option)).replace('[', "\\[").replace(']', "\\]");
    let action = match values(option) {
        None => String::new(),
        Some(kind) => {
            let name = value_name(option).unwrap_or_default().to_lowercase();
            let action = match kind {
                Values::Words(words) => format!("({})", words.join(" ")),
                Values::Files => "_files".into(),
                Values::Directories => "_files -/".into(),
                Values::Keys => "_redlock_keys".into(),
                Values::Free => " ".into(),
            };
            format!(":{name}:{action}")
        }
    };
    let is_help = spellings[0] == "-h";
    let repeats = matches!(option.get_action(), clap::ArgAction::Append);
    let excluded = match (is_help, repeats) {
        (true, _) => "(- *)".to_owned(),
        (_, true) => "*".to_owned(),
        _ => format!("({})", spellings.join(" ")),
    };
    // "--ttl=5s" and "--ttl 5s"; "-w5s" and "-w 5s".
    let suffix = |name: &String| match values(option) {
        None => name.clone(),
        Some(_) if name.starts_with("--") => format!("{name}="),
        Some(_) => format!("{name}+"),
    };
    match &spellings[..] {
        [only] => format!("'{excluded}{}[{text}]{action}'", suffix(only)),
        several => {
            let list: Vec<String> = several.iter().map(suffix).collect();
            format!("'{excluded}'{{{}}}'[{text}]{action}'", list.join(","))
        }
    }
}

/// Inside single quotes, where a colon would end a part of the specification.
fn quoted(text: &str) -> String {
    text.replace('\'', "'\\''").replace(':', "\\:")
}

const TEMPLATE: &str = r#"#compdef redlock
# Completion of redlock for zsh. Made from src/cli by tests/suite/cli/generated; do not edit.

_redlock_commands() {
    local -a commands=(
@COMMANDS@
    )
    _describe -t commands command commands
}

# The keys of locks that are taken, where the options that were typed say. Bounded in time, and silent if there is none.
_redlock_keys() {
    local -a keys where
    local i word
    for ((i = 2; i < CURRENT; i++)); do
        word=${(Q)words[i]}
        case $word in
            (--) break ;;
            (@FLAGS@ | -r?*) where+=("$word") ;;
            (@VALUED@) where+=("$word" "${(Q)words[++i]}") ;;
            (--*=*) case ${word%%=*} in (@VALUED@) where+=("$word") ;; esac ;;
        esac
    done
    keys=(${(f)"$(timeout 2 redlock list --keys --node-timeout 500ms $where 2>/dev/null </dev/null)"})
    (($#keys)) && compadd -a keys
}

_redlock() {
    local curcontext=$curcontext state line ret=1
    typeset -A opt_args

    _arguments -C -S : \
        '(- *)'{-h,--help}'[Print help]' \
        '(- *)'{-V,--version}'[Print the version]' \
        '1: :_redlock_commands' \
        '*:: :->arguments' && ret=0

    [[ $state == arguments ]] || return ret
    curcontext=${curcontext%:*:*}:redlock-$words[1]:
    case $words[1] in
@CASES@
    esac
    return ret
}

if [[ $funcstack[1] == _redlock ]]; then
    _redlock "$@"
else
    compdef _redlock redlock
fi
"#;
