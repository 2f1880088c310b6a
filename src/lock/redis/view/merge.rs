//! Merges the reports of several servers about one lock.
//!
//! A holder is one that a majority of the configured servers knows, or may know: a server that
//! cannot be queried may know it. A claim on the gate counts, too: it keeps other clients out, even
//! if its client died before it had a majority. With one server the report of that server is the
//! result.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::wall_clock;
use crate::lock::redis::reply::{HolderRecord, Queue, Record, Waiter};
use crate::lock::{Difference, Holder, HolderInfo, HolderKind, Mode, State, Status, WaiterStatus};

#[derive(Debug)]
pub(super) struct Merged {
    /// Its key and its servers are not set.
    pub status: Status,
    /// For each server whether it agrees, and how it differs otherwise.
    pub votes: Vec<(Option<bool>, Option<Difference>)>,
}

/// The records of one holder.
struct Candidate<'a> {
    mode: &'a Mode,
    records: Vec<&'a HolderRecord>,
}

impl Candidate<'_> {
    fn fence(&self) -> Option<u64> {
        self.records.iter().filter_map(|record| record.fence).max()
    }
}

/// `records`: one for each server, in the order in which clients ask them; `None` if its report does
/// not count.
pub(super) fn merge(records: &[Option<&Record>], majority: usize) -> Merged {
    let unknown = records.iter().filter(|record| record.is_none()).count();
    let may_be_majority = |votes: usize| votes > 0 && votes + unknown >= majority;
    let known = || records.iter().copied().flatten();
    let mut candidates: BTreeMap<String, Candidate<'_>> = BTreeMap::new();
    for record in known() {
        if let Record::Held { mode, holders, .. } = record {
            for holder in holders {
                let name = holder.claim.waiter.to_string();
                let entry = candidates.entry(name).or_insert(Candidate { mode, records: Vec::new() });
                entry.records.push(holder);
            }
        }
    }
    let at_gate = |name: &str| match known().next() {
        Some(Record::Held { holders, .. }) => {
            holders.iter().any(|holder| holder.claim.waiter.to_string() == name)
        }
        Some(Record::Free { .. } | Record::Foreign { .. } | Record::WrongType) | None => false,
    };
    candidates.retain(|name, candidate| may_be_majority(candidate.records.len()) || at_gate(name));
    // There can be one mode and, if it is exclusive, one holder.
    let best = candidates.values().max_by_key(|holder| (holder.records.len(), holder.fence()));
    let mode = best.map(|holder| holder.mode);
    if mode == Some(&Mode::Exclusive) {
        let best = best.and_then(|best| best.records.first()).map(|record| record.claim.waiter.to_string());
        candidates.retain(|name, _| Some(name) == best.as_ref());
    }
    candidates.retain(|_, candidate| Some(candidate.mode) == mode);
    let foreign: Vec<(&[u8], Option<Duration>)> = known()
        .filter_map(|record| match record {
            Record::Foreign { id, expires_in, .. } => Some((id.as_slice(), *expires_in)),
            Record::WrongType => Some((&[][..], None)),
            Record::Free { .. } | Record::Held { .. } => None,
        })
        .collect();
    let is_foreign = candidates.is_empty() && may_be_majority(foreign.len());
    let wrong_types = known().filter(|record| matches!(record, Record::WrongType)).count();
    let is_wrong_type = is_foreign && wrong_types == foreign.len();

    let mut holders: Vec<Holder> =
        candidates.values().map(|candidate| described(candidate, majority)).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
    let state = match mode {
        _ if is_foreign => State::Foreign,
        None => State::Free,
        Some(_) if holders.iter().all(Holder::has_ended) => State::Kept,
        Some(Mode::Exclusive) => State::Held,
        Some(Mode::Shared { .. }) => State::Shared,
        Some(Mode::Slot { of }) => State::Slots { of: *of },
    };
    let holder_count = known().map(holder_count).max().unwrap_or_default();
    let votes = records.iter().map(|record| vote(*record, &candidates, is_foreign)).collect();
    if is_foreign {
        let votes = |value: &[u8]| foreign.iter().filter(|(id, _)| *id == value).count();
        let value = foreign.iter().map(|(id, _)| *id).max_by_key(|id| votes(id)).unwrap_or_default();
        holders = vec![Holder {
            kind: HolderKind::Foreign,
            id: String::from_utf8_lossy(value).into_owned(),
            expires_in: agreed_expiry(foreign.iter().map(|(_, left)| *left).collect(), majority),
            ..Holder::default()
        }];
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

fn described(candidate: &Candidate<'_>, majority: usize) -> Holder {
    let records = &candidate.records;
    // After a lost reply a run repeats its request: the claim that most servers have is its grant.
    let votes = |attempt: u32| records.iter().filter(|record| record.claim.attempt == attempt).count();
    let has_info = |record: &HolderRecord| record.info != HolderInfo::default();
    let rank =
        |record: &&&HolderRecord| (votes(record.claim.attempt), record.claim.attempt, has_info(record));
    let best = records.iter().max_by_key(rank).expect("a candidate is one because of a record");
    let known = records.iter().find(|record| has_info(record)).filter(|_| !has_info(best)).unwrap_or(best);
    let held_for = records.iter().filter_map(|record| record.held_for).max();
    let has_ended = records.iter().any(|record| record.has_ended);
    let id = best.claim.to_string();
    Holder {
        kind: if has_ended { HolderKind::Reservation } else { HolderKind::Run },
        info: known.info.clone(),
        mode: candidate.mode.clone(),
        token: Some(id.clone()),
        id,
        fence: candidate.fence(),
        slot: best.slot.filter(|_| matches!(candidate.mode, Mode::Slot { .. })),
        since: held_for.and_then(|held_for| wall_clock().checked_sub(held_for)),
        waited: known.waited,
        held_for,
        expires_in: agreed_expiry(records.iter().map(|record| record.expires_in).collect(), majority),
        broken_by: records.iter().find_map(|record| record.broken_by.clone()),
    }
}

/// When the lock has no majority any more, as far as is known; `None` is never.
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

/// Clients queue at the gate, and at servers that refused them a vote, so the same waiter may be in
/// several queues. Scores are the same on all servers.
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

/// Whether this server agrees with the merged result, and how it differs otherwise.
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
            let counts = |holder: &&HolderRecord| holders.contains_key(&holder.claim.waiter.to_string());
            match here.iter().find(counts) {
                Some(_) => None,
                None => here.first().map(|holder| Difference::HeldBy(holder.info.clone())),
            }
        }
    };
    (Some(differs.is_none()), differs)
}
