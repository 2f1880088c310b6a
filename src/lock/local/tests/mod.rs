//! Several locks on one file in one process: each has its own open file, so to the kernel they are strangers.

mod crowd;

use std::fs::Permissions;
use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::thread;

use tempfile::TempDir;

use super::layout::{COUNTER, Family, Lane};
use super::ranges::Kind;
use super::*;
use crate::lock::{Busy, Prefer, Who};

const FAR: Duration = Duration::from_secs(3600);

/// Says nothing, and gives up if it has something to hear.
pub struct Deaf(Option<PipeReader>);

impl Deaf {
    pub fn cancelled() -> Self {
        let (hear, mut say) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut say, b"stop").unwrap();
        Self(Some(hear))
    }
}

impl Observer for Deaf {
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
    fn cancelled(&mut self) -> bool {
        true
    }
    fn waiting(&mut self, _: &Busy, _: Duration) {}
    fn next_word(&self, _: Duration) -> Duration {
        FAR
    }
    fn trouble(&mut self, _: &NodeError) {}
}

pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        // With its mode said: another test may have changed the umask, which all threads share.
        Self(tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap())
    }

    fn open_all(&self, keys: &[&str]) -> HostLock {
        let names: Vec<Names> = keys.iter().map(|key| Names::new("", key.as_bytes())).collect();
        HostLock::open(self.0.path(), &names).unwrap()
    }

    fn open(&self) -> HostLock {
        self.open_all(&["k"])
    }

    /// To look with, and to do harm.
    pub fn eyes(&self) -> LockFile {
        LockFile::open(self.0.path(), b"k").unwrap()
    }

    fn waiters(&self, family: Family) -> usize {
        let lanes = [Lane::Preferred, Lane::Fair].map(|lane| family.lane(lane));
        lanes.into_iter().map(|lane| self.eyes().ranges().all_present_in(lane).unwrap().len()).sum()
    }

    fn wait_for_waiters(&self, family: Family, count: usize) {
        let started = BootTime::now();
        while self.waiters(family) != count {
            assert!(started.elapsed() < Duration::from_secs(20), "{count} waiters");
            thread::yield_now();
        }
    }
}

fn ask(mode: Mode, prefer: Prefer, patience: Patience) -> Request {
    Request { mode, prefer, patience, min_hold: Duration::ZERO, who: Who::default(), ancestors: Vec::new() }
}

fn shared(group: &str) -> Mode {
    Mode::Shared { group: group.into() }
}

/// One attempt.
fn attempt(lock: &mut HostLock, mode: Mode) -> Result<Grant, Error> {
    lock.acquire(&ask(mode, Prefer::Fair, Patience::None), &mut Deaf(None))
}

fn kept_for(lock: &mut HostLock, mode: Mode, min_hold: Duration) -> Grant {
    let request = Request { min_hold, ..ask(mode, Prefer::Fair, Patience::None) };
    lock.acquire(&request, &mut Deaf(None)).unwrap()
}

fn is_held(answer: Result<Grant, Error>) -> Box<Busy> {
    match answer {
        Err(Error::Held(busy)) => busy,
        other => panic!("not held: {other:?}"),
    }
}

fn is_unfit(answer: Result<Grant, Error>, said: &str) {
    match answer {
        Err(Error::Node(NodeError { fault: Fault::Unfit, text, .. })) => {
            assert!(text.contains(said), "{text}")
        }
        other => panic!("not unfit: {other:?}"),
    }
}

#[test]
fn an_attempt_that_failed_leaves_nothing_and_the_next_has_the_next_number() {
    let folder = Folder::new();
    let (mut one, mut two, eyes) = (folder.open(), folder.open(), folder.eyes());
    let grant = attempt(&mut one, Mode::Exclusive).unwrap();
    assert_eq!(grant.claim.attempt, 1);
    for mode in [Mode::Exclusive, shared(""), Mode::Slot { of: 1 }] {
        is_held(attempt(&mut two, mode));
    }
    one.release(&grant, Duration::ZERO);
    assert_eq!(eyes.ranges().in_the_way(0..u64::MAX >> 1, Kind::Write).unwrap(), None);
    assert_eq!(attempt(&mut two, Mode::Slot { of: 1 }).unwrap().claim.attempt, 4);
    two.unlock_all();
    assert_eq!(eyes.ranges().in_the_way(0..u64::MAX >> 1, Kind::Write).unwrap(), None);
}

#[test]
fn the_earliest_of_several_holders_is_named_and_the_others_counted() {
    let folder = Folder::new();
    let mut holders: Vec<HostLock> = (0..4).map(|_| folder.open()).collect();
    let request = |pid: usize| Request {
        who: Who { pid: pid.to_string(), ..Who::default() },
        ..ask(shared("g"), Prefer::Fair, Patience::None)
    };
    for (pid, holder) in holders.iter_mut().enumerate() {
        holder.acquire(&request(pid), &mut Deaf(None)).unwrap();
    }
    let busy = is_held(attempt(&mut folder.open(), shared("other")));
    assert_eq!((busy.who.unwrap().pid.as_str(), busy.others, busy.place, busy.ended), ("0", 3, None, false));
    holders.remove(0).unlock_all();
    let busy = is_held(attempt(&mut folder.open(), Mode::Exclusive));
    assert_eq!((busy.who.unwrap().pid.as_str(), busy.others), ("1", 2));
}

#[test]
fn users_who_do_not_agree_are_told_so_waiters_too() {
    let folder = Folder::new();
    let (mut one, mut other) = (folder.open(), folder.open());
    attempt(&mut one, Mode::Slot { of: 3 }).unwrap();
    for mode in
        [Mode::Exclusive, shared(""), Mode::Slot { of: 1 }, Mode::Slot { of: 2 }, Mode::Slot { of: 1024 }]
    {
        is_unfit(attempt(&mut other, mode), "--slots 3");
    }
    one.unlock_all();
    for mode in [Mode::Exclusive, shared("x"), Mode::Slot { of: 1 }] {
        attempt(&mut one, mode).unwrap();
        is_unfit(attempt(&mut other, Mode::Slot { of: 3 }), "without --slots");
        one.unlock_all();
    }
    // Only a waiter is left.
    let eyes = folder.eyes();
    let ticket = Family::of_slots(7).ticket(Lane::Fair, 5);
    assert!(eyes.ranges().try_lock(byte(ticket), Kind::Write).unwrap());
    is_unfit(attempt(&mut other, Mode::Exclusive), "--slots 7");
    is_held(attempt(&mut other, Mode::Slot { of: 7 }));
    // And what stays taken counts as well.
    eyes.ranges().unlock_all();
    let grant = kept_for(&mut one, Mode::Slot { of: 4 }, FAR);
    one.release(&grant, FAR);
    is_unfit(attempt(&mut other, Mode::Exclusive), "--slots 4");
    assert_eq!(attempt(&mut other, Mode::Slot { of: 4 }).unwrap().slots, [1]);
}

#[test]
fn a_preferred_writer_passes_those_who_wait_and_nobody_else_does() {
    let folder = Folder::new();
    let mut holder = folder.open();
    attempt(&mut holder, shared("")).unwrap();
    thread::scope(|scope| {
        let mut waiter = folder.open();
        scope.spawn(move || {
            waiter.acquire(&ask(Mode::Exclusive, Prefer::Fair, Patience::Forever), &mut Deaf(None)).unwrap();
            waiter.unlock_all();
        });
        folder.wait_for_waiters(Family::PLAIN, 1);
        let mut late = folder.open();
        is_held(attempt(&mut late, shared("")));
        let joins = |group| ask(shared(group), Prefer::Readers, Patience::None);
        is_held(late.acquire(&joins("other"), &mut Deaf(None)));
        late.acquire(&joins(""), &mut Deaf(None)).unwrap();
        late.unlock_all();
        holder.unlock_all();
        // Whichever of the two is first: the attempt is not refused because somebody merely waits.
        let preferred = ask(Mode::Exclusive, Prefer::Writers, Patience::Forever);
        late.acquire(&preferred, &mut Deaf(None)).unwrap();
        late.unlock_all();
    });
}

#[test]
fn more_readers_stay_than_the_table_has_room_for() {
    let folder = Folder::new();
    let (mut reader, mut writer) = (folder.open(), folder.open());
    for _ in 0..kept::ENTRIES + 5 {
        let grant = kept_for(&mut reader, shared("g"), FAR);
        reader.release(&grant, FAR);
    }
    // One who takes his own back does not take anybody else's.
    let grant = kept_for(&mut reader, shared("g"), FAR);
    reader.release(&grant, Duration::ZERO);
    let eyes = folder.eyes();
    assert_eq!(eyes.kept(&eyes.header()).len(), kept::ENTRIES);
    let busy = is_held(attempt(&mut writer, Mode::Exclusive));
    assert!(busy.ended && busy.expires_in.is_some_and(|left| left > FAR / 2), "{busy:?}");
    is_held(attempt(&mut writer, shared("other")));
    attempt(&mut writer, shared("g")).unwrap();
}

#[test]
fn what_is_over_is_forgotten() {
    let folder = Folder::new();
    let (mut one, mut other, eyes) = (folder.open(), folder.open(), folder.eyes());
    let grant = kept_for(&mut one, Mode::Exclusive, FAR);
    one.unlock_all();
    is_held(attempt(&mut other, Mode::Exclusive));
    one.release(&grant, Duration::ZERO);
    assert_eq!(eyes.kept(&eyes.header()), []);
    attempt(&mut other, Mode::Exclusive).unwrap();
    let header = eyes.header();
    assert_eq!((header.kept, header.kept_until), (0, 0), "nobody looks at the table again");
}

#[test]
fn a_shorter_time_than_was_asked_for_is_noted() {
    let folder = Folder::new();
    let (mut one, mut other) = (folder.open(), folder.open());
    let grant = kept_for(&mut one, Mode::Exclusive, FAR);
    one.release(&grant, Duration::from_millis(300));
    let busy = is_held(attempt(&mut other, Mode::Exclusive));
    assert!(busy.expires_in.unwrap() <= Duration::from_millis(300));
    let waits = ask(Mode::Exclusive, Prefer::Fair, Patience::Forever);
    let next = other.acquire(&waits, &mut Deaf(None)).unwrap();
    assert!(next.taken_at.since(grant.taken_at) >= Duration::from_millis(300));
}

#[test]
fn nothing_stays_beyond_a_reboot_and_garbage_keeps_nobody_out() {
    let folder = Folder::new();
    let (mut one, mut other, eyes) = (folder.open(), folder.open(), folder.eyes());
    let grant = kept_for(&mut one, Mode::Exclusive, FAR);
    one.unlock_all();
    let header = eyes.header();
    let noted = eyes.kept(&header)[0];
    let table = std::fs::metadata(eyes_path(&folder)).unwrap().len() - kept::ENTRY as u64;
    eyes.ranges().file().write_all_at(&noted.to_bytes(kept::boot() ^ 1), table).unwrap();
    attempt(&mut other, Mode::Exclusive).unwrap();
    other.unlock_all();
    for garbage in [[0xff; 40_000], [0x11; 40_000], [0x31; 40_000]] {
        eyes.ranges().file().write_all_at(&garbage, 0).unwrap();
        eyes.ranges().file().write_all_at(&garbage, table).unwrap();
        attempt(&mut other, Mode::Exclusive).unwrap();
        other.unlock_all();
    }
    eyes.write_header(&header).unwrap();
    eyes.ranges().file().set_len(table + 7).unwrap();
    attempt(&mut other, Mode::Exclusive).unwrap();
    drop(grant);
}

fn eyes_path(folder: &Folder) -> std::path::PathBuf {
    std::fs::read_dir(folder.0.path()).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn tickets_stay_apart_when_the_file_forgets_or_they_come_to_an_end() {
    let folder = Folder::new();
    let (eyes, mut tickets) = (folder.eyes(), Vec::new());
    let mut readers: Vec<HostLock> = (0..6).map(|_| folder.open()).collect();
    let ends = [0, TICKETS_END / 2 - 1, u64::MAX, 1, 0, TICKETS_END / 2];
    for (reader, next_ticket) in readers.iter_mut().zip(ends) {
        eyes.write_header(&contents::Header { next_ticket, ..eyes.header() }).unwrap();
        let grant = attempt(reader, shared("")).unwrap();
        tickets.push(grant.held_as[0].on_host.as_ref().unwrap().ticket);
    }
    assert!(tickets.is_sorted_by(|a, b| a < b), "{tickets:?}");
    readers.iter().for_each(HostLock::unlock_all);
    attempt(&mut readers[0], shared("")).unwrap();
    assert!(eyes.header().next_ticket < TICKETS_END / 2, "they begin again when nobody is there");
}

#[test]
fn who_gave_up_at_the_counter_may_come_again() {
    let folder = Folder::new();
    let (mut lock, eyes) = (folder.open(), folder.eyes());
    for _ in 0..20 {
        assert!(eyes.ranges().try_lock(COUNTER, Kind::Write).unwrap());
        let request = ask(Mode::Exclusive, Prefer::Fair, Patience::None);
        let cancelled = lock.acquire(&request, &mut Deaf::cancelled());
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
        // Its thread still asks: the next attempt of the same lock waits with it, and gets in.
        thread::scope(|scope| {
            let again = scope.spawn(|| attempt(&mut lock, Mode::Exclusive));
            eyes.ranges().unlock(COUNTER);
            again.join().unwrap().unwrap();
        });
        assert_eq!(eyes.ranges().in_the_way(COUNTER, Kind::Write).unwrap(), None);
        lock.unlock_all();
    }
}

#[test]
fn of_several_keys_the_one_in_the_way_is_told_by_its_place_and_nothing_is_left() {
    let folder = Folder::new();
    let mut holder = folder.open_all(&["b"]);
    attempt(&mut holder, Mode::Exclusive).unwrap();
    for (keys, place) in [(["a", "b", "c"], 1), (["b", "c", "a"], 0), (["c", "a", "b"], 2)] {
        assert_eq!(is_held(attempt(&mut folder.open_all(&keys), Mode::Exclusive)).key, place);
    }
    let grant = attempt(&mut folder.open_all(&["c", "a"]), Mode::Exclusive).unwrap();
    let (a, c) = (folder.open_all(&["a"]), folder.open_all(&["c"]));
    let identity =
        |held: &Held| held.on_host.as_ref().map(|on_host| (on_host.device, on_host.inode)).unwrap();
    let expected = [c.files[0].identity(), a.files[0].identity()];
    assert_eq!(grant.held_as.iter().map(identity).collect::<Vec<_>>(), expected, "in the order given");
}
