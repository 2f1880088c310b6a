//! Answers that come late or never, connections that break: nothing late counts, nothing is left.

use std::time::{Duration, Instant};

use crate::support::nodes::renewed;
use crate::support::{
    Job, Proxy, Redis, Run, assert_stays_free, assert_takes_less_than, hold, holder,
    wait_for_sleeping_clients, wait_until, wait_until_within,
};

/// A holder through this proxy that listens for a break, so that the next that it sends is a refresh.
fn listening_holder(redis: &Redis, proxy: &Proxy, ttl: &str) -> Job {
    let job = hold(Run::at(&proxy.url(), "k").args(&["--ttl", ttl]));
    wait_for_sleeping_clients(redis, 1);
    job
}

/// Lets the server know the scripts: a request for an unknown one does nothing, however late it comes.
fn warm_up(redis: &Redis) {
    Run::key(redis, "k").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_short_blackhole_or_a_cut_connection_is_survived() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = listening_holder(&redis, &proxy, "6s");
    let claim = redis.cmd(&["GET", "lock:k"]);
    let sent = proxy.requests();
    proxy.pause();
    wait_until("a refresh vanished in the hole", || proxy.requests() > sent);
    proxy.resume();
    proxy.cut();
    renewed(&redis, "k", 1);
    let connections = proxy.connections();
    proxy.cut();
    wait_until("a connection is made anew", || proxy.connections() > connections);
    renewed(&redis, "k", 1);
    assert_eq!(redis.cmd(&["GET", "lock:k"]), claim);
    job.wait().expect_code(0);
    assert_stays_free(&redis);
}

#[test]
fn a_grant_that_arrives_after_its_own_lease_never_starts_the_command() {
    let redis = Redis::start();
    warm_up(&redis);
    for (ttl, late, args) in [
        ("10s", 12_000, &[][..]),
        ("10s", 12_000, &["-n"]),
        ("1s", 1_200, &[]),
        ("1s", 1_200, &["--node-timeout", "5s", "-n"]),
    ] {
        let proxy = Proxy::to(&redis);
        proxy.delay(Duration::from_millis(late));
        let run = Run::at(&proxy.url(), "k").args(&["--ttl", ttl]).args(args);
        let done = run.sh("echo ran").done();
        assert_eq!(done.stdout, "", "{done:?}");
        assert_eq!(done.code, Some(69), "{done:?}");
        wait_until_within(Duration::from_secs(4), "the claim is released", || !redis.held("k"));
        assert_stays_free(&redis);
        assert_eq!(redis.queue_len("k"), 0);
    }
}

#[test]
fn a_stopped_server_is_unavailable_within_bounds_and_a_late_grant_is_given_back() {
    let redis = Redis::start();
    warm_up(&redis);
    for args in [&["-n"][..], &[]] {
        redis.stop();
        let start = Instant::now();
        let run = Run::key(&redis, "k").args(&["--ttl", "60s"]).args(args);
        let done = run.sh("echo ran").done().expect_code(69);
        assert_eq!(done.stdout, "");
        // Far less than the lease, which is not waited for.
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        redis.cont();
        // Whatever the server now does late, in the end the lock is free.
        let free = || !redis.held("k") && redis.queue_len("k") == 0;
        wait_until_within(Duration::from_secs(8), "the late grant is given back", free);
        assert_stays_free(&redis);
    }
}

#[test]
fn a_request_that_arrives_after_its_sender_has_come_and_gone_takes_nothing() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let waiter = Run::at(&proxy.url(), "k").args(&["--ttl", "60s", "-q"]).sh("echo mine").spawn();
    wait_until("queued", || redis.queue_len("k") == 1);
    let (connections, sent) = (proxy.connections(), proxy.requests());
    proxy.strand();
    wait_until("the waiter asks into the void", || proxy.requests() > sent);
    wait_until("and anew over another connection", || proxy.connections() > connections);
    first.wait().expect_code(0);
    waiter.wait_for_line("mine");
    waiter.wait().expect_code(0);
    assert_stays_free(&redis);
    proxy.deliver();
    assert_stays_free(&redis);
    assert_eq!(redis.queue_len("k"), 0);
}

#[test]
fn a_late_release_never_frees_a_later_holder() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = hold(Run::at(&proxy.url(), "k").args(&["--ttl", "4s"]));
    let sent = proxy.requests();
    proxy.pause();
    job.wait().expect_code(0); // its release is stuck in the hole
    assert!(proxy.requests() > sent, "a release was sent");
    let next = holder(&redis, "k", &["--ttl", "60s"]);
    let claim = redis.cmd(&["GET", "lock:k"]);
    proxy.resume();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        assert_eq!(redis.cmd(&["GET", "lock:k"]), claim);
    }
    next.wait().expect_code(0);
}

#[test]
fn a_refresh_in_flight_while_the_command_ends_takes_nothing_back() {
    let redis = Redis::start();
    for _ in 0..4 {
        let proxy = Proxy::to(&redis);
        let job = listening_holder(&redis, &proxy, "3s");
        proxy.delay(Duration::from_millis(60));
        let sent = proxy.requests();
        wait_until("a refresh is under way", || proxy.requests() > sent);
        job.wait().expect_code(0);
        assert!(!redis.held("k"), "released");
        assert_stays_free(&redis);
    }
}

#[test]
fn a_refresh_stuck_on_the_way_while_the_command_ends_takes_nothing_back() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = listening_holder(&redis, &proxy, "3s");
    let sent = proxy.requests();
    proxy.pause();
    wait_until("a refresh is stuck", || proxy.requests() > sent);
    job.wait().expect_code(0);
    proxy.resume();
    wait_until_within(Duration::from_secs(5), "free at last", || !redis.held("k"));
    assert_stays_free(&redis);
}

#[test]
fn a_lost_answer_to_the_release_keeps_the_commands_exit_code() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let run = Run::at(&proxy.url(), "k").args(&["--ttl", "30s"]).stdin_pipe();
    let job = run.sh("echo ready; read x; exit 7").spawn();
    job.wait_for_line("ready");
    proxy.drop_replies(true);
    job.wait().expect_code(7);
    assert!(!redis.held("k"));
}

#[test]
fn killed_connections_are_made_anew_while_held() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "6s"]);
    let mut client = redis.connect();
    let claim = client.cmd(&["GET", "lock:k"]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(8) {
        client.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert_eq!(client.cmd(&["GET", "lock:k"]), claim);
        std::thread::sleep(Duration::from_millis(100)); // only the pace of the loop
    }
    job.wait().expect_code(0);
    assert_stays_free(&redis);
}

#[test]
fn killed_connections_are_made_anew_while_waiting() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "30s"]);
    let waiters: Vec<_> = (0..3).map(|_| Run::key(&redis, "k").sh("echo mine").spawn()).collect();
    wait_for_sleeping_clients(&redis, 4); // one that was not answered yet has met no server, and would end
    let mut client = redis.connect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        client.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        std::thread::sleep(Duration::from_millis(100)); // only the pace of the loop
    }
    first.wait().expect_code(0);
    client.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    for waiter in waiters {
        waiter.wait_for_line("mine");
        waiter.wait().expect_code(0);
    }
}

#[test]
fn an_answer_to_the_release_that_was_lost_once_is_no_cause_for_alarm() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    warm_up(&redis);
    let mut job = hold(Run::at(&proxy.url(), "k").args(&["--ttl", "30s"]));
    proxy.drop_replies(true);
    drop(job.take_stdin());
    wait_until("released", || !redis.held("k"));
    proxy.drop_replies(false); // the retry is answered
    let done = job.wait().expect_code(0);
    assert_eq!(done.stderr, "", "the first release was carried out");
}

#[test]
fn a_holder_whose_refresh_went_unanswered_releases_on_a_full_server() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = listening_holder(&redis, &proxy, "8s");
    let sent = proxy.requests();
    proxy.drop_replies(true);
    wait_until("a refresh went unanswered, and was sent again", || proxy.requests() > sent + 1);
    proxy.drop_replies(false);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100kb"]);
    assert!(redis.cmd(&["SET", "filling", "x"]).starts_with("OOM"));
    let done = job.wait().expect_code(0);
    assert!(!redis.held("k"), "{done:?}");
}

#[test]
fn an_address_that_swallows_everything_is_given_up_within_about_a_node_timeout() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    proxy.pause();
    assert_takes_less_than(Duration::from_millis(4500), || {
        let start = Instant::now();
        let run = Run::at(&proxy.url(), "k").args(&["--node-timeout", "1s"]);
        run.sh("echo ran").done().expect_code(69);
        start.elapsed()
    });
}
