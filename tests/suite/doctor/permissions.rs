//! Missing permissions are found by trying; a denied query is reported as unknown; nothing is left
//! behind.

use super::{all_keys, diagnosis, doctor, expect, results};
use crate::documents::blocks::blocks_in;
use crate::support::redis::is_before_7;
use crate::support::{Redis, holder, wait_until};

/// The URL of a user with all permissions except these.
fn without(redis: &Redis, rules: &[&str]) -> String {
    let mut acl = vec!["ACL", "SETUSER", "limited", "reset", "on", ">word", "~*", "&*", "+@all"];
    acl.extend(rules);
    assert_eq!(redis.cmd(&acl), "OK");
    redis.cmd(&["SCRIPT", "FLUSH"]);
    format!("redis://limited:word@127.0.0.1:{}", redis.port())
}

#[test]
fn nothing_is_left_behind_and_no_lock_is_touched() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "600s"]);
    redis.cmd(&["SET", "other", "value"]);
    let lease = || redis.cmd(&["PTTL", "lock:k"]).parse::<i64>().unwrap();
    let (before, left) = (all_keys(&redis), lease());
    diagnosis(doctor(&redis.url()), 0);
    diagnosis(doctor(&redis.url()).args(&["--quarantine", "30s"]), 0);
    doctor(&redis.url()).args(&["--prefix", ""]).done().expect_code(0);
    assert_eq!(all_keys(&redis), before);
    assert!(lease() <= left, "not renewed");
    job.wait().expect_code(0);
}

#[test]
fn a_denied_command_is_a_problem_and_is_named() {
    let redis = Redis::start();
    for command in ["eval", "blpop", "zadd", "hset", "pexpire", "rpush", "get"] {
        let found = diagnosis(
            doctor(&without(&redis, &[&format!("-{command}")])),
            if command == "rpush" { 0 } else { 1 },
        );
        match command {
            // A release pushes only if a client waits.
            "rpush" => expect(&found, "permissions", "ok", ""),
            "blpop" | "zadd" => expect(&found, "permissions", "problem", "cannot be waited for"),
            _ => expect(&found, "permissions", "problem", "lacks a permission"),
        }
        assert_eq!(all_keys(&redis), Vec::<String>::new(), "{command}");
    }
    let found = diagnosis(doctor(&without(&redis, &["resetkeys", "~other:*"])), 1);
    expect(&found, "permissions", "problem", "lacks a permission");
    // A key that cannot be deleted expires.
    diagnosis(doctor(&without(&redis, &["-del"])), 1);
    assert_eq!(redis.keys_without_ttl(), Vec::<String>::new());
}

/// Every script names the marker among its keys, so that the server checks whether it may be
/// written.
#[test]
fn an_unwritable_marker_is_a_problem() {
    if is_before_7() {
        return;
    }
    let redis = Redis::start();
    let keys = ["resetkeys", "~lock:*", "~lock-[^n]*", "~lock-ne*", "~lock-no[^d]*"];
    diagnosis(doctor(&without(&redis, &[&keys[..], &["~lock-node"]].concat())), 0);
    let found = diagnosis(doctor(&without(&redis, &[&keys[..], &["%R~lock-node"]].concat())), 1);
    expect(&found, "permissions", "problem", "lacks a permission");
}

#[test]
fn a_user_without_xadd_has_no_history() {
    let redis = Redis::start();
    let found = diagnosis(doctor(&without(&redis, &["-xadd"])), 0);
    expect(&found, "history", "warning", "not recorded");
    expect(&found, "permissions", "ok", "took");
}

#[test]
fn denied_queries_are_reported_as_unknown() {
    let redis = Redis::start_with(&["--appendonly", "yes"]);
    let found = diagnosis(doctor(&without(&redis, &["-config"])), 0);
    expect(&found, "persistence", "unknown", "persistence");
    expect(&found, "eviction", "ok", "noeviction");
    let found = diagnosis(doctor(&without(&redis, &["-info", "-config", "-time"])), 1);
    for check in ["version", "role", "eviction", "persistence", "clock"] {
        expect(&found, check, "unknown", check);
    }
    // Scripts call TIME, too.
    expect(&found, "permissions", "problem", "lacks a permission");
}

/// Like services that offer neither INFO nor CONFIG.
#[test]
fn a_service_without_info_is_unknown_and_not_a_failure() {
    let redis = Redis::without_info();
    let found = diagnosis(doctor(&redis.url()), 0);
    assert_eq!((&found["problems"], &found["unknown"]), (&0.into(), &4.into()), "{found:#}");
    expect(&found, "eviction", "unknown", "eviction");
    expect(&found, "permissions", "ok", "took");
    // INFO distinguishes several servers.
    let others = [Redis::without_info(), Redis::without_info()];
    let urls = [redis.url(), others[0].url(), others[1].url()].join(",");
    let found = diagnosis(doctor(&urls), 1);
    assert!(
        results(&found, "identity")
            .iter()
            .all(|message| message.starts_with("problem does not report its run_id"))
    );
    expect(&found, "quorum", "problem", "0 of 3");
}

#[test]
fn the_documented_user_has_sufficient_permissions() {
    let redis = Redis::start_with(&["--appendonly", "yes"]);
    let rules = blocks_in("docs/install.md", "redis").remove(0).text;
    let words: Vec<&str> = rules.split_ascii_whitespace().collect();
    assert_eq!(redis.cmd(&words), "OK");
    let url = format!("redis://locker:password@127.0.0.1:{}", redis.port());
    let found = diagnosis(doctor(&url), 0);
    assert_eq!((&found["warnings"], &found["unknown"]), (&0.into(), &1.into()), "{found:#}");
    expect(&found, "persistence", "unknown", "persistence");
    // What the documents add for doctor.
    assert_eq!(redis.cmd(&["ACL", "SETUSER", "locker", "+config|get"]), "OK");
    wait_until("the rule is in effect", || redis.cmd(&["ACL", "GETUSER", "locker"]).contains("config|get"));
    assert_eq!(diagnosis(doctor(&url), 0)["unknown"], 0);
}
