//! `redlock list`: all locks and nothing else, the oldest first.

use super::look;
use crate::support::{Redis, Run, hold, holder, wait_for_sleeping_clients, wait_until};

fn keys(redis: &Redis, args: &[&str]) -> Vec<String> {
    let listed = look("list", &redis.url(), args).arg("--json").done().expect_code(0).json_lines();
    listed.iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn locks_are_listed_the_oldest_first_and_other_keys_are_not() {
    let redis = Redis::start();
    let done = look("list", &redis.url(), &[]).done().expect_code(0);
    assert_eq!(done.stdout, "KEY  STATE  HOLDER  SINCE  EXPIRES  WAITING\n");
    for n in 0..2000 {
        redis.cmd(&["SET", &format!("other:{n}"), "1"]);
    }
    let _holders: Vec<_> = ["b", "a", "c"].map(|key| holder(&redis, key, &[])).into();
    Run::key(&redis, "free-again").cmd(&["true"]).done().expect_code(0);
    assert_eq!(keys(&redis, &[]), ["b", "a", "c"]);
    assert_eq!(keys(&redis, &["[ac]"]), ["a", "c"]);
    let table = look("list", &redis.url(), &[]).done().expect_code(0).stdout;
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("KEY  STATE") && rows[1].starts_with("b    held"), "{table}");
    assert_eq!(rows.len(), 4);
    assert_eq!(redis.calls("keys"), 0);
}

/// For these keys `status` exits with 78, as a run would.
#[test]
fn keys_that_are_not_locks_are_listed_as_such() {
    let redis = Redis::start();
    redis.cmd(&["RPUSH", "lock:list", "x"]);
    redis.cmd(&["SET", "lock:other", "x"]);
    let listed = Run::bare().args(&["list", "--redis", &redis.url()]).done().expect_code(0).stdout;
    let row = |key: &str| listed.lines().find(|line| line.starts_with(key)).expect("listed").to_owned();
    assert!(row("list").contains("foreign") && row("list").contains("(not a lock)"), "{listed}");
    assert!(row("other").contains("foreign") && !row("other").contains("not a lock"), "{listed}");
    Run::bare().args(&["status", "--redis", &redis.url(), "list"]).done().expect_code(78);
}

#[test]
fn pattern_characters_in_keys_and_prefixes_are_literal() {
    let redis = Redis::start();
    let _holders: Vec<_> = ["a*", "ab", "[x]"].map(|key| holder(&redis, key, &[])).into();
    assert_eq!(keys(&redis, &["a\\*"]), ["a*"]);
    assert_eq!(keys(&redis, &["\\[x\\]"]), ["[x]"]);
    let _odd = holder(&redis, "k", &["--prefix", "l*ck"]);
    assert_eq!(keys(&redis, &["--prefix", "l*ck"]), ["k"]);
}

#[test]
fn contended_locks_come_first_and_can_be_listed_alone() {
    let redis = Redis::start();
    let _holders: Vec<_> = ["old", "busy", "new", "busiest"].map(|key| holder(&redis, key, &[])).into();
    let _waiters: Vec<_> = ["busy", "busiest", "busiest"]
        .map(|key| {
            let before = redis.queue_len(key);
            let job = Run::key(&redis, key).cmd(&["true"]).spawn();
            wait_until("it queues", || redis.queue_len(key) == before + 1);
            job
        })
        .into();
    assert_eq!(keys(&redis, &[]), ["busiest", "busy", "old", "new"]);
    assert_eq!(keys(&redis, &["--waiting"]), ["busiest", "busy"]);
    assert_eq!(keys(&redis, &["--waiting", "*y"]), ["busy"]);
}

#[test]
fn locks_without_a_prefix_are_found_by_their_holders_records() {
    let redis = Redis::start();
    redis.cmd(&["SET", "user:17", "no lock"]);
    let _bare = holder(&redis, "k", &["--prefix", ""]);
    let _other = holder(&redis, "l", &[]);
    assert_eq!(keys(&redis, &["--prefix", ""]), ["k"]);
    assert_eq!(keys(&redis, &[]), ["l"]);
}

#[test]
fn many_locks_take_few_requests_and_each_is_described() {
    let redis = Redis::start();
    let _first = hold(Run::key(&redis, "real").args(&["--slots", "40"]));
    let mut client = redis.connect();
    for n in 0..300 {
        client.cmd(&["SET", &format!("lock:f{n}"), "x", "PX", "600000"]);
    }
    wait_for_sleeping_clients(&redis, 1); // the holder's own calls are not counted
    redis.cmd(&["CONFIG", "RESETSTAT"]);
    assert_eq!(keys(&redis, &[]).len(), 301);
    let requests = redis.calls("scan") + redis.calls("evalsha") + redis.calls("eval");
    assert!(requests <= 12, "{requests}");
}

#[test]
fn the_oldest_of_several_sharers_and_the_last_lease_are_shown() {
    let redis = Redis::start();
    let sharer = |ttl: &str, label: &str| holder(&redis, "k", &["-s", "--ttl", ttl, "--label", label]);
    let _jobs = [sharer("3600s", "first"), sharer("60s", "second")];
    let table = look("list", &redis.url(), &[]).done().expect_code(0).stdout;
    assert!(table.contains("first (+1)") && table.contains("59m"), "{table}");
}

#[test]
fn keys_are_printed_alone_for_the_shell() {
    let redis = Redis::start();
    let _jobs = ["b c", "a", "new\nline"].map(|key| holder(&redis, key, &[]));
    assert_eq!(look("list", &redis.url(), &["--keys"]).done().expect_code(0).stdout, "b c\na\n");
    look("list", &redis.url(), &["--keys", "--json"]).done().expect_code(64);
}

#[test]
fn a_long_key_is_truncated_to_keep_the_columns() {
    let redis = Redis::start();
    let long = "\u{e9}".repeat(500);
    let _job = holder(&redis, &long, &[]);
    let table = look("list", &redis.url(), &[]).done().expect_code(0).stdout;
    assert!(table.lines().all(|line| line.chars().count() < 150) && table.contains("...  held"), "{table}");
    assert_eq!(keys(&redis, &[]), [long]);
}

#[test]
fn more_sharers_than_one_reply_describes_are_all_listed() {
    let redis = Redis::start();
    let _sharers: Vec<_> = (0..12).map(|_| holder(&redis, "k", &["-s"])).collect();
    let listed = look("list", &redis.url(), &["--json"]).done().expect_code(0).json_lines();
    assert_eq!(listed[0]["holders"].as_array().unwrap().len(), 12);
    let table = look("list", &redis.url(), &[]).done().expect_code(0).stdout;
    assert!(table.contains("shared 12") && table.contains("(+11)"), "{table}");
}
