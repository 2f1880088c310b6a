//! Readers on one server: entries, tokens, and readers that are killed or stopped.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Backend, Job, Redis, Run, expect_success, hold, holder, queued, wait_until};

#[test]
fn a_woken_reader_that_does_not_respond_delays_no_other() {
    let backend = Backend::one_server();
    let redis = backend.server();
    let first = holder(redis, "k", &["--ttl", "60s"]);
    let asleep = backend.holding_waiter(Run::key(redis, "k").shared("60s"), 1);
    let readers: Vec<Job> = (2..=3)
        .map(|position| backend.holding_waiter(Run::key(redis, "k").shared("60s"), position))
        .collect();
    asleep.stop();
    first.wait().expect_code(0);
    let start = Instant::now();
    readers.iter().for_each(|reader| drop(reader.wait_for_line("ready")));
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    asleep.signal(Signal::SIGCONT);
    asleep.wait_for_line("ready"); // the others are still inside
    readers.into_iter().chain([asleep]).for_each(|job| drop(job.wait().expect_code(0)));
}

#[test]
fn a_crowd_enters_although_many_of_it_are_dead() {
    let backend = Backend::one_server();
    let first = hold(backend.run());
    let mut crowd: Vec<Job> =
        (1..=30).map(|position| backend.holding_waiter(backend.reader().arg("-q"), position)).collect();
    let living = crowd.split_off(18);
    for dead in crowd {
        dead.signal(Signal::SIGKILL);
        dead.wait();
    }
    first.wait().expect_code(0);
    let start = Instant::now();
    living.iter().for_each(|reader| drop(reader.wait_for_line("ready")));
    // The dead readers, one after another, would take twice as long.
    assert!(start.elapsed() < Duration::from_secs(18), "{:?}", start.elapsed());
    expect_success(living);
}

#[test]
fn every_reader_has_an_entry_of_its_own_and_a_token_of_its_own() {
    let redis = Redis::start();
    let script = "echo $REDLOCK_FENCE $REDLOCK_TOKEN ready; read x; exit 0";
    let readers: Vec<Job> =
        (0..4).map(|_| Run::key(&redis, "k").shared("60s").stdin_pipe().sh(script).spawn()).collect();
    let lines: Vec<String> = readers.iter().map(|reader| reader.wait_for_line("ready")).collect();
    let column = |n: usize| lines.iter().map(|line| line.split(' ').nth(n).unwrap()).collect::<BTreeSet<_>>();
    assert_eq!((column(0).len(), column(1).len()), (4, 4), "{lines:?}");
    assert_eq!(redis.cmd(&["ZCARD", "lock-shared:k"]), "4");
    for reader in readers {
        reader.wait().expect_code(0);
    }
    assert_eq!(redis.cmd(&["EXISTS", "lock-shared:k", "lock:k"]), "0");
    let next = Run::key(&redis, "k").sh("echo $REDLOCK_FENCE").done().expect_code(0);
    let highest: u64 = column(0).iter().map(|fence| fence.parse().unwrap()).max().unwrap();
    assert!(next.stdout.trim().parse::<u64>().unwrap() > highest, "{next:?} after {lines:?}");
}

#[test]
fn readers_leave_nothing_behind_and_no_key_is_ever_without_a_ttl() {
    let redis = Redis::start();
    let watch = crate::support::Watch::start(&redis, |client| client.keys_without_ttl().join(" "));
    let readers: Vec<Job> = (0..3).map(|_| hold(Run::key(&redis, "k").shared("60s"))).collect();
    let before = redis.keys();
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    assert_eq!(redis.keys(), before, "a refused attempt leaves no trace");
    let writer = Run::key(&redis, "k").cmd(&["true"]).spawn();
    queued(&redis, "k", 1);
    let cancelled = Run::key(&redis, "k").shared("60s").cmd(&["true"]).spawn();
    queued(&redis, "k", 2);
    cancelled.signal(Signal::SIGTERM);
    cancelled.wait();
    readers.into_iter().chain([writer]).for_each(|job| drop(job.wait().expect_code(0)));
    // The tombstone of a waiter that gave up is kept for a while, against its late requests.
    let stays = |key: &String| key == "lock-fence:k" || key.starts_with("lock-tombstone:");
    wait_until("only the fence is left", || redis.keys().iter().all(stays));
    assert_eq!(watch.finish(), [""], "a key without a TTL");
}
