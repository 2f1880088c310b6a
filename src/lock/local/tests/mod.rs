//! Several locks on one file in one process. Each has its own open file, so the kernel treats them
//! like those of different processes.

mod history;
mod look;
mod random;

use std::fs::Permissions;
use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::thread;

use tempfile::TempDir;

use super::byte_map::{MUTEX_BYTE, QueueLane, TICKETS_END, UsageMode, byte};
use super::ofd_lock::LockKind;
use super::*;
use crate::lock::{Blocked, Blocker, FileProblem, HolderInfo, Holding, Outcome, Prefer, WaitPolicy};

const FOREVER: WaitPolicy = WaitPolicy::Queue { at_most: None };
const FAR: Duration = Duration::from_secs(3600);

/// Ignores the wait; a cancelled one gives up at once.
pub struct NoObserver(Option<PipeReader>);

impl NoObserver {
    pub fn cancelled() -> Self {
        let (wake_fd, mut waker) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut waker, b"stop").unwrap();
        Self(Some(wake_fd))
    }
}

impl Observer for NoObserver {
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
    fn cancelled(&mut self) -> Option<Signal> {
        Some(Signal::SIGINT)
    }
    fn waiting(&mut self, _: &Blocked, _: Duration) {}
    fn next_update_in(&self, _: Duration) -> Duration {
        FAR
    }
    fn on_unavailable(&mut self, _: &BackendError, _: Duration) {}
}

pub struct LockDirectory(TempDir);

impl LockDirectory {
    pub fn new() -> Self {
        // With an explicit mode: another test may have changed the umask, which all threads share.
        Self(tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap())
    }

    fn open_all(&self, keys: &[&str]) -> HostLock {
        let names: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        HostLock::open(self.0.path(), &names).unwrap()
    }

    fn open(&self) -> HostLock {
        self.open_all(&["k"])
    }

    /// Another open file, to inspect and to damage the lock file.
    pub fn observer_handle(&self) -> LockFile {
        LockFile::open(self.0.path(), b"k").unwrap()
    }

    fn waiters(&self, usage: UsageMode) -> usize {
        let handle = self.observer_handle();
        usage.lanes().into_iter().map(|lane| handle.locks().all_writers_in(lane).unwrap().len()).sum()
    }

    fn wait_for_waiters(&self, usage: UsageMode, count: usize) {
        let started = BootTime::now();
        while self.waiters(usage) != count {
            assert!(started.elapsed() < Duration::from_secs(20), "{count} waiters");
            thread::yield_now();
        }
    }
}

fn ask(mode: Mode, prefer: Prefer, wait: WaitPolicy) -> Request {
    Request {
        mode,
        prefer,
        wait,
        waits_for_backend: false,
        supersedes: false,
        once: None,
        min_hold: Duration::ZERO,
        history: 0,
        exit_if_held: 75,
        holder: HolderInfo::default(),
        ancestors: Vec::new(),
    }
}

fn ended() -> Ended {
    Ended::new(Outcome::Released)
}

fn shared(group: &str) -> Mode {
    Mode::Shared { group: group.into() }
}

fn acquire(lock: &mut HostLock, request: &Request) -> Result<Grant, Error> {
    lock.acquire(request, &mut NoObserver(None))
}

/// One attempt.
fn attempt(lock: &mut HostLock, mode: Mode) -> Result<Grant, Error> {
    acquire(lock, &ask(mode, Prefer::Fair, WaitPolicy::No))
}

fn reserved_for(lock: &mut HostLock, mode: Mode, min_hold: Duration) -> Grant {
    let request = Request { min_hold, ..ask(mode, Prefer::Fair, WaitPolicy::No) };
    acquire(lock, &request).unwrap()
}

fn expect_held(result: Result<Grant, Error>) -> Box<Blocked> {
    match result {
        Err(Error::Held(blocked)) => blocked,
        other => panic!("not held: {other:?}"),
    }
}

fn expect_other_slots(result: Result<Grant, Error>, slots: u32) {
    match result {
        Err(Error::Backend(BackendError { problem: Problem::File(problem), .. })) => {
            assert_eq!(problem, FileProblem::OtherSlots(slots));
        }
        other => panic!("not in use with other slots: {other:?}"),
    }
}

fn holding(blocked: &Blocked) -> &Holding {
    match &blocked.by {
        Blocker::Holder(holding) | Blocker::Reservation(holding) => holding,
        other => panic!("not held: {other:?}"),
    }
}

#[test]
fn a_failed_attempt_leaves_no_lock_and_the_next_has_the_next_number() {
    let directory = LockDirectory::new();
    let (mut one, mut two, handle) = (directory.open(), directory.open(), directory.observer_handle());
    let grant = attempt(&mut one, Mode::Exclusive).unwrap();
    assert_eq!(grant.claim.attempt, 1);
    for mode in [Mode::Exclusive, shared(""), Mode::Slot { of: 1 }] {
        expect_held(attempt(&mut two, mode));
    }
    one.release(&grant, &ended(), Duration::ZERO);
    assert_eq!(handle.locks().conflict_in(0..u64::MAX >> 1, LockKind::Write).unwrap(), None);
    assert_eq!(attempt(&mut two, Mode::Slot { of: 1 }).unwrap().claim.attempt, 4);
    two.unlock_all();
    assert_eq!(handle.locks().conflict_in(0..u64::MAX >> 1, LockKind::Write).unwrap(), None);
}

#[test]
fn a_refusal_names_the_earliest_holder_and_counts_the_others() {
    let directory = LockDirectory::new();
    let mut holders: Vec<HostLock> = (0..4).map(|_| directory.open()).collect();
    let request = |pid: usize| Request {
        holder: HolderInfo { pid: pid.to_string(), ..HolderInfo::default() },
        ..ask(shared("g"), Prefer::Fair, WaitPolicy::No)
    };
    for (pid, holder) in holders.iter_mut().enumerate() {
        acquire(holder, &request(pid)).unwrap();
    }
    let blocked = expect_held(attempt(&mut directory.open(), shared("other")));
    assert!(matches!(blocked.by, Blocker::Holder(_)) && blocked.position.is_none());
    assert_eq!((holding(&blocked).info.pid.as_str(), holding(&blocked).others), ("0", 3));
    holders.remove(0).unlock_all();
    let blocked = expect_held(attempt(&mut directory.open(), Mode::Exclusive));
    assert_eq!((holding(&blocked).info.pid.as_str(), holding(&blocked).others), ("1", 2));
}

#[test]
fn a_key_in_use_with_other_slots_is_refused_even_if_only_a_waiter_is_left() {
    let directory = LockDirectory::new();
    let (mut one, mut other) = (directory.open(), directory.open());
    attempt(&mut one, Mode::Slot { of: 3 }).unwrap();
    for mode in
        [Mode::Exclusive, shared(""), Mode::Slot { of: 1 }, Mode::Slot { of: 2 }, Mode::Slot { of: 1024 }]
    {
        expect_other_slots(attempt(&mut other, mode), 3);
    }
    one.unlock_all();
    for mode in [Mode::Exclusive, shared("x"), Mode::Slot { of: 1 }] {
        attempt(&mut one, mode).unwrap();
        expect_other_slots(attempt(&mut other, Mode::Slot { of: 3 }), 0);
        one.unlock_all();
    }
    // Only a waiter is left.
    let handle = directory.observer_handle();
    let ticket = UsageMode::slots_of(7).ticket(QueueLane::Fair, 5);
    assert!(handle.locks().try_lock(byte(ticket), LockKind::Write).unwrap());
    expect_other_slots(attempt(&mut other, Mode::Exclusive), 7);
    expect_held(attempt(&mut other, Mode::Slot { of: 7 }));
    // A reservation counts as well.
    handle.locks().unlock_all();
    let grant = reserved_for(&mut one, Mode::Slot { of: 4 }, FAR);
    one.release(&grant, &ended(), FAR);
    expect_other_slots(attempt(&mut other, Mode::Exclusive), 4);
    assert_eq!(attempt(&mut other, Mode::Slot { of: 4 }).unwrap().slots, [1]);
}

#[test]
fn only_a_preferred_writer_passes_waiters() {
    let directory = LockDirectory::new();
    let mut holder = directory.open();
    attempt(&mut holder, shared("")).unwrap();
    thread::scope(|scope| {
        let mut waiter = directory.open();
        scope.spawn(move || {
            acquire(&mut waiter, &ask(Mode::Exclusive, Prefer::Fair, FOREVER)).unwrap();
            waiter.unlock_all();
        });
        directory.wait_for_waiters(UsageMode::PLAIN, 1);
        let mut late = directory.open();
        expect_held(attempt(&mut late, shared("")));
        let joins = |group| ask(shared(group), Prefer::Readers, WaitPolicy::No);
        expect_held(acquire(&mut late, &joins("other")));
        acquire(&mut late, &joins("")).unwrap();
        late.unlock_all();
        holder.unlock_all();
        // Either of the two may be first; a preferred writer is never refused because of a waiter.
        let preferred = ask(Mode::Exclusive, Prefer::Writers, FOREVER);
        acquire(&mut late, &preferred).unwrap();
        late.unlock_all();
    });
}

#[test]
fn more_readers_can_reserve_than_the_table_has_entries() {
    let directory = LockDirectory::new();
    let (mut reader, mut writer) = (directory.open(), directory.open());
    for _ in 0..reservation::ENTRIES + 5 {
        let grant = reserved_for(&mut reader, shared("g"), FAR);
        reader.release(&grant, &ended(), FAR);
    }
    // A reader that ends its own reservation does not end those of others.
    let grant = reserved_for(&mut reader, shared("g"), FAR);
    reader.release(&grant, &ended(), Duration::ZERO);
    let handle = directory.observer_handle();
    assert_eq!(handle.reservations(&handle.header()).len(), reservation::ENTRIES);
    let blocked = expect_held(attempt(&mut writer, Mode::Exclusive));
    assert!(matches!(blocked.by, Blocker::Reservation(_)), "{blocked:?}");
    assert!(blocked.expires_in().is_some_and(|left| left > FAR / 2), "{blocked:?}");
    expect_held(attempt(&mut writer, shared("other")));
    attempt(&mut writer, shared("g")).unwrap();
}

#[test]
fn an_expired_reservation_is_removed() {
    let directory = LockDirectory::new();
    let (mut one, mut other, handle) = (directory.open(), directory.open(), directory.observer_handle());
    let grant = reserved_for(&mut one, Mode::Exclusive, FAR);
    one.unlock_all();
    expect_held(attempt(&mut other, Mode::Exclusive));
    one.release(&grant, &ended(), Duration::ZERO);
    assert_eq!(handle.reservations(&handle.header()), []);
    attempt(&mut other, Mode::Exclusive).unwrap();
    let header = handle.header();
    assert_eq!((header.reservations, header.reserved_until), (0, 0), "the table is not read again");
}

#[test]
fn a_release_can_shorten_a_reservation() {
    let directory = LockDirectory::new();
    let (mut one, mut other) = (directory.open(), directory.open());
    // Long enough for the attempt below, counted from the grant.
    let shorter = Duration::from_secs(3);
    let grant = reserved_for(&mut one, Mode::Exclusive, FAR);
    one.release(&grant, &ended(), shorter);
    let blocked = expect_held(attempt(&mut other, Mode::Exclusive));
    assert!(blocked.expires_in().unwrap() <= shorter);
    let waits = ask(Mode::Exclusive, Prefer::Fair, FOREVER);
    let next = acquire(&mut other, &waits).unwrap();
    assert!(next.taken_at.since(grant.taken_at) >= shorter);
}

#[test]
fn reservations_end_with_a_reboot_and_garbage_reserves_nothing() {
    let directory = LockDirectory::new();
    let (mut one, mut other, handle) = (directory.open(), directory.open(), directory.observer_handle());
    let grant = reserved_for(&mut one, Mode::Exclusive, FAR);
    one.unlock_all();
    let header = handle.header();
    let reservation = handle.reservations(&header)[0];
    let table = std::fs::metadata(lock_file_path(&directory)).unwrap().len() - reservation::ENTRY as u64;
    handle.locks().file().write_all_at(&reservation.to_bytes(format::boot_id() ^ 1), table).unwrap();
    attempt(&mut other, Mode::Exclusive).unwrap();
    other.unlock_all();
    for garbage in [[0xff; 40_000], [0x11; 40_000], [0x31; 40_000]] {
        handle.locks().file().write_all_at(&garbage, 0).unwrap();
        handle.locks().file().write_all_at(&garbage, table).unwrap();
        attempt(&mut other, Mode::Exclusive).unwrap();
        other.unlock_all();
    }
    handle.write_header(&header).unwrap();
    handle.locks().file().set_len(table + 7).unwrap();
    attempt(&mut other, Mode::Exclusive).unwrap();
    drop(grant);
}

fn lock_file_path(directory: &LockDirectory) -> std::path::PathBuf {
    std::fs::read_dir(directory.0.path()).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn tickets_stay_distinct_when_the_header_is_lost_or_they_run_out() {
    let directory = LockDirectory::new();
    let (handle, mut tickets) = (directory.observer_handle(), Vec::new());
    let mut readers: Vec<HostLock> = (0..6).map(|_| directory.open()).collect();
    let ends = [0, TICKETS_END / 2 - 1, u64::MAX, 1, 0, TICKETS_END / 2];
    for (reader, next_ticket) in readers.iter_mut().zip(ends) {
        handle.write_header(&format::Header { next_ticket, ..handle.header() }).unwrap();
        let grant = attempt(reader, shared("")).unwrap();
        tickets.push(grant.ancestor_locks[0].host_ticket.as_ref().unwrap().ticket);
    }
    assert!(tickets.is_sorted_by(|a, b| a < b), "{tickets:?}");
    readers.iter().for_each(HostLock::unlock_all);
    attempt(&mut readers[0], shared("")).unwrap();
    assert!(handle.header().next_ticket < TICKETS_END / 2, "they start over when no process is present");
}

#[test]
fn a_cancelled_wait_for_the_mutex_can_be_repeated() {
    let directory = LockDirectory::new();
    let (mut lock, handle) = (directory.open(), directory.observer_handle());
    for _ in 0..20 {
        assert!(handle.locks().try_lock(MUTEX_BYTE, LockKind::Write).unwrap());
        let request = ask(Mode::Exclusive, Prefer::Fair, WaitPolicy::No);
        let cancelled = lock.acquire(&request, &mut NoObserver::cancelled());
        assert!(matches!(cancelled, Err(Error::Cancelled(_))), "{cancelled:?}");
        thread::scope(|scope| {
            let second = scope.spawn(|| attempt(&mut lock, Mode::Exclusive));
            handle.locks().unlock(MUTEX_BYTE);
            second.join().unwrap().unwrap();
        });
        assert_eq!(handle.locks().conflict_in(MUTEX_BYTE, LockKind::Write).unwrap(), None);
        lock.unlock_all();
    }
}

#[test]
fn a_refusal_of_several_keys_names_the_taken_one_and_leaves_no_lock() {
    let directory = LockDirectory::new();
    let mut holder = directory.open_all(&["b"]);
    attempt(&mut holder, Mode::Exclusive).unwrap();
    for (keys, taken) in [(["a", "b", "c"], 1), (["b", "c", "a"], 0), (["c", "a", "b"], 2)] {
        assert_eq!(expect_held(attempt(&mut directory.open_all(&keys), Mode::Exclusive)).key, taken);
    }
    let grant = attempt(&mut directory.open_all(&["c", "a"]), Mode::Exclusive).unwrap();
    let (a, c) = (directory.open_all(&["a"]), directory.open_all(&["c"]));
    let identity =
        |lock: &AncestorLock| lock.host_ticket.as_ref().map(|ticket| (ticket.device, ticket.inode)).unwrap();
    let expected = [c.files[0].identity(), a.files[0].identity()];
    assert_eq!(grant.ancestor_locks.iter().map(identity).collect::<Vec<_>>(), expected, "in the order given");
}
