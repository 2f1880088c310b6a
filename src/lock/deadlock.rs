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
        let circle = graph.circle_of(&self.us);
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
        Ok(gives_up.then(|| graph.describe(&self.us, &circle)))
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

    /// The waiters that wait for each other and for this one; empty if it can go on.
    fn circle_of(&self, us: &str) -> BTreeSet<usize> {
        let mut stuck: BTreeSet<usize> = (0..self.waiters.len()).collect();
        let blockers: BTreeMap<usize, BTreeSet<usize>> = loop {
            let blockers = stuck.iter().map(|id| (*id, self.all_blockers(*id, &stuck)));
            let blockers: BTreeMap<_, _> = blockers.filter(|(_, blockers)| !blockers.is_empty()).collect();
            if blockers.len() == stuck.len() {
                break blockers;
            }
            stuck = blockers.into_keys().collect();
        };
        let Some(us) = stuck.into_iter().find(|id| self.waiters[*id].id == us) else {
            return BTreeSet::new();
        };
        let reach = |id: usize| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![id]);
            while let Some(id) = open.pop() {
                open.extend(blockers[&id].iter().filter(|next| reached.insert(**next)));
            }
            reached
        };
        reach(us).into_iter().filter(|id| reach(*id).contains(&us)).collect()
    }

    /// Of the waiters that hold something: the others do not look.
    fn youngest(&self, circle: &BTreeSet<usize>) -> Option<&'a str> {
        let waiters = circle.iter().map(|id| self.waiters[*id]);
        let holding = waiters.filter(|waiter| !waiter.held.is_empty());
        holding.map(|waiter| (waiter.stamp, waiter.id.as_str())).max().map(|(_, id)| id)
    }

    /// The shortest way from this waiter back to itself.
    fn describe(&self, us: &str, circle: &BTreeSet<usize>) -> Deadlock {
        let us = circle.iter().copied().find(|id| self.waiters[*id].id == us);
        let mut ways: Vec<(usize, Vec<DeadlockStep>)> = us.map(|us| (us, Vec::new())).into_iter().collect();
        let mut seen = BTreeSet::new();
        let mut at = 0;
        while let Some((id, steps)) = ways.get(at).cloned() {
            at += 1;
            for &place in &self.places[id] {
                let Queue { lock, below, .. } = &self.queues[place.0];
                for next in self.blockers(id, place, circle) {
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
mod tests {
    use super::*;
    use crate::lock::Claim;
    use crate::lock::claim::WaiterId;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// A run that holds locks one inside the other, like a command that runs redlock again.
    #[derive(Clone)]
    struct Job {
        /// The keys that it holds, and the claims.
        held: Vec<(usize, Claim)>,
        /// The key that it waits for, as which waiter, and since when.
        waits: Option<(usize, Claim, i64)>,
    }

    /// Exclusive locks, first in, first out.
    struct World {
        jobs: Vec<Job>,
        /// The jobs that wait for each key, in order.
        queues: Vec<Vec<usize>>,
        clock: i64,
    }

    impl World {
        fn new(jobs: usize, keys: usize) -> Self {
            let job = Job { held: Vec::new(), waits: None };
            Self { jobs: vec![job; jobs], queues: vec![Vec::new(); keys], clock: 0 }
        }

        fn holder(&self, key: usize) -> Option<usize> {
            self.jobs.iter().position(|job| job.held.iter().any(|(held, _)| *held == key))
        }

        /// The job starts a run inside its innermost one, unless it waits or holds that key.
        fn request(&mut self, job: usize, key: usize) -> bool {
            let holder = self.holder(key);
            if self.jobs[job].waits.is_some() || holder == Some(job) {
                return false;
            }
            self.clock += 1;
            let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
            if holder.is_none() && self.queues[key].is_empty() {
                self.jobs[job].held.push((key, claim));
            } else {
                self.queues[key].push(job);
                self.jobs[job].waits = Some((key, claim, self.clock));
            }
            true
        }

        /// The job's innermost run ends, unless it waits.
        fn release(&mut self, job: usize) -> bool {
            if self.jobs[job].waits.is_some() {
                return false;
            }
            let Some((key, _)) = self.jobs[job].held.pop() else { return false };
            if !self.queues[key].is_empty() {
                let next = self.queues[key].remove(0);
                let (_, claim, _) = self.jobs[next].waits.take().unwrap();
                self.jobs[next].held.push((key, claim));
            }
            true
        }

        fn give_up(&mut self, job: usize) {
            let (key, ..) = self.jobs[job].waits.take().unwrap();
            self.queues[key].retain(|waiting| *waiting != job);
        }

        /// The jobs that can never go on.
        fn stuck(&self) -> Vec<usize> {
            let mut world = Self { jobs: self.jobs.clone(), queues: self.queues.clone(), clock: 0 };
            while (0..world.jobs.len()).any(|job| world.release(job)) {}
            (0..world.jobs.len()).filter(|&job| world.jobs[job].waits.is_some()).collect()
        }

        fn id(&self, job: usize) -> String {
            self.jobs[job].waits.unwrap().1.waiter.to_string()
        }

        fn held(&self, job: usize) -> Vec<AncestorLock> {
            let lock = |(key, claim): &(usize, Claim)| AncestorLock {
                claim: *claim,
                host_ticket: None,
                keys: vec![name(*key)],
                attach_id: None,
            };
            self.jobs[job].held.iter().map(lock).collect()
        }

        fn look(&self, keys: &[Vec<u8>], alive: i64) -> Vec<LockNow> {
            let lock = |key: &Vec<u8>| {
                let number = usize::from(key[0]);
                let claim =
                    |job: usize| self.jobs[job].held.iter().find(|(held, _)| *held == number).unwrap().1;
                let holder = |job: usize| (claim(job).waiter.to_string(), HolderInfo::default());
                let waiter = |job: &usize| WaiterNow {
                    id: self.id(*job),
                    stamp: self.jobs[*job].waits.unwrap().2,
                    mode: Mode::Exclusive,
                    held: self.held(*job),
                    alive,
                };
                LockNow {
                    key: key.clone(),
                    mode: Mode::Exclusive,
                    holders: self.holder(number).map(holder).into_iter().collect(),
                    waiters: self.queues[number].iter().map(waiter).collect(),
                }
            };
            keys.iter().map(lock).collect()
        }

        /// Whether this waiter gives up after two looks.
        fn gives_up(&self, job: usize) -> Option<Deadlock> {
            let wanted = name(self.jobs[job].waits.unwrap().0);
            let mut search = DeadlockSearch::new(self.id(job), &self.held(job), vec![wanted])?;
            let mut look = |alive| {
                search.next_look = BootTime::from_nanos(0);
                let found = search.look(|keys| Ok::<_, Infallible>(self.look(keys, alive))).unwrap();
                (found, !search.suspects.is_empty())
            };
            let (found, has_suspicion) = look(1);
            assert_eq!(found, None, "a suspicion");
            if !has_suspicion {
                return None;
            }
            assert_eq!(look(1).0, None, "no sign of life");
            look(2).0
        }
    }

    fn name(key: usize) -> Vec<u8> {
        vec![u8::try_from(key).unwrap()]
    }

    fn waiting(world: &World) -> Vec<usize> {
        (0..world.jobs.len()).filter(|&job| world.jobs[job].waits.is_some()).collect()
    }

    #[test]
    fn of_three_runs_in_a_circle_the_youngest_gives_up_and_names_it() {
        let mut world = World::new(4, 3);
        for (job, key) in [(0, 0), (1, 1), (2, 2), (1, 2), (2, 0), (3, 0), (0, 1)] {
            world.request(job, key);
        }
        let gave_up: Vec<usize> =
            waiting(&world).into_iter().filter(|&job| world.gives_up(job).is_some()).collect();
        assert_eq!(gave_up, [0], "the last that began to wait; the fourth holds nothing");
        let keys: Vec<Vec<u8>> = world.gives_up(0).unwrap().steps.into_iter().map(|step| step.key).collect();
        assert_eq!(keys, [name(1), name(2), name(0)]);
    }

    proptest! {
        // About 12,000 nested runs.
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn there_is_no_false_alarm_and_every_circle_is_resolved_one_by_one(
            steps in proptest::collection::vec((0..6_usize, 0..5_usize, 0..4_u8), 0..40),
        ) {
            let mut world = World::new(6, 5);
            for (job, key, what) in steps {
                let has_changed = if what > 0 { world.request(job, key) } else { world.release(job) };
                while has_changed {
                    let stuck = world.stuck();
                    let give_up: Vec<usize> =
                        waiting(&world).into_iter().filter(|&job| world.gives_up(job).is_some()).collect();
                    prop_assert!(give_up.iter().all(|job| stuck.contains(job)), "a false alarm");
                    prop_assert_eq!(give_up.is_empty(), stuck.is_empty(), "a circle is not seen");
                    // Each step closes at most one circle.
                    prop_assert!(give_up.len() <= 1);
                    let Some(&job) = give_up.first() else { break };
                    world.give_up(job);
                }
            }
        }
    }
}
