//! The time axis: round times of the local clock, as many as fit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::between;
use crate::moment::utc_offset;
use crate::report::format::LocalTime;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Distances between two labels, in seconds.
const STEPS: [u64; 25] = [
    1,
    2,
    5,
    10,
    15,
    30,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    4 * DAY,
    7 * DAY,
    14 * DAY,
    28 * DAY,
    91 * DAY,
    364 * DAY,
];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    pub at: SystemTime,
    /// "09:14", "09:14:05" or "16 Nov".
    pub label: String,
}

/// `columns`: the width in characters. Empty if not even one step fits.
pub(super) fn ticks(from: SystemTime, to: SystemTime, columns: usize, local_time: LocalTime) -> Vec<Tick> {
    let seconds = |moment: SystemTime| {
        moment
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_secs()).ok())
            .unwrap_or(0)
    };
    let span = between(from, to).as_secs();
    let room_for = |step: u64| columns as u64 / (label_length(step) + 3);
    let Some(step) = STEPS.into_iter().find(|step| span / step <= room_for(*step)) else { return Vec::new() };
    let Ok(signed_step) = i64::try_from(step) else { return Vec::new() };
    let offset = utc_offset(to, local_time);
    // Rounded up on the local clock.
    let first = (seconds(from) + offset + signed_step - 1).div_euclid(signed_step) * signed_step - offset;
    let moments = (0..).map(|count| first + count * signed_step).take_while(|moment| *moment <= seconds(to));
    let tick = |moment: i64| {
        let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(moment).ok()?);
        Some(Tick { at, label: label(local_time(at)?, step) })
    };
    moments.filter_map(tick).filter(|tick| tick.at >= from).collect()
}

fn label_length(step: u64) -> u64 {
    if step < MINUTE { 8 } else { 6 }
}

fn label([_, month, day, hour, minute, second]: [i32; 6], step: u64) -> String {
    let month = usize::try_from(month - 1).ok().and_then(|at| MONTHS.get(at)).copied().unwrap_or_default();
    match step {
        ..MINUTE => format!("{hour:02}:{minute:02}:{second:02}"),
        MINUTE..DAY if (hour, minute) != (0, 0) => format!("{hour:02}:{minute:02}"),
        _ => format!("{day} {month}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is an hour and a half ahead of UTC.
    fn clock(moment: SystemTime) -> Option<[i32; 6]> {
        let shown = humantime::format_rfc3339_seconds(moment + Duration::from_secs(90 * 60)).to_string();
        let numbers: Vec<i32> = shown.split(['-', 'T', ':', 'Z']).filter_map(|n| n.parse().ok()).collect();
        numbers.try_into().ok()
    }

    fn labels(from: &str, to: &str, columns: usize) -> Vec<String> {
        let moment = |text: &str| humantime::parse_rfc3339(text).unwrap();
        ticks(moment(from), moment(to), columns, clock).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn labels_are_round_times_of_the_local_clock() {
        assert_eq!(
            labels("2026-11-16T07:40:11Z", "2026-11-16T09:20:00Z", 70),
            ["09:15", "09:30", "09:45", "10:00", "10:15", "10:30", "10:45"]
        );
        assert_eq!(
            labels("2026-11-16T07:40:11Z", "2026-11-16T07:40:31Z", 70),
            ["09:10:15", "09:10:20", "09:10:25", "09:10:30"]
        );
        assert_eq!(
            labels("2026-11-15T20:00:00Z", "2026-11-16T00:00:00Z", 40),
            ["22:00", "23:00", "16 Nov", "01:00"]
        );
        assert_eq!(labels("2026-10-01T20:00:00Z", "2026-11-16T00:00:00Z", 40).len(), 3);
    }

    #[test]
    fn labels_fit_any_span() {
        let from = UNIX_EPOCH + Duration::from_secs(1_794_824_022);
        for span in [0, 1, 59, 3600, 86_400, 40 * 86_400, 4_000 * 86_400] {
            for columns in [10, 30, 70, 200] {
                let ticks = ticks(from, from + Duration::from_secs(span), columns, clock);
                let needed: usize = ticks.iter().map(|tick| tick.label.len() + 1).sum();
                assert!(needed <= columns.max(2 * 9), "{span} s in {columns} columns: {ticks:?}");
            }
        }
    }
}
