//! Figures about all runs.

use std::time::Duration;

use super::between;
use super::run::Run;
use super::timeline::Timeline;
use crate::duration::format;
use crate::lock::quantiles;

pub(super) struct Summary {
    /// Runs that had the lock and have ended.
    runs: usize,
    running: usize,
    waiting: usize,
    failed: usize,
    /// Runs that ended without the lock.
    turned_away: usize,
    /// Sorted.
    waited: Vec<Duration>,
    held: Vec<Duration>,
    most_waiting: usize,
    /// Percentage of the period.
    held_percent: u32,
}

impl Summary {
    pub(super) fn new(runs: &[Run<'_>], timeline: &Timeline) -> Self {
        let count = |is_counted: &dyn Fn(&Run<'_>) -> bool| runs.iter().filter(|run| is_counted(run)).count();
        let sorted = |time: &dyn Fn(&Run<'_>) -> Option<Duration>| {
            let ended = runs.iter().filter(|run| run.ended().is_some());
            let mut times: Vec<Duration> = ended.filter_map(time).collect();
            times.sort_unstable();
            times
        };
        let (mut held, mut last) = (Duration::ZERO, timeline.from);
        for bar in timeline.bars() {
            held += between(bar.from.max(last), bar.to);
            last = last.max(bar.to);
        }
        let span = between(timeline.from, timeline.to).as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
        let held_percent = (held.as_secs_f64() / span * 100.0).round().clamp(0.0, 100.0) as u32;
        Self {
            runs: count(&|run| run.ended().is_some() && !run.was_turned_away()),
            running: count(&|run| run.ended().is_none() && !run.is_waiting()),
            waiting: count(&|run| run.is_waiting()),
            failed: count(&|run| run.has_failed()),
            turned_away: count(&|run| run.was_turned_away()),
            waited: sorted(&|run| run.waited),
            held: sorted(&|run| run.held_for()),
            most_waiting: timeline.most_waiting(),
            held_percent,
        }
    }

    /// "212 runs since 2026-11-16 07:58, 9 failed, 3 did not get the lock"
    pub(super) fn sentence(&self, period: &str) -> String {
        let mut text = format!("{} {period}", counted(self.runs, "run"));
        let mut add = |count: usize, what: &str| {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        };
        add(self.failed, "failed");
        add(self.turned_away, "did not get the lock");
        add(self.running, "running");
        add(self.waiting, "waiting");
        text
    }

    /// A table for the terminal.
    pub(super) fn figures(&self) -> String {
        let cells = |name: &str, times: &[Duration]| {
            let [half, most, longest] = quantiles(times).map(|times| times.map(format)).unwrap_or_default();
            format!("{name:<8}{half:<9}{most:<9}{longest}").trim_end().to_owned()
        };
        let most_waiting = match self.most_waiting {
            0 => String::new(),
            most => format!(", up to {most} at once"),
        };
        let waited = cells("waited", &self.waited) + &most_waiting;
        let held = format!("{}, {}% of the time", cells("held", &self.held), self.held_percent);
        format!("{:<8}{:<9}{:<9}longest\n{waited}\n{held}\n", "", "p50", "p95")
    }

    /// The same figures as text.
    pub(super) fn sentences(&self) -> String {
        let words = |name: &str, times: &[Duration]| {
            let [half, most, longest] = quantiles(times)?.map(format);
            Some(format!("{name}: p50 {half}, p95 {most}, longest {longest}"))
        };
        let share = Some(format!("held {}% of the time", self.held_percent));
        let all = [share, words("held", &self.held), words("waited", &self.waited)];
        all.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
