//! Usage errors, each explained in one line. clap's own messages repeat a usage that we did not
//! write, and guess at options that do not exist.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// Commands of other tools, and our equivalents.
const OTHER_COMMANDS: &[(&str, &str)] = &[
    ("exec", "run"),
    ("lock", "run"),
    ("with", "run"),
    ("start", "run"),
    ("ls", "list"),
    ("locks", "list"),
    ("ps", "list"),
    ("show", "status"),
    ("info", "status"),
    ("who", "status"),
    ("check", "status"),
    ("unlock", "release"),
    ("force-unlock", "break"),
    ("steal", "break"),
    ("delete", "break"),
    ("kill", "break"),
    ("clear", "break"),
    ("completion", "completions"),
    ("man", "help"),
    ("version", "--version"),
];

/// Options of other tools, and our equivalents.
const OTHER_OPTIONS: [(&str, &str); 14] = [
    ("--name", "--key"),
    ("--lock", "--key"),
    ("--url", "--redis"),
    ("--host", "--redis"),
    ("--server", "--redis"),
    ("--servers", "--redis"),
    ("--lease", "--ttl"),
    ("--expire", "--ttl"),
    ("--user", "--username"),
    ("--try", "--nonblock"),
    ("--limit", "--slots"),
    ("-f", "--key"),
    ("-t", "--wait"),
    ("-l", "--label"),
];

/// Options that redlock does not have, and why.
const WITHOUT_EQUIVALENT: [(&[&str], &str); 4] = [
    (&["-u", "--unlock"], "the lock is released when the command ends"),
    (&["-o", "--close"], "background processes do not keep the lock, except with --wait-tree"),
    (&["-F", "--no-fork"], "redlock must keep running, to keep the lock alive and to release it"),
    (
        &["--password", "--pass"],
        "all users can see a password on the command line: set REDLOCK_PASSWORD or give --password-file",
    ),
];

/// `command` is the whole declaration, `subcommand` the first argument.
pub(crate) fn explain(error: &Error, command: &Command, subcommand: &str) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.first().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    let (arg, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let option = arg.split([' ', '=']).next().unwrap_or_default();
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    match error.kind() {
        ErrorKind::UnknownArgument if command.find_subcommand(subcommand).is_none() => {
            outside_of_a_command(option, command)
        }
        ErrorKind::UnknownArgument if !option.starts_with('-') => unexpected(&arg, subcommand),
        ErrorKind::UnknownArgument => unknown_option(option, command, subcommand),
        ErrorKind::InvalidSubcommand => unknown_command(&text(ContextKind::InvalidSubcommand), command),
        ErrorKind::InvalidValue if value.is_empty() && !arg.contains('=') => {
            let wanted = arg.split_once(' ').map_or("VALUE", |(_, name)| name.trim_matches(['<', '>', '.']));
            format!("{option} needs a value: {option} {wanted}")
        }
        ErrorKind::InvalidValue => {
            let name = option.trim_matches(['<', '>']);
            match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(valid)) => not_one_of(name, &value, valid),
                _ => format!("{name}: invalid value {value:?}"),
            }
        }
        ErrorKind::TooManyValues => format!("{option} takes no value"),
        ErrorKind::MissingRequiredArgument => {
            format!("SHELL is required: {}", super::text::of(subcommand).usage[0])
        }
        ErrorKind::InvalidUtf8 => "an option or its value is not valid UTF-8".into(),
        _ => error.kind().to_string(),
    }
}

/// "--prefer must be fair, writers or readers, not "x""
pub(crate) fn not_one_of(name: &str, value: &str, valid: &[String]) -> String {
    let valid = match valid {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        valid => valid.concat(),
    };
    format!("{name} must be {valid}, not {value:?}")
}

/// The closest of these words, if any is close.
pub(crate) fn similar<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.chars().count() / 3).clamp(1, 3);
    let distances = candidates.map(|candidate| (strsim::osa_distance(word, candidate), candidate));
    distances.filter(|(distance, _)| *distance <= most).min().map(|(_, candidate)| candidate)
}

fn outside_of_a_command(option: &str, command: &Command) -> String {
    let is_of_run = command.find_subcommand("run").is_some_and(|run| has_option(run, option));
    if is_of_run {
        format!("the command is missing before {option}: redlock run {option} ...")
    } else {
        format!("unknown option {option}")
    }
}

fn unexpected(word: &str, subcommand: &str) -> String {
    format!("unexpected argument {word:?}: {}", super::text::of(subcommand).usage[0])
}

fn unknown_option(option: &str, command: &Command, subcommand: &str) -> String {
    if let Some((_, why)) = WITHOUT_EQUIVALENT.iter().find(|(names, _)| names.contains(&option)) {
        return format!("no option {option}: {why}");
    }
    let known = command.find_subcommand(subcommand);
    let has = |name: &&str| known.is_some_and(|known| has_option(known, name));
    let equivalent = OTHER_OPTIONS.iter().find(|(other, _)| *other == option).map(|(_, ours)| *ours);
    let names = |arg| clap::Arg::get_long(arg).into_iter().chain(arg.get_all_aliases().unwrap_or_default());
    let longs = known.into_iter().flat_map(Command::get_arguments).flat_map(names);
    let similar = || option.strip_prefix("--").and_then(|name| similar(name, longs));
    let meant = equivalent.filter(has).map(ToOwned::to_owned).or_else(|| Some(format!("--{}", similar()?)));
    match meant {
        Some(meant) => format!("unknown option {option}; did you mean {meant}?"),
        None => format!("unknown option {option}"),
    }
}

fn has_option(command: &Command, option: &str) -> bool {
    let is = |arg: &clap::Arg| {
        let long = arg.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long));
        let short = arg.get_short().is_some_and(|short| option == format!("-{short}"));
        long || short
    };
    command.get_arguments().any(is)
}

pub(crate) fn unknown_command(word: &str, command: &Command) -> String {
    let names: Vec<&str> = super::help::visible_subcommands(command).map(Command::get_name).collect();
    let equivalent = OTHER_COMMANDS.iter().find(|(other, _)| *other == word).map(|(_, ours)| *ours);
    match equivalent.or_else(|| similar(word, names.iter().copied())) {
        Some("release") if word == "unlock" => format!(
            "unknown command {word:?}; \"redlock release\" releases a lock by its token, and \"redlock break\" takes \
             it away from its holder"
        ),
        Some(meant) => format!("unknown command {word:?}; did you mean \"redlock {meant}\"?"),
        None => format!("unknown command {word:?}; the commands are {}", names.join(", ")),
    }
}
