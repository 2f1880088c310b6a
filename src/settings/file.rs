//! The config file: settings that were neither typed nor set in the environment.
//!
//! Keys are spelled as the long options. They become the options' defaults, so precedence is clap's own:
//! command line, then environment, then file.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap::Command;
use toml::{Table, Value};

use crate::exit::{Failure, UNFIT};

/// Options that name or confirm one deed, and are no habit.
const NOT_SETTINGS: [&str; 4] = ["key", "command", "yes", "help"];
/// The subcommands that have settings; the others work with whatever file.
const WITH_SETTINGS: [&str; 2] = ["run", "break"];

/// The command line with the defaults from the file, if there is one. The file may have settings that this
/// subcommand does not know.
pub(crate) fn apply(command: Command, subcommand: &str) -> Result<Command, Failure> {
    if !WITH_SETTINGS.contains(&subcommand) {
        return Ok(command);
    }
    let command = ignore_empty_variables(command, subcommand);
    let Some((path, text)) = read()? else { return Ok(command) };
    let bad = |why: &str| Failure::new(UNFIT, format!("bad config file {}: {why}", path.display()));
    // Not the whole error: it shows the line, which may hold a password.
    let table: Table = text.parse().map_err(|e: toml::de::Error| bad(e.message()))?;
    table.iter().try_fold(command, |command, (key, value)| {
        let values = toml_values(value).ok_or_else(|| bad(&format!("invalid value for {key:?}")))?;
        let has = |name: &str| {
            let known = command.find_subcommand(name);
            known.is_some_and(|known| known.get_arguments().any(|arg| arg.get_long() == Some(key)))
        };
        if !WITH_SETTINGS.iter().any(|name| has(name)) || NOT_SETTINGS.contains(&key.as_str()) {
            return Err(bad(&format!("{key:?} is not a setting")));
        }
        let is_unset = values == [""];
        if !has(subcommand) || is_unset {
            return Ok(command);
        }
        let id = key.replace('-', "_");
        Ok(command.mut_subcommand(subcommand, |known| known.mut_arg(id, |arg| arg.default_values(values))))
    })
}

/// An empty variable counts as unset, as CI systems like to leave them.
fn ignore_empty_variables(command: Command, subcommand: &str) -> Command {
    command.mut_subcommand(subcommand, |known| {
        known.mut_args(|arg| {
            let is_empty = arg.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty());
            if is_empty { arg.env(None::<&str>) } else { arg }
        })
    })
}

/// The first that exists; the one that was named must.
fn read() -> Result<Option<(PathBuf, String)>, Failure> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = variable("REDLOCK_CONFIG");
    let of_user = variable("XDG_CONFIG_HOME").map(|directory| directory.join("redlock/config.toml"));
    let candidates = match &named {
        Some(path) => vec![path.clone()],
        None => of_user.into_iter().chain([PathBuf::from("/etc/redlock/config.toml")]).collect(),
    };
    for path in candidates {
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(e) if e.kind() == io::ErrorKind::NotFound && named.is_none() => {}
            Err(e) => return Err(cannot_read(&path, &e)),
        }
    }
    Ok(None)
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::new(UNFIT, format!("cannot read the config file {}: {error}", path.display()))
}

/// As they would be typed. `None` for a value that no option takes.
fn toml_values(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Integer(number) => Some(vec![number.to_string()]),
        Value::Float(number) => Some(vec![number.to_string()]),
        Value::Boolean(flag) => Some(vec![flag.to_string()]),
        Value::Array(items) => items.iter().map(|item| item.as_str().map(Into::into)).collect(),
        Value::Datetime(_) | Value::Table(_) => None,
    }
}
