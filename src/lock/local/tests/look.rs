//! Looking at a lock file.

use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use super::*;
use crate::lock::local::format::RECORDS_START;
use crate::lock::local::record::{self, RECORD};
use crate::lock::{Detail, State, Status, View};

impl LockDirectory {
    fn view(&self) -> HostView {
        HostView::new(self.0.path().to_owned(), String::new())
    }

    fn status(&self) -> Status {
        self.view().status(b"k").unwrap()
    }

    fn listed(&self) -> Vec<Vec<u8>> {
        let listing = self.view().list(None, Detail::Summary).unwrap();
        listing.locks.into_iter().map(|lock| lock.key).collect()
    }
}

fn named(label: &str, mode: Mode, wait: WaitPolicy) -> Request {
    let holder = HolderInfo { label: label.into(), ..HolderInfo::default() };
    Request { holder, ..ask(mode, Prefer::Fair, wait) }
}

fn labels(status: &Status) -> Vec<&str> {
    status.waiters.iter().map(|waiter| waiter.info.label.as_str()).collect()
}

#[test]
fn looking_creates_nothing() {
    let directory = LockDirectory::new();
    assert_eq!(directory.status().state, State::Free);
    assert_eq!(directory.listed(), Vec::<Vec<u8>>::new());
    assert_eq!(std::fs::read_dir(directory.0.path()).unwrap().count(), 0);
    assert!(HostView::new("/no/such/directory".into(), String::new()).status(b"k").is_err());
}

#[test]
fn the_kernels_locks_alone_decide_the_state() {
    let directory = LockDirectory::new();
    let mut lock = directory.open();
    for (mode, state) in [
        (Mode::Exclusive, State::Held),
        (shared("g"), State::Shared),
        (Mode::Slot { of: 3 }, State::Slots { of: 3 }),
        (Mode::Slot { of: 1 }, State::Held),
    ] {
        let grant = attempt(&mut lock, mode).unwrap();
        let status = directory.status();
        assert_eq!((status.state, status.holder_count), (state, 1));
        let holder = &status.holders[0];
        assert_eq!((holder.fence, &holder.token), (Some(grant.fences[0]), &Some(grant.claim.to_string())));
        // Without the file's contents.
        directory.observer_handle().locks().file().set_len(0).unwrap();
        assert_eq!((directory.status().state, directory.status().holder_count), (state, 1));
        assert_eq!(directory.listed(), [b"k"]);
        lock.unlock_all();
        assert_eq!((directory.status().state, directory.listed()), (State::Free, Vec::new()));
    }
}

#[test]
fn a_lock_is_held_while_any_process_has_the_file_open() {
    let directory = LockDirectory::new();
    let mut lock = directory.open();
    acquire(&mut lock, &named("killed", Mode::Exclusive, WaitPolicy::No)).unwrap();
    // Like the guardian.
    let files: Vec<File> = lock.files().iter().map(|file| file.try_clone().unwrap()).collect();
    drop(lock);
    let status = directory.status();
    assert_eq!((status.state, status.holders[0].info.label.as_str()), (State::Held, "killed"));
    drop(files);
    assert_eq!(directory.status().state, State::Free);
}

#[test]
fn a_minimum_hold_shows_its_run_and_the_remaining_time() {
    let directory = LockDirectory::new();
    let mut lock = directory.open();
    let request = Request { min_hold: FAR, ..named("tick", Mode::Slot { of: 3 }, WaitPolicy::No) };
    let grant = acquire(&mut lock, &request).unwrap();
    assert_eq!(directory.status().state, State::Slots { of: 3 }, "its command runs");
    lock.release(&grant, &ended(), FAR);
    let status = directory.status();
    assert_eq!((status.state, status.holder_count), (State::Kept, 1));
    let holder = &status.holders[0];
    assert!(holder.has_ended() && holder.info.label == "tick" && holder.slot == Some(0));
    assert!(holder.expires_in.is_some_and(|left| left > FAR / 2 && left <= FAR));
    let mut beside = directory.open();
    attempt(&mut beside, Mode::Slot { of: 3 }).unwrap();
    let status = directory.status();
    assert_eq!((status.state, status.holder_count), (State::Slots { of: 3 }, 2));
    assert_eq!(status.holders.iter().filter(|holder| holder.has_ended()).count(), 1);
}

#[test]
fn the_queue_lists_every_waiter_in_order() {
    let directory = LockDirectory::new();
    let mut holder = directory.open();
    let grant = attempt(&mut holder, Mode::Exclusive).unwrap();
    thread::scope(|scope| {
        let mut expected = Vec::new();
        for number in 0..20 {
            let label = format!("waiter {number}");
            let mode = if number % 2 == 0 { Mode::Exclusive } else { shared("g") };
            let request = named(&label, mode, FOREVER);
            let mut waiter = directory.open();
            scope.spawn(move || {
                let grant = acquire(&mut waiter, &request).unwrap();
                waiter.release(&grant, &ended(), Duration::ZERO);
            });
            directory.wait_for_waiters(UsageMode::PLAIN, number + 1);
            expected.push(label);
        }
        // A preferred writer goes first.
        let mut writer = directory.open();
        scope.spawn(move || {
            let request = Request { prefer: Prefer::Writers, ..named("first", Mode::Exclusive, FOREVER) };
            let grant = acquire(&mut writer, &request).unwrap();
            writer.release(&grant, &ended(), Duration::ZERO);
        });
        directory.wait_for_waiters(UsageMode::PLAIN, 21);
        expected.insert(0, "first".into());
        let status = directory.status();
        assert_eq!(labels(&status), expected);
        let positions: Vec<usize> = status.waiters.iter().map(|waiter| waiter.position).collect();
        assert_eq!(positions, (1..=21).collect::<Vec<_>>());
        assert_eq!((&status.waiters[1].mode, &status.waiters[2].mode), (&Mode::Exclusive, &shared("g")));
        holder.release(&grant, &ended(), Duration::ZERO);
    });
    assert_eq!(directory.status().waiter_count, 0);
}

#[test]
fn waiters_without_room_for_a_record_are_counted() {
    let directory = LockDirectory::new();
    let mut holder = directory.open();
    attempt(&mut holder, Mode::Exclusive).unwrap();
    let count = format::WAITER_RECORDS + 5;
    let local = LocalRequest::new(&ask(Mode::Exclusive, Prefer::Fair, FOREVER));
    let waiters: Vec<LockFile> = (0..count).map(|_| directory.observer_handle()).collect();
    for (number, file) in waiters.iter().enumerate() {
        let record = record::tests::record(&format!("c{number}.1"), BootTime::now());
        Admission::begin(file).unwrap().queue(&local, &record).unwrap();
    }
    let status = directory.status();
    let known: Vec<bool> = status.waiters.iter().map(|waiter| waiter.waited.is_some()).collect();
    let expected: Vec<bool> = (0..count).map(|number| number < format::WAITER_RECORDS).collect();
    assert_eq!(known, expected, "the first waiters have records");
}

#[test]
fn locks_of_other_programs_are_foreign() {
    let directory = LockDirectory::new();
    let other = directory.observer_handle();
    for (range, kind) in [
        (0..u64::MAX >> 1, LockKind::Write),
        (0..u64::MAX >> 1, LockKind::Read),
        (0..1, LockKind::Write),
        (0..100, LockKind::Read),
    ] {
        assert!(other.locks().try_lock(range, kind).unwrap());
        assert_eq!(directory.status().state, State::Foreign);
        other.locks().unlock_all();
    }
    // Neither the mutex nor the read lock of a waiting process shows a holder.
    for (range, kind) in
        [(MUTEX_BYTE, LockKind::Write), (byte(UsageMode::PLAIN.owners().start + 3), LockKind::Read)]
    {
        assert!(other.locks().try_lock(range, kind).unwrap());
        assert_eq!(directory.status().state, State::Free);
        other.locks().unlock_all();
    }
}

#[test]
fn a_list_contains_any_kind_of_key_and_no_other_file() {
    let directory = LockDirectory::new();
    let keys = [vec![b'x'; 1000], b"\xff\n/..".to_vec(), b"lock:deploy".to_vec(), b"-".to_vec()];
    let mut locks: Vec<HostLock> = Vec::new();
    for key in &keys {
        let mut lock = HostLock::open(directory.0.path(), std::slice::from_ref(key)).unwrap();
        attempt(&mut lock, Mode::Exclusive).unwrap();
        locks.push(lock);
    }
    let free = HostLock::open(directory.0.path(), &[b"free".to_vec()]).unwrap();
    let path = |name: &str| directory.0.path().join(name);
    std::fs::write(path("redlock-%zz"), "no name of ours").unwrap();
    std::fs::write(path("redlock-xx~no-digest"), "no name of ours").unwrap();
    std::fs::write(path("other"), "not ours").unwrap();
    std::fs::create_dir(path("redlock-directory")).unwrap();
    std::os::unix::fs::symlink(&free.paths()[0], path("redlock-link")).unwrap();
    nix::unistd::mkfifo(&path("redlock-pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut expected = keys.to_vec();
    let sorted = |mut keys: Vec<Vec<u8>>| {
        keys.sort();
        keys
    };
    assert_eq!(sorted(directory.listed()), sorted(expected.clone()));
    let mut view = HostView::new(directory.0.path().to_owned(), "lock".into());
    let listing = view.list(Some(b"d*"), Detail::Full).unwrap();
    assert_eq!(listing.locks.len(), 1);
    assert_eq!((&listing.locks[0].key, listing.locks[0].state), (&b"deploy".to_vec(), State::Held));
    assert!(view.list(Some(b"e*"), Detail::Full).unwrap().locks.is_empty());
    // A name in the file that does not match the file name is ignored.
    let long = LockFile::open(directory.0.path(), &keys[0]).unwrap();
    long.locks().file().write_all_at(b"\x03\0\0\0\0\0\0\0lie", format::NAME).unwrap();
    expected.remove(0);
    assert_eq!(sorted(directory.listed()), sorted(expected));
}

#[test]
fn looking_needs_read_permission_only_and_writes_nothing() {
    let directory = LockDirectory::new();
    let mut lock = directory.open();
    attempt(&mut lock, Mode::Exclusive).unwrap();
    std::fs::set_permissions(lock_file_path(&directory), Permissions::from_mode(0o444)).unwrap();
    assert_eq!(directory.status().state, State::Held);
    let before = std::fs::read(lock_file_path(&directory)).unwrap();
    let (seen, has_seen) = mpsc::channel();
    thread::scope(|scope| {
        let view = directory.view();
        let waiting = scope.spawn(move || {
            view.wait_until_idle(b"k", None, &mut |status| seen.send(status.state).unwrap()).unwrap()
        });
        assert_eq!(has_seen.recv().unwrap(), State::Held);
        assert_eq!(std::fs::read(lock_file_path(&directory)).unwrap(), before);
        lock.unlock_all();
        assert_eq!(waiting.join().unwrap().state, State::Free);
    });
}

#[test]
fn a_wait_for_a_free_lock_includes_its_queue_and_a_minimum_hold() {
    let directory = LockDirectory::new();
    let mut holder = directory.open();
    let grant = attempt(&mut holder, Mode::Exclusive).unwrap();
    let (go, may_go) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let mut next = directory.open();
        scope.spawn(move || {
            let request = named("next", shared("g"), FOREVER);
            let grant = acquire(&mut next, &request).unwrap();
            may_go.recv().unwrap();
            next.release(&grant, &ended(), Duration::ZERO);
        });
        directory.wait_for_waiters(UsageMode::PLAIN, 1);
        let mut states = Vec::new();
        let soon = BootTime::now() + Duration::from_millis(30);
        assert!(directory.view().wait_until_idle(b"k", Some(soon), &mut |_| {}).unwrap().is_taken());
        holder.release(&grant, &ended(), Duration::ZERO);
        let mut go = Some(go);
        let status = directory.view().wait_until_idle(b"k", None, &mut |status| {
            states.push(status.state);
            if status.state == State::Shared
                && let Some(go) = go.take()
            {
                go.send(()).unwrap();
            }
        });
        assert!(status.unwrap().state == State::Free && states.contains(&State::Shared), "{states:?}");
    });
    let grant = reserved_for(&mut holder, Mode::Exclusive, Duration::from_millis(200));
    holder.release(&grant, &ended(), Duration::from_millis(200));
    assert_eq!(directory.view().wait_until_idle(b"k", None, &mut |_| {}).unwrap().state, State::Free);
    assert!(grant.taken_at.elapsed() >= Duration::from_millis(200));
}

/// The ticket of a reservation may be drawn again if the file was tampered with: the next holder then
/// writes its record elsewhere.
#[test]
fn a_damaged_record_hides_no_record_with_the_same_ticket() {
    let directory = LockDirectory::new();
    let file = directory.observer_handle();
    file.write_at(&7_u64.to_le_bytes(), RECORDS_START).unwrap();
    assert!(file.record(7).is_none());
    let record = record::tests::record("c.1", BootTime::now());
    file.write_record(RECORDS_START + 7 * RECORD as u64, 7, &record).unwrap();
    assert_eq!(file.record(7), Some(record));
}
