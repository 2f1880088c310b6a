//! Where a value came from: a typed one beats an inherited one, and a bad value is blamed on its
//! source.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::inherited::{Inherited, Origin};
use crate::duration;
use crate::exit::{Failure, USAGE};

/// Looks up values by the options' IDs in clap.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub matches: &'a ArgMatches,
    pub inherited: &'a Inherited,
}

impl<'a> Sources<'a> {
    pub(crate) fn was_typed(self, id: &str) -> bool {
        self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }

    /// The config files that were read.
    pub(crate) fn config_files(self) -> &'a [PathBuf] {
        &self.inherited.files
    }

    pub(crate) fn duration(self, id: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
        let parse =
            |text| duration::parse(text).map_err(|why| self.bad(id, format!("{}: {why}", self.name(id))));
        text.map(parse).transpose()
    }

    pub(crate) fn whole_number(
        self,
        id: &str,
        text: Option<&str>,
        least: u32,
        most: u32,
    ) -> Result<Option<u32>, Failure> {
        let parse = |text: &str| {
            let number = text.parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| self.must(id, &format!("be {least} to {most}, not {text:?}")))
        };
        text.map(parse).transpose()
    }

    /// "--slots must ...", or the source of the value instead of the option.
    pub(crate) fn must(self, id: &str, rule: &str) -> Failure {
        self.bad(id, format!("{} must {rule}", self.name(id)))
    }

    /// A bad value. The exit code depends on its source.
    pub(crate) fn bad(self, id: &str, message: impl Into<String>) -> Failure {
        Failure::new(self.origin(id).map_or(USAGE, Origin::exit_code), message)
    }

    /// The source to blame for a bad value.
    pub(crate) fn name(self, id: &str) -> String {
        self.origin(id).map_or_else(|| format!("--{}", id.replace('_', "-")), Origin::name)
    }

    /// `None` for a value that was typed or is not set.
    pub(crate) fn origin(self, id: &str) -> Option<&'a Origin> {
        if self.was_typed(id) { None } else { self.inherited.origins.get(id) }
    }

    /// Distance of a value's source from the command line, which is 0; then the environment, then
    /// the files.
    pub(crate) fn distance(self, id: &str) -> usize {
        let files = &self.inherited.files;
        match self.origin(id) {
            None => 0,
            Some(Origin::Variable(_)) => 1,
            Some(Origin::File { path, .. }) => {
                2 + files.len() - files.iter().rposition(|file| file == path).unwrap_or_default()
            }
        }
    }

    /// Which of several exclusive options counts: the one from the nearest source.
    pub(crate) fn one_of(self, options: &[(&'static str, bool)]) -> Result<Option<&'static str>, Failure> {
        let set = || options.iter().filter(|(_, is_set)| *is_set).map(|(id, _)| *id);
        let nearest = set().map(|id| self.distance(id)).min();
        let meant: Vec<&'static str> = set().filter(|id| Some(self.distance(id)) == nearest).collect();
        match meant[..] {
            [a, b, ..] => Err(self.exclusive(a, b)),
            _ => Ok(meant.first().copied()),
        }
    }

    /// Two exclusive options from the same source.
    pub(crate) fn exclusive(self, a: &str, b: &str) -> Failure {
        self.bad(b, format!("{} and {} cannot be used together", self.name(a), self.name(b)))
    }
}
