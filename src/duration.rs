//! Durations as people write and read them.

use std::time::Duration;

/// Longer than anyone will wait, and far from the edge of the arithmetic.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// humantime's notation, or bare seconds with a fraction as flock takes them.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let is_bare =
        text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    let parsed = if is_bare {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    match parsed {
        Some(duration) if duration <= LONGEST => Ok(duration),
        Some(_) => Err(format!("{text:?} is too long")),
        None => Err(format!("{text:?} is not a duration: write 90s, 5m, 1h30m, or seconds as 0.5")),
    }
}

/// "1m 30s"; milliseconds only where seconds would say nothing.
pub(crate) fn format(duration: Duration) -> String {
    let shown = if duration < Duration::from_secs(10) {
        Duration::from_millis(duration.as_millis().try_into().unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(duration.as_secs())
    };
    humantime::format_duration(shown).to_string()
}

/// Whole seconds, for times that are watched as they pass.
pub(crate) fn format_seconds(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
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
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_duration() {
        for text in
            ["-1", "1e30", "5 parsecs", "inf", "NaN", ".", "1.2.3", "0x10", " 5", "", "99999999999999999999"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn short_times_keep_their_milliseconds() {
        assert_eq!(format(Duration::from_micros(1_500_900)), "1s 500ms");
        assert_eq!(format(Duration::from_millis(90_400)), "1m 30s");
    }

    proptest! {
        #[test]
        fn no_text_can_upset_the_parser(text in ".{0,20}") {
            let _ = parse(&text);
        }
    }
}
