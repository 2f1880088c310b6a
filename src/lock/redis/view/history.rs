//! The finished runs of one lock, from the logs of all servers.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;

use super::{InspectLimits, MAX_DESCRIBED, RedisView, read_pages};
use crate::lock::redis::log::finished_run;
use crate::lock::redis::script::Call;
use crate::lock::{BackendError, Fields, FinishedRun, History};

/// Number of runs in one reply, which must be bounded.
const RUNS_PER_REPLY: usize = 500;

impl RedisView {
    pub(super) fn read_history(
        &mut self,
        key: &[u8],
        since: Option<SystemTime>,
    ) -> Result<History, BackendError> {
        // The log is read after the lock: a run that ends in between is seen twice rather than not
        // at all.
        let reports = self.inspect_with_majority(
            key,
            InspectLimits { holders: MAX_DESCRIBED, waiters: MAX_DESCRIBED, log: true, durations: 0 },
        )?;
        let status = self.merged(key, &reports, 0);
        let mut reported: Vec<Vec<FinishedRun>> = reports.into_iter().map(|report| report.expired).collect();
        let name = self.keys(key).log;
        let since_ms = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        let first = since_ms.map_or_else(|| b"-".to_vec(), |since| since.as_millis().to_string().into());
        let call = |last: &Vec<u8>| {
            let count = RUNS_PER_REPLY.to_string().into_bytes();
            let args = vec![name.clone(), last.clone(), first.clone(), b"COUNT".to_vec(), count];
            Call::Command { name: "XREVRANGE", args }
        };
        let tolerated = self.servers.tolerated();
        let failed = read_pages(&mut self.servers, b"+".to_vec(), tolerated, call, |server, reply| {
            let entries = entries(reply)?;
            reported[server].extend(
                entries.iter().filter_map(|(id, fields)| finished_run(id, &Fields::from_list(fields))),
            );
            let has_more = entries.len() >= RUNS_PER_REPLY;
            Some(entries.last().filter(|_| has_more).and_then(|(id, _)| id_before(id)))
        })?;
        let is_in = |run: &FinishedRun| since.is_none_or(|since| run.ended_at >= since);
        let mut runs = merge(reported, self.servers.majority(), failed.len());
        runs.retain(is_in);
        Ok(History::new(runs, status))
    }
}

/// The id of an entry in a stream, then its names and values in turn.
type StreamEntry = (Vec<u8>, Vec<Vec<u8>>);

fn entries(reply: Value) -> Option<Vec<StreamEntry>> {
    redis::from_redis_value(reply).ok()
}

/// "7-3" -> "7-2". Older servers do not support exclusive ranges.
fn id_before(id: &[u8]) -> Option<Vec<u8>> {
    let (millis, sequence) = std::str::from_utf8(id).ok()?.split_once('-')?;
    let (millis, sequence): (u64, u64) = (millis.parse().ok()?, sequence.parse().ok()?);
    let (millis, sequence) = match sequence.checked_sub(1) {
        Some(sequence) => (millis, sequence),
        None => (millis.checked_sub(1)?, u64::MAX),
    };
    Some(format!("{millis}-{sequence}").into())
}

/// Merges the servers' reports of each run into one. Most servers decide how it ended. That a
/// holder has expired counts only if a majority had its claim, or may have had it: a single vote is
/// not a lock. `unknown`: the number of servers without a report.
fn merge(reported: Vec<Vec<FinishedRun>>, majority: usize, unknown: usize) -> Vec<FinishedRun> {
    let mut by_waiter: BTreeMap<String, Vec<FinishedRun>> = BTreeMap::new();
    for mut runs in reported {
        // The first report of one server counts: a release that is sent again finds nothing to
        // release.
        runs.sort_by(|a, b| (a.waiter(), a.credibility()).cmp(&(b.waiter(), b.credibility())));
        runs.dedup_by(|later, first| later.waiter() == first.waiter());
        for run in runs {
            by_waiter.entry(run.waiter().to_owned()).or_default().push(run);
        }
    }
    let merged_run = |mut reported: Vec<FinishedRun>| {
        let count = reported.len();
        reported.sort_by_key(FinishedRun::credibility);
        let own_reports: Vec<&FinishedRun> =
            reported.iter().filter(|run| !run.ended.how.is_expiry()).collect();
        if own_reports.is_empty() {
            return reported.into_iter().next().filter(|_| count + unknown >= majority);
        }
        let votes =
            |run: &FinishedRun| own_reports.iter().filter(|other| other.ended.how == run.ended.how).count();
        // The first of equals.
        let best = own_reports.iter().rev().max_by_key(|run| votes(run));
        best.map(|run| (*run).clone())
    };
    by_waiter.into_values().filter_map(merged_run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Outcome;
    use crate::lock::history::tests::run as finished;

    fn run(waiter: &str, ended: u64, how: Outcome) -> FinishedRun {
        finished(&format!("{waiter}.1"), ended, how)
    }

    fn merged(reported: Vec<Vec<FinishedRun>>, unknown: usize) -> Vec<(String, &'static str)> {
        let runs = merge(reported, 2, unknown);
        runs.iter().map(|run| (run.waiter().to_owned(), run.ended.how.name())).collect()
    }

    #[test]
    fn most_servers_decide_how_a_run_ended() {
        use Outcome::{Expired, Lost, Released};
        let one_has_lost_it =
            vec![vec![run("a", 1, Lost)], vec![run("a", 2, Released)], vec![run("a", 3, Released)]];
        assert_eq!(merged(one_has_lost_it, 0), [("a".into(), "released")]);
        let two_have = vec![vec![run("a", 1, Released)], vec![run("a", 2, Lost)], vec![run("a", 3, Lost)]];
        assert_eq!(merged(two_have, 0), [("a".into(), "lost")]);
        let reported_twice =
            vec![vec![run("a", 2, Lost), run("a", 1, Released)], vec![run("a", 9, Expired)], vec![]];
        assert_eq!(merged(reported_twice, 0), [("a".into(), "released")]);
    }

    #[test]
    fn a_single_vote_that_expired_was_no_run() {
        let expired = |servers: usize| {
            let mut reported = vec![vec![run("a", 1, Outcome::Expired)]; servers];
            reported.resize(3, Vec::new());
            reported
        };
        assert_eq!(merged(expired(1), 0), []);
        assert_eq!(merged(expired(1), 1), [("a".into(), "expired")]);
        assert_eq!(merged(expired(2), 0), [("a".into(), "expired")]);
    }

    #[test]
    fn ids_go_backwards_over_every_edge() {
        assert_eq!(id_before(b"7-3"), Some(b"7-2".to_vec()));
        assert_eq!(id_before(b"7-0"), Some(b"6-18446744073709551615".to_vec()));
        assert_eq!((id_before(b"0-0"), id_before(b"x")), (None, None));
    }
}
