//! What a word on the command line means: durations, numbers, signals.

use std::ffi::OsStr;
use std::str::FromStr;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use nix::sys::signal::Signal;

use super::usage;
use crate::exit::Failure;

/// Longer than anyone will wait, and far from the edge of the arithmetic.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What was given, and whether it was typed: that beats what was inherited.
#[derive(Clone, Copy)]
pub struct Given<'a>(pub &'a ArgMatches);

impl Given<'_> {
    pub fn was_typed(self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::CommandLine)
    }

    /// Set but empty, as CI systems like to leave variables, is not set; typed but empty is a slip.
    pub fn text(self, id: &str, text: Option<String>) -> Option<String> {
        text.filter(|text| self.was_typed(id) || !text.is_empty())
    }

    pub fn duration(self, id: &str, text: Option<String>) -> Result<Option<Duration>, Failure> {
        self.text(id, text).map(|text| duration(id, &text)).transpose()
    }

    /// One of several words, as clap has read it.
    pub fn choice<T>(self, id: &str, value: Option<T>) -> Result<Option<T>, Failure> {
        let mut raw = self.0.get_raw(id).into_iter().flatten();
        if self.was_typed(id) && raw.any(OsStr::is_empty) {
            return Err(usage(format!("{} must not be empty", flag(id))));
        }
        Ok(value)
    }

    /// Which of the wishes that exclude each other is meant: what was typed beats what was inherited.
    pub fn one_of(self, wishes: &[(&'static str, bool)]) -> Result<Option<&'static str>, Failure> {
        let set: Vec<&'static str> = wishes.iter().filter(|(_, is_set)| *is_set).map(|(id, _)| *id).collect();
        let typed: Vec<&'static str> = set.iter().copied().filter(|id| self.was_typed(id)).collect();
        let name: fn(&str) -> String = if typed.is_empty() { variable } else { flag };
        let meant = if typed.is_empty() { set } else { typed };
        match meant[..] {
            [a, b, ..] => Err(usage(format!("{} and {} contradict each other: give one", name(a), name(b)))),
            _ => Ok(meant.first().copied()),
        }
    }
}

/// "TERM", "SIGTERM" or "15".
pub fn signal(text: &str) -> Result<Signal, Failure> {
    let named = |name: &str| Signal::from_str(&format!("SIG{}", name.trim_start_matches("SIG"))).ok();
    let number = text.parse::<i32>().ok().and_then(|number| Signal::try_from(number).ok());
    match number.or_else(|| named(&text.to_ascii_uppercase())) {
        Some(signal) if signal != Signal::SIGSTOP => Ok(signal),
        _ => {
            Err(usage(format!("--signal must be a signal that ends a command, as TERM or 15, not {text:?}")))
        }
    }
}

/// `id` is the option's name as clap knows it.
fn duration(id: &str, text: &str) -> Result<Duration, Failure> {
    let flag = flag(id);
    match parse_duration(text) {
        Some(duration) if duration <= LONGEST => Ok(duration),
        Some(_) => Err(usage(format!("{flag} is too long: {text:?}"))),
        None => {
            Err(usage(format!("{flag}: {text:?} is not a duration: write 90s, 5m, 1h30m, or seconds as 0.5")))
        }
    }
}

/// humantime's, or bare seconds with a fraction as flock takes them.
fn parse_duration(text: &str) -> Option<Duration> {
    let is_bare =
        text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    if is_bare {
        return text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    }
    humantime::parse_duration(text).ok()
}

/// `id` as for [`duration`].
pub fn whole_number(id: &str, text: &str, least: u32, most: u32) -> Result<u32, Failure> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| usage(format!("{} must be {least} to {most}, not {text:?}", flag(id))))
}

/// For what was not typed: from the environment, or from the config file as if from there.
fn variable(id: &str) -> String {
    format!("REDLOCK_{}", id.to_ascii_uppercase())
}

fn flag(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_humantimes_or_bare_seconds() {
        for (text, millis) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("100ms", 100),
            ("2", 2000),
            ("0.25", 250),
            (".5", 500),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_duration() {
        for text in ["-1", "1e30", "5 parsecs", "inf", "NaN", ".", "1.2.3", "0x10", " 5"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert!(duration("ttl", "99999999999999999999").is_err());
    }

    #[test]
    fn a_signal_goes_by_name_or_number() {
        for text in ["TERM", "sigterm", "15", "SIGTERM"] {
            assert_eq!(signal(text).unwrap(), Signal::SIGTERM, "{text}");
        }
        for text in ["", "0", "STOP", "SIGSIG", "99", "FOO"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_can_upset_the_duration_parser(text in ".{0,20}") {
            let _ = duration("ttl", &text);
        }
    }
}
