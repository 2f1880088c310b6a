//! The runs one by one.

use super::run::Run;
use super::{Clock, moment};
use crate::duration::format;
use crate::report::list::align;

const HEADINGS: [&str; 6] = ["STARTED", "WAITED", "HELD", "EXIT", "FENCE", "WHO"];

/// The last `most` that have ended, and all that have not; the newest first.
pub(super) fn table(runs: &[Run<'_>], most: usize, clock: Clock) -> String {
    let ended = runs.iter().filter(|run| run.ended().is_some()).count();
    let mut left_out = ended.saturating_sub(most);
    let mut rows: Vec<[String; 6]> = Vec::new();
    let today = (clock.local_time)(clock.now).map(|[year, month, day, ..]| [year, month, day]);
    for run in runs {
        if run.ended().is_some() && left_out > 0 {
            left_out -= 1;
        } else {
            rows.push(row(run, today, clock));
        }
    }
    rows.push(HEADINGS.map(str::to_owned));
    rows.reverse();
    let mut table = align(&rows);
    if ended > most {
        table += &format!("and {} more; --limit {ended} lists them all\n", ended - most);
    }
    table
}

fn row(run: &Run<'_>, today: Option<[i32; 3]>, clock: Clock) -> [String; 6] {
    let started = (clock.local_time)(run.started()).map(|[year, month, day, hour, minute, second]| {
        let time = format!("{hour:02}:{minute:02}:{second:02}");
        if today == Some([year, month, day]) { time } else { format!("{year}-{month:02}-{day:02} {time}") }
    });
    let unknown = || "-".to_owned();
    [
        started.or_else(|| moment(run.started(), clock.local_time)).unwrap_or_else(unknown),
        run.waited.map_or_else(unknown, format),
        run.held_for().map_or_else(unknown, format),
        run.exit(),
        run.fence.map_or_else(unknown, |fence| fence.to_string()),
        run.who(),
    ]
}
