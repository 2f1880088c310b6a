//! Places in queues that are left behind by a holder, or by a waiter that was away for long. The
//! scripts are called directly.

use crate::support::script_calls::{Requester, load};
use crate::support::{Redis, Run, hold};

fn server() -> Redis {
    let redis = Redis::start();
    for words in load() {
        redis.cmd(&words);
    }
    redis
}

fn words(call: &[String]) -> Vec<&str> {
    call.iter().map(String::as_str).collect()
}

#[track_caller]
fn expect(redis: &Redis, call: &[String], reply: &str) {
    let is = redis.cmd(&words(call));
    assert!(is.starts_with(reply), "{is:?} instead of {reply}");
}

/// Healing restored its claim on a server where it was still queued.
#[test]
fn a_holder_that_is_still_queued_leaves_the_queue_when_it_releases() {
    let redis = server();
    let (holder, waiter) = (Requester::new(1, &["k"]), Requester::new(2, &["k"]));
    redis.cmd(&["SET", "lock:k", "another program's", "PX", "600000"]);
    expect(&redis, &holder.acquire(), "blocked");
    expect(&redis, &waiter.acquire(), "blocked");
    redis.cmd(&["SET", "lock:k", &holder.claim(), "PX", "600000"]);
    expect(&redis, &holder.release(), "released");
    assert_eq!(redis.cmd(&["ZRANGE", "lock-queue:k", "0", "-1"]).trim(), waiter.waiter());
    assert_eq!(
        redis.cmd(&["EXISTS", &format!("lock-notify:{}", waiter.waiter())]),
        "1",
        "the next waiter is woken"
    );
}

/// Its place is gone in one queue but not in the other; if it kept the one and got a new one in the
/// other, it would wait for the waiter behind it, and vice versa.
#[test]
fn a_waiter_for_two_keys_that_was_away_has_the_same_place_in_both_queues() {
    let redis = server();
    let of_two = |number| Requester::new(number, &["a", "b"]);
    let (holder, away, other) = (of_two(1), of_two(2), of_two(3));
    expect(&redis, &holder.acquire(), "granted");
    expect(&redis, &away.acquire(), "blocked");
    expect(&redis, &other.acquire(), "blocked");
    expect(&redis, &holder.release(), "released");
    let name = format!("{} &", away.waiter());
    redis.cmd(&["ZADD", "lock-waiters:b", "1", &name]);
    expect(&redis, &Requester::new(4, &["b"]).acquire(), "blocked");
    assert_eq!(redis.cmd(&["ZSCORE", "lock-queue:b", &name]), "", "dead waiters are removed");
    redis.cmd(&["ZADD", "lock-waiters:a", "1", &name]);
    expect(&redis, &away.again(2).acquire(), "blocked");
    expect(&redis, &other.again(2).acquire(), "granted");
}

/// The stamp is larger than that of the newest request so far, even if that one came from the
/// future, by the clock of the same server.
#[test]
fn a_superseding_request_has_one_stamp() {
    let redis = server();
    let ahead = (redis.connect().now_ms() + 60_000) * 1000;
    let run = || Run::key(&redis, "k").args(&["--supersede"]);
    run().cmd(&["true"]).done().expect_code(0);
    let mut request: serde_json::Value = serde_json::from_str(&redis.cmd(&["GET", "lock-newest:k"])).unwrap();
    request["stamp"] = ahead.to_string().into();
    redis.cmd(&["SET", "lock-newest:k", &request.to_string()]);
    let job = hold(run());
    let stamp = redis.recorded("k", "stamp");
    assert_eq!(stamp, (ahead + 1).to_string());
    let newest = redis.cmd(&["GET", "lock-newest:k"]);
    assert!(newest.contains(&format!(r#""stamp":"{stamp}""#)), "{newest}");
    job.wait().expect_code(0);
}
