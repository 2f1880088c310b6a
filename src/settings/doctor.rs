//! Settings of `redlock doctor`: those of a run, and where they came from.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

use super::backend::{Backend, Location, directory};
use super::sources::Sources;
use super::verbosity;
use crate::cli::{Cli, DoctorArgs, is_setting, variable};
use crate::exit::Failure;

/// Variables that are not settings: those that a run sets for its command, and passwords.
const OTHER_VARIABLES: [&str; 9] = [
    "REDLOCK_CONFIG",
    "REDLOCK_PASSWORD",
    "REDLOCK_SENTINEL_PASSWORD",
    "REDLOCK_KEY",
    "REDLOCK_TOKEN",
    "REDLOCK_FENCE",
    "REDLOCK_ATTEMPTS",
    "REDLOCK_HELD",
    "REDLOCK_SLOT",
];
/// Those of them that decide which settings are read, or how to log in.
const SECRETS: [&str; 3] = ["REDLOCK_CONFIG", "REDLOCK_PASSWORD", "REDLOCK_SENTINEL_PASSWORD"];

/// Settings that do not affect locks.
const OF_OUTPUT: [&str; 3] = ["quiet", "verbose", "json"];

#[derive(Debug)]
pub(crate) struct DoctorSettings {
    pub location: Location,
    /// Where locks on this host are, or would be.
    pub directory: Option<PathBuf>,
    pub json: bool,
    pub origins: Origins,
}

/// Where the settings came from.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    /// Each setting, and its source.
    pub settings: Vec<(String, String)>,
    /// Variables that have an effect.
    pub variables: Vec<String>,
    /// Variables that look like settings but are not.
    pub unknown_variables: Vec<String>,
}

impl DoctorSettings {
    pub(crate) fn resolve(args: DoctorArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let DoctorArgs { lease, look } = args;
        let backend = Backend::resolve(&look.backend, &lease, sources)?;
        let directory = directory(&look.backend).ok();
        let verbosity = verbosity(&look.verbosity, sources)?;
        let mut location = Location::new(backend, &look.backend, verbosity, sources)?;
        location.check_names(&[], sources)?;
        for warning in &mut location.warnings {
            *warning = warning.trim_start_matches("warning: ").to_owned();
        }
        Ok(Self { location, directory, json: look.json, origins: origins(sources) })
    }
}

fn origins(sources: Sources<'_>) -> Origins {
    let declared = Cli::command();
    let doctor = declared.find_subcommand("doctor").expect("a subcommand");
    let decides = |arg: &&Arg| is_setting(arg) && !OF_OUTPUT.contains(&arg.get_id().as_str());
    let settings = doctor.get_arguments().filter(decides).filter_map(|arg| {
        let id = arg.get_id().as_str();
        let name = arg.get_long()?.to_owned();
        if sources.was_typed(id) {
            return Some((name, "command line".to_owned()));
        }
        sources.origin(id).map(|origin| (name, origin.place()))
    });
    let known: BTreeSet<String> = declared
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .filter(|arg| is_setting(arg))
        .filter_map(|arg| arg.get_long().map(variable))
        .collect();
    let (mut variables, mut unknown_variables) = (Vec::new(), Vec::new());
    for (name, value) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if !name.starts_with("REDLOCK_") || value.is_empty() {
            continue;
        }
        if known.contains(&name) || SECRETS.contains(&name.as_str()) {
            variables.push(name);
        } else if !OTHER_VARIABLES.contains(&name.as_str()) {
            unknown_variables.push(name);
        }
    }
    variables.sort();
    unknown_variables.sort();
    Origins { settings: settings.collect(), variables, unknown_variables }
}
