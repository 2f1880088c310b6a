//! Durations as people write and read them.

use std::time::Duration;

/// Longer than any useful wait, and far from overflow.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// humantime's notation, or plain seconds with a fraction, as in flock.
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
        None => Err(format!("{text:?} is not a duration, such as 90s, 5m, 1h30m, or a number of seconds")),
    }
}

/// "1m 30s", "3.9s", "250ms": fractions of seconds only for short durations.
pub(crate) fn format(duration: Duration) -> String {
    let tenths = duration.as_millis() / 100;
    match duration.as_secs() {
        0 if duration.is_zero() => "0s".into(),
        0 => format!("{}ms", duration.subsec_millis().max(1)),
        1..10 if !tenths.is_multiple_of(10) => format!("{}.{}s", tenths / 10, tenths % 10),
        _ => format_seconds(duration),
    }
}

/// Whole seconds, for a running display.
pub(crate) fn format_seconds(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

pub(crate) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// With microseconds.
pub(crate) fn fractional_millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_is_humantimes_or_plain_seconds() {
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
    fn nonsense_is_rejected() {
        for text in
            ["-1", "1e30", "5 parsecs", "inf", "NaN", ".", "1.2.3", "0x10", " 5", "", "99999999999999999999"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn short_durations_are_shown_with_fractions() {
        for (millis, shown) in
            [(0, "0s"), (250, "250ms"), (1_500, "1.5s"), (3_937, "3.9s"), (5_000, "5s"), (90_400, "1m 30s")]
        {
            assert_eq!(format(Duration::from_millis(millis)), shown);
        }
        assert_eq!(format(Duration::from_micros(3)), "1ms");
    }

    proptest! {
        #[test]
        fn the_parser_never_panics(text in ".{0,20}") {
            let _ = parse(&text);
        }
    }
}
