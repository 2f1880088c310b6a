//! What several servers say about one lock, merged into what is true of it.
//!
//! A holder is one that a majority of the configured servers knows, or may know: a server that cannot be asked may know
//! it. With one server this is what that server says.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::wall_clock;
use crate::lock::redis::reply::{Holder, Queue, Record, Tag, Waiter};
use crate::lock::{Difference, HolderInfo, HolderStatus, State, Status, WaiterStatus};

#[derive(Debug)]
pub(super) struct Merged {
    /// Without its key and its servers.
    pub status: Status,
    /// For each server whether it says the same, and what it says otherwise.
    pub votes: Vec<(Option<bool>, Option<Difference>)>,
}

/// All that is known of one holder.
struct Candidate<'a> {
    tag: Tag,
    records: Vec<&'a Holder>,
}

impl Candidate<'_> {
    fn fence(&self) -> Option<u64> {
        self.records.iter().filter_map(|record| record.fence).max()
    }
}

/// `records`: of each server, `None` for one whose word does not count.
pub(super) fn merge(records: &[Option<&Record>], majority: usize) -> Merged {
    let unknown = records.iter().filter(|record| record.is_none()).count();
    let may_be_majority = |votes: usize| votes > 0 && votes + unknown >= majority;
    let known = || records.iter().copied().flatten();
    let mut candidates: BTreeMap<String, Candidate<'_>> = BTreeMap::new();
    for record in known() {
        if let Record::Held { tag, holders, .. } = record {
            for holder in holders {
                let name = holder.claim.waiter.to_string();
                let entry = candidates.entry(name).or_insert(Candidate { tag: *tag, records: Vec::new() });
                entry.records.push(holder);
            }
        }
    }
    candidates.retain(|_, candidate| may_be_majority(candidate.records.len()));
    // One exclusive holder at most; and one mode.
    let best = candidates.values().max_by_key(|holder| (holder.records.len(), holder.fence()));
    let tag = best.map(|holder| holder.tag);
    if tag == Some(Tag::Exclusive) {
        let best = best.and_then(|best| best.records.first()).map(|record| record.claim.waiter.to_string());
        candidates.retain(|name, _| Some(name) == best.as_ref());
    }
    candidates.retain(|_, candidate| Some(candidate.tag) == tag);
    let foreign: Vec<Option<Duration>> = known()
        .filter_map(|record| match record {
            Record::Foreign { expires_in, .. } => Some(*expires_in),
            Record::WrongType => Some(None),
            Record::Free { .. } | Record::Held { .. } => None,
        })
        .collect();
    let is_foreign = candidates.is_empty() && may_be_majority(foreign.len());
    let wrong_types = known().filter(|record| matches!(record, Record::WrongType)).count();
    let is_wrong_type = is_foreign && wrong_types == foreign.len();

    let mut holders: Vec<HolderStatus> =
        candidates.values().map(|candidate| holder_status(candidate, majority)).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
    let state = match tag {
        _ if is_foreign => State::Foreign,
        None => State::Free,
        Some(_) if holders.iter().all(|holder| holder.has_ended) => State::Kept,
        Some(Tag::Exclusive) => State::Held,
        Some(Tag::Shared) => State::Shared,
        Some(Tag::Slots(of)) => State::Slots { of },
    };
    let holder_count = known().map(holder_count).max().unwrap_or_default();
    let votes = records.iter().map(|record| vote(*record, &candidates, is_foreign)).collect();
    if is_foreign {
        holders =
            vec![HolderStatus { expires_in: agreed_expiry(foreign, majority), ..HolderStatus::default() }];
    }
    let (waiters, waiter_count) = waiters(known().filter_map(queue), &candidates);
    let holder_count = if candidates.is_empty() { 0 } else { holder_count.max(holders.len()) };
    let status = Status {
        state,
        is_wrong_type,
        holders,
        holder_count,
        waiters,
        waiter_count,
        ..Status::free(Vec::new())
    };
    Merged { status, votes }
}

fn holder_status(candidate: &Candidate<'_>, majority: usize) -> HolderStatus {
    let records = &candidate.records;
    let best =
        records.iter().max_by_key(|record| (record.info != HolderInfo::default(), record.claim.attempt));
    let best = best.expect("a candidate is one because of a record");
    let held_for = records.iter().filter_map(|record| record.held_for).max();
    HolderStatus {
        info: best.info.clone(),
        token: Some(best.claim.to_string()),
        fence: candidate.fence(),
        slot: best.slot.filter(|_| matches!(candidate.tag, Tag::Slots(_))),
        since: held_for.and_then(|held_for| wall_clock().checked_sub(held_for)),
        waited: best.waited,
        held_for,
        expires_in: agreed_expiry(records.iter().map(|record| record.expires_in).collect(), majority),
        has_ended: records.iter().any(|record| record.has_ended),
        broken_by: records.iter().find_map(|record| record.broken_by.clone()),
    }
}

/// When no majority is left, as far as it is known. `None` is never.
fn agreed_expiry(mut expiries: Vec<Option<Duration>>, majority: usize) -> Option<Duration> {
    expiries.sort_by_key(|expiry| std::cmp::Reverse(expiry.unwrap_or(Duration::MAX)));
    expiries.get(majority - 1).or(expiries.last()).copied().flatten()
}

fn holder_count(record: &Record) -> usize {
    match record {
        Record::Held { holder_count, .. } => *holder_count,
        Record::Free { .. } | Record::Foreign { .. } | Record::WrongType => 0,
    }
}

fn queue(record: &Record) -> Option<&Queue> {
    match record {
        Record::Held { queue, .. } | Record::Free { queue } | Record::Foreign { queue, .. } => Some(queue),
        Record::WrongType => None,
    }
}

/// Clients queue at the gate, and where a vote was refused: the same waiter may stand in several queues. Places are the
/// same numbers everywhere.
fn waiters<'a>(
    queues: impl Iterator<Item = &'a Queue>,
    holders: &BTreeMap<String, Candidate<'_>>,
) -> (Vec<WaiterStatus>, usize) {
    let mut count = 0;
    let mut by_name: BTreeMap<&[u8], &Waiter> = BTreeMap::new();
    for queue in queues {
        count = count.max(queue.count);
        for waiter in &queue.waiters {
            let is_known = |waiter: &Waiter| waiter.info != HolderInfo::default();
            let entry = by_name.entry(&waiter.name).or_insert(waiter);
            if !is_known(entry) && is_known(waiter) {
                *entry = waiter;
            }
        }
    }
    by_name.retain(|name, _| !holders.keys().any(|holder| holder.as_bytes() == *name));
    let mut waiters: Vec<&Waiter> = by_name.into_values().collect();
    waiters.sort_by_key(|waiter| (waiter.score, &waiter.name));
    let status = |(ahead, waiter): (usize, &Waiter)| WaiterStatus {
        info: waiter.info.clone(),
        mode: waiter.mode.clone(),
        position: ahead + 1,
        waited: Some(waiter.waited),
    };
    let waiters: Vec<WaiterStatus> = waiters.into_iter().enumerate().map(status).collect();
    let count = count.max(waiters.len());
    (waiters, count)
}

/// Whether this server says the same as all together, and what it says otherwise.
fn vote(
    record: Option<&Record>,
    holders: &BTreeMap<String, Candidate<'_>>,
    is_foreign: bool,
) -> (Option<bool>, Option<Difference>) {
    let differs = match record {
        None => return (None, None),
        Some(Record::Free { .. }) if holders.is_empty() && !is_foreign => None,
        Some(Record::Free { .. }) => Some(Difference::Free),
        Some(Record::Foreign { .. } | Record::WrongType) if is_foreign => None,
        Some(Record::Foreign { .. } | Record::WrongType) => Some(Difference::Foreign),
        Some(Record::Held { holders: here, .. }) => {
            let counts = |holder: &&Holder| holders.contains_key(&holder.claim.waiter.to_string());
            match here.iter().find(counts) {
                Some(_) => None,
                None => here.first().map(|holder| Difference::HeldBy(holder.info.clone())),
            }
        }
    };
    (Some(differs.is_none()), differs)
}
