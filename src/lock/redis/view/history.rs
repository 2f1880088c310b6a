//! The finished runs of one lock, from the logs of all servers.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;

use super::{LookLimits, MOST_DESCRIBED, RedisView, read_pages};
use crate::lock::redis::log::finished_run;
use crate::lock::redis::script::Call;
use crate::lock::{BackendError, Fields, FinishedRun, History, Outcome};

/// How many runs a server tells in one reply, which has to have a bound.
const RUNS_AT_ONCE: usize = 500;

impl RedisView {
    pub(super) fn read_history(
        &mut self,
        key: &[u8],
        since: Option<SystemTime>,
    ) -> Result<History, BackendError> {
        // The log after the lock: a run that ends in between is seen twice rather than not at all.
        let looked = self.look_with_majority(
            key,
            LookLimits { holders: MOST_DESCRIBED, waiters: MOST_DESCRIBED, log: true },
        )?;
        let status = self.merged(key, &looked, 0);
        let mut told: Vec<Vec<FinishedRun>> = looked.into_iter().map(|looked| looked.expired).collect();
        let name = self.keys(key).log;
        let since_ms = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        let first = since_ms.map_or_else(|| b"-".to_vec(), |since| since.as_millis().to_string().into());
        let call = |last: &Vec<u8>| {
            let count = RUNS_AT_ONCE.to_string().into_bytes();
            let args = vec![name.clone(), last.clone(), first.clone(), b"COUNT".to_vec(), count];
            Call::Command { name: "XREVRANGE", args }
        };
        let tolerated = self.servers.tolerated();
        let failed = read_pages(&mut self.servers, b"+".to_vec(), tolerated, call, |server, reply| {
            let entries = entries(reply)?;
            told[server].extend(
                entries.iter().filter_map(|(id, fields)| finished_run(id, &Fields::from_list(fields))),
            );
            let has_more = entries.len() >= RUNS_AT_ONCE;
            Some(entries.last().filter(|_| has_more).and_then(|(id, _)| id_before(id)))
        })?;
        let is_in = |run: &FinishedRun| since.is_none_or(|since| run.ended_at >= since);
        let mut runs = merge(told, self.servers.majority(), failed.len());
        runs.retain(is_in);
        Ok(History::new(runs, status))
    }
}

/// Its id, and its names and values in turn.
type Entry = (Vec<u8>, Vec<Vec<u8>>);

fn entries(reply: Value) -> Option<Vec<Entry>> {
    redis::from_redis_value(reply).ok()
}

/// "7-3" -> "7-2". Older servers know no ranges without their end.
fn id_before(id: &[u8]) -> Option<Vec<u8>> {
    let (millis, sequence) = std::str::from_utf8(id).ok()?.split_once('-')?;
    let (millis, sequence): (u64, u64) = (millis.parse().ok()?, sequence.parse().ok()?);
    let (millis, sequence) = match sequence.checked_sub(1) {
        Some(sequence) => (millis, sequence),
        None => (millis.checked_sub(1)?, u64::MAX),
    };
    Some(format!("{millis}-{sequence}").into())
}

/// One run for all that the servers tell of it. A lock is lost, or not, by the word of most of them. That a holder has
/// expired counts only if a majority had its claim, or may have had it: a single vote is no lock. `unknown`: how many
/// servers have told nothing.
fn merge(told: Vec<Vec<FinishedRun>>, majority: usize, unknown: usize) -> Vec<FinishedRun> {
    let mut by_waiter: BTreeMap<String, Vec<FinishedRun>> = BTreeMap::new();
    for mut runs in told {
        // Of one server the first word counts: a release that is sent again finds nothing to release.
        runs.sort_by(|a, b| (a.waiter(), a.credibility()).cmp(&(b.waiter(), b.credibility())));
        runs.dedup_by(|later, first| later.waiter() == first.waiter());
        for run in runs {
            by_waiter.entry(run.waiter().to_owned()).or_default().push(run);
        }
    }
    let believed = |mut told: Vec<FinishedRun>| {
        let count = told.len();
        told.sort_by_key(FinishedRun::credibility);
        let own_word: Vec<&FinishedRun> =
            told.iter().filter(|run| run.ended.how != Outcome::Expired).collect();
        if own_word.is_empty() {
            return told.into_iter().next().filter(|_| count + unknown >= majority);
        }
        let votes =
            |run: &FinishedRun| own_word.iter().filter(|other| other.ended.how == run.ended.how).count();
        // Of equals the first.
        let best = own_word.iter().rev().max_by_key(|run| votes(run));
        best.map(|run| (*run).clone())
    };
    by_waiter.into_values().filter_map(believed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::history::tests::run as finished;

    fn run(waiter: &str, ended: u64, how: Outcome) -> FinishedRun {
        finished(&format!("{waiter}.1"), ended, how)
    }

    fn merged(told: Vec<Vec<FinishedRun>>, unknown: usize) -> Vec<(String, &'static str)> {
        let runs = merge(told, 2, unknown);
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
        let told_twice =
            vec![vec![run("a", 2, Lost), run("a", 1, Released)], vec![run("a", 9, Expired)], vec![]];
        assert_eq!(merged(told_twice, 0), [("a".into(), "released")]);
    }

    #[test]
    fn a_single_vote_that_expired_was_no_run() {
        let expired = |servers: usize| {
            let mut told = vec![vec![run("a", 1, Outcome::Expired)]; servers];
            told.resize(3, Vec::new());
            told
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
