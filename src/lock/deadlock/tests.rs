//! Random nested runs, beside a world that knows who is stuck; and a circle beside another one.

use super::*;
use crate::lock::Claim;
use crate::lock::claim::WaiterId;
use proptest::prelude::*;
use std::convert::Infallible;

/// A run that holds locks one inside the other, like a command that runs redlock again.
#[derive(Clone)]
struct NestedRun {
    /// The keys that it holds, and the claims.
    held: Vec<(usize, Claim)>,
    /// The key that it waits for, as which waiter, and since when.
    waits: Option<(usize, Claim, i64)>,
}

/// Exclusive locks, first in, first out.
struct World {
    jobs: Vec<NestedRun>,
    /// The jobs that wait for each key, in order.
    queues: Vec<Vec<usize>>,
    clock: i64,
}

impl World {
    fn new(jobs: usize, keys: usize) -> Self {
        let job = NestedRun { held: Vec::new(), waits: None };
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
            let claim = |job: usize| self.jobs[job].held.iter().find(|(held, _)| *held == number).unwrap().1;
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

/// The other slot is held in a circle of its own.
#[test]
fn a_circle_through_one_of_two_slots_is_named() {
    let grants: Vec<Claim> = (0..5).map(|_| Claim { waiter: WaiterId::random(), attempt: 1 }).collect();
    let holds = |at: &usize| AncestorLock {
        claim: grants[*at],
        host_ticket: None,
        keys: vec![vec![b"sslxy"[*at]]],
        attach_id: None,
    };
    let lock = |key: u8, mode: &Mode, held_by: &[usize], waiter: WaiterNow| LockNow {
        key: vec![key],
        mode: mode.clone(),
        holders: held_by.iter().map(|at| (holds(at).grant(), HolderInfo::default())).collect(),
        waiters: vec![WaiterNow { mode: mode.clone(), ..waiter }],
    };
    let read = |alive| {
        let waiter = |id: &str, stamp, held: &[usize]| WaiterNow {
            id: id.into(),
            stamp,
            mode: Mode::Exclusive,
            held: held.iter().map(holds).collect(),
            alive,
        };
        vec![
            lock(b's', &Mode::Slot { of: 2 }, &[0, 1], waiter("us", 9, &[2])),
            lock(b'l', &Mode::Exclusive, &[2], waiter("one", 1, &[0])),
            lock(b'x', &Mode::Exclusive, &[3], waiter("two", 2, &[1, 4])),
            lock(b'y', &Mode::Exclusive, &[4], waiter("three", 3, &[3])),
        ]
    };
    let held = read(0)[0].waiters[0].held.clone();
    let mut search = DeadlockSearch::new("us".into(), &held, vec![b"s".to_vec()]).unwrap();
    let mut look = |alive| {
        search.next_look = BootTime::from_nanos(0);
        search.look(|_| Ok::<_, Infallible>(read(alive))).unwrap()
    };
    assert_eq!(look(1), None);
    let keys: Vec<Vec<u8>> = look(2).unwrap().steps.into_iter().map(|step| step.key).collect();
    assert_eq!(keys, [b"s", b"l"]);
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
            if !has_changed {
                continue;
            }
            loop {
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
