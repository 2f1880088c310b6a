//! Replies that come late or never, connections that break: nothing late counts, nothing is left
//! behind.

use std::time::{Duration, Instant};

use crate::support::nodes::renewed;
use crate::support::{
    Job, Proxy, Redis, Run, assert_stays_free, assert_takes_less_than, hold, holder,
    wait_for_sleeping_clients, wait_until, wait_until_within,
};

/// A holder through this proxy that already listens for breaks, so that its next request is a
/// refresh.
fn listening_holder(redis: &Redis, proxy: &Proxy, ttl: &str) -> Job {
    let job = hold(Run::at(&proxy.url(), "k").args(&["--ttl", ttl]));
    wait_for_sleeping_clients(redis, 1);
    job
}

/// Makes the server load the scripts: a request for an unknown one has no effect, however late it
/// arrives.
fn warm_up(redis: &Redis) {
    Run::key(redis, "k").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_holder_survives_a_short_blackhole_and_a_cut_connection() {
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
    wait_until("the holder reconnects", || proxy.connections() > connections);
    renewed(&redis, "k", 1);
    assert_eq!(redis.cmd(&["GET", "lock:k"]), claim);
    job.wait().expect_code(0);
    assert_stays_free(&redis);
}

#[test]
fn a_grant_that_arrives_after_its_lease_never_starts_the_command() {
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
fn a_stopped_server_is_soon_unavailable_and_a_late_grant_is_released() {
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
        // Whatever the server does late, the lock is free in the end.
        let free = || !redis.held("k") && redis.queue_len("k") == 0;
        wait_until_within(Duration::from_secs(8), "the late grant is released", free);
        assert_stays_free(&redis);
    }
}

#[test]
fn a_request_that_arrives_after_its_sender_is_gone_takes_nothing() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let waiter = Run::at(&proxy.url(), "k").args(&["--ttl", "60s", "-q"]).sh("echo mine").spawn();
    wait_until("queued", || redis.queue_len("k") == 1);
    let (connections, sent) = (proxy.connections(), proxy.requests());
    proxy.strand();
    wait_until("the waiter's request is held back", || proxy.requests() > sent);
    wait_until("the waiter retries on another connection", || proxy.connections() > connections);
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
    job.wait().expect_code(0); // its release is stuck in the proxy
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
fn a_refresh_in_transit_while_the_command_exits_reacquires_nothing() {
    let redis = Redis::start();
    for _ in 0..4 {
        let proxy = Proxy::to(&redis);
        let job = listening_holder(&redis, &proxy, "3s");
        proxy.delay(Duration::from_millis(60));
        let sent = proxy.requests();
        wait_until("a refresh is in transit", || proxy.requests() > sent);
        job.wait().expect_code(0);
        assert!(!redis.held("k"), "released");
        assert_stays_free(&redis);
    }
}

#[test]
fn a_refresh_held_back_while_the_command_exits_reacquires_nothing() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = listening_holder(&redis, &proxy, "3s");
    let sent = proxy.requests();
    proxy.pause();
    wait_until("a refresh is stuck", || proxy.requests() > sent);
    job.wait().expect_code(0);
    proxy.resume();
    wait_until_within(Duration::from_secs(5), "the key is free in the end", || !redis.held("k"));
    assert_stays_free(&redis);
}

#[test]
fn a_lost_reply_to_the_release_keeps_the_commands_exit_code() {
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
fn a_holder_reopens_killed_connections() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "6s"]);
    let mut client = redis.connect();
    let claim = client.cmd(&["GET", "lock:k"]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(8) {
        client.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert_eq!(client.cmd(&["GET", "lock:k"]), claim);
        std::thread::sleep(Duration::from_millis(100)); // only paces the loop
    }
    job.wait().expect_code(0);
    assert_stays_free(&redis);
}

#[test]
fn a_waiter_reopens_killed_connections() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "30s"]);
    let waiters: Vec<_> = (0..3).map(|_| Run::key(&redis, "k").sh("echo mine").spawn()).collect();
    // a waiter without a first reply has reached no server, and would exit
    wait_for_sleeping_clients(&redis, 4);
    let mut client = redis.connect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        client.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        std::thread::sleep(Duration::from_millis(100)); // only paces the loop
    }
    first.wait().expect_code(0);
    client.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    for waiter in waiters {
        waiter.wait_for_line("mine");
        waiter.wait().expect_code(0);
    }
}

#[test]
fn one_lost_reply_to_the_release_causes_no_warning() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    warm_up(&redis);
    let mut job = hold(Run::at(&proxy.url(), "k").args(&["--ttl", "30s"]));
    proxy.drop_replies(true);
    drop(job.take_stdin());
    wait_until("released", || !redis.held("k"));
    proxy.drop_replies(false); // the retry gets a reply
    let done = job.wait().expect_code(0);
    assert_eq!(done.stderr, "", "the first release was executed");
}

#[test]
fn a_holder_whose_refresh_got_no_reply_releases_on_a_full_server() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = listening_holder(&redis, &proxy, "8s");
    let sent = proxy.requests();
    proxy.drop_replies(true);
    wait_until("a refresh got no reply, and was resent", || proxy.requests() > sent + 1);
    proxy.drop_replies(false);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100kb"]);
    assert!(redis.cmd(&["SET", "filling", "x"]).starts_with("OOM"));
    let done = job.wait().expect_code(0);
    assert!(!redis.held("k"), "{done:?}");
}

#[test]
fn redlock_gives_up_on_a_blackhole_within_about_a_node_timeout() {
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
