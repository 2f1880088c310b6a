//! Servers that hang: the check-up still ends.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{all_keys, diagnosis, doctor, expect, results};
use crate::support::sentinel::{SERVICE, SilentSentinel};
use crate::support::{Blackhole, Nodes, Proxy, Redis, wait_until};

/// Longer than a few timeouts of a second on a busy machine.
const LONG: Duration = Duration::from_secs(10);

#[test]
fn doctor_gives_up_on_several_hanging_servers_at_once() {
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
    assert!(silent.iter().all(|message| message.starts_with("problem timed out")), "{silent:?}");
    expect(&found, "quorum", "problem", "2 of 5 servers can vote, 3 are needed");
    nodes[1].cont();
}

#[test]
fn doctor_gives_up_on_hanging_sentinels() {
    let mute = SilentSentinel::start();
    let started = Instant::now();
    let url = format!("redis+sentinel://127.0.0.1:{}/{SERVICE}", mute.port());
    let found = diagnosis(doctor(&url).args(&["--node-timeout", "500ms"]), 1);
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    expect(&found, "sentinel", "warning", "timed out");
}

/// The keys of a test lock are deleted before a signal ends doctor.
#[test]
fn a_signal_during_the_check_leaves_nothing_behind() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let redis = Redis::start();
        let proxy = Proxy::to(&redis);
        proxy.delay(Duration::from_millis(500));
        let job = doctor(&proxy.url()).spawn();
        wait_until("the test lock is taken", || !redis.keys().is_empty());
        job.signal(signal);
        let done = job.wait();
        assert_eq!(done.signal, Some(signal as i32), "{done:?}");
        let mut left = all_keys(&redis);
        // The reply to the release came too late. A tombstone expires after a minute.
        left.retain(|key| !key.starts_with("lock-tombstone:"));
        assert_eq!(left, Vec::<String>::new());
    }
}

#[test]
fn the_keys_of_a_killed_check_expire_within_a_minute() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    proxy.delay(Duration::from_millis(500));
    let job = doctor(&proxy.url()).spawn();
    wait_until("doctor waits for its own lock", || {
        redis.keys().iter().any(|key| key.starts_with("lock-queue:"))
    });
    job.signal(Signal::SIGKILL);
    job.wait();
    for key in all_keys(&redis) {
        let left: i64 = redis.cmd(&["PTTL", &key]).parse().unwrap();
        assert!((0..=60_000).contains(&left), "{key}: {left}");
    }
}

/// The server replies to the first queries, and then hangs.
#[test]
fn doctor_gives_up_on_a_server_that_hangs_during_the_check() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    proxy.delay(Duration::from_millis(500));
    let job = doctor(&proxy.url()).args(&["--node-timeout", "2s"]).spawn();
    wait_until("the first reply has arrived", || proxy.replies() > 0);
    redis.stop();
    let started = Instant::now();
    let done = job.wait().expect_code(1);
    assert!(started.elapsed() < LONG, "{:?}: {done:?}", started.elapsed());
    assert!(done.stdout.contains("timed out"), "{done:?}");
    redis.cont();
}
