//! --retries: a number of attempts with pauses between them, without a position in the queue.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::support::host::{is_locked, tickets_waiting};
use crate::support::{
    Backend, Host, Nodes, Proxy, Redis, Refused, Run, Watch, hold, processes, wait_for_sleeping_clients,
    wait_until,
};

on_backends!(one_server, three_servers, this_host:
    a_lock_held_until_the_last_attempt_exits_75_or_the_chosen_code,
    the_command_sees_the_number_of_attempts,
    a_retrying_run_never_overtakes_the_queue,
    the_default_interval_is_a_second,
    wait_bounds_all_attempts_and_pauses_together,
    a_signal_ends_a_pause_at_once,
);

/// A foreign lock, whose holder sends nothing to the server: every script call is then one of the
/// retries.
fn foreign(redis: &Redis) {
    redis.cmd(&["SET", "lock:k", "foreign", "PX", "60000"]);
}

/// A server that has loaded the scripts, so that each attempt is the same number of calls.
fn warm_server() -> Redis {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    redis
}

/// This many retries, after short pauses.
fn retrying(run: Run, retries: u32) -> Run {
    run.args(&["--retries", &retries.to_string(), "--retry-interval", "40ms"])
}

#[test]
fn n_retries_mean_one_attempt_and_n_more_and_then_75() {
    let redis = warm_server();
    foreign(&redis);
    let asked = |run: Run| {
        let (attempts, done) = redis.attempts_during(|| run.sh("echo ran").done().expect_code(75));
        assert_eq!(done.stdout, "");
        assert!(done.stderr.starts_with("redlock: "), "{done:?}");
        attempts
    };
    assert_eq!(asked(Run::key(&redis, "k").arg("-n")), 1);
    for retries in [0, 1, 5] {
        assert_eq!(asked(retrying(Run::key(&redis, "k"), retries)), 1 + u64::from(retries));
    }
}

fn a_lock_held_until_the_last_attempt_exits_75_or_the_chosen_code(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let tried = |args: &[&str]| retrying(backend.run(), 2).args(args).sh("echo ran").done();
    let given_up = tried(&[]).expect_code(75);
    assert!(given_up.stdout.is_empty() && given_up.stderr.contains("after 3 attempts"), "{given_up:?}");
    tried(&["-E", "9"]).expect_code(9);
    let skipped = tried(&["-E", "0"]).expect_code(0);
    assert_eq!((skipped.stdout.as_str(), skipped.stderr.as_str()), ("", ""));
    first.wait().expect_code(0);
    assert!(backend.is_free());
}

fn the_command_sees_the_number_of_attempts(backend: &Backend) {
    let attempts = |done: crate::support::Done| done.stdout.trim().parse::<u64>().expect("a number");
    let run = || backend.run().args(&["--retries", "200", "--retry-interval", "400ms"]);
    let run = || run().sh("echo $REDLOCK_ATTEMPTS");
    assert_eq!(attempts(run().done().expect_code(0)), 1, "free at once");
    let first = hold(backend.run_for_long());
    let asked = || backend.gate().map_or(0, Redis::script_calls);
    // From then on the holder sends nothing until its renewal.
    backend.gate().into_iter().for_each(|gate| wait_for_sleeping_clients(gate, 1));
    let before = asked();
    let retrying = run().spawn();
    // The first attempt failed: a server has seen it, and on this host the run now sleeps.
    match backend.gate() {
        Some(_) => wait_until("the first attempt was made", || asked() > before),
        None => processes::wait_until_asleep(retrying.pid()),
    }
    first.wait().expect_code(0);
    let made = attempts(retrying.wait().expect_code(0));
    assert!(made >= 2, "{made} attempts");
}

#[test]
fn every_attempt_that_the_server_saw_is_counted() {
    let redis = warm_server();
    foreign(&redis);
    let (seen, done) = redis.attempts_during(|| {
        let before = redis.script_calls();
        let job = retrying(Run::key(&redis, "k"), 2000).sh("echo $REDLOCK_ATTEMPTS").spawn();
        wait_until("five attempts were made", || redis.script_calls() >= before + 5);
        redis.cmd(&["DEL", "lock:k"]);
        job.wait().expect_code(0)
    });
    assert_eq!(done.stdout.trim().parse(), Ok(seen));
}

#[test]
fn a_retrying_run_has_no_place_and_leaves_nothing_between_attempts() {
    let redis = warm_server();
    foreign(&redis);
    let before = redis.keys();
    let watch = Watch::start(&redis, |client| client.keys().join(" "));
    retrying(Run::key(&redis, "k"), 8).cmd(&["true"]).done().expect_code(75);
    assert_eq!(watch.finish(), [before.join(" ")]);

    let host = Host::new();
    let first = hold(host.run());
    let file = host.file();
    let mut job = retrying(host.run(), 10).cmd(&["true"]).spawn();
    let mut looks = 0;
    let mut with_ticket = 0;
    while job.is_running() {
        looks += 1;
        with_ticket += usize::from(tickets_waiting(&file) > 0);
        std::thread::yield_now();
    }
    job.wait().expect_code(75);
    // An attempt may draw a ticket for a moment; a waiter would have one all the time.
    assert!(with_ticket * 2 < looks, "a ticket in {with_ticket} of {looks} looks");
    first.wait().expect_code(0);
    assert!(!is_locked(&file));
}

#[test]
fn an_outvoted_retrying_run_releases_everything() {
    let nodes = Nodes::start(3);
    nodes.iter().skip(1).for_each(foreign);
    retrying(nodes.run("k"), 3).sh("echo ran").done().expect_code(75);
    wait_until("the gate's vote is released", || nodes.claims("k") == ["", "foreign", "foreign"]);
    nodes.iter().for_each(|node| assert_eq!(node.queue_len("k"), 0));
}

fn a_retrying_run_never_overtakes_the_queue(backend: &Backend) {
    let directory = tempfile::tempdir().unwrap();
    let noting = |run: Run, word: &str| {
        run.dir(directory.path()).sh(&format!("echo {word} >> order; sleep 0.2; echo {word} >> order"))
    };
    let first = hold(backend.run_for_long());
    let eager = backend.run().args(&["--retries", "100000", "--retry-interval", "4ms"]);
    let eager = noting(eager, "eager").spawn();
    let waiters: Vec<_> =
        (1..=3).map(|n| backend.waiter(noting(backend.run(), &format!("waiter{n}")), n)).collect();
    first.wait().expect_code(0);
    for waiter in waiters {
        waiter.wait().expect_code(0);
    }
    eager.wait().expect_code(0);
    let order = std::fs::read_to_string(directory.path().join("order")).unwrap();
    let order: Vec<&str> = order.lines().step_by(2).collect();
    assert_eq!(order, ["waiter1", "waiter2", "waiter3", "eager"]);
}

#[test]
fn the_pauses_are_jittered_around_the_interval() {
    const INTERVAL: Duration = Duration::from_millis(300);
    let redis = warm_server();
    foreign(&redis);
    let proxy = Proxy::to(&redis);
    let run = Run::at(&proxy.url(), "k").args(&["--retries", "12", "--retry-interval", "300ms"]);
    let start = Instant::now();
    let mut job = run.cmd(&["true"]).spawn();
    let (mut seen, mut times) = (0, Vec::new());
    while job.is_running() {
        if proxy.requests() > seen {
            seen = proxy.requests();
            times.push(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(1)); // only paces the loop
    }
    job.wait().expect_code(75);
    assert!(start.elapsed() >= INTERVAL * 12 / 2, "12 pauses of at least half of it: {:?}", start.elapsed());
    // An attempt may be more than one request: the longest gaps are the pauses.
    let mut gaps: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_by(|a, b| b.cmp(a));
    gaps.truncate(12);
    // On a busy machine two requests may be seen as one.
    assert!(gaps.len() >= 9, "{gaps:?}");
    // That nine fall into a fifth of the range by chance happens once in many thousands of runs.
    assert!(gaps[0] - gaps[gaps.len() - 1] > INTERVAL / 5, "all alike: {gaps:?}");
}

fn the_default_interval_is_a_second(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let start = Instant::now();
    backend.run().args(&["--retries", "1"]).cmd(&["true"]).done().expect_code(75);
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    first.wait().expect_code(0);
}

fn wait_bounds_all_attempts_and_pauses_together(backend: &Backend) {
    let first = hold(backend.run_for_long());
    for (retries, interval) in [("100000", "20ms"), ("3", "1h")] {
        let run = backend.run().args(&["--retries", retries, "--retry-interval", interval, "-w", "1.5"]);
        let start = Instant::now();
        run.sh("echo ran").done().expect_code(75);
        // After 100000 attempts, or in a pause of an hour, the rig would kill the run after a
        // minute. A run may exit at once if the next pause would outlast the wait.
        let enough = interval == "1h" || start.elapsed() >= Duration::from_millis(1400);
        assert!(enough, "{:?}", start.elapsed());
    }
    first.wait().expect_code(0);
}

fn a_signal_ends_a_pause_at_once(backend: &Backend) {
    let first = hold(backend.run_for_long());
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let mark = processes::mark();
        let run = backend.run().args(&["--retries", "3", "--retry-interval", "1h", "-v"]);
        let run = run.via("ulimit -c 0; exec \"$@\"").env("TEST_MARK", &mark);
        let job = run.sh("echo ran").spawn();
        processes::wait_until_asleep(job.pid());
        job.signal(signal);
        let done = job.wait();
        assert_eq!((done.signal, done.stdout.as_str()), (Some(signal as i32), ""), "{done:?}");
        processes::wait_until_none_marked(&mark);
    }
    first.wait().expect_code(0);
    assert!(backend.is_free());
}

#[test]
fn a_server_that_is_gone_is_never_reported_as_held() {
    let refused = Refused::new();
    retrying(Run::at(&refused.url(), "k"), 3).sh("echo ran").done().expect_code(69);
    let mut redis = warm_server();
    foreign(&redis);
    let before = redis.script_calls();
    let job = Run::key(&redis, "k").args(&["--retries", "25", "--retry-interval", "200ms"]);
    let job = job.sh("echo ran").spawn();
    wait_until("the first attempt", || redis.script_calls() > before);
    redis.kill();
    assert_eq!(job.wait().expect_code(69).stdout, "");
}

#[test]
fn the_typed_one_of_nonblock_and_retries_wins() {
    let redis = warm_server();
    foreign(&redis);
    let asked = |run: Run| {
        let run = run.env("REDLOCK_RETRY_INTERVAL", "20ms").cmd(&["true"]);
        redis.attempts_during(|| run.done().expect_code(75)).0
    };
    assert_eq!(asked(Run::key(&redis, "k").arg("-n").env("REDLOCK_RETRIES", "3")), 1);
    let typed = Run::key(&redis, "k").args(&["--retries", "3"]).env("REDLOCK_NONBLOCK", "1");
    assert_eq!(asked(typed), 4);
    assert_eq!(asked(Run::key(&redis, "k").env("REDLOCK_RETRIES", "3")), 4);
}

#[test]
fn a_retry_survives_a_server_that_closes_idle_connections() {
    let redis = Redis::start_with(&["--timeout", "1"]);
    redis.cmd(&["SET", "lock:k", "foreign", "PX", "2500"]);
    let retries = ["--retries", "1", "--retry-interval", "6s"];
    Run::key(&redis, "k").args(&retries).cmd(&["true"]).done().expect_code(0);
}
