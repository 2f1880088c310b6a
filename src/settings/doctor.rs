//! What `redlock doctor` needs to know: the settings of a run, and where they came from.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

use super::backend::{Backend, directory};
use super::sources::Sources;
use super::{prefix, verbosity};
use crate::cli::{Cli, DoctorArgs, is_setting, variable};
use crate::exit::Failure;
use crate::lock::Mode;
use crate::report::Verbosity;

/// Variables that are no options: what a run gives its command, and passwords.
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
/// Those of them that decide where locks are, or how to log in.
const SECRETS: [&str; 3] = ["REDLOCK_CONFIG", "REDLOCK_PASSWORD", "REDLOCK_SENTINEL_PASSWORD"];

/// Settings that do not matter for locks.
const OF_OUTPUT: [&str; 2] = ["quiet", "verbose"];

#[derive(Debug)]
pub(crate) struct DoctorSettings {
    pub backend: Backend,
    pub prefix: String,
    /// Where locks on this host are, or would be.
    pub directory: Option<PathBuf>,
    pub verbosity: Verbosity,
    pub json: bool,
    pub origins: Origins,
    /// What is wrong with the settings without making them unusable.
    pub warnings: Vec<String>,
}

/// Where the settings came from.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    pub config_files: Vec<PathBuf>,
    /// An option or a setting, and its source.
    pub settings: Vec<(String, String)>,
    /// Variables that are set and count.
    pub variables: Vec<String>,
    /// Variables that look like settings and are none.
    pub unknown_variables: Vec<String>,
}

impl DoctorSettings {
    pub(crate) fn resolve(args: DoctorArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let DoctorArgs { json, quiet, verbose, ttl, servers, backend, help: _ } = args;
        let local_directory = backend.host.local_dir.clone();
        let backend = Backend::resolve(&servers, backend, ttl.as_deref(), &Mode::Exclusive, sources)?;
        let prefix = prefix(servers.prefix.clone());
        backend.check_names(&prefix, &[], sources)?;
        let directory = directory(local_directory).ok();
        let warnings = backend.warnings(&servers, sources);
        Ok(Self {
            directory,
            prefix,
            verbosity: verbosity(quiet, verbose, sources)?,
            json: json.json,
            origins: origins(sources),
            warnings: warnings.iter().map(|text| text.trim_start_matches("warning: ").to_owned()).collect(),
            backend,
        })
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
    Origins {
        config_files: sources.config_files().to_vec(),
        settings: settings.collect(),
        variables,
        unknown_variables,
    }
}
