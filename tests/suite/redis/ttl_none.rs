//! --ttl none: a lock that never expires, on one server, on request.

use std::time::Duration;

use nix::sys::signal::Signal::{SIGCONT, SIGKILL};

use crate::support::processes::{guardian_of, wait_until_asleep};
use crate::support::{
    Host, Nodes, Redis, Run, STUBBORN_TREE, TREE, alive, hold, pttl, queued, tree_of, wait_until,
};

fn without_expiry(redis: &Redis) -> Run {
    Run::key(redis, "k").args(&["--ttl", "none"])
}

#[test]
fn the_lock_has_no_expiry_and_is_still_released() {
    let redis = Redis::start();
    let job = without_expiry(&redis).stdin_pipe().sh("echo ready; read x; exit 6").spawn();
    job.wait_for_line("ready");
    assert_eq!(pttl(&redis, "k"), -1);
    assert_eq!(redis.cmd(&["SET", "lock:k", "foreign", "NX"]), "", "other programs are kept out");
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    job.wait().expect_code(6);
    assert!(!redis.held("k"));
    assert_eq!(redis.keys_without_ttl(), Vec::<String>::new());
}

#[test]
fn one_line_warns_of_the_missing_expiry_unless_quiet() {
    let redis = Redis::start();
    let done = without_expiry(&redis).sh("echo out").done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.lines().count()), ("out\n", 1), "{done:?}");
    assert!(done.stderr.starts_with("redlock: "), "{done:?}");
    let done = without_expiry(&redis).arg("-q").cmd(&["true"]).done().expect_code(0);
    assert_eq!(done.stderr, "");
}

#[test]
fn the_lock_is_never_refreshed() {
    let redis = Redis::start();
    let job = hold(without_expiry(&redis).args(&["--node-timeout", "2s"]));
    wait_until_asleep(job.pid());
    // The time span itself is observed: a holder with a lease of the minimum length would renew it
    // many times.
    let (scripts, ()) = redis.script_commands(|| std::thread::sleep(Duration::from_secs(3)));
    let writes = ["set", "pexpire", "persist"];
    assert!(!scripts.iter().flatten().any(|command| writes.contains(&command.as_str())), "{scripts:?}");
    assert_eq!(pttl(&redis, "k"), -1);
    job.wait().expect_code(0);
}

#[test]
fn a_waiter_is_woken_by_the_release() {
    let redis = Redis::start();
    let first = hold(without_expiry(&redis));
    let next = without_expiry(&redis).stdin_pipe().sh("echo mine; read x").spawn();
    queued(&redis, "k", 1);
    first.wait().expect_code(0);
    next.wait_for_line("mine");
    assert_eq!(pttl(&redis, "k"), -1, "the next one's lock has no expiry either");
    drop(next);
    // The next waiter has a lease, and waits behind a holder without one.
    redis.cmd(&["DEL", "lock:k"]);
    let first = hold(without_expiry(&redis));
    let next = Run::key(&redis, "k").args(&["--ttl", "20s"]).stdin_pipe().sh("echo mine; read x").spawn();
    queued(&redis, "k", 1);
    first.wait().expect_code(0);
    next.wait_for_line("mine");
    assert!((1..=20_000).contains(&pttl(&redis, "k")));
    next.wait();
}

#[test]
fn a_kill_9_stops_the_tree_and_frees_the_lock() {
    let redis = Redis::start();
    for script in [TREE, STUBBORN_TREE] {
        let job = without_expiry(&redis).sh(script).spawn();
        let tree = tree_of(&job);
        job.signal(SIGKILL);
        wait_until("the tree is dead", || !tree.iter().any(|pid| alive(*pid)));
        job.wait();
        assert!(!redis.held("k"));
    }
}

#[test]
fn a_lock_whose_redlock_and_guardian_are_killed_stays() {
    let redis = Redis::start();
    hold(without_expiry(&redis)).kill_with_guardian();
    assert_eq!(pttl(&redis, "k"), -1);
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    redis.cmd(&["DEL", "lock:k"]); // an operator would do this
    assert_eq!(waiter.wait().expect_code(0).stdout, "mine\n");
}

#[test]
fn a_stopped_redlock_changes_nothing() {
    let redis = Redis::start();
    let job = without_expiry(&redis).stdin_pipe().sh("echo ready; read x; exit 3").spawn();
    job.wait_for_line("ready");
    job.stop();
    wait_until_asleep(guardian_of(job.pid())); // which would stop the tree at a deadline
    assert_eq!(pttl(&redis, "k"), -1);
    job.signal(SIGCONT);
    job.wait().expect_code(3);
    assert!(!redis.held("k"));
}

#[test]
fn a_temporary_loss_of_the_server_goes_unnoticed() {
    let redis = Redis::start();
    let job = without_expiry(&redis).stdin_pipe().sh("echo ready; read x; exit 4").spawn();
    job.wait_for_line("ready");
    redis.stop();
    wait_until_asleep(job.pid());
    redis.cont();
    job.wait().expect_code(4);
    assert!(!redis.held("k"));
}

#[test]
fn max_hold_ends_the_lock_and_min_hold_adds_an_expiry() {
    let redis = Redis::start();
    let ended = without_expiry(&redis).args(&["-q", "--max-hold", "500ms", "--kill-after", "300ms"]);
    ended.sh(STUBBORN_TREE).done().expect_code(124);
    assert!(!redis.held("k"));
    let job = hold(without_expiry(&redis).args(&["--min-hold", "60s"]));
    assert_eq!(pttl(&redis, "k"), -1);
    job.wait().expect_code(0);
    let left = pttl(&redis, "k");
    assert!((1..=60_000).contains(&left), "{left} ms");
}

#[test]
fn the_grace_before_sigkill_is_not_limited_by_a_ttl() {
    let redis = Redis::start();
    without_expiry(&redis).args(&["--kill-after", "1h"]).cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_reader_without_expiry_gets_none_from_another_reader() {
    let redis = Redis::start();
    let job = hold(without_expiry(&redis).arg("-s"));
    Run::key(&redis, "k").args(&["-s", "--ttl", "3s"]).sh("sleep 4").done().expect_code(0);
    // The other reader's lease, as a killed reader leaves it.
    let other = Run::key(&redis, "k").args(&["-s", "--ttl", "3s"]).sh("echo in; exec sleep 60").spawn();
    other.wait_for_line("in");
    drop(other);
    let writer = Run::key(&redis, "k").args(&["-w", "4"]).sh("echo ran").done().expect_code(75);
    assert_eq!(writer.stdout, "", "a writer got in beside the reader");
    assert!(redis.held("k"));
    job.wait().expect_code(0);
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_killed_reader_and_a_killed_slot_without_expiry_stay() {
    let redis = Redis::start();
    for mode in [&["-s"][..], &["--slots", "1"]] {
        let job = without_expiry(&redis).args(mode).sh("echo ready; exec sleep 60").spawn();
        job.wait_for_line("ready");
        job.kill_with_guardian();
        Run::key(&redis, "k").args(&["-w", "1.5"]).sh("echo ran").done().expect_code(75);
        redis.cmd(&["FLUSHALL"]);
    }
}

#[test]
fn a_lock_without_expiry_leaves_no_key_without_expiry() {
    let redis = Redis::start();
    for mode in [&["-s"][..], &["--slots", "2"], &["--key", "j"]] {
        let first = hold(without_expiry(&redis).args(mode));
        assert!(redis.keys_without_ttl().contains(&"lock:k".to_owned()), "{mode:?}");
        // First beside a reader with a lease that leaves, then beside one that stays.
        if mode[0] != "--key" {
            let other = Run::key(&redis, "k").args(mode).args(&["--ttl", "60s"]);
            other.clone().cmd(&["true"]).done().expect_code(0);
            assert_eq!(pttl(&redis, "k"), -1, "{mode:?}");
            let other = hold(other);
            first.wait().expect_code(0);
            assert_eq!(redis.keys_without_ttl(), Vec::<String>::new(), "{mode:?}");
            assert!((1..=60_000).contains(&pttl(&redis, "k")), "{mode:?}");
            other.wait().expect_code(0);
        } else {
            first.wait().expect_code(0);
        }
        assert!(!redis.held("k"), "{mode:?}");
        assert_eq!(redis.keys_without_ttl(), Vec::<String>::new(), "{mode:?}");
    }
}

#[test]
fn several_servers_refuse_ttl_none_and_this_host_ignores_it() {
    let nodes = Nodes::start(3);
    let done = nodes.run("k").args(&["--ttl", "none"]).sh("echo ran").done();
    let done = done.expect_code(64).expect_stderr(&["--ttl"]);
    assert_eq!(done.stdout, "");
    nodes.iter().for_each(|node| assert_eq!(node.keys(), Vec::<String>::new()));
    let done = Host::new().run().args(&["--ttl", "none"]).sh("echo ran").done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("ran\n", ""));
}
