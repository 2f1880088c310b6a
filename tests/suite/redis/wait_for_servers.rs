//! `--on-unavailable wait`: redlock waits for servers that cannot serve at the start.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGTERM};

use crate::support::redis::is_before_7;
use crate::support::{Blackhole, Nodes, Redis, Refused, Run, assert_stays_free, holder, queued, wait_until};

const WAIT: &[&str] = &["--on-unavailable", "wait"];

#[test]
fn the_command_runs_under_the_lock_when_the_server_is_available() {
    let mut redis = Redis::start();
    redis.kill();
    let job = Run::key(&redis, "k").args(WAIT).sh("echo fence $REDLOCK_FENCE").spawn();
    let message = job.wait_for_stderr("trying again");
    assert!(message.starts_with("redlock: waiting for \"k\": "), "{message}");
    redis.restart();
    let done = job.wait().expect_code(0);
    assert!(done.stdout.len() > "fence \n".len(), "{done:?}");
    assert_eq!(done.stderr.lines().filter(|line| line.contains("trying again")).count(), 1, "{done:?}");
    wait_until("released", || !redis.held("k"));
    assert_eq!(redis.queue_len("k"), 0);
}

#[test]
fn a_quiet_run_waits_without_a_message() {
    let mut redis = Redis::start();
    redis.kill();
    let mut job = Run::key(&redis, "k").args(WAIT).arg("-q").sh("echo ran").spawn();
    // The time span itself is under test: longer than several attempts.
    std::thread::sleep(Duration::from_millis(700));
    assert!(job.is_running());
    redis.restart();
    let done = job.wait().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("ran\n", ""));
}

#[test]
fn a_run_exits_69_when_the_wait_ends() {
    let refused = Refused::new();
    let started = Instant::now();
    let done =
        Run::at(&refused.url(), "k").args(WAIT).args(&["-w", "1"]).sh("echo ran").done().expect_code(69);
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(done.stdout, "");
    assert!(done.stderr.lines().last().unwrap().contains("cannot take \"k\" after 1"), "{done:?}");
}

#[test]
fn a_run_that_does_not_wait_for_the_lock_does_not_wait_for_the_server() {
    let refused = Refused::new();
    for how in [&["-n"][..], &["-w", "0"], &["--retries", "0"]] {
        let done = Run::at(&refused.url(), "k").args(WAIT).args(how).sh("echo ran").done().expect_code(69);
        assert!(!done.stderr.contains("trying again"), "{how:?}: {done:?}");
    }
}

#[test]
fn retries_also_count_attempts_to_reach_the_server() {
    let refused = Refused::new();
    let retries = &["--retries", "2", "--retry-interval", "20ms"];
    let run = Run::at(&refused.url(), "k").args(retries);
    assert!(!run.clone().sh("echo ran").done().expect_code(69).stderr.contains("trying again"));
    run.args(WAIT).sh("echo ran").done().expect_code(69).expect_stderr(&["trying again"]);
    let mut redis = Redis::start();
    redis.kill();
    let many = &["--retries", "1000000", "--retry-interval", "20ms"];
    let job = Run::key(&redis, "k").args(many).args(WAIT).sh("echo $REDLOCK_ATTEMPTS").spawn();
    job.wait_for_stderr("trying again");
    redis.restart();
    let attempts: u32 = job.wait().expect_code(0).stdout.trim().parse().unwrap();
    assert!(attempts > 1, "{attempts}");
}

#[test]
fn a_signal_ends_the_wait_at_once() {
    let (refused, hole) = (Refused::new(), Blackhole::new());
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        for (url, message) in [(refused.url(), "trying again"), (hole.url(), "")] {
            let run = Run::at(&url, "k").args(WAIT).args(&["-v", "--ttl", "60s", "--node-timeout", "15s"]);
            let job = run.sh("echo ran").spawn();
            if !message.is_empty() {
                job.wait_for_stderr(message);
            } else {
                wait_until("the run connects", || crate::support::descendants(job.pid()).len() == 1);
            }
            let started = Instant::now();
            job.signal(signal);
            let done = job.wait();
            assert_eq!((done.signal, done.stdout.as_str()), (Some(signal as i32), ""), "{url}: {done:?}");
            assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        }
    }
}

#[test]
fn attempts_become_less_frequent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    // Each connection is closed at once.
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    Run::at(&url, "k").args(WAIT).args(&["-w", "4"]).sh("echo ran").done().expect_code(69);
    let attempts = accepted.load(Ordering::SeqCst);
    // 50 ms, 100 ms, ... 1 s, each shortened by up to a half; plus a failed release after the last
    // one.
    assert!((3..=20).contains(&attempts), "{attempts} connections in four seconds");
}

#[test]
fn a_run_waits_for_a_busy_server_and_a_full_one() {
    let redis = Redis::start_with(&["--lua-time-limit", "100"]);
    let mut endless = redis.connect();
    endless.send(&["EVAL", "while true do end", "0"]).unwrap();
    wait_until("busy", || redis.cmd(&["PING"]).starts_with("BUSY"));
    let job = Run::key(&redis, "k").args(WAIT).sh("echo ran").spawn();
    job.wait_for_stderr("trying again");
    assert_eq!(redis.cmd(&["SCRIPT", "KILL"]), "OK");
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100kb"]);
    let job = Run::key(&redis, "k").args(WAIT).sh("echo ran").spawn();
    job.wait_for_stderr("trying again");
    redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
    wait_until("nothing is held or queued", || !redis.held("k") && redis.queue_len("k") == 0);
}

#[test]
fn a_run_waits_for_a_loading_server() {
    if is_before_7() {
        skip!("Redis 6 does not reply while it loads so little");
    }
    let redis = Redis::start();
    for n in 0..250 {
        redis.cmd(&["SET", &format!("filling:{n}"), &"x".repeat(100)]);
    }
    redis.cmd(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    redis.cmd(&["CONFIG", "SET", "key-load-delay", "20000"]); // 250 keys, 20 ms each
    let mut reloading = redis.connect();
    reloading.send(&["DEBUG", "RELOAD"]).unwrap();
    wait_until("loading", || redis.cmd(&["GET", "x"]).starts_with("LOADING"));
    let job = Run::key(&redis, "k").args(WAIT).sh("echo ran").spawn();
    job.wait_for_stderr("trying again");
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
}

#[test]
fn a_stopped_server_has_no_second_claim_when_it_continues() {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0); // loads the scripts
    redis.stop();
    let run = Run::key(&redis, "k").args(WAIT).args(&["--node-timeout", "300ms", "--ttl", "30s"]);
    let job = run.clone().sh("echo ran").spawn();
    job.wait_for_stderr("trying again");
    let gives_up = run.args(&["-w", "600ms"]).sh("echo ran").spawn();
    gives_up.wait().expect_code(69);
    redis.cont();
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
    wait_until("free", || !redis.held("k") && redis.queue_len("k") == 0);
    assert_stays_free(&redis);
}

#[test]
fn a_run_waits_for_a_majority() {
    let mut nodes = Nodes::start(3);
    nodes[0].kill();
    nodes[2].kill();
    let gives_up = nodes.run("k").args(WAIT).args(&["-w", "700ms"]).sh("echo ran").done().expect_code(69);
    assert_eq!(gives_up.stdout, "");
    wait_until("the minority's vote is released", || !nodes[1].held("k") && nodes[1].queue_len("k") == 0);
    let job = nodes.run("k").args(WAIT).sh("echo ran").spawn();
    job.wait_for_stderr("trying again");
    nodes[2].restart();
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
    nodes.all_free();
}

#[test]
fn a_run_waits_for_a_quarantined_majority_and_then_reports_it_unavailable() {
    let nodes = Nodes::start(3); // new, so quarantined
    let run = nodes.run_quarantined("k").args(WAIT);
    let done = run.clone().args(&["-w", "1"]).sh("echo ran").done().expect_code(69);
    assert_eq!(done.stdout, "");
    run.clone().arg("-n").sh("echo ran").done().expect_code(69);
    let short = Nodes::start(3);
    let run = short.run_quarantined("k").args(WAIT).args(&["--quarantine", "3s", "--ttl", "3s"]);
    assert_eq!(run.sh("echo ran").done().expect_code(0).stdout, "ran\n");
}

#[test]
fn a_run_does_not_wait_after_a_refusal() {
    let redis = Redis::start_with(&["--requirepass", "the-right-one"]);
    let unfit = Redis::start();
    unfit.cmd(&["RPUSH", "lock:k", "a list"]);
    for (url, code) in [(redis.url(), 77), (unfit.url(), 78)] {
        let done = Run::at(&url, "k").args(WAIT).sh("echo ran").done().expect_code(code);
        assert!(!done.stderr.contains("trying again"), "{done:?}");
    }
}

#[test]
fn a_run_queues_for_a_held_lock_as_usual() {
    let mut redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "90s"]);
    let done = Run::key(&redis, "k").args(WAIT).args(&["-w", "300ms"]).sh("echo ran").done();
    assert_eq!(done.expect_code(75).stdout, "");
    first.wait().expect_code(0);
    // Waiters that waited for the server queue in one order when it is available.
    redis.kill();
    let run = || Run::key(&redis, "k").args(WAIT).sh("echo ran");
    let jobs: Vec<_> = (0..4).map(|_| run().spawn()).collect();
    jobs.iter().for_each(|job| drop(job.wait_for_stderr("trying again")));
    redis.restart();
    jobs.into_iter().for_each(|job| assert_eq!(job.wait().expect_code(0).stdout, "ran\n"));
    queued(&redis, "k", 0);
}
