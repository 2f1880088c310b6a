//! The lease of a reader is its own: no other reader prolongs, outlasts or ends it.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    Job, Redis, Run, TREE, alive, assert_stays_free, assert_takes_less_than, hold, holder, queued, tree_of,
    wait_until,
};

/// Readers whose lease has not ended, by the server's own clock.
fn living_readers(redis: &Redis) -> usize {
    let now = redis.connect().now_ms();
    redis.cmd(&["ZCOUNT", "lock-shared:k", &format!("({now}"), "+inf"]).parse().expect("a count")
}

#[test]
fn readers_longer_than_their_ttl_keep_their_lock() {
    let redis = Redis::start();
    let reader = || Run::key(&redis, "k").shared("3s").stdin_pipe().sh("echo ready; read x; exit 6").spawn();
    let readers: Vec<Job> = (0..3).map(|_| reader()).collect();
    readers.iter().for_each(|reader| drop(reader.wait_for_line("ready")));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        // Refused repeatedly while each of them would have expired twice.
        assert!(!Run::key(&redis, "k").try_acquire(), "after {:?}", start.elapsed());
    }
    for reader in readers {
        assert_eq!(reader.wait().expect_code(6).stderr, "", "prints nothing when all is well");
    }
    assert!(Run::key(&redis, "k").try_acquire());
}

#[test]
fn a_killed_reader_blocks_a_writer_for_its_own_ttl_and_not_longer() {
    let redis = Redis::start();
    let victim = hold(Run::key(&redis, "k").shared("6s"));
    let writer = Run::key(&redis, "k").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    let killed = Instant::now();
    victim.kill_with_guardian();
    writer.wait_for_line("mine");
    assert!(killed.elapsed() > Duration::from_secs(1), "before its lease ended: {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    writer.wait().expect_code(0);
}

#[test]
fn readers_that_renew_do_not_prolong_the_lease_of_a_killed_one() {
    let redis = Redis::start();
    let living = hold(Run::key(&redis, "k").shared("3s")); // renews every second
    let long = hold(Run::key(&redis, "k").shared("60s"));
    let victim = hold(Run::key(&redis, "k").shared("6s"));
    assert_eq!(living_readers(&redis), 3);
    let writer = Run::key(&redis, "k").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    victim.kill_with_guardian();
    wait_until("the killed reader's lease has ended", || living_readers(&redis) == 2);
    long.wait().expect_code(0);
    assert_eq!(writer.stdout_so_far(), "", "a reader is still inside");
    living.wait().expect_code(0);
    let start = Instant::now();
    writer.wait_for_line("mine");
    // A lease of sixty seconds, inherited from another reader, would show here.
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    writer.wait().expect_code(0);
}

#[test]
fn a_reader_that_leaves_does_not_end_the_lease_of_a_killed_one() {
    // At least two thirds of the six seconds are left when a reader is killed.
    assert_takes_less_than(Duration::from_millis(3900), || {
        let redis = Redis::start();
        let victim = hold(Run::key(&redis, "k").shared("6s"));
        let short = hold(Run::key(&redis, "k").shared("1500ms"));
        victim.kill_with_guardian();
        let killed = Instant::now();
        short.wait().expect_code(0);
        let free = Run::key(&redis, "k").try_acquire();
        let held = redis.held("k");
        let spent = killed.elapsed();
        if spent < Duration::from_millis(3900) {
            assert!(!free, "the killed reader's lease was cut short");
            assert!(held, "a foreign SET NX is kept out, too");
            wait_until("its lease has ended", || Run::key(&redis, "k").try_acquire());
        }
        spent
    });
}

/// A reader that is stopped until its lease ends; then `meanwhile`; then it continues, and exits
/// with 79.
fn late_reader(redis: &Redis, meanwhile: impl FnOnce() -> Job) -> Job {
    let late = Run::key(redis, "k").shared("3s").sh(TREE).spawn();
    let tree = tree_of(&late);
    late.stop();
    wait_until("its lease has ended", || living_readers(redis) == 0);
    assert!(tree.iter().all(|pid| !alive(*pid)), "its command outlived its lease: {tree:?}");
    let other = meanwhile();
    late.signal(Signal::SIGCONT);
    late.wait().expect_code(79);
    other
}

#[test]
fn the_late_release_of_an_expired_reader_leaves_the_next_writer_alone() {
    let redis = Redis::start();
    let writer = late_reader(&redis, || holder(&redis, "k", &["--ttl", "60s"]));
    assert!(redis.held("k"));
    assert!(!Run::key(&redis, "k").try_acquire());
    assert_eq!(Run::key(&redis, "k").shared("60s").arg("-n").cmd(&["true"]).done().code, Some(75));
    writer.wait().expect_code(0);
    assert!(Run::key(&redis, "k").try_acquire());
}

#[test]
fn the_late_release_of_an_expired_reader_leaves_other_readers_alone() {
    let redis = Redis::start();
    let reader = late_reader(&redis, || hold(Run::key(&redis, "k").shared("60s")));
    assert_eq!(living_readers(&redis), 1);
    assert!(!Run::key(&redis, "k").try_acquire());
    reader.wait().expect_code(0);
    assert!(Run::key(&redis, "k").try_acquire());
}

/// This command takes the lock from every reader, and none of them recreates it.
fn assert_lost_by(how: &[&str]) {
    let redis = Redis::start();
    let readers: Vec<Job> = (0..3).map(|_| Run::key(&redis, "k").shared("3s").sh(TREE).spawn()).collect();
    let trees: Vec<i32> = readers.iter().flat_map(tree_of).collect();
    redis.cmd(how);
    for reader in readers {
        let done = reader.wait().expect_code(79);
        assert!(done.stderr.contains("redlock: "), "{done:?}");
    }
    assert!(trees.iter().all(|pid| !alive(*pid)), "still alive of {trees:?}");
    assert_stays_free(&redis);
    assert!(Run::key(&redis, "k").try_acquire());
}

#[test]
fn readers_notice_a_deleted_lock() {
    assert_lost_by(&["DEL", "lock:k"]);
}

#[test]
fn readers_notice_a_flushed_server() {
    assert_lost_by(&["FLUSHALL"]);
}

#[test]
fn readers_do_not_touch_a_writers_lock_after_a_deletion() {
    let redis = Redis::start();
    let readers: Vec<Job> = (0..2).map(|_| hold(Run::key(&redis, "k").shared("3s"))).collect();
    redis.cmd(&["DEL", "lock:k"]);
    let writer = holder(&redis, "k", &["--ttl", "60s"]);
    let claim = redis.cmd(&["GET", "lock:k"]);
    for reader in readers {
        // Neither its renewals nor its release may have an effect: its stdin stays open until it is
        // stopped.
        let mut reader = reader;
        wait_until("the reader is stopped", || !reader.is_running());
        reader.wait().expect_code(79);
    }
    assert_eq!(redis.cmd(&["GET", "lock:k"]), claim);
    writer.wait().expect_code(0);
}

#[test]
fn a_reader_that_enters_after_a_deletion_revives_no_lost_reader() {
    let redis = Redis::start();
    let mut lost = hold(Run::key(&redis, "k").shared("3s"));
    redis.cmd(&["DEL", "lock:k"]);
    // A writer came and went: the old reader must not count as one of the new readers.
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(0);
    let newcomer = hold(Run::key(&redis, "k").shared("60s"));
    wait_until("the reader is stopped", || !lost.is_running());
    lost.wait().expect_code(79);
    assert_eq!(living_readers(&redis), 1);
    newcomer.wait().expect_code(0);
    assert!(Run::key(&redis, "k").try_acquire());
}

#[test]
fn readers_and_a_foreign_set_nx_exclude_each_other() {
    let redis = Redis::start();
    let foreign = ["SET", "lock:k", "someone else", "NX", "PX", "60000"];
    let readers: Vec<Job> = (0..2).map(|_| hold(Run::key(&redis, "k").shared("60s"))).collect();
    for reader in readers {
        assert_eq!(redis.cmd(&foreign), "", "refused while a reader is inside");
        reader.wait().expect_code(0);
    }
    assert_eq!(redis.cmd(&foreign), "OK");
    let refused = Run::key(&redis, "k").shared("60s").arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(refused.stdout, "");
    let waiter = Run::key(&redis, "k").shared("60s").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    assert_eq!(redis.cmd(&["GET", "lock:k"]), "someone else", "untouched");
    redis.cmd(&["DEL", "lock:k"]);
    waiter.wait_for_line("mine");
    waiter.wait().expect_code(0);
    assert!(Run::key(&redis, "k").try_acquire());
}

#[test]
fn a_foreign_takeover_under_readers_is_left_untouched() {
    let redis = Redis::start();
    let mut reader = hold(Run::key(&redis, "k").shared("3s"));
    redis.cmd(&["SET", "lock:k", "someone else", "PX", "60000"]);
    let expires = redis.cmd(&["PEXPIRETIME", "lock:k"]);
    wait_until("the reader is stopped", || !reader.is_running());
    reader.wait().expect_code(79);
    assert_eq!(redis.cmd(&["GET", "lock:k"]), "someone else");
    assert_eq!(redis.cmd(&["PEXPIRETIME", "lock:k"]), expires);
}
