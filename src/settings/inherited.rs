//! Values from the environment and, below it, from the config files.
//!
//! They become the options' defaults, so that clap prefers typed ones. The origin of each is kept,
//! to blame it for a bad value. Flags and choices are checked here, before clap sees them.

use std::any::TypeId;
use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::file::{self, ConfigEntry, ConfigFile};
use crate::cli::{Cli, declare, is_setting, mistakes, variable};
use crate::exit::{Failure, UNFIT, USAGE};

/// Where an inherited value came from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Variable(String),
    File { path: PathBuf, line: usize, key: String },
}

impl Origin {
    /// The beginning of a message.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Variable(name) => name.clone(),
            Self::File { path, line, key } => format!("{}:{line}: {key}", path.display()),
        }
    }

    /// Without the setting's own name.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Variable(name) => name.clone(),
            Self::File { path, line, .. } => format!("{}:{line}", path.display()),
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Variable(_) => USAGE,
            Self::File { .. } => UNFIT,
        }
    }
}

/// The origins of the inherited values of one subcommand.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// By the options' IDs in clap.
    pub(super) origins: HashMap<String, Origin>,
    /// The config files that were read.
    pub(super) files: Vec<PathBuf>,
}

/// The command line with the inherited values of its subcommand.
pub(crate) fn inherit(arguments: &[OsString]) -> Result<(Command, Inherited), Failure> {
    let name = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let command = declare(&name);
    // Help and completions work even if the config file is broken.
    let has_settings = |known: &Command| known.get_arguments().any(|arg| arg.get_id() == "config");
    if !command.find_subcommand(&name).is_some_and(has_settings) {
        return Ok((command, Inherited::default()));
    }
    let named =
        typed_config(&command, arguments).or_else(|| set_variable("REDLOCK_CONFIG").map(PathBuf::from));
    let files = file::read_all(named)?;
    for file in &files {
        let all = Cli::command();
        file.entries.iter().try_for_each(|entry| is_known(entry, &all, file))?;
    }
    let mut inherited =
        Inherited { origins: HashMap::new(), files: files.iter().map(|file| file.path.clone()).collect() };
    let mut failure = None;
    let command = command.mut_subcommand(&name, |known| {
        known.mut_args(|arg| match value_of(&arg, &files) {
            Some((values, origin)) => match checked(&arg, values, &origin) {
                Ok(values) => {
                    inherited.origins.insert(arg.get_id().to_string(), origin);
                    arg.default_values(values)
                }
                Err(bad) => {
                    failure.get_or_insert(bad);
                    arg
                }
            },
            None => arg,
        })
    });
    failure.map_or(Ok((command, inherited)), Err)
}

/// The file of `--config`. It must be known before the line is parsed with inherited values, so a
/// line that contains the option is parsed twice.
fn typed_config(command: &Command, arguments: &[OsString]) -> Option<PathBuf> {
    let is_named = arguments.iter().any(|arg| arg.as_encoded_bytes().starts_with(b"--config"));
    let matches = is_named.then(|| command.clone().try_get_matches_from(arguments).ok()).flatten()?;
    matches.subcommand()?.1.get_one::<PathBuf>("config").cloned()
}

/// An empty variable counts as unset: CI systems often leave variables empty.
fn set_variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn value_of(arg: &Arg, files: &[ConfigFile]) -> Option<(Vec<OsString>, Origin)> {
    let long = arg.get_long().filter(|_| is_setting(arg))?;
    let name = variable(long);
    if let Some(value) = set_variable(&name) {
        return Some((vec![value], Origin::Variable(name)));
    }
    let find = |file: &ConfigFile| {
        let ConfigEntry { key, line, values } = file.entries.iter().find(|entry| entry.key == long)?;
        let is_set = values.iter().any(|value| !value.is_empty());
        let origin = Origin::File { path: file.path.clone(), line: *line, key: key.clone() };
        is_set.then(|| (values.iter().map(OsString::from).collect(), origin))
    };
    files.iter().rev().find_map(find)
}

/// The file may have settings of other subcommands, but not unknown ones.
fn is_known(entry: &ConfigEntry, command: &Command, file: &ConfigFile) -> Result<(), Failure> {
    let arguments =
        || command.get_subcommands().flat_map(Command::get_arguments).filter(|arg| is_setting(arg));
    if arguments().any(|arg| arg.get_long() == Some(&entry.key)) {
        return Ok(());
    }
    let hint = match entry.key.as_str() {
        "password" => "; give password-file, or set REDLOCK_PASSWORD".into(),
        key => mistakes::similar(&key.replace('_', "-"), arguments().filter_map(Arg::get_long))
            .map_or_else(String::new, |meant| format!("; did you mean {meant:?}?")),
    };
    let place = format!("{}:{}", file.path.display(), entry.line);
    Err(Failure::new(UNFIT, format!("{place}: {:?} is not a redlock setting{hint}", entry.key)))
}

/// Checks that clap would not blame on the right source.
fn checked(arg: &Arg, values: Vec<OsString>, origin: &Origin) -> Result<Vec<OsString>, Failure> {
    let bad = |why: &str| Err(Failure::new(origin.exit_code(), why));
    let name = origin.name();
    if values.len() > 1 && !matches!(arg.get_action(), ArgAction::Append) {
        return bad(&format!("{name}: one value is expected, not a list"));
    }
    let is_text = arg.get_value_parser().type_id() == TypeId::of::<String>();
    if is_text && values.iter().any(|value| value.to_str().is_none()) {
        return bad(&format!("{name} is not valid UTF-8"));
    }
    let text = values.first().map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match boolean(&text) {
            Some(flag) => Ok(vec![OsStr::new(if flag { "true" } else { "false" }).to_owned()]),
            None => {
                bad(&format!("{name}: {text:?} is neither true nor false (1/0, true/false, yes/no, on/off)"))
            }
        };
    }
    let choices: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !choices.is_empty() && !choices.contains(&text) {
        return bad(&mistakes::not_one_of(&name, &text, &choices));
    }
    Ok(values)
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}
