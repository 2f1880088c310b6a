//! --min-hold on servers: what it leaves there, for how long, and who may remove it.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Nodes, Redis, Run, assert_takes_less_than, holder, pttl, queued, wait_until};

/// The server keeps the key until a minute after a grant that came later than `start`.
#[track_caller]
fn assert_a_minute_from_the_grant(redis: &Redis, key: &str, start: Instant) {
    let left = pttl(redis, key);
    let least = 60_000 - start.elapsed().as_millis() as i64 - 5; // rounded more than once
    assert!(left >= least && left <= 60_000, "{left} ms left of {key:?}, at least {least}");
}

#[test]
fn one_server_keeps_the_lock_for_the_rest_of_min_hold_however_the_command_exits() {
    let redis = Redis::start();
    for (key, end) in [("well", "exit 0"), ("badly", "exit 3"), ("killed", "kill -KILL $$")] {
        let start = Instant::now();
        let done = Run::key(&redis, key).args(&["--min-hold", "1m"]).sh(end).done();
        assert_a_minute_from_the_grant(&redis, key, start); // so redlock did not wait for it
        assert_eq!(done.stderr, "");
        assert_eq!(redis.cmd(&["SET", &format!("lock:{key}"), "foreign", "NX"]), "", "a library is kept out");
        Run::key(&redis, key).arg("-n").sh("echo ran").done().expect_code(75);
    }
    let start = Instant::now();
    let job = Run::key(&redis, "ended").args(&["--min-hold", "1m"]).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
    assert_a_minute_from_the_grant(&redis, "ended", start);
}

#[test]
fn min_hold_may_be_longer_than_the_ttl() {
    let redis = Redis::start();
    let start = Instant::now();
    let run = Run::key(&redis, "k").args(&["--ttl", "3s", "--min-hold", "1m"]).stdin_pipe();
    let job = run.sh("echo ready; sleep 4; exit 4").spawn();
    job.wait_for_line("ready");
    job.wait().expect_code(4);
    assert_a_minute_from_the_grant(&redis, "k", start);
}

#[test]
fn three_servers_all_keep_the_lock_for_min_hold() {
    let nodes = Nodes::start(3);
    nodes.settle();
    // The default quarantine of 30 s bounds the ttl, but not --min-hold.
    for (key, run) in [("k", nodes.run("k")), ("j", nodes.run_quarantined("j"))] {
        let start = Instant::now();
        run.args(&["--min-hold", "1m"]).sh("exit 3").done().expect_code(3);
        for node in nodes.iter() {
            wait_until("the slowest server has it, too", || pttl(node, key) > 40_000);
            assert_a_minute_from_the_grant(node, key, start);
        }
    }
    nodes.run("k").arg("-n").sh("echo ran").done().expect_code(75);
}

#[test]
fn a_lost_lock_is_not_reacquired_for_min_hold() {
    let redis = Redis::start();
    for successor in [None, Some("foreign")] {
        let run = Run::key(&redis, "k").args(&["--ttl", "3s", "--min-hold", "1m"]);
        let job = run.sh("echo ready; exec sleep 60").spawn();
        job.wait_for_line("ready");
        redis.cmd(&["DEL", "lock:k"]);
        successor.map(|value| redis.cmd(&["SET", "lock:k", value, "PX", "20000"]));
        job.wait().expect_code(79);
        assert_eq!(redis.cmd(&["GET", "lock:k"]), successor.unwrap_or_default());
        assert!(pttl(&redis, "k") <= 20_000);
    }
}

#[test]
fn a_run_waits_for_a_lock_that_an_exited_ancestor_keeps() {
    let redis = Redis::start();
    let inner = Run::key(&redis, "k").args(&["-w", "30"]).cmd(&["touch", "ran"]);
    let directory = tempfile::tempdir().unwrap();
    // Requests the lock only when its ancestor has exited and only --min-hold keeps it. It has a
    // session of its own: the rig kills what is left in a job's session.
    let script = format!(
        "i=0; while kill -0 $1 && [ $i -lt 100 ]; do sleep 0.05; i=$((i+1)); done; {}",
        inner.shell_line()
    );
    std::fs::write(directory.path().join("later"), script).unwrap();
    let outer = Run::key(&redis, "k").args(&["--min-hold", "2s"]).dir(&directory);
    outer.sh("setsid sh later $PPID >/dev/null 2>&1 &").done().expect_code(0);
    wait_until("the inner run had its turn", || directory.path().join("ran").exists());
}

#[test]
fn a_deleted_min_hold_is_not_reported_for_the_next_holder() {
    let redis = Redis::start();
    Run::key(&redis, "k").args(&["--min-hold", "60s"]).cmd(&["true"]).done().expect_code(0);
    assert_eq!(redis.cmd(&["DEL", "lock:k"]), "1");
    let next = holder(&redis, "k", &[]);
    let done = Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    assert!(done.stderr.contains("held by") && !done.stderr.contains("min-hold"), "{done:?}");
    next.wait().expect_code(0);
}

#[test]
fn a_waiter_for_a_slot_starts_when_the_first_slot_is_free() {
    let redis = Redis::start();
    let slots = ["--slots", "2"];
    let long = holder(&redis, "k", &slots);
    // It retries every 2.1 s anyway; it must be earlier than that.
    assert_takes_less_than(Duration::from_millis(1500), || {
        let start = Instant::now();
        let short = holder(&redis, "k", &[&slots[..], &["--min-hold", "2s"]].concat());
        let next = Run::key(&redis, "k").args(&slots).cmd(&["true"]).spawn();
        queued(&redis, "k", 1);
        short.wait().expect_code(0);
        let left = redis.cmd(&["ZRANGE", "lock-shared:k", "0", "0", "WITHSCORES"]);
        let until: u64 = left.lines().last().unwrap().parse().unwrap();
        // otherwise the value read is another run's lease
        let is_kept = start.elapsed() < Duration::from_secs(2);
        next.wait().expect_code(0);
        let time = redis.cmd(&["TIME"]);
        let time: Vec<u64> = time.lines().map(|part| part.parse().unwrap()).collect();
        let now = time[0] * 1000 + time[1] / 1000;
        let late = || Duration::from_millis(now.checked_sub(until).expect("not before the slot is free"));
        if is_kept { late() } else { Duration::MAX }
    });
    long.wait().expect_code(0);
}
