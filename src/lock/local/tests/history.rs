//! The history in the lock file.

use std::time::{Duration, SystemTime};

use super::super::format::{LOGGED_RUNS, WAITERS_START};
use super::{
    FOREVER, HostLock, LockDirectory, LockFile, NoObserver, UsageMode, acquire, ask, attempt, ended,
    expect_held, reserved_for, shared,
};
use crate::clock::BootTime;
use crate::exit::Exit;
use crate::lock::{
    Ended, Error, FinishedRun, Grant, HolderInfo, Lock, Mode, Outcome, Prefer, Request, WaitPolicy,
};

impl LockDirectory {
    /// In the order of their tickets.
    fn logged(&self, key: &str) -> Vec<FinishedRun> {
        let mut runs = LockFile::open(self.0.path(), key.as_bytes()).unwrap().logged_runs();
        runs.sort_by_key(|(ticket, _)| *ticket);
        runs.into_iter().map(|(_, run)| run).collect()
    }

    fn file_length(&self) -> u64 {
        self.observer_handle().locks().file().metadata().unwrap().len()
    }
}

fn logged(mode: Mode, wait: WaitPolicy) -> Request {
    Request { history: 1, ..ask(mode, Prefer::Fair, wait) }
}

fn take(lock: &mut HostLock, mode: Mode) -> Grant {
    acquire(lock, &logged(mode, WaitPolicy::No)).unwrap()
}

#[test]
fn a_release_logs_all_that_is_known() {
    let directory = LockDirectory::new();
    let mut lock = directory.open();
    let holder = HolderInfo { host: "web1".into(), command: "deploy".into(), ..HolderInfo::default() };
    let request = Request { holder: holder.clone(), ..logged(Mode::Slot { of: 3 }, FOREVER) };
    let grant = acquire(&mut lock, &request).unwrap();
    let how = Ended { how: Outcome::MaxHold, exit: Some(Exit::Code(7)) };
    lock.release(&grant, &how, Duration::ZERO);
    let runs = directory.logged("k");
    let [run] = &runs[..] else { panic!("{runs:?}") };
    assert_eq!((&run.info, &run.ended), (&holder, &how));
    assert_eq!((run.token.as_str(), run.fence), (grant.claim.to_string().as_str(), Some(grant.fences[0])));
    assert_eq!((&run.mode, run.slot), (&Mode::Slot { of: 3 }, Some(0)));
    assert!(run.held.is_some() && run.waited.is_some());
    assert!(run.ended_at.elapsed().is_ok_and(|ago| ago < Duration::from_secs(60)));
}

#[test]
fn the_log_keeps_a_fixed_number_of_runs() {
    let directory = LockDirectory::new();
    let mut lock = directory.open();
    let mut fences = Vec::new();
    for _ in 0..LOGGED_RUNS + 10 {
        let grant = take(&mut lock, Mode::Exclusive);
        fences.push(Some(grant.fences[0]));
        lock.release(&grant, &ended(), Duration::ZERO);
    }
    let logged: Vec<Option<u64>> = directory.logged("k").iter().map(|run| run.fence).collect();
    assert_eq!(logged, fences[10..]);
    assert!(directory.file_length() <= WAITERS_START);
}

#[test]
fn the_next_holder_logs_one_that_was_killed() {
    let directory = LockDirectory::new();
    let (mut first, mut next) = (directory.open(), directory.open());
    for mode in [Mode::Exclusive, shared("g"), Mode::Slot { of: 2 }] {
        let killed = take(&mut first, mode.clone());
        first.unlock_all();
        let grant = take(&mut next, mode);
        let runs = directory.logged("k");
        let run = runs.last().unwrap();
        assert_eq!((run.fence, &run.ended.how, run.held), (Some(killed.fences[0]), &Outcome::Expired, None));
        next.release(&grant, &ended(), Duration::ZERO);
    }
    assert_eq!(directory.logged("k").len(), 6);
}

#[test]
fn a_waiter_logs_when_the_holder_was_killed() {
    let directory = LockDirectory::new();
    let (mut first, mut next) = (directory.open(), directory.open());
    take(&mut first, Mode::Exclusive);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            acquire(&mut next, &logged(Mode::Exclusive, FOREVER)).unwrap();
        });
        directory.wait_for_waiters(UsageMode::PLAIN, 1);
        first.unlock_all();
        waiter.join().unwrap();
    });
    let runs = directory.logged("k");
    assert!(runs.len() == 1 && runs[0].ended.how == Outcome::Expired && runs[0].held.is_some(), "{runs:?}");
    assert!(runs[0].ended_at <= SystemTime::now());
}

#[test]
fn a_run_without_a_history_is_not_logged_as_killed() {
    let directory = LockDirectory::new();
    let (mut silent, mut other) = (directory.open(), directory.open());
    let grant = attempt(&mut silent, Mode::Exclusive).unwrap();
    expect_held(attempt(&mut other, Mode::Exclusive));
    silent.release(&grant, &ended(), Duration::ZERO);
    take(&mut other, Mode::Exclusive);
    assert_eq!(directory.logged("k"), []);
}

#[test]
fn the_holder_of_a_minimum_hold_is_not_logged_as_killed() {
    let directory = LockDirectory::new();
    let (mut first, mut reader) = (directory.open(), directory.open());
    let grant = reserved_for(&mut first, shared("g"), super::FAR);
    first.release(&grant, &ended(), super::FAR);
    let record = directory.observer_handle().record(1).unwrap();
    take(&mut reader, shared("g"));
    assert_eq!(directory.observer_handle().record(1), Some(record), "its record stays");
    assert_eq!(directory.logged("k"), []);
}

#[test]
fn a_run_that_does_not_get_the_lock_is_logged_once() {
    let directory = LockDirectory::new();
    let (mut holder, mut other) = (directory.open_all(&["k"]), directory.open_all(&["a", "k"]));
    take(&mut holder, Mode::Exclusive);
    let started = BootTime::now();
    // It gets the first key only.
    let refused = acquire(&mut other, &logged(Mode::Exclusive, WaitPolicy::No));
    let Err(error @ Error::Held(_)) = refused else { panic!("{refused:?}") };
    assert_eq!(directory.logged("k"), [], "record_refusal logs it");
    other.record_refusal(&error, started);
    let soon = WaitPolicy::Queue { at_most: Some(Duration::from_millis(20)) };
    assert!(acquire(&mut other, &logged(Mode::Exclusive, soon)).is_err());
    other.acquire(&logged(Mode::Exclusive, FOREVER), &mut NoObserver::cancelled()).unwrap_err();
    for key in ["k", "a"] {
        let runs = directory.logged(key);
        let ends: Vec<&str> = runs.iter().map(|run| run.ended.how.name()).collect();
        assert_eq!(ends, ["gave_up", "gave_up", "cancelled"]);
        assert!(runs.iter().all(|run| run.held.is_none() && run.fence.is_none()));
    }
}

#[test]
fn the_records_of_waiters_are_truncated_with_the_queue() {
    let directory = LockDirectory::new();
    let mut holder = directory.open();
    let grant = take(&mut holder, Mode::Exclusive);
    std::thread::scope(|scope| {
        let mut waiter = directory.open();
        scope.spawn(move || {
            let request = Request {
                holder: HolderInfo { label: "second".into(), ..HolderInfo::default() },
                ..logged(shared("g"), FOREVER)
            };
            let grant = acquire(&mut waiter, &request).unwrap();
            waiter.release(&grant, &ended(), Duration::ZERO);
        });
        directory.wait_for_waiters(UsageMode::PLAIN, 1);
        let record = directory.observer_handle().waiter_record(2).unwrap();
        assert_eq!((record.info.label.as_str(), record.mode), ("second", shared("g")));
        holder.release(&grant, &ended(), Duration::ZERO);
    });
    take(&mut holder, Mode::Exclusive);
    assert_eq!(directory.file_length(), WAITERS_START);
}
