//! The layout of runs in time, which the terminal and the picture draw. Pure.

use std::time::{Duration, SystemTime};

use super::run::{Phase, Run};
use super::{Clock, between};
use crate::lock::Mode;
use crate::report::text::sanitize;

/// Concurrent holders have a lane each, up to this number. Beyond it, only their number is drawn.
const MOST_LANES: usize = 8;
/// Consecutive runs may seem to overlap by this, because different clocks measure their ends.
const CLOCKS_DIFFER: Duration = Duration::from_millis(50);
/// A shorter wait is only the time of a request.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// The shortest period that is shown.
const SHORTEST_SPAN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Timeline {
    pub from: SystemTime,
    pub to: SystemTime,
    pub lanes: Vec<Lane>,
    /// There are too many concurrent holders to draw each: there is one lane.
    pub is_crowd: bool,
    pub waits: Vec<Span>,
    /// When runs failed, or ended without the lock.
    pub failed: Vec<SystemTime>,
    pub turned_away: Vec<SystemTime>,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub label: String,
    /// Sorted by their start. They overlap only in a crowd.
    pub bars: Vec<Bar>,
}

impl Lane {
    pub(super) fn spans(&self) -> Vec<Span> {
        self.bars.iter().map(Span::from).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Row<'a> {
    Lane(&'a Lane),
    /// Only the number of concurrent holders is drawn.
    Crowd(&'a Lane),
    Waiting(&'a [Span]),
    Failed(&'a [SystemTime]),
    TurnedAway(&'a [SystemTime]),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub from: SystemTime,
    pub to: SystemTime,
}

#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub from: SystemTime,
    pub to: SystemTime,
    /// Index of the run.
    pub run: usize,
    pub kind: Kind,
    /// Alternates between neighbours, so that they can be distinguished.
    pub is_odd: bool,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ended,
    Failed,
    Running,
}

impl Timeline {
    /// `None` if there are no runs.
    pub(super) fn new(runs: &[Run<'_>], clock: Clock) -> Option<Self> {
        let first = runs.iter().map(|run| run.asked).min()?;
        let last = runs.iter().map(|run| run.ended().unwrap_or(clock.now)).max()?;
        let from = clock.since.unwrap_or(first).min(last);
        // Until now, unless most of the picture would be empty.
        let is_recent =
            clock.now >= last && between(last, clock.now) <= between(from, last).max(SHORTEST_SPAN);
        let to = if is_recent { clock.now } else { last };
        let from = from.min(to.checked_sub(SHORTEST_SPAN).unwrap_or(from));
        let clip = |from_: SystemTime, to_: SystemTime| Span {
            from: from_.clamp(from, to),
            to: to_.clamp(from, to),
        };
        let (lanes, is_crowd) = lanes(bars(runs, clip));
        let waits = runs.iter().filter(|run| run.waited.is_some_and(|waited| waited >= SHORTEST_WAIT));
        let ends = |is_counted: &dyn Fn(&&Run<'_>) -> bool| {
            let ends = runs.iter().filter(is_counted).filter_map(Run::ended);
            ends.filter(|end| *end >= from).collect()
        };
        Some(Self {
            from,
            to,
            lanes,
            is_crowd,
            waits: waits
                .map(|run| {
                    clip(run.asked, run.held.map_or(run.ended().unwrap_or(clock.now), |(began, _)| began))
                })
                .filter(|wait| wait.to > wait.from)
                .collect(),
            failed: ends(&|run| run.has_failed()),
            turned_away: ends(&|run| run.was_turned_away()),
        })
    }

    /// What is drawn above the axis, from top to bottom.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let lane = |lane| if self.is_crowd { Row::Crowd(lane) } else { Row::Lane(lane) };
        let waiting = (!self.waits.is_empty()).then_some(Row::Waiting(&self.waits));
        let failed = (!self.failed.is_empty()).then_some(Row::Failed(&self.failed));
        let turned_away = (!self.turned_away.is_empty()).then_some(Row::TurnedAway(&self.turned_away));
        let lanes = self.lanes.iter().map(lane);
        lanes.chain(waiting).chain(failed).chain(turned_away).collect()
    }

    /// The bars of all lanes, sorted by their start.
    pub(super) fn bars(&self) -> Vec<&Bar> {
        let mut bars: Vec<&Bar> = self.lanes.iter().flat_map(|lane| &lane.bars).collect();
        bars.sort_by_key(|bar| bar.from);
        bars
    }

    pub(super) fn most_waiting(&self) -> usize {
        counts(&self.waits).into_iter().map(|(_, count)| count).max().unwrap_or(0)
    }
}

fn bars(runs: &[Run<'_>], clip: impl Fn(SystemTime, SystemTime) -> Span) -> Vec<(Bar, Mode, Option<u32>)> {
    let several_hosts = runs.windows(2).any(|pair| pair[0].info.host != pair[1].info.host);
    let name = |run: &Run<'_>| {
        let info = run.info;
        let name = match (info.label.is_empty(), several_hosts) {
            (false, _) => &info.label,
            (true, true) => &info.host,
            (true, false) => &info.command,
        };
        sanitize(name)
    };
    let bar = |(at, run): (usize, &Run<'_>)| {
        let (from, to) = run.held?;
        let Span { from, to } = clip(from, to);
        let kind = match run.phase {
            Phase::Running(_) => Kind::Running,
            _ if run.has_failed() => Kind::Failed,
            Phase::Ended(_) | Phase::Waiting(_) => Kind::Ended,
        };
        Some((Bar { from, to, run: at, kind, is_odd: false, name: name(run) }, run.mode.clone(), run.slot))
    };
    let mut bars: Vec<_> = runs.iter().enumerate().filter_map(bar).collect();
    bars.sort_by_key(|(bar, ..)| bar.from);
    bars
}

/// Exclusive holders share one lane, even if clocks make them overlap. Each slot has its own lane.
/// A sharer takes the first free lane.
fn lanes(bars: Vec<(Bar, Mode, Option<u32>)>) -> (Vec<Lane>, bool) {
    let mut lanes: Vec<Vec<Bar>> = vec![Vec::new()];
    let mut has_slots = false;
    for (mut bar, mode, slot) in bars {
        let is_free = |lane: &Vec<Bar>| lane.last().is_none_or(|last| last.to <= bar.from + CLOCKS_DIFFER);
        let at = match (mode, slot) {
            (Mode::Exclusive, _) => 0,
            (Mode::Slot { .. }, Some(slot)) => {
                has_slots = true;
                usize::try_from(slot).unwrap_or(usize::MAX)
            }
            (Mode::Shared { .. } | Mode::Slot { .. }, _) => {
                lanes.iter().position(is_free).unwrap_or(lanes.len())
            }
        };
        if at >= lanes.len() {
            // A server may report any number of a slot.
            lanes.resize_with(at.min(lanes.len() + 1024) + 1, Vec::new);
        }
        let lane = at.min(lanes.len() - 1);
        if let Some(last) = lanes[lane].last() {
            bar.from = bar.from.max(last.to);
            bar.to = bar.to.max(bar.from);
            bar.is_odd = !last.is_odd;
        }
        lanes[lane].push(bar);
    }
    if lanes.len() > MOST_LANES {
        let mut bars = lanes.concat();
        bars.sort_by_key(|bar| bar.from);
        return (vec![Lane { label: "holders".into(), bars }], true);
    }
    let label = |at: usize| match (has_slots, at) {
        (true, at) => format!("slot {at}"),
        (false, 0) => "held".into(),
        (false, _) => String::new(),
    };
    let lane = |(at, bars)| Lane { label: label(at), bars };
    (lanes.into_iter().enumerate().map(lane).collect(), false)
}

impl From<&Bar> for Span {
    fn from(bar: &Bar) -> Self {
        Self { from: bar.from, to: bar.to }
    }
}

/// The moments at which the number of concurrent spans changes, and the new number, in order.
pub(super) fn counts(spans: &[Span]) -> Vec<(SystemTime, usize)> {
    let begins = spans.iter().map(|span| (span.from, 1_isize));
    let mut changes: Vec<(SystemTime, isize)> =
        begins.chain(spans.iter().map(|span| (span.to, -1))).collect();
    // Ends come before starts, so that consecutive spans do not count as two.
    changes.sort_unstable();
    let mut counts: Vec<(SystemTime, usize)> = Vec::new();
    let mut count = 0_isize;
    for (moment, change) in changes {
        count += change;
        let now = usize::try_from(count).unwrap_or(0);
        match counts.last_mut() {
            Some((last, known)) if *last == moment => *known = now,
            _ => counts.push((moment, now)),
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn bar(from: u64, to: u64, mode: Mode, slot: Option<u32>) -> (Bar, Mode, Option<u32>) {
        let bar =
            Bar { from: at(from), to: at(to), run: 0, kind: Kind::Ended, is_odd: false, name: String::new() };
        (bar, mode, slot)
    }

    fn shared(from: u64, to: u64) -> (Bar, Mode, Option<u32>) {
        bar(from, to, Mode::Shared { group: Vec::new() }, None)
    }

    #[test]
    fn consecutive_holders_share_a_lane_and_alternate() {
        let (lanes, _) = lanes((0..4).map(|n| bar(n * 10, n * 10 + 10, Mode::Exclusive, None)).collect());
        let [lane] = &lanes[..] else { panic!("{lanes:?}") };
        assert_eq!(lane.bars.iter().map(|bar| bar.is_odd).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(lane.label, "held");
    }

    #[test]
    fn concurrent_sharers_and_slots_have_lanes_of_their_own() {
        let (lanes, is_crowd) = super::lanes(vec![shared(0, 10), shared(5, 15), shared(11, 12)]);
        assert_eq!(lanes.iter().map(|lane| lane.bars.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(!is_crowd);
        let slot = |from, slot| bar(from, from + 100, Mode::Slot { of: 3 }, Some(slot));
        let (lanes, _) = super::lanes(vec![slot(0, 2), slot(1, 0)]);
        assert_eq!(lanes.iter().map(|lane| lane.bars.len()).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(lanes[2].label, "slot 2");
    }

    #[test]
    fn only_the_number_of_many_concurrent_holders_is_drawn() {
        let (lanes, is_crowd) = super::lanes((0..20).map(|n| shared(n, 100)).collect());
        assert!(is_crowd && lanes.len() == 1 && lanes[0].bars.len() == 20);
        assert_eq!(counts(&lanes[0].spans()).iter().map(|(_, count)| *count).max(), Some(20));
        let far = bar(0, 1, Mode::Slot { of: 3 }, Some(u32::MAX));
        assert!(super::lanes(vec![far]).1, "any number is accepted");
    }

    proptest! {
        #[test]
        fn counts_are_exact_and_end_with_zero(spans in prop::collection::vec((0_u64..50, 0_u64..50), 1..40)) {
            let spans: Vec<Span> = spans.iter().map(|&(a, b)| Span { from: at(a.min(b)), to: at(a.max(b)) }).collect();
            let counted = counts(&spans);
            prop_assert!(counted.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert_eq!(counted.last().unwrap().1, 0);
            for &(moment, count) in &counted {
                let there = spans.iter().filter(|span| span.from <= moment && moment < span.to).count();
                prop_assert_eq!(count, there);
            }
        }
    }
}
