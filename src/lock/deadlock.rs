//! Runs inside runs that wait for each other's locks. A waiter that holds locks, through the runs
//! that it runs under, looks for itself among those that its own wait depends on.
//!
//! A waiter that was killed stays in its queue for a while, so a first look is only a suspicion. A
//! second look confirms it. A look reads all locks at one moment. A waiter that was in the queue
//! then, and has given a sign of life since, was waiting at that moment; and what it holds it has
//! held since before it began to wait. So at that moment none of them could go on.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{AncestorLock, HolderInfo, Mode};
use crate::clock::BootTime;
use crate::world::{Rule, follows};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1500);
/// The same while there is a suspicion.
const CONFIRM_EVERY: Duration = Duration::from_millis(500);
/// Waiters that hold more locks than this together are not followed further.
const MOST_KEYS: usize = 64;

/// A lock as a look shows it.
#[derive(Clone, Debug)]
pub(super) struct LockNow {
    pub key: Vec<u8>,
    pub mode: Mode,
    /// The names of the grants, and who has them.
    pub holders: Vec<(String, HolderInfo)>,
    /// In the order of the queue.
    pub waiters: Vec<WaiterNow>,
}

#[derive(Clone, Debug)]
pub(super) struct WaiterNow {
    pub id: String,
    /// When it arrived. Everyone sees the same number.
    pub stamp: i64,
    pub mode: Mode,
    /// The locks of the runs that it runs under.
    pub held: Vec<AncestorLock>,
    /// Larger after each sign of life.
    pub alive: i64,
}

/// The circle in which the youngest waiter gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deadlock {
    /// Beginning with the lock that this run waits for. The last one is held by this run.
    pub steps: Vec<DeadlockStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadlockStep {
    pub key: Vec<u8>,
    /// Who holds the lock, or is ahead in its queue. `None` for a waiter that is ahead.
    pub holder: Option<HolderInfo>,
}

/// The looks of one waiter.
#[derive(Debug)]
pub(super) struct DeadlockSearch {
    us: String,
    keys: Vec<Vec<u8>>,
    /// The waiters that were in a circle with us at the last look, and their last sign of life.
    suspects: BTreeMap<String, i64>,
    next_look: BootTime,
}

impl DeadlockSearch {
    /// `None` if this waiter holds nothing, and so keeps nobody waiting. `wanted`: the keys that it
    /// waits for.
    pub(super) fn new(us: String, held: &[AncestorLock], wanted: Vec<Vec<u8>>) -> Option<Self> {
        let mut keys: Vec<Vec<u8>> = held.iter().flat_map(|lock| lock.keys.iter().cloned()).collect();
        if keys.is_empty() {
            return None;
        }
        keys.extend(wanted);
        Some(Self { us, keys, suspects: BTreeMap::new(), next_look: BootTime::now() })
    }

    pub(super) fn next_look(&self) -> BootTime {
        self.next_look
    }

    /// Looks, if it is time. `read` returns these locks as they are now, as far as it can. Returns
    /// the deadlock if it is for us to give up.
    pub(super) fn look<E>(
        &mut self,
        mut read: impl FnMut(&[Vec<u8>]) -> Result<Vec<LockNow>, E>,
    ) -> Result<Option<Deadlock>, E> {
        if !self.next_look.has_passed() {
            return Ok(None);
        }
        let (mut locks, mut seen, mut reads) = (Vec::new(), BTreeSet::new(), 0);
        let mut next: BTreeSet<Vec<u8>> = self.keys.iter().cloned().collect();
        while !next.is_empty() && seen.len() < MOST_KEYS {
            let new = read(&next.iter().cloned().collect::<Vec<_>>())?;
            seen.append(&mut next);
            let held = new.iter().flat_map(|lock| &lock.waiters).flat_map(|waiter| &waiter.held);
            next = held.flat_map(|held| &held.keys).filter(|key| !seen.contains(*key)).cloned().collect();
            locks.extend(new);
            reads += 1;
        }
        if reads > 1 {
            locks = read(&seen.into_iter().collect::<Vec<_>>())?;
        }
        let graph = Graph::new(&locks);
        let stuck = graph.stuck();
        let circle = graph.circle_of(&self.us, &stuck);
        let waiters = || circle.iter().map(|id| graph.waiters[*id]);
        let has_renewed = |waiter: &WaiterNow| {
            let before = self.suspects.get(&waiter.id);
            before.is_some_and(|before| waiter.alive > *before) || !follows(Rule::SignOfLife)
        };
        let is_confirmed = waiters().filter(|waiter| waiter.id != self.us).all(has_renewed);
        // A sign of life counts from the look that first saw the waiter.
        let first_seen = |waiter: &WaiterNow| self.suspects.get(&waiter.id).copied().unwrap_or(waiter.alive);
        self.suspects = waiters().map(|waiter| (waiter.id.clone(), first_seen(waiter))).collect();
        let every = if circle.is_empty() { LOOK_EVERY } else { CONFIRM_EVERY };
        self.next_look = BootTime::now() + every;
        let gives_up = match graph.youngest(&circle) {
            Some(youngest) => is_confirmed && (youngest == self.us || !follows(Rule::YoungestGivesUp)),
            None => false,
        };
        Ok(gives_up.then(|| graph.describe(&self.us, &circle, &stuck)))
    }
}

/// Who waits for whom. Each waiter has a number.
struct Graph<'a> {
    waiters: Vec<&'a WaiterNow>,
    queues: Vec<Queue<'a>>,
    /// The queues of each waiter, and its place in them.
    places: Vec<Vec<(usize, usize)>>,
}

struct Queue<'a> {
    lock: &'a LockNow,
    waiters: Vec<usize>,
    /// For each holder the waiters that run under it.
    below: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn new(locks: &'a [LockNow]) -> Self {
        let (mut waiters, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut under: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for waiter in locks.iter().flat_map(|lock| &lock.waiters) {
            if let Entry::Vacant(entry) = numbers.entry(waiter.id.as_str()) {
                let number = *entry.insert(waiters.len());
                waiters.push(waiter);
                waiter.held.iter().for_each(|held| under.entry(held.grant()).or_default().push(number));
            }
        }
        let queue = |lock: &'a LockNow| Queue {
            lock,
            waiters: lock.waiters.iter().map(|waiter| numbers[waiter.id.as_str()]).collect(),
            below: lock
                .holders
                .iter()
                .map(|(grant, _)| under.get(grant).cloned().unwrap_or_default())
                .collect(),
        };
        let queues: Vec<Queue<'_>> = locks.iter().map(queue).collect();
        let mut places = vec![Vec::new(); waiters.len()];
        for (at, queue) in queues.iter().enumerate() {
            queue.waiters.iter().enumerate().for_each(|(place, waiter)| places[*waiter].push((at, place)));
        }
        Self { waiters, queues, places }
    }

    /// The waiters among `stuck` without which this one cannot have this lock.
    fn blockers(&self, id: usize, (at, place): (usize, usize), stuck: &BTreeSet<usize>) -> BTreeSet<usize> {
        let Queue { lock, waiters, below } = &self.queues[at];
        let ahead = waiters[..place].iter().filter(|other| stuck.contains(other));
        let is_below = |other: &&usize| **other != id && stuck.contains(other);
        let behind = |below: &Vec<usize>| below.iter().filter(is_below).copied().collect();
        let mut behind_holders: Vec<Vec<usize>> = below.iter().map(behind).collect();
        let mode = &self.waiters[id].mode;
        match mode {
            // Any holder that leaves is enough.
            Mode::Slot { of } if lock.mode == *mode && follows(Rule::AnySlot) => {
                let is_full = behind_holders.len() >= *of as usize;
                if !is_full || behind_holders.iter().any(Vec::is_empty) {
                    behind_holders.clear();
                }
            }
            // It waits for those ahead of it.
            Mode::Shared { .. } if lock.mode == *mode => behind_holders.clear(),
            Mode::Exclusive | Mode::Shared { .. } | Mode::Slot { .. } => {}
        }
        ahead.copied().chain(behind_holders.into_iter().flatten()).collect()
    }

    fn all_blockers(&self, id: usize, stuck: &BTreeSet<usize>) -> BTreeSet<usize> {
        self.places[id].iter().flat_map(|place| self.blockers(id, *place, stuck)).collect()
    }

    /// The waiters that can never go on.
    fn stuck(&self) -> BTreeSet<usize> {
        let mut stuck: BTreeSet<usize> = (0..self.waiters.len()).collect();
        loop {
            let is_blocked = |id: &usize| !self.all_blockers(*id, &stuck).is_empty();
            let left: BTreeSet<usize> = stuck.iter().copied().filter(is_blocked).collect();
            if left.len() == stuck.len() {
                return left;
            }
            stuck = left;
        }
    }

    /// The waiters that wait for each other and for this one; empty if it can go on.
    fn circle_of(&self, us: &str, stuck: &BTreeSet<usize>) -> BTreeSet<usize> {
        let Some(us) = stuck.iter().copied().find(|id| self.waiters[*id].id == us) else {
            return BTreeSet::new();
        };
        let blockers: BTreeMap<usize, BTreeSet<usize>> =
            stuck.iter().map(|id| (*id, self.all_blockers(*id, stuck))).collect();
        let reach = |id: usize| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![id]);
            while let Some(id) = open.pop() {
                open.extend(blockers[&id].iter().filter(|next| reached.insert(**next)));
            }
            reached
        };
        reach(us).into_iter().filter(|id| reach(*id).contains(&us)).collect()
    }

    /// The youngest waiter that holds something: the others do not look.
    fn youngest(&self, circle: &BTreeSet<usize>) -> Option<&'a str> {
        let waiters = circle.iter().map(|id| self.waiters[*id]);
        let holding = waiters.filter(|waiter| !waiter.held.is_empty());
        holding.map(|waiter| (waiter.stamp, waiter.id.as_str())).max().map(|(_, id)| id)
    }

    /// The shortest way from this waiter back to itself.
    fn describe(&self, us: &str, circle: &BTreeSet<usize>, stuck: &BTreeSet<usize>) -> Deadlock {
        let us = circle.iter().copied().find(|id| self.waiters[*id].id == us);
        let mut ways: Vec<(usize, Vec<DeadlockStep>)> = us.map(|us| (us, Vec::new())).into_iter().collect();
        let mut seen = BTreeSet::new();
        let mut at = 0;
        while let Some((id, steps)) = ways.get(at).cloned() {
            at += 1;
            for &place in &self.places[id] {
                let Queue { lock, below, .. } = &self.queues[place.0];
                let blockers = self.blockers(id, place, stuck);
                for next in blockers.into_iter().filter(|next| circle.contains(next)) {
                    let holder = below.iter().position(|below| below.contains(&next));
                    let holder = holder.map(|holder| lock.holders[holder].1.clone());
                    let mut steps = steps.clone();
                    steps.push(DeadlockStep { key: lock.key.clone(), holder });
                    if Some(next) == us {
                        return Deadlock { steps };
                    }
                    if seen.insert(next) {
                        ways.push((next, steps));
                    }
                }
            }
        }
        Deadlock { steps: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
