//! Which holders a waiter waits for: those that expire, those of other programs, those on the same
//! server.

use std::time::{Duration, Instant};

use crate::support::{Redis, Run, assert_takes_less_than, holder, queued, refused};

#[test]
fn an_expired_holder_is_succeeded_at_once() {
    let redis = Redis::start();
    // Between two renewals (2.1 s and 4.2 s): only a head that observes the holder's PTTL is in
    // time.
    assert_takes_less_than(Duration::from_millis(3900), || {
        let start = Instant::now();
        redis.cmd(&["SET", "lock:k", "someone", "PX", "2700"]);
        let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
        waiter.wait_for_line("mine");
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(2700), "too early: {waited:?}");
        waiter.wait().expect_code(0);
        waited
    });
}

#[test]
fn the_lock_of_a_holder_killed_with_its_guardian_goes_to_the_waiter_when_it_expires() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "4s"]);
    let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    first.kill_with_guardian();
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
        for args in [&["-n"][..], &["-w", "1.5"]] {
            let tried = Run::key(&redis, "k").args(args).sh("echo ran").done().expect_code(75);
            assert_eq!(tried.stdout, "");
            assert_eq!(redis.cmd(&["GET", "lock:k"]), "someone else");
            assert_eq!(redis.cmd(&["PEXPIRETIME", "lock:k"]), expires);
            assert_eq!(redis.queue_len("k"), 0);
        }
    }
}

#[test]
fn a_renewal_notices_the_silent_release_of_a_foreign_holder() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock:k", "someone else"]);
    let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
    queued(&redis, "k", 1);
    redis.cmd(&["DEL", "lock:k"]);
    let start = Instant::now();
    waiter.wait_for_line("mine");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    waiter.wait().expect_code(0);
}

#[test]
fn an_attempt_leaves_no_trace_on_the_server() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let before = redis.keys();
    for args in [&["-n"][..], &["--nonblock"], &["-w", "0"], &["--wait", "0s"]] {
        Run::key(&redis, "k").args(args).cmd(&["true"]).done().expect_code(75);
        assert_eq!(redis.keys(), before, "{args:?}");
    }
    first.wait().expect_code(0);
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
fn a_foreign_value_of_any_size_is_a_held_lock() {
    let redis = Redis::start();
    let large = "x".repeat(2 << 20);
    redis.cmd(&["SET", "lock:k", &large]);
    refused(Run::key(&redis, "k").arg("-n"), 75, &["held"]);
    refused(Run::key(&redis, "k").args(&["-w", "1500ms"]), 75, &["held"]);
    assert_eq!(redis.cmd(&["STRLEN", "lock:k"]), large.len().to_string(), "the value is untouched");
}
