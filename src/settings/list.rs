//! The settings of `redlock list`.

use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::sources::Sources;
use super::status::{Location, interval};
use crate::cli::ListArgs;
use crate::exit::Failure;

/// All that `redlock list` needs to know.
#[derive(Debug)]
pub(crate) struct ListSettings {
    /// As a server reads it.
    pub pattern: Option<Vec<u8>>,
    pub location: Location,
    pub json: bool,
    /// Their keys only.
    pub keys: bool,
    /// Again and again, with this between two times.
    pub watch: Option<Duration>,
}

impl ListSettings {
    pub(crate) fn resolve(args: ListArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let ListArgs { pattern, keys, watch, json, verbosity, servers, host, help: _ } = args;
        sources.one_of(&[("keys", keys), ("json", json.json)])?;
        Ok(Self {
            pattern: pattern.map(OsStringExt::into_vec),
            location: Location::resolve(servers, host, &verbosity, sources)?,
            json: json.json,
            keys,
            watch: Some(interval(&watch, sources)?).filter(|_| watch.watch),
        })
    }
}
