//! Looking at locks needs no permission to write, and writes nothing.

use nix::sys::signal::Signal;

use super::{look, status};
use crate::documents::blocks::acl_rules;
use crate::support::{Job, Redis, Run, holder, queued, wait_until};

fn viewer(redis: &Redis, without: &str) -> String {
    let rules = acl_rules("viewer");
    let mut acl = vec!["ACL", "SETUSER", "viewer", "reset"];
    acl.extend(rules.iter().map(String::as_str).filter(|rule| *rule != without));
    assert_eq!(redis.cmd(&acl), "OK");
    redis.cmd(&["SCRIPT", "FLUSH"]); // EVAL is for a script that the server has not loaded
    format!("redis://viewer:password@127.0.0.1:{}/0", redis.port())
}

/// A lock of each kind, with a waiter.
fn locks(redis: &Redis) -> Vec<Job> {
    let holders = vec![
        holder(redis, "k", &["--ttl", "600s"]),
        holder(redis, "s", &["-s", "--ttl", "600s"]),
        Run::key(redis, "k").cmd(&["true"]).spawn(),
    ];
    Run::key(redis, "m").args(&["--min-hold", "600s"]).cmd(&["true"]).done().expect_code(0);
    queued(redis, "k", 1);
    holders
}

#[test]
fn the_documented_permissions_for_looking_are_necessary_and_sufficient() {
    let redis = Redis::start();
    let _jobs = locks(&redis);
    let codes = |url: &str| {
        let wait = ["k", "--wait-free", "-w", "50ms"];
        let uses = [look("status", url, &["k"]), look("status", url, &["s"]), look("list", url, &[])];
        let uses = uses.into_iter().chain([look("status", url, &wait)]);
        uses.map(|run| run.done().code.unwrap()).collect::<Vec<i32>>()
    };
    assert_eq!(codes(&viewer(&redis, "")), [0, 0, 0, 75]);
    // SELECT is for URLs with a database; INFO distinguishes several servers; without XREAD a
    // release is only noticed later; without HGETALL the history lacks a run whose lease has just
    // expired.
    let optional = ["+select", "+info", "+xread", "+hgetall"];
    let commands = acl_rules("viewer");
    for command in commands.iter().filter(|rule| rule.starts_with('+') && !optional.contains(&rule.as_str()))
    {
        assert!(codes(&viewer(&redis, command)).contains(&77), "{command} is not needed");
    }
}

#[test]
fn looking_writes_nothing_and_wakes_no_waiter() {
    let redis = Redis::start();
    let jobs = locks(&redis);
    jobs[2].signal(Signal::SIGSTOP); // otherwise it renews its place
    let changes = || redis.info("rdb_changes_since_last_save");
    let keys = || {
        let mut keys = redis.keys();
        keys.sort();
        keys
    };
    let before = (changes(), keys());
    for key in ["k", "s", "m", "free"] {
        look("status", &redis.url(), &[key]).done().expect_code(0);
        look("status", &redis.url(), &[key, "--check", "held"]).done();
    }
    look("list", &redis.url(), &[]).done().expect_code(0);
    look("list", &redis.url(), &["--json"]).done().expect_code(0);
    assert_eq!((changes(), keys()), before);
    jobs[2].signal(Signal::SIGCONT);
}

#[test]
fn looking_works_on_a_server_out_of_memory() {
    let redis = Redis::start();
    let _holder = holder(&redis, "k", &["--ttl", "600s"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_until("the server is out of memory", || redis.cmd(&["SET", "x", "1"]).contains("OOM"));
    assert_eq!(status(&redis.url(), "k")["state"], "held");
    assert_eq!(look("list", &redis.url(), &["--json"]).done().expect_code(0).json_lines().len(), 1);
}
