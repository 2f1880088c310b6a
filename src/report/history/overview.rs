//! The runs of many locks: a line for each lock, and the last runs of all.

use std::time::Duration;

use super::run::{Run, runs_of};
use super::summary::Summary;
use super::timeline::Timeline;
use super::{Clock, Rows, and_more, heading, nothing, row};
use crate::duration::format;
use crate::lock::{History, quantiles};
use crate::report::format::clock_time;
use crate::report::list::{align, shorten};
use crate::report::status::failing_servers;
use crate::report::text::{cut, sanitize};

const LOCK_HEADINGS: [&str; 7] = ["KEY", "RUNS", "FAILED", "NO LOCK", "WAITED P95", "HELD P95", "LAST"];
const RUN_HEADINGS: [&str; 6] = ["STARTED", "KEY", "WAITED", "HELD", "EXIT", "WHO"];
/// Longer keys are cut, so that the other columns stay visible.
const LONGEST_KEY: usize = 30;

/// The locks with most failures come first, then those that were used last; the runs, newest first.
pub(crate) fn histories_text(histories: &[History], clock: Clock, rows: Rows) -> String {
    let mut locks: Vec<(String, Vec<Run<'_>>)> = histories
        .iter()
        .map(|history| (cut(&sanitize(&history.status.key), LONGEST_KEY), runs_of(history, clock.now)))
        .collect();
    locks.retain(|(_, runs)| !runs.is_empty());
    let last = |runs: &[Run<'_>]| runs.iter().map(Run::started).max();
    let failed = |runs: &[Run<'_>]| runs.iter().filter(|run| run.has_failed()).count();
    locks.sort_by_key(|(_, runs)| std::cmp::Reverse((failed(runs), last(runs))));
    let lock_row = |(key, runs): &(String, Vec<Run<'_>>)| {
        let had_lock = runs.iter().filter(|run| run.ended().is_some() && !run.was_turned_away());
        let p95 = |time: &dyn Fn(&Run<'_>) -> Option<Duration>| {
            let mut times: Vec<Duration> = runs.iter().filter_map(time).collect();
            times.sort_unstable();
            quantiles(&times).map_or_else(|| "-".into(), |[_, most, _]| format(most))
        };
        [
            key.clone(),
            had_lock.count().to_string(),
            failed(runs).to_string(),
            runs.iter().filter(|run| run.was_turned_away()).count().to_string(),
            p95(&|run| run.waited),
            p95(&|run| run.held_for()),
            last(runs)
                .and_then(|last| clock_time(last, clock.now, clock.local_time))
                .unwrap_or_else(|| "-".into()),
        ]
    };
    let mut lock_rows: Vec<_> =
        [LOCK_HEADINGS.map(str::to_owned)].into_iter().chain(locks.iter().map(lock_row)).collect();
    shorten(&mut lock_rows, &[0], rows.columns);
    let servers =
        histories.first().map(|history| failing_servers(&history.status.servers)).unwrap_or_default();
    let mut runs: Vec<(String, Run<'_>)> = Vec::new();
    for (key, own) in locks {
        runs.extend(own.into_iter().map(|run| (key.clone(), run)));
    }
    runs.sort_by_key(|(_, run)| run.order());
    let (keys, runs): (Vec<String>, Vec<Run<'_>>) = runs.into_iter().unzip();
    let Some(timeline) = Timeline::new(&runs, clock) else {
        return format!("{}\n{servers}", nothing("the", clock, rows.only_failed));
    };
    let count = match lock_rows.len() - 1 {
        1 => "1 lock".to_owned(),
        count => format!("{count} locks"),
    };
    let heading = heading(&count, &Summary::new(&runs, &timeline), &timeline, clock);
    let shown = keys.iter().zip(&runs).rev().take(rows.most);
    let run_row = |(key, run): (&String, &Run<'_>)| {
        let [started, waited, held, exit, _, who] = row(run, clock);
        [started, key.clone(), waited, held, exit, who]
    };
    let mut run_rows: Vec<_> =
        [RUN_HEADINGS.map(str::to_owned)].into_iter().chain(shown.map(run_row)).collect();
    shorten(&mut run_rows, &[5, 4, 1], rows.columns);
    let more = and_more(runs.len(), rows.most);
    format!("{heading}\n\n{}\n{}{more}{servers}", align(&lock_rows), align(&run_rows))
}
