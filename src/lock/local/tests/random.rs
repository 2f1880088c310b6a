//! Random concurrent requests on damaged files: no two conflicting holders, and every request is
//! granted.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use uuid::Uuid;

use super::{FOREVER, LockDirectory, acquire, ask, ended, shared};
use crate::lock::{Lock, Mode, Prefer};

/// The holders, by mode.
#[derive(Default)]
struct Inside {
    alone: usize,
    groups: Vec<String>,
    most: usize,
}

#[test]
fn random_requests_in_all_modes_never_conflict() {
    let (directory, inside) = (LockDirectory::new(), Mutex::new(Inside::default()));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..10_u64)
            .map(|worker| {
                let (directory, inside) = (&directory, &inside);
                scope.spawn(move || {
                    let mut lock = directory.open();
                    for round in 0..80 {
                        let dice = Uuid::new_v4().as_u128() as usize;
                        let group = ["", "a", "b"][dice % 3];
                        let prefer = [Prefer::Fair, Prefer::Writers, Prefer::Readers][dice / 3 % 3];
                        let alone = [true, false, false][dice / 9 % 3];
                        let mode = if alone { Mode::Exclusive } else { shared(group) };
                        let request = ask(mode, prefer, FOREVER);
                        let grant = acquire(&mut lock, &request).unwrap();
                        {
                            let mut inside = inside.lock().unwrap();
                            let fits = if alone {
                                inside.groups.is_empty()
                            } else {
                                inside.groups.iter().all(|g| g == group)
                            };
                            assert!(
                                fits && inside.alone == 0,
                                "{worker} {round}: {:?} are in",
                                inside.groups
                            );
                            if alone {
                                inside.alone = 1
                            } else {
                                inside.groups.push(group.into())
                            }
                            inside.most = inside.most.max(inside.groups.len());
                        }
                        thread::sleep(Duration::from_micros(200));
                        {
                            let mut inside = inside.lock().unwrap();
                            if alone { inside.alone = 0 } else { drop(inside.groups.pop()) }
                        }
                        lock.release(&grant, &ended(), Duration::ZERO);
                    }
                })
            })
            .collect();
        let damage = directory.observer_handle();
        while !workers.iter().all(|worker| worker.is_finished()) {
            damage.locks().file().set_len(0).unwrap();
            thread::sleep(Duration::from_micros(500));
        }
    });
    assert!(inside.into_inner().unwrap().most > 1, "readers were in together");
}

#[test]
fn slots_are_distinct_and_limited() {
    let (directory, inside) = (LockDirectory::new(), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..9 {
            scope.spawn(|| {
                let mut lock = directory.open();
                for _ in 0..60 {
                    let request = ask(Mode::Slot { of: 4 }, Prefer::Fair, FOREVER);
                    let grant = acquire(&mut lock, &request).unwrap();
                    let slot = grant.slots[0];
                    {
                        let mut inside = inside.lock().unwrap();
                        assert!(slot < 4 && !inside.contains(&slot), "{slot} in {inside:?}");
                        inside.push(slot);
                    }
                    thread::yield_now();
                    inside.lock().unwrap().retain(|other| *other != slot);
                    lock.release(&grant, &ended(), Duration::ZERO);
                }
            });
        }
    });
}

#[test]
fn several_keys_in_any_order_never_deadlock() {
    let (directory, inside) = (LockDirectory::new(), [const { Mutex::new(()) }; 3]);
    let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["c", "a", "b"]];
    thread::scope(|scope| {
        for (worker, keys) in orders.iter().cycle().take(8).enumerate() {
            let (directory, inside) = (&directory, &inside);
            scope.spawn(move || {
                let keys = &keys[..2 + worker % 2];
                let mut lock = directory.open_all(keys);
                for _ in 0..40 {
                    let request = ask(Mode::Exclusive, Prefer::Fair, FOREVER);
                    let grant = acquire(&mut lock, &request).unwrap();
                    let indices = keys.iter().map(|key| usize::from(key.as_bytes()[0] - b'a'));
                    let alone: Vec<_> = indices.map(|key| inside[key].try_lock().expect("alone")).collect();
                    assert_eq!((grant.fences.len(), grant.ancestor_locks.len()), (keys.len(), keys.len()));
                    drop(alone);
                    lock.release(&grant, &ended(), Duration::ZERO);
                }
            });
        }
    });
}
