//! `redlock status --wait-free`: waits until the lock is free, without taking it.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::look;
use crate::support::{Job, Nodes, Redis, Run, hold, holder, queued, wait_for_sleeping_waiter};

fn waits(redis: &Redis) -> Job {
    let job = look("status", &redis.url(), &["k", "--wait-free"]).spawn();
    wait_for_sleeping_waiter(redis);
    job
}

#[test]
fn a_wait_ends_with_the_release_and_takes_nothing() {
    let redis = Redis::start();
    look("status", &redis.url(), &["k", "--wait-free"]).done().expect_code(0);
    let first = holder(&redis, "k", &["--ttl", "600s"]);
    let before = redis.info("rdb_changes_since_last_save");
    let job = waits(&redis);
    assert_eq!(redis.info("rdb_changes_since_last_save"), before, "no write");
    let released = Instant::now();
    first.wait().expect_code(0);
    let done = job.wait().expect_code(0);
    assert!(released.elapsed() < Duration::from_secs(20), "not by the lease");
    assert_eq!((done.stdout.as_str(), redis.held("k")), ("", false));
}

#[test]
fn a_release_ends_the_wait_long_before_the_next_poll() {
    let redis = Redis::start();
    crate::support::assert_takes_less_than(Duration::from_millis(800), || {
        let first = holder(&redis, "k", &["--ttl", "600s"]);
        let job = waits(&redis);
        let start = Instant::now();
        first.wait().expect_code(0);
        job.wait().expect_code(0);
        start.elapsed()
    });
}

#[test]
fn waiters_come_first_and_keep_their_order() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &[]);
    let mut job = waits(&redis);
    let second = Run::key(&redis, "k").stdin_pipe().sh(crate::support::HOLD).spawn();
    queued(&redis, "k", 1);
    first.wait().expect_code(0);
    second.wait_for_line("ready");
    assert!(job.is_running(), "the next waiter has the lock");
    second.wait().expect_code(0);
    job.wait().expect_code(0);
}

#[test]
fn a_lease_that_ends_is_noticed() {
    let redis = Redis::start();
    let dead = hold(Run::key(&redis, "k").args(&["--ttl", "3s"]));
    let job = waits(&redis);
    dead.signal(Signal::SIGKILL);
    job.wait().expect_code(0);
    assert!(!redis.held("k"));
}

#[test]
fn a_wait_times_out_and_reports_the_holder() {
    let redis = Redis::start();
    let _first = holder(&redis, "k", &["--label", "nightly"]);
    let args = ["k", "--wait-free", "-w", "100ms"];
    let done = look("status", &redis.url(), &args).done().expect_code(75);
    assert!(done.stderr.contains("\"k\" is not free after") && done.stderr.contains("nightly"), "{done:?}");
    assert_eq!(look("status", &redis.url(), &args).arg("-q").done().expect_code(75).stderr, "");
}

#[test]
fn a_wait_survives_a_server_that_goes_away() {
    let mut redis = Redis::start();
    let _first = holder(&redis, "k", &["--ttl", "60s"]);
    let job = waits(&redis);
    redis.kill();
    job.wait_for_stderr("still waiting");
    redis.restart();
    job.wait().expect_code(0);
}

#[test]
fn a_majority_of_several_servers_must_be_free() {
    let nodes = Nodes::start(3);
    let first = hold(nodes.run("k").args(&["--ttl", "30s"]));
    let job = look("status", &nodes.urls().join(","), &["k", "--wait-free"]).spawn();
    nodes.iter().for_each(wait_for_sleeping_waiter);
    first.wait().expect_code(0);
    job.wait().expect_code(0);
}
