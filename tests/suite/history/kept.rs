//! How much history is kept, for how long, and that reading it needs few permissions and changes
//! nothing.

use std::time::Instant;

use crate::documents::blocks::acl_rules;
use crate::support::{Redis, Run, holder, measure_short_run};

const DAY_MS: i64 = 24 * 3600 * 1000;

fn log_ttl(redis: &Redis) -> i64 {
    redis.cmd(&["PTTL", "lock-log:k"]).parse().expect("a number")
}

fn history(url: &str, args: &[&str]) -> Run {
    Run::bare().args(&["history", "-r", url, "k"]).args(args)
}

#[test]
fn the_log_is_capped_and_expires() {
    let redis = Redis::start();
    for _ in 0..3 {
        redis.cmd(&[
            "EVAL",
            "for i = 1, 500 do redis.call('XADD', KEYS[1], '*', 'claim', 'x') end",
            "1",
            "lock-log:k",
        ]);
        Run::key(&redis, "k").args(&["--history", "100"]).cmd(&["true"]).done().expect_code(0);
        let length: usize = redis.cmd(&["XLEN", "lock-log:k"]).parse().unwrap();
        assert!((100..400).contains(&length), "about a hundred: {length}");
    }
    let left = log_ttl(&redis);
    assert!((29 * DAY_MS..=30 * DAY_MS).contains(&left), "{left}");
    assert_eq!(redis.keys_without_ttl(), Vec::<String>::new());
}

#[test]
fn a_release_with_a_history_is_one_call() {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    let length = || redis.cmd(&["XLEN", "lock-log:k"]).parse::<u64>().expect("a number");
    let cost = measure_short_run(|| {
        let (before, start) = ((redis.script_calls(), length()), Instant::now());
        Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
        (start.elapsed(), (redis.script_calls() - before.0, length() - before.1))
    });
    assert_eq!(cost, (2, 1), "one to acquire, one to release and to write the history");
}

#[test]
fn a_long_log_is_read_in_pages() {
    let redis = Redis::start();
    let write = "for i = 1, 1234 do
        local claim = string.format('%08x-0000-4000-8000-000000000000.1', i)
        redis.call('XADD', KEYS[1], math.floor(i / 7) + 1 .. '-' .. i, 'claim', claim, 'how', 'released', 'exit', '0')
      end";
    redis.cmd(&["EVAL", write, "1", "lock-log:k"]);
    assert_eq!(redis.cmd(&["XLEN", "lock-log:k"]), "1234");
    let done = history(&redis.url(), &["--json"]).done().expect_code(0);
    assert_eq!(done.stdout.lines().count(), 1234);
    assert_eq!(
        history(&redis.url(), &["--json", "-n", "17"]).done().expect_code(0).stdout.lines().count(),
        17
    );
}

#[test]
fn reading_changes_nothing_and_the_read_only_user_can_do_it() {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    let _holder = holder(&redis, "k", &["--ttl", "600s"]);
    let rules = acl_rules("viewer");
    let mut acl = vec!["ACL", "SETUSER", "viewer", "reset"];
    acl.extend(rules.iter().map(String::as_str));
    assert_eq!(redis.cmd(&acl), "OK");
    redis.cmd(&["SCRIPT", "FLUSH"]);
    let url = format!("redis://viewer:password@127.0.0.1:{}/0", redis.port());
    let state = || (redis.info("rdb_changes_since_last_save"), redis.keys().len());
    let before = (state(), log_ttl(&redis));
    for args in [&[][..], &["--json"], &["--svg", "-"], &["--since", "1h"]] {
        history(&url, args).done().expect_code(0);
    }
    history(&url, &[]).args(&["--key", "k"]).done().expect_code(0);
    assert_eq!(state(), before.0);
    assert!(log_ttl(&redis) <= before.1);
    let other = Run::bare().args(&["history", "-r", &url, "never-used"]).done().expect_code(0);
    assert_eq!(other.stdout, "never-used: no runs in its history\n");
    assert_eq!(state(), before.0);
}

#[test]
fn an_unreadable_history_is_distinguished_from_an_empty_one() {
    let mut redis = Redis::start();
    redis.cmd(&["ACL", "SETUSER", "blind", "on", ">word", "~*", "&*", "+@all", "-xrevrange"]);
    let blind = format!("redis://blind:word@127.0.0.1:{}", redis.port());
    history(&blind, &[]).done().expect_code(77);
    redis.kill();
    let done = history(&redis.url(), &[]).done().expect_code(69);
    assert!(done.stderr.contains("cannot look at \"k\"") && done.stdout.is_empty(), "{done:?}");
}
