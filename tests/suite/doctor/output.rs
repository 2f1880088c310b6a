//! The output for people, cron and monitoring systems.

use super::doctor;
use crate::support::{Nodes, Redis};

#[test]
fn the_first_line_is_the_verdict() {
    let redis = Redis::start_with(&["--appendonly", "yes"]);
    let first = |args: &[&str], code| {
        let done = doctor(&redis.url()).args(args).done().expect_code(code);
        assert_eq!(done.stderr, "");
        done.stdout.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(first(&[], 0), "OK: the server grants locks");
    redis.cmd(&["CONFIG", "SET", "appendonly", "no"]);
    assert_eq!(first(&[], 0), format!("WARNING: {}: persistence; the server grants locks", redis.url()));
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert_eq!(first(&[], 1), format!("PROBLEM: {}: eviction; the server grants locks", redis.url()));
}

#[test]
fn quiet_prints_problems_only() {
    let redis = Redis::start();
    assert_eq!(doctor(&redis.url()).arg("-q").done().expect_code(0).stdout, "");
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let printed = doctor(&redis.url()).arg("-q").done().expect_code(1).stdout;
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], format!("PROBLEM  {}: maxmemory-policy is allkeys-lru", redis.url()));
    assert!(
        lines[1].trim_start().starts_with("why: ") && lines[2].trim_start().starts_with("fix: "),
        "{printed}"
    );
    assert_eq!(lines.len(), 3, "{printed}");
}

#[test]
fn an_ok_result_is_one_line_for_each_server_or_check() {
    let nodes = Nodes::start(3);
    nodes.settle();
    let urls = nodes.urls().join(",");
    let usual = doctor(&urls).done().expect_code(0).stdout;
    for url in nodes.urls() {
        let about = usual.lines().filter(|line| line.contains(&url)).collect::<Vec<_>>();
        assert_eq!(about.len(), 1, "{usual}");
        assert!(about[0].starts_with("ok ") && about[0].contains("master, listed once, up "), "{usual}");
    }
    assert!(
        usual.contains("ok       all servers: 3 of 3 servers can vote, tolerates the loss of 1 more"),
        "{usual}"
    );
    let verbose = doctor(&urls).arg("-v").done().expect_code(0).stdout;
    assert!(verbose.lines().filter(|line| line.contains(&nodes.urls()[0])).count() > 5, "{verbose}");
}

#[test]
fn text_from_a_server_is_escaped_for_the_terminal() {
    let url = crate::support::impostor("-ERR \u{1b}[2Jboo\r\n");
    let done = doctor(&url).done().expect_code(1);
    assert!(!done.stdout.contains('\u{1b}') && done.stdout.contains("boo"), "{done:?}");
}
