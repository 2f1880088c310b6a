//! Who goes first, and who goes together, on one server: `--prefer` and `--reader-group`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Redis, Run, all_end_well, hold, holder, queued};

#[test]
fn a_preferring_writer_that_is_killed_costs_the_readers_seconds() {
    let redis = Redis::start();
    let first = hold(Run::key(&redis, "k").shared("60s"));
    let writer = Run::key(&redis, "k").args(&["--prefer", "writers", "--ttl", "60s"]).sh("echo ran").spawn();
    queued(&redis, "k", 1);
    let reader = Run::key(&redis, "k").shared("60s").sh("echo mine").spawn();
    queued(&redis, "k", 2);
    writer.signal(Signal::SIGKILL);
    writer.wait();
    let start = Instant::now();
    reader.wait_for_line("mine"); // while the first one is still inside
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    reader.wait().expect_code(0);
    first.wait().expect_code(0);
}

#[test]
fn a_preferring_writer_among_many_waiters_is_next_each_time() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let mut jobs = Vec::new();
    for i in 0..10 {
        // Every other one prefers; the rest are readers and writers without a preference.
        let run = match i % 4 {
            0 => Run::key(&redis, "k").shared("60s"),
            2 => Run::key(&redis, "k"),
            _ => Run::key(&redis, "k").args(&["--prefer", "writers"]),
        };
        jobs.push(run.dir(dir.path()).sh(&format!("echo {i} >> order")).spawn());
        queued(&redis, "k", i + 1);
    }
    first.wait().expect_code(0);
    all_end_well(jobs);
    let order = std::fs::read_to_string(dir.path().join("order")).unwrap();
    assert_eq!(order.split_whitespace().collect::<String>(), "1357902468");
}
