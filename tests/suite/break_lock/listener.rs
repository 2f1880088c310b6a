//! How the holder learns of a break: on a connection of its own that a short run never opens, and
//! that costs next to nothing; without it at the next renewal.

use std::time::{Duration, Instant};

use super::{break_at, break_on};
use crate::support::{Proxy, Redis, Run, hold, holder, measure_short_run, wait_until, wait_until_within};

fn connected(redis: &Redis) -> usize {
    redis.cmd(&["CLIENT", "LIST"]).lines().filter(|line| line.contains("cmd=blpop")).count()
}

/// Waits until the holder of "k" sleeps in BLPOP.
fn wait_until_it_listens(redis: &Redis) {
    wait_until("the holder listens", || connected(redis) == 1);
}

#[test]
fn a_short_run_opens_no_connection_for_breaks() {
    let redis = Redis::start();
    let received = || redis.info("total_connections_received").parse::<u32>().expect("a number");
    let (connections, pops) = measure_short_run(|| {
        let (pops, before, start) = (redis.calls("blpop"), received(), Instant::now());
        Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
        let (took, after) = (start.elapsed(), received());
        (took, (after - before, redis.calls("blpop") - pops))
    });
    assert_eq!(connections, 2, "its own connection, and ours");
    assert_eq!(pops, 0);
}

#[test]
fn a_holder_sends_no_more_than_its_renewals_and_one_blocking_pop() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "3s"]);
    wait_until_it_listens(&redis);
    let (scripts, start) = (redis.script_calls(), Instant::now());
    wait_until_within(Duration::from_secs(20), "four renewals", || redis.script_calls() >= scripts + 4);
    let seconds = start.elapsed().as_secs_f64();
    // Newer servers count a blocking call when it ends.
    assert!(redis.calls("blpop") <= 1, "in {seconds} s");
    assert!(seconds > 2.5, "one renewal a second, and nothing else: {seconds} s");
    job.wait().expect_code(0);
}

#[test]
fn a_holder_whose_listener_is_refused_learns_of_the_break_at_its_next_renewal() {
    let redis = Redis::start();
    assert_eq!(redis.cmd(&["ACL", "SETUSER", "deaf", "on", ">word", "~*", "&*", "+@all", "-blpop"]), "OK");
    let url = format!("redis://deaf:word@127.0.0.1:{}", redis.port());
    let job = hold(Run::at(&url, "k").args(&["--ttl", "6s"]));
    let done = break_on(&redis).arg("--yes").done().expect_code(0);
    assert!(done.stdout.contains("its command was stopped"), "{done:?}");
    let broken = job.wait().expect_code(79);
    assert!(broken.stderr.contains("broken by ") && broken.stderr.lines().count() == 1, "{broken:?}");
}

#[test]
fn a_listener_that_reconnects_finds_the_mark() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = hold(Run::at(&proxy.url(), "k").args(&["--ttl", "none", "-q"]));
    wait_until_it_listens(&redis);
    proxy.refuse();
    break_on(&redis).args(&["--yes", "-w", "0"]).done().expect_code(75);
    proxy.mend();
    job.wait_for_stderr("broken by ");
    job.wait().expect_code(79);
    wait_until("the lock is free", || !redis.held("k"));
}

#[test]
fn a_stray_list_element_has_no_effect() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "30s"]);
    wait_until_it_listens(&redis);
    let claim = redis.cmd(&["GET", "lock:k"]);
    let list = format!("lock-notify:{}", claim.split('.').next().expect("a waiter"));
    let lie = format!("{claim} {{\"user\":\"mallory\"}}");
    for element in ["1", "", &lie] {
        redis.cmd(&["RPUSH", &list, element]);
        wait_until("the element was read", || redis.cmd(&["EXISTS", &list]) == "0" && connected(&redis) == 1);
    }
    assert!(redis.held("k"));
    job.wait().expect_code(0);
}

#[test]
fn breaking_with_another_number_of_servers_is_refused() {
    let redis = Redis::start();
    let other = [Redis::start(), Redis::start()];
    let job = holder(&redis, "k", &[]);
    let urls = format!("{},{},{}", redis.url(), other[0].url(), other[1].url());
    let done = break_at(&urls).args(&["--yes", "--now"]).done();
    assert!(redis.held("k"), "{done:?}");
    job.wait().expect_code(0);
}
