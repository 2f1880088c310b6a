//! The settings of `redlock history`.

use std::path::PathBuf;

use super::one_key;
use super::sources::Sources;
use super::status::Location;
use crate::cli::HistoryArgs;
use crate::exit::Failure;
use crate::moment::Moment;

/// All that `redlock history` needs to know.
#[derive(Debug)]
pub(crate) struct HistorySettings {
    pub key: Vec<u8>,
    pub location: Location,
    /// Only runs that ended after this.
    pub since: Option<Moment>,
    /// Only so many finished runs.
    pub limit: Option<usize>,
    pub form: Form,
}

/// In which form the runs are shown.
#[derive(Debug)]
pub(crate) enum Form {
    Text,
    Json,
    /// Into this file; `-` is stdout.
    Svg(PathBuf),
}

impl HistorySettings {
    pub(crate) fn resolve(args: HistoryArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let HistoryArgs { key, since, limit, svg, json, verbosity, servers, host, help: _ } = args;
        let key = one_key(key)?;
        sources.one_of(&[("svg", svg.is_some()), ("json", json.json)])?;
        let since =
            since.map(|text| text.parse().map_err(|why: String| sources.must("since", &why))).transpose()?;
        let limit = sources.whole_number("limit", limit.as_deref(), 1, u32::MAX)?;
        Ok(Self {
            key,
            since,
            limit: limit.and_then(|limit| limit.try_into().ok()),
            form: match svg {
                Some(path) => Form::Svg(path),
                None if json.json => Form::Json,
                None => Form::Text,
            },
            location: Location::resolve(servers, host, &verbosity, sources)?,
        })
    }
}
