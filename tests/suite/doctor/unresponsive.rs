//! Servers that hang: the check-up has an end.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{all_keys, diagnosis, doctor, expect, results};
use crate::support::sentinel::{SERVICE, SilentSentinel};
use crate::support::{Blackhole, Nodes, Proxy, Redis, wait_until};

/// More than a few timeouts of a second, and a busy machine, take.
const LONG: Duration = Duration::from_secs(10);

#[test]
fn servers_that_hang_are_given_up_together() {
    let nodes = Nodes::start(3);
    nodes.settle();
    nodes[1].stop();
    let holes = [Blackhole::new(), Blackhole::new()];
    let urls = [nodes.urls(), holes.iter().map(Blackhole::url).collect()].concat().join(",");
    let started = Instant::now();
    let found = diagnosis(doctor(&urls).args(&["--node-timeout", "1s"]), 1);
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    let silent = results(&found, "reachable");
    assert_eq!(silent.len(), 3, "{silent:?}");
    assert!(silent.iter().all(|said| said.starts_with("problem timed out")), "{silent:?}");
    expect(&found, "quorum", "problem", "2 of 5 servers can vote, 3 are needed");
    nodes[1].cont();
}

#[test]
fn sentinels_that_hang_are_given_up() {
    let mute = SilentSentinel::start();
    let started = Instant::now();
    let url = format!("redis+sentinel://127.0.0.1:{}/{SERVICE}", mute.port());
    let found = diagnosis(doctor(&url).args(&["--node-timeout", "500ms"]), 1);
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    expect(&found, "sentinel", "warning", "timed out");
}

/// The keys of a test lock are deleted before a signal ends it.
#[test]
fn a_signal_in_the_middle_leaves_nothing_behind() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let redis = Redis::start();
        let proxy = Proxy::to(&redis);
        proxy.delay(Duration::from_millis(500));
        let job = doctor(&proxy.url()).spawn();
        wait_until("the test lock is taken", || !redis.keys().is_empty());
        job.signal(signal);
        let done = job.wait();
        assert_eq!(done.signal, Some(signal as i32), "{done:?}");
        assert_eq!(all_keys(&redis), Vec::<String>::new());
    }
}

#[test]
fn what_a_killed_one_leaves_is_gone_within_a_minute() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    proxy.delay(Duration::from_millis(500));
    let job = doctor(&proxy.url()).spawn();
    wait_until("it waits for its own lock", || redis.keys().iter().any(|key| key.starts_with("lock-queue:")));
    job.signal(Signal::SIGKILL);
    job.wait();
    for key in all_keys(&redis) {
        let left: i64 = redis.cmd(&["PTTL", &key]).parse().unwrap();
        assert!((0..=60_000).contains(&left), "{key}: {left}");
    }
}

/// It answers the first questions, and then hangs.
#[test]
fn a_server_that_stops_in_the_middle_is_given_up() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    proxy.delay(Duration::from_millis(500));
    let job = doctor(&proxy.url()).args(&["--node-timeout", "2s"]).spawn();
    wait_until("it has had an answer", || proxy.replies() > 0);
    redis.stop();
    let started = Instant::now();
    let done = job.wait().expect_code(1);
    assert!(started.elapsed() < LONG, "{:?}: {done:?}", started.elapsed());
    assert!(done.stdout.contains("timed out"), "{done:?}");
    redis.cont();
}
