//! The fair queue of one Redis: order, wake-ups, waiters that die or give up.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    Job, Redis, Run, Watch, assert_takes_less_than, expect_success, holder, lines_of, queued,
    wait_for_sleeping_waiter, wait_until, wait_until_within,
};

/// A waiter that appends its name to a file when it runs.
fn writer(redis: &Redis, key: &str, name: &str, file: &Path) -> Job {
    let script = format!("echo {name} >> '{}'", file.display());
    Run::key(redis, key).args(&["--ttl", "60s"]).sh(&script).spawn()
}

#[test]
fn a_newcomer_does_not_overtake_a_waiter_even_while_the_lock_is_free() {
    // The head of the queue has two seconds to respond: after that it may be overtaken.
    assert_takes_less_than(Duration::from_secs(2), || {
        let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
        let order = dir.path().join("order");
        let first = holder(&redis, "k", &["--ttl", "60s"]);
        let head = writer(&redis, "k", "head", &order);
        queued(&redis, "k", 1);
        head.stop(); // so that the lock stays free for a moment
        let freed = Instant::now();
        first.wait().expect_code(0);
        let held = redis.held("k");
        let tried = Run::key(&redis, "k").arg("-n").sh("echo ran").done();
        let newcomer = writer(&redis, "k", "newcomer", &order);
        wait_until("the newcomer is queued, or has been let in", || {
            redis.queue_len("k") == 2 || lines_of(&order) == ["newcomer"]
        });
        head.signal(Signal::SIGCONT);
        let spent = freed.elapsed();
        expect_success([head, newcomer]);
        if spent < Duration::from_secs(2) {
            assert!(!held);
            tried.expect_code(75);
            assert_eq!(lines_of(&order), ["head", "newcomer"]);
        }
        spent
    });
}

#[test]
fn a_waiter_sends_at_most_one_command_a_second() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "120s"]);
    let waiter = Run::key(&redis, "k").cmd(&["true"]).spawn();
    // The holder sends nothing more until its renewal: only the waiter is counted.
    wait_for_sleeping_waiter(&redis);
    let sent = || redis.calls("blpop") + redis.script_calls();
    let (before, start) = (sent(), Instant::now());
    std::thread::sleep(Duration::from_secs(6)); // the time span itself is measured
    let (commands, seconds) = (sent() - before, start.elapsed().as_secs_f64());
    assert!(commands as f64 <= seconds + 2.0, "{commands} commands in {seconds:.1} s");
    assert!(commands > 0, "a waiter renews its place");
    first.wait().expect_code(0);
    waiter.wait().expect_code(0);
}

#[test]
fn the_next_waiter_is_woken_by_a_push_and_not_by_its_own_renewal() {
    let redis = Redis::start();
    let handover = || {
        let first = holder(&redis, "k", &["--ttl", "60s"]);
        let waiter = Run::key(&redis, "k").sh("echo mine").spawn();
        queued(&redis, "k", 1);
        let start = Instant::now();
        let ended = std::thread::spawn(move || first.wait().expect_code(0));
        waiter.wait_for_line("mine");
        let spent = start.elapsed();
        ended.join().unwrap();
        waiter.wait().expect_code(0);
        spent
    };
    // A renewal comes every two seconds: by chance alone the median would be about one.
    assert_takes_less_than(Duration::from_millis(400), || {
        let mut spent: Vec<Duration> = (0..5).map(|_| handover()).collect();
        spent.sort();
        spent[2]
    });
}

#[test]
fn a_killed_head_waiter_costs_seconds_and_not_a_ttl() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let head = Run::key(&redis, "k").args(&["--ttl", "60s"]).cmd(&["true"]).spawn();
    queued(&redis, "k", 1);
    let next = Run::key(&redis, "k").args(&["--ttl", "60s"]).sh("echo mine").spawn();
    queued(&redis, "k", 2);
    head.signal(Signal::SIGKILL);
    assert_eq!(head.wait().signal, Some(9));
    first.wait().expect_code(0);
    let start = Instant::now();
    next.wait_for_line("mine");
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    next.wait().expect_code(0);
    assert_eq!(redis.queue_len("k"), 0);
}

#[test]
fn a_woken_head_that_does_not_respond_loses_its_place_within_seconds() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let head = Run::key(&redis, "k").args(&["--ttl", "60s"]).sh("echo head").spawn();
    queued(&redis, "k", 1);
    let next = Run::key(&redis, "k").args(&["--ttl", "60s"]).sh("echo next").spawn();
    queued(&redis, "k", 2);
    head.stop();
    first.wait().expect_code(0);
    let start = Instant::now();
    next.wait_for_line("next");
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    next.wait().expect_code(0);
    head.signal(Signal::SIGCONT);
    assert_eq!(head.wait().expect_code(0).stdout, "head\n");
}

#[test]
fn a_waiter_stopped_past_its_lease_requeues_and_never_overlaps() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let log = dir.path().join("log");
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let script =
        |name: &str| format!("echo {name} in >> '{0}'; read x; echo {name} out >> '{0}'", log.display());
    let stopped = Run::key(&redis, "k").stdin_pipe().sh(&script("stopped")).spawn();
    queued(&redis, "k", 1);
    stopped.signal(Signal::SIGSTOP);
    let other = Run::key(&redis, "k").stdin_pipe().sh(&script("other")).spawn();
    queued(&redis, "k", 2);
    wait_until("the stopped waiter is pruned", || redis.queue_len("k") == 1);
    first.wait().expect_code(0);
    wait_until("the other one runs", || lines_of(&log) == ["other in"]);
    stopped.signal(Signal::SIGCONT);
    queued(&redis, "k", 1);
    assert_eq!(lines_of(&log), ["other in"]);
    other.wait().expect_code(0);
    stopped.wait().expect_code(0);
    assert_eq!(lines_of(&log), ["other in", "other out", "stopped in", "stopped out"]);
}

#[test]
fn a_cancelled_waiter_leaves_no_trace_on_the_server() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let claim = redis.cmd(&["GET", "lock:k"]);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let waiter = Run::key(&redis, "k").sh("echo ran").spawn();
        queued(&redis, "k", 1);
        waiter.signal(signal);
        let done = waiter.wait();
        assert_eq!(done.signal, Some(signal as i32), "{done:?}");
        assert_eq!(redis.queue_len("k"), 0, "after {signal}");
        assert_eq!(redis.cmd(&["ZCARD", "lock-waiters:k"]), "0", "after {signal}");
        assert_eq!(redis.cmd(&["GET", "lock:k"]), claim);
    }
    first.wait().expect_code(0);
}

#[test]
fn a_cancelled_head_passes_its_turn_on() {
    // Woken and cancelled at the same moment: the wake-up must not be lost with it.
    let redis = Redis::start();
    for _ in 0..5 {
        let first = holder(&redis, "k", &["--ttl", "60s"]);
        let head = Run::key(&redis, "k").cmd(&["true"]).spawn();
        queued(&redis, "k", 1);
        let next = Run::key(&redis, "k").sh("echo mine").spawn();
        queued(&redis, "k", 2);
        let ended = std::thread::spawn(move || first.wait().expect_code(0));
        head.signal(Signal::SIGTERM);
        let done = head.wait();
        assert!(done.signal == Some(15) || done.code == Some(0), "{done:?}");
        next.wait_for_line("mine");
        next.wait().expect_code(0);
        ended.join().unwrap();
        assert!(!redis.held("k"));
    }
}

#[test]
fn no_key_is_ever_without_a_ttl_and_only_the_fence_stays() {
    let redis = Redis::start();
    let watch = Watch::start(&redis, |client| client.keys_without_ttl().join(" "));
    let first = holder(&redis, "k", &["--ttl", "8s"]);
    let waiters: Vec<Job> = (1..=4)
        .map(|n| {
            let waiter = Run::key(&redis, "k").args(&["--ttl", "8s"]).sh("sleep 0.2").spawn();
            queued(&redis, "k", n);
            waiter
        })
        .collect();
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let given_up = Run::key(&redis, "k").cmd(&["true"]).spawn();
        queued(&redis, "k", 5);
        given_up.signal(signal);
        given_up.wait();
    }
    first.wait().expect_code(0);
    for waiter in waiters {
        waiter.wait().expect_code(0);
    }
    // The tombstone of a waiter that gave up is kept for a while, against its late requests.
    let stays = |key: &String| key == "lock-fence:k" || key.starts_with("lock-tombstone:");
    wait_until("only the fence is left", || redis.keys().iter().all(stays));
    assert_eq!(watch.finish(), [""], "a key without a TTL");
}

#[test]
fn a_dead_waiter_without_a_lease_does_not_block_the_queue() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &[]);
    let dead = Run::key(&redis, "k").sh("echo ran").spawn();
    queued(&redis, "k", 1);
    dead.kill_with_guardian();
    assert_eq!(redis.cmd(&["DEL", "lock-waiters:k"]), "1");
    let next = Run::key(&redis, "k").sh("echo got it").spawn();
    wait_until("the next one waits", || redis.cmd(&["ZCARD", "lock-waiters:k"]) != "0");
    assert_eq!(first.wait().code, Some(0));
    let within = Duration::from_secs(10);
    wait_until_within(within, "the next one gets the lock", || next.stdout_so_far() == "got it\n");
    assert_eq!(next.wait().code, Some(0));
}

/// The client that sleeps in BLPOP beside the holder, which sleeps in BLPOP as well.
fn sleeper(redis: &Redis, holder: Option<&str>) -> Option<String> {
    let clients = redis.cmd(&["CLIENT", "LIST"]);
    let sleeping = clients.lines().filter(|line| line.contains(" cmd=blpop") && line.contains(" flags=b"));
    let mut ids = sleeping.filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
    ids.find(|id| Some(*id) != holder).map(str::to_owned)
}

#[test]
fn a_waiter_that_the_server_unblocks_continues_to_wait() {
    let redis = Redis::start();
    for how in ["ERROR", "TIMEOUT"] {
        let first = holder(&redis, "k", &[]);
        wait_until("the holder listens", || sleeper(&redis, None).is_some());
        let listener = sleeper(&redis, None);
        let sleeper = || sleeper(&redis, listener.as_deref());
        let mut waiter = Run::key(&redis, "k").sh("echo got it").spawn();
        for round in 0..3 {
            let mut unblocked = false;
            // It may wake up by itself between the check and the command.
            wait_until("the waiter is woken", || {
                let woken = sleeper().map(|id| redis.cmd(&["CLIENT", "UNBLOCK", &id, how]));
                unblocked = woken.as_deref() == Some("1");
                unblocked
            });
            wait_until("the waiter sleeps once more", || !waiter.is_running() || sleeper().is_some());
            assert!(waiter.is_running(), "{how}, round {round}: {:?}", waiter.stderr_so_far());
        }
        queued(&redis, "k", 1);
        assert_eq!(waiter.stdout_so_far(), "");
        assert_eq!(first.wait().code, Some(0));
        let done = waiter.wait().expect_code(0);
        assert_eq!(done.stdout, "got it\n", "{how}: {done:?}");
    }
}
