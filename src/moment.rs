//! Moments as people write them: a duration before now, or a date or time of day, or both.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::duration;

const DAY: Duration = Duration::from_hours(24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// This long before now.
    Ago(Duration),
    Exact(SystemTime),
    /// Local time, stored as if it were UTC.
    Local(SystemTime),
    /// Local time on this many days before today.
    Day {
        ago: u32,
        clock: Duration,
    },
    /// The last time that the local clock showed this.
    Clock(Duration),
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ago) = duration::parse(text) {
            return Ok(Self::Ago(ago));
        }
        day(text).or_else(|| clock(text).map(Self::Clock)).or_else(|| date(text)).ok_or_else(|| {
            format!(
                "be a duration, such as 90m or 7d, or a moment, such as yesterday, 07:00 or \"2026-11-16 09:00\", \
                 not {text:?}"
            )
        })
    }
}

impl Moment {
    /// `local_time`: year, month, day, hour, minute and second in local time.
    pub(crate) fn at(
        self,
        now: SystemTime,
        local_time: impl Fn(SystemTime) -> Option<[i32; 6]>,
    ) -> SystemTime {
        match self {
            Self::Ago(ago) => now.checked_sub(ago).unwrap_or(UNIX_EPOCH),
            Self::Exact(moment) => moment,
            Self::Local(shown) => local(shown, local_time),
            Self::Day { ago, clock } => on_day(ago, clock, now, &local_time),
            Self::Clock(clock) => {
                let today = on_day(0, clock, now, &local_time);
                if today <= now { today } else { on_day(1, clock, now, &local_time) }
            }
        }
    }
}

/// The moment at which local clocks show this, which is stored as if it were UTC.
fn local(shown: SystemTime, local_time: impl Fn(SystemTime) -> Option<[i32; 6]>) -> SystemTime {
    // First the offset of a nearby moment, then its own: they differ around a change of the clock.
    let near = before(shown, utc_offset(shown, &local_time));
    before(shown, utc_offset(near, &local_time))
}

/// This time of day, so many days before today.
fn on_day(
    ago: u32,
    clock: Duration,
    now: SystemTime,
    local_time: impl Fn(SystemTime) -> Option<[i32; 6]>,
) -> SystemTime {
    let Some([year, month, day, ..]) = local_time(now) else { return now };
    let midnight = utc(&format!("{year:04}-{month:02}-{day:02}"), "00:00").unwrap_or(now);
    let shown = midnight.checked_sub(DAY * ago).and_then(|day| day.checked_add(clock));
    local(shown.unwrap_or(UNIX_EPOCH), local_time)
}

/// "today", "yesterday", "yesterday 07:00"
fn day(text: &str) -> Option<Moment> {
    let (word, time) = text.split_once(' ').map_or((text, None), |(word, time)| (word, Some(time)));
    let ago = ["today", "yesterday"].iter().position(|day| *day == word.to_ascii_lowercase())?;
    let clock = time.map_or(Some(Duration::ZERO), clock)?;
    Some(Moment::Day { ago: ago.try_into().ok()?, clock })
}

/// "7:00", "07:00", "07:00:30": the time since midnight
fn clock(text: &str) -> Option<Duration> {
    let padded = if text.find(':') == Some(1) { format!("0{text}") } else { text.to_owned() };
    utc("1970-01-01", &padded)?.duration_since(UNIX_EPOCH).ok()
}

/// Seconds by which local time is ahead of UTC.
pub(crate) fn utc_offset(moment: SystemTime, local_time: impl Fn(SystemTime) -> Option<[i32; 6]>) -> i64 {
    let seconds = |moment: SystemTime| {
        moment.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_secs()).ok())
    };
    let shown = local_time(moment).and_then(|[year, month, day, hour, minute, second]| {
        // The parser does not know leap seconds.
        let second = second.min(59);
        utc(&format!("{year:04}-{month:02}-{day:02}"), &format!("{hour:02}:{minute:02}:{second:02}"))
    });
    shown.and_then(seconds).zip(seconds(moment)).map_or(0, |(shown, moment)| shown - moment)
}

/// The moment this many seconds earlier, or later if negative.
fn before(moment: SystemTime, seconds: i64) -> SystemTime {
    let by = Duration::from_secs(seconds.unsigned_abs());
    let moved = if seconds < 0 { moment.checked_add(by) } else { moment.checked_sub(by) };
    moved.unwrap_or(UNIX_EPOCH)
}

/// The nearest moment that a date with four digits for the year can express.
pub(crate) fn printable(moment: SystemTime) -> SystemTime {
    let last = UNIX_EPOCH + Duration::from_millis(253_402_300_799_999);
    moment.clamp(UNIX_EPOCH, last)
}

/// "2026-11-16", "2026-11-16 09:00", "2026-11-16T09:00:05.5Z", "2026-11-16T09:00:05+01:00"
fn date(text: &str) -> Option<Moment> {
    let (day, rest) = text.split_at_checked(10)?;
    if rest.is_empty() {
        return utc(day, "00:00").map(Moment::Local);
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let zone_at = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(zone_at);
    let shown = utc(day, clock)?;
    match zone {
        "" => Some(Moment::Local(shown)),
        "Z" | "z" => Some(Moment::Exact(shown)),
        _ => {
            let (sign, offset) = zone.split_at(1);
            let (hours, minutes) = offset.split_once(':')?;
            let digits = |text: &str| {
                (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit()))
                    .then(|| text.parse::<i64>().ok())?
            };
            let (hours, minutes) = (digits(hours)?, digits(minutes)?);
            let ahead = (hours * 60 + minutes) * 60;
            (hours < 24 && minutes < 60)
                .then(|| Moment::Exact(before(shown, if sign == "-" { -ahead } else { ahead })))
        }
    }
}

/// `clock`: with or without seconds.
fn utc(day: &str, clock: &str) -> Option<SystemTime> {
    let seconds = if clock.len() == 5 { ":00" } else { "" };
    humantime::parse_rfc3339(&format!("{day}T{clock}{seconds}Z")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOON: &str = "2026-11-16T12:00:00Z";

    fn exact(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    /// A local clock this many seconds ahead of UTC.
    fn ahead(seconds: i64) -> impl Fn(SystemTime) -> Option<[i32; 6]> {
        move |moment| {
            let shown = humantime::format_rfc3339_seconds(before(moment, -seconds)).to_string();
            let numbers: Vec<i32> =
                shown.split(['-', 'T', ':', 'Z']).filter_map(|n| n.parse().ok()).collect();
            numbers.try_into().ok()
        }
    }

    fn at(text: &str, clock: i64) -> String {
        let moment = text.parse::<Moment>().unwrap_or_else(|why| panic!("{text}: {why}"));
        humantime::format_rfc3339_seconds(moment.at(exact(NOON), ahead(clock))).to_string()
    }

    #[test]
    fn a_moment_is_a_duration_ago_or_a_date() {
        for (text, clock, moment) in [
            ("90m", 0, "2026-11-16T10:30:00Z"),
            ("3600", 0, "2026-11-16T11:00:00Z"),
            ("2026-11-16", 3600, "2026-11-15T23:00:00Z"),
            ("2026-11-16 09:00", 3600, "2026-11-16T08:00:00Z"),
            ("2026-11-16 09:00:07", -5 * 3600, "2026-11-16T14:00:07Z"),
            ("2026-11-16T09:00", 0, "2026-11-16T09:00:00Z"),
            ("2026-11-16T09:00:00Z", 3600, "2026-11-16T09:00:00Z"),
            ("2026-11-16T09:00:00.250Z", 3600, "2026-11-16T09:00:00Z"),
            ("2026-11-16T09:00:00+05:30", 0, "2026-11-16T03:30:00Z"),
            ("2026-11-16 09:00-08:00", 0, "2026-11-16T17:00:00Z"),
            ("today", 3600, "2026-11-15T23:00:00Z"),
            ("Yesterday", 0, "2026-11-15T00:00:00Z"),
            ("yesterday", -13 * 3600, "2026-11-14T13:00:00Z"),
            ("yesterday 7:30", 3600, "2026-11-15T06:30:00Z"),
            ("07:00", 3600, "2026-11-16T06:00:00Z"),
            ("7:00:05", 0, "2026-11-16T07:00:05Z"),
            ("13:30", 0, "2026-11-15T13:30:00Z"),
            ("12:00", 0, "2026-11-16T12:00:00Z"),
        ] {
            assert_eq!(at(text, clock), moment, "{text}");
        }
    }

    #[test]
    fn the_offset_is_that_of_the_moment_itself() {
        // At 01:00 UTC the clock changes from one hour ahead to two.
        let changed = exact("2026-03-29T01:00:00Z");
        let clock = |moment: SystemTime| ahead(if moment < changed { 3600 } else { 7200 })(moment);
        let at = |text: &str| {
            let moment = text.parse::<Moment>().unwrap().at(exact(NOON), clock);
            humantime::format_rfc3339_seconds(moment).to_string()
        };
        assert_eq!(at("2026-03-29 01:30"), "2026-03-29T00:30:00Z");
        assert_eq!(at("2026-03-29 03:30"), "2026-03-29T01:30:00Z");
    }

    #[test]
    fn any_moment_can_be_printed() {
        let shown = |moment| humantime::format_rfc3339_millis(printable(moment)).to_string();
        let far = Duration::from_millis(u64::MAX);
        assert_eq!(shown(UNIX_EPOCH + far), "9999-12-31T23:59:59.999Z");
        assert_eq!(shown(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(exact(NOON)), "2026-11-16T12:00:00.000Z");
    }

    #[test]
    fn nonsense_is_rejected() {
        for text in [
            "",
            "tomorrow",
            "yesterday 25:00",
            "7:0",
            "2026-13-01",
            "2026-02-30 10:00",
            "2026-11-16 25:00",
            "2026-11-16 9:00",
            "2026-11-16x09:00",
            "2026-11-16T09:00:00+1:00",
            "2026-11-16T09:00:00+99:00",
            "-5m",
        ] {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_parser_never_panics(text in ".{0,30}", date in "[0-9]{4}-[0-9]{2}-[0-9]{2}[T ].{0,12}") {
            let _ = text.parse::<Moment>();
            let _ = date.parse::<Moment>();
        }
    }
}
