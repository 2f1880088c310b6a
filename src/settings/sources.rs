//! Where a value came from: what was typed beats what was inherited from the environment or the config file.

use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::usage;
use crate::duration;
use crate::exit::Failure;

/// The values that were given, by the names that clap knows them by.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a>(pub &'a ArgMatches);

impl Sources<'_> {
    pub(crate) fn was_typed(self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::CommandLine)
    }

    pub(crate) fn duration(self, id: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
        let parse = |text| duration::parse(text).map_err(|why| usage(format!("{}: {why}", self.name(id))));
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
            number.ok_or_else(|| usage(format!("{} must be {least} to {most}, not {text:?}", self.name(id))))
        };
        text.map(parse).transpose()
    }

    /// What to blame for a bad value.
    fn name(self, id: &str) -> String {
        let option = id.replace('_', "-");
        match self.0.value_source(id) {
            Some(ValueSource::EnvVariable) => format!("REDLOCK_{}", id.to_ascii_uppercase()),
            Some(ValueSource::DefaultValue) => format!("{option} in the config file"),
            _ => format!("--{option}"),
        }
    }

    /// Which of several options that exclude each other is meant.
    pub(crate) fn one_of(self, options: &[(&'static str, bool)]) -> Result<Option<&'static str>, Failure> {
        let set: Vec<&'static str> =
            options.iter().filter(|(_, is_set)| *is_set).map(|(id, _)| *id).collect();
        let typed: Vec<&'static str> = set.iter().copied().filter(|id| self.was_typed(id)).collect();
        let meant = if typed.is_empty() { set } else { typed };
        match meant[..] {
            [a, b, ..] => {
                Err(usage(format!("{} and {} cannot be used together", self.name(a), self.name(b))))
            }
            _ => Ok(meant.first().copied()),
        }
    }
}
