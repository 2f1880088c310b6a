//! How long to wait, and for whom: -n, -w, -E, holders that expire, holders of other libraries,
//! ancestors.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Redis, Run, holder, queued, refused};

#[test]
fn an_expired_holder_is_succeeded_at_once() {
    let redis = Redis::start();
    let mut waits = Vec::new();
    for _ in 0..3 {
        // Between two renewals (2.1 s and 4.2 s): only a head that minds the holder's PTTL is in time.
        redis.cmd(&["SET", "lock:k", "someone", "PX", "2700"]);
        let start = Instant::now();
        let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
        waiter.wait_for_line("mine");
        waits.push(start.elapsed());
        waiter.wait().expect_code(0);
    }
    waits.sort();
    assert!(waits[0] > Duration::from_millis(2600), "too early: {waits:?}");
    assert!(waits[0] < Duration::from_millis(3900), "too late: {waits:?}");
}

#[test]
fn a_killed_holders_lock_goes_to_the_waiter_when_it_expires() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "4s"]);
    let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    first.signal(Signal::SIGKILL);
    first.wait();
    let start = Instant::now();
    waiter.wait_for_line("mine");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    waiter.wait().expect_code(0);
}

#[test]
fn a_foreign_value_is_respected_and_untouched() {
    let redis = Redis::start();
    for px in [None, Some("60000")] {
        redis.cmd(&["DEL", "lock:k"]);
        let mut set = vec!["SET", "lock:k", "someone else"];
        set.extend(px.map(|_| "PX"));
        set.extend(px);
        redis.cmd(&set);
        let expires = redis.cmd(&["PEXPIRETIME", "lock:k"]);
        for args in [&["-n"][..], &["-w", "1"]] {
            let tried = Run::key(&redis, "k").args(args).sh("echo ran").done().expect_code(75);
            assert_eq!(tried.stdout, "");
            assert_eq!(redis.cmd(&["GET", "lock:k"]), "someone else");
            assert_eq!(redis.cmd(&["PEXPIRETIME", "lock:k"]), expires);
            assert_eq!(redis.queue_len("k"), 0);
        }
    }
}

#[test]
fn the_silent_release_of_a_foreign_holder_is_noticed_by_a_renewal() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock:k", "someone else"]);
    let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    redis.cmd(&["DEL", "lock:k"]);
    let start = Instant::now();
    waiter.wait_for_line("mine");
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    waiter.wait().expect_code(0);
}

#[test]
fn nonblock_gives_up_at_once_with_75_and_leaves_no_trace() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let before = redis.keys();
    for args in [&["-n"][..], &["--nonblock"], &["-w", "0"], &["--wait", "0s"]] {
        let start = Instant::now();
        let tried = Run::key(&redis, "k").args(args).sh("echo ran").done().expect_code(75);
        assert!(start.elapsed() < Duration::from_secs(2), "{args:?}: {:?}", start.elapsed());
        assert_eq!(tried.stdout, "");
        assert!(tried.stderr.starts_with("redlock: "), "{tried:?}");
        assert_eq!(redis.keys(), before, "{args:?}");
    }
    first.wait().expect_code(0);
    Run::key(&redis, "k").arg("-n").sh("exit 3").done().expect_code(3);
}

#[test]
fn wait_gives_up_after_its_time_and_leaves_the_queue() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    for wait in ["1.5", "1500ms"] {
        let start = Instant::now();
        Run::key(&redis, "k").args(&["-w", wait]).cmd(&["true"]).done().expect_code(75);
        let spent = start.elapsed();
        assert!(spent >= Duration::from_millis(1500), "{spent:?}");
        assert!(spent < Duration::from_millis(3500), "{spent:?}");
        assert_eq!(redis.queue_len("k"), 0);
    }
    let waiter = Run::key(&redis, "k").args(&["-w", "50s"]).sh("exit 4").spawn();
    queued(&redis, "k", 1);
    first.wait().expect_code(0);
    waiter.wait().expect_code(4);
}

#[test]
fn the_conflict_exit_code_is_the_users_and_zero_skips_quietly() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let tried = |args: &[&str]| Run::key(&redis, "k").args(args).sh("echo ran").done();
    tried(&["-n", "-E", "9"]).expect_code(9);
    tried(&["-w", "0.3", "--conflict-exit-code", "200"]).expect_code(200);
    let skipped = tried(&["-n", "-E", "0"]).expect_code(0);
    assert_eq!((skipped.stdout.as_str(), skipped.stderr.as_str()), ("", ""));
    first.wait().expect_code(0);
    // The code of the command itself is never mapped.
    let ran = Run::key(&redis, "k").args(&["-n", "-E", "9"]).sh("exit 75").done();
    assert_eq!(ran.code, Some(75));
}

#[test]
fn a_nested_run_on_a_key_held_by_an_ancestor_fails_at_once() {
    let (redis, other) = (Redis::start(), Redis::start());
    let nested = |inner: Run| {
        let script = format!("{}; echo inner=$?", inner.shell_line());
        Run::key(&redis, "k").sh(&script).done().expect_code(0)
    };
    let start = Instant::now();
    let done = nested(Run::key(&redis, "k").cmd(&["echo", "ran"]));
    assert_eq!(done.stdout, "inner=64\n", "{done:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(done.stderr.contains("redlock: "), "{done:?}");
    // Two levels down it is still the ancestor's.
    let deep = Run::key(&redis, "j").sh(&Run::key(&redis, "k").cmd(&["true"]).shell_line());
    assert_eq!(nested(deep).stdout, "inner=64\n");
    // Another key, the same key on another server: no conflict.
    let done = nested(Run::key(&redis, "j").cmd(&["echo", "ran"]));
    assert_eq!(done.stdout, "ran\ninner=0\n");
    let done = nested(Run::key(&other, "k").cmd(&["echo", "ran"]));
    assert_eq!(done.stdout, "ran\ninner=0\n");
}

#[test]
fn a_unix_socket_leads_to_the_same_lock() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let socket = format!("unix://{}", redis.socket().display());
    Run::at(&socket, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    let waiter = Run::at(&socket, "k").sh("exit 5").spawn();
    queued(&redis, "k", 1);
    first.wait().expect_code(0);
    waiter.wait().expect_code(5);
}

#[test]
fn another_database_is_another_lock() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let url = format!("{}/3", redis.url());
    let mut client = redis.connect();
    client.cmd(&["SELECT", "3"]);
    let other = crate::support::hold(Run::at(&url, "k").arg("-n"));
    assert_eq!(client.cmd(&["EXISTS", "lock:k"]), "1");
    Run::at(&url, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    other.wait().expect_code(0);
    assert_eq!(client.cmd(&["EXISTS", "lock:k"]), "0");
    first.wait().expect_code(0);
}

#[test]
fn a_foreign_value_of_any_size_is_a_lock_that_somebody_holds() {
    let redis = Redis::start();
    let large = "x".repeat(2 << 20);
    redis.cmd(&["SET", "lock:k", &large]);
    refused(Run::key(&redis, "k").arg("-n"), 75, &["held"]);
    refused(Run::key(&redis, "k").args(&["-w", "300ms"]), 75, &["held"]);
    assert_eq!(redis.cmd(&["STRLEN", "lock:k"]), large.len().to_string(), "it is not touched");
}
