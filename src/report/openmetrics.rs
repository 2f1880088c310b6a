//! `redlock list --openmetrics`: the state of locks for a monitoring system.
//!
//! All families are gauges. The history forgets old runs, so nothing that is computed from it only
//! grows; and node_exporter's textfile collector, which reads the older text format, knows no types
//! that only OpenMetrics has. No label names a run, because there is no bound on their number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::text::sanitize;
use crate::lock::{FinishedRun, History, Listing, ServerState, ServerStatus, State, Status, majority_of};

/// Each lock has more than a dozen samples. Locks beyond this number are only counted.
const MOST_LOCKS: usize = 1000;

/// The metrics about one lock; `None` without a value.
type OfLock = (&'static str, &'static str, fn(&Status) -> Option<f64>);
/// The metrics about the finished runs of one lock.
type OfRuns = (&'static str, &'static str, fn(&[&FinishedRun]) -> Option<f64>);

const OF_LOCK: [OfLock; 6] = [
    ("redlock_lock_holders", "Number of holders, including a claim of another program.", |lock| {
        Some(count(lock.holder_count))
    }),
    ("redlock_lock_waiters", "Number of runs that wait for the lock.", |lock| Some(count(lock.waiter_count))),
    (
        "redlock_lock_oldest_wait_seconds",
        "How long the oldest waiter has waited; 0 without waiters.",
        |lock| Some(longest(lock.waiters.iter().map(|waiter| waiter.waited)).as_secs_f64()),
    ),
    (
        "redlock_lock_held_seconds",
        "How long the oldest holder has held the lock; 0 without holders.",
        |lock| Some(longest(lock.holders.iter().map(|holder| holder.held_for)).as_secs_f64()),
    ),
    (
        "redlock_lock_slots_used",
        "Number of slots that are taken, while the lock is held with --slots.",
        |lock| matches!(lock.state, State::Slots { .. }).then(|| count(lock.holder_count)),
    ),
    ("redlock_lock_slots", "Number of slots, while the lock is held with --slots.", |lock| {
        match lock.state {
            State::Slots { of } => Some(f64::from(of)),
            State::Free | State::Held | State::Shared | State::Kept | State::Foreign => None,
        }
    }),
];

const RUNS: (&str, &str) = ("redlock_history_runs", "Number of finished runs in the history, by outcome.");
const OF_RUNS: [OfRuns; 6] = [
    ("redlock_history_failures", "Number of runs in the history that failed.", |runs| {
        Some(count(runs.iter().filter(|run| run.ended.has_failed()).count()))
    }),
    ("redlock_history_waited_seconds", "Time that the runs in the history waited, together.", |runs| {
        Some(total(runs.iter().map(|run| run.waited)).as_secs_f64())
    }),
    ("redlock_history_held_seconds", "Time that the runs in the history held the lock, together.", |runs| {
        Some(total(runs.iter().map(|run| run.held)).as_secs_f64())
    }),
    ("redlock_last_run_timestamp_seconds", "When the last run ended.", |runs| last(runs, |_| true)),
    (
        "redlock_last_success_timestamp_seconds",
        "When the last run ended that had the lock and succeeded.",
        |runs| last(runs, |run| run.ended.how.had_lock() && !run.ended.has_failed()),
    ),
    ("redlock_last_failure_timestamp_seconds", "When the last run ended that failed.", |runs| {
        last(runs, |run| run.ended.has_failed())
    }),
];

/// `listing`: `None` if the servers cannot be queried. `histories`: of the same pattern.
pub(crate) fn openmetrics(listing: Option<&Listing>, histories: &[History]) -> String {
    let votes = |server: &&ServerStatus| matches!(server.state, ServerState::Serves);
    let is_up = listing.is_some_and(|listing| {
        let voters = listing.servers.iter().filter(votes).count();
        let is_decided = listing.undecided.is_none() && listing.missing.is_empty();
        is_decided && (listing.servers.len() < 2 || voters >= majority_of(listing.servers.len()))
    });
    let servers = || listing.into_iter().flat_map(|listing| &listing.servers);
    let flag = |is_set: bool| f64::from(u8::from(is_set));
    let alone = |value: f64| [(Vec::new(), value)];
    let mut text = [
        family(
            "redlock_build_info",
            "The version of redlock, as a label; the value is 1.",
            [(vec![("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        ),
        family(
            "redlock_up",
            "1 if locks can be taken: on this host, or because a majority of the servers votes.",
            alone(flag(is_up)),
        ),
        family(
            "redlock_server_up",
            "1 if this server votes, 0 if it is down, quarantined or unfit.",
            servers().map(|server| (vec![("server", &*server.name)], flag(votes(&server)))),
        ),
        family(
            "redlock_server_rtt_seconds",
            "Round trip to this server.",
            servers().filter_map(|server| Some((vec![("server", &*server.name)], server.rtt?.as_secs_f64()))),
        ),
    ]
    .concat();
    if let Some(listing) = listing {
        let (locks, left_out) = by_label(listing, histories);
        text +=
            &family("redlock_locks", "Number of locks that are taken.", alone(count(listing.locks.len())));
        text += &family(
            "redlock_locks_left_out",
            "Number of locks without metrics of their own, because there are too many.",
            alone(count(left_out)),
        );
        text += &of_locks(&locks);
    }
    text + "# EOF\n"
}

/// What is known about one lock.
type Known<'a> = (Option<&'a Status>, Vec<&'a FinishedRun>);

/// By the label of the lock; and the number of those for which there is no room. Taken locks come
/// first, then those that were used last.
fn by_label<'a>(listing: &'a Listing, histories: &'a [History]) -> (BTreeMap<String, Known<'a>>, usize) {
    let mut locks: BTreeMap<&[u8], Known<'a>> = BTreeMap::new();
    for lock in &listing.locks {
        locks.entry(&lock.key).or_default().0 = Some(lock);
    }
    for history in histories {
        locks.entry(&history.status.key).or_default().1 = history.runs.iter().collect();
    }
    let mut order: Vec<(&[u8], Known<'a>)> = locks.into_iter().collect();
    order.sort_by_key(|(_, (lock, runs))| {
        std::cmp::Reverse((lock.is_some(), runs.iter().map(|run| run.ended_at).max()))
    });
    let total = order.len();
    let mut labelled = BTreeMap::new();
    for (key, known) in order.into_iter().take(MOST_LOCKS) {
        // Two keys that are not text may look the same.
        labelled.entry(sanitize(key)).or_insert(known);
    }
    let left_out = total - labelled.len();
    (labelled, left_out)
}

fn of_locks(locks: &BTreeMap<String, Known<'_>>) -> String {
    let free = Status::free(Vec::new());
    let mut text = String::new();
    for (name, help, value) in OF_LOCK {
        let samples = locks
            .iter()
            .filter_map(|(key, (lock, _))| Some((vec![("key", &**key)], value(lock.unwrap_or(&free))?)));
        text += &family(name, help, samples);
    }
    let by_outcome = locks.iter().flat_map(|(key, (_, runs))| {
        let outcomes: BTreeSet<&str> = runs.iter().map(|run| run.ended.how.event()).collect();
        outcomes.into_iter().map(move |outcome| {
            let number = runs.iter().filter(|run| run.ended.how.event() == outcome).count();
            (vec![("key", key.as_str()), ("outcome", outcome)], count(number))
        })
    });
    text += &family(RUNS.0, RUNS.1, by_outcome);
    for (name, help, value) in OF_RUNS {
        let samples = locks.iter().filter_map(|(key, (_, runs))| Some((vec![("key", &**key)], value(runs)?)));
        text += &family(name, help, samples);
    }
    text
}

/// A metric with its samples: the labels and the value of each. Without samples it is left out.
fn family<'a>(
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
) -> String {
    let sample = |(labels, value): (Vec<(&str, &str)>, f64)| {
        let pair = |(label, text): &(&str, &str)| format!("{label}=\"{}\"", escaped(text));
        let labels: Vec<String> = labels.iter().map(pair).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!("{name}{labels} {value}\n")
    };
    let samples: String = samples.into_iter().map(sample).collect();
    if samples.is_empty() {
        return samples;
    }
    let unit = if name.ends_with("_seconds") { format!("# UNIT {name} seconds\n") } else { String::new() };
    format!("# TYPE {name} gauge\n{unit}# HELP {name} {help}\n{samples}")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn longest(times: impl Iterator<Item = Option<Duration>>) -> Duration {
    times.flatten().max().unwrap_or_default()
}

/// A record may name any time, so the sum may be too large.
fn total(times: impl Iterator<Item = Option<Duration>>) -> Duration {
    times.flatten().fold(Duration::ZERO, Duration::saturating_add)
}

fn last(runs: &[&FinishedRun], is_counted: impl Fn(&FinishedRun) -> bool) -> Option<f64> {
    let ended: Option<SystemTime> = runs.iter().filter(|run| is_counted(run)).map(|run| run.ended_at).max();
    ended?.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Ended, HolderInfo, Mode, Outcome};

    fn run(ended: u64, how: Outcome) -> FinishedRun {
        FinishedRun {
            ended_at: UNIX_EPOCH + Duration::from_secs(ended),
            waited: Some(Duration::from_millis(1500)),
            held: Some(Duration::from_secs(2)),
            info: HolderInfo::default(),
            mode: Mode::Exclusive,
            slot: None,
            token: ended.to_string(),
            fence: None,
            ended: Ended::new(how),
        }
    }

    fn listing(locks: Vec<Status>) -> Listing {
        Listing { locks, servers: Vec::new(), missing: Vec::new(), undecided: None }
    }

    #[test]
    fn a_label_is_escaped_and_a_lock_without_runs_has_no_timestamps() {
        let key = b"a\"b\\c\nd".to_vec();
        let text = openmetrics(Some(&listing(vec![Status::free(key)])), &[]);
        assert!(text.contains("redlock_lock_waiters{key=\"a\\\"b\\\\c\\\\nd\"} 0\n"), "{text}");
        assert!(!text.contains("timestamp") && text.ends_with("\n# EOF\n"), "{text}");
        assert_eq!(escaped("a\nb"), "a\\nb");
    }

    #[test]
    fn runs_are_counted_by_their_outcome() {
        let runs = vec![run(10, Outcome::Released), run(20, Outcome::Lost), run(30, Outcome::GaveUp)];
        let history = History::new(runs, Status::free(b"k".to_vec()));
        let text = openmetrics(Some(&listing(Vec::new())), &[history]);
        for line in [
            "redlock_history_runs{key=\"k\",outcome=\"held\"} 1",
            "redlock_history_runs{key=\"k\",outcome=\"lost\"} 1",
            "redlock_history_runs{key=\"k\",outcome=\"ran\"} 1",
            "redlock_history_failures{key=\"k\"} 1",
            "redlock_history_waited_seconds{key=\"k\"} 4.5",
            "redlock_history_held_seconds{key=\"k\"} 6",
            "redlock_last_run_timestamp_seconds{key=\"k\"} 30",
            "redlock_last_success_timestamp_seconds{key=\"k\"} 10",
            "redlock_last_failure_timestamp_seconds{key=\"k\"} 20",
            "redlock_lock_holders{key=\"k\"} 0",
            "redlock_up 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in {text}");
        }
    }

    #[test]
    fn times_may_be_longer_than_their_sum_can_be() {
        let long = |ended| FinishedRun { waited: Some(Duration::MAX), ..run(ended, Outcome::Released) };
        let history = History::new(vec![long(1), long(2)], Status::free(b"k".to_vec()));
        let text = openmetrics(Some(&listing(Vec::new())), &[history]);
        assert!(text.contains("redlock_history_waited_seconds{key=\"k\"} 18446744073709552000\n"), "{text}");
    }

    #[test]
    fn the_number_of_series_is_bounded_and_each_is_there_once() {
        let keys = (0..MOST_LOCKS + 5).map(|n| n.to_string().into_bytes());
        let same = [b"\xff".to_vec(), br"\xff".to_vec()];
        let locks: Vec<Status> = same.into_iter().chain(keys).map(Status::free).collect();
        let text = openmetrics(Some(&listing(locks)), &[]);
        let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).collect::<BTreeSet<_>>();
        let kept = series("redlock_lock_waiters{").len();
        assert_eq!(kept, text.lines().filter(|line| line.starts_with("redlock_lock_waiters{")).count());
        let left_out = MOST_LOCKS + 7 - kept;
        assert!((MOST_LOCKS - 1..=MOST_LOCKS).contains(&kept), "{kept}");
        assert_eq!(
            series("redlock_locks_left_out"),
            BTreeSet::from([&*format!("redlock_locks_left_out {left_out}")])
        );
    }
}
