//! The output for people, cron and monitoring systems.

use super::doctor;
use crate::support::{Nodes, Redis, Run};

#[test]
fn the_first_line_says_what_is_wrong() {
    let redis = Redis::start_with(&["--appendonly", "yes"]);
    let first = |args: &[&str], code| {
        let done = doctor(&redis.url()).args(args).done().expect_code(code);
        assert_eq!(done.stderr, "");
        done.stdout.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(first(&[], 0), "OK: the server grants locks");
    redis.cmd(&["CONFIG", "SET", "appendonly", "no"]);
    let forgets = format!("WARNING: {}: keeps no data over a restart; the server grants locks", redis.url());
    assert_eq!(first(&[], 0), forgets);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let evicts =
        format!("PROBLEM: {}: maxmemory-policy is allkeys-lru; the server grants locks", redis.url());
    assert_eq!(first(&[], 1), evicts);
    let json = doctor(&redis.url()).arg("--json").done().expect_code(1).json();
    assert_eq!(json["summary"], evicts);
}

#[test]
fn the_first_line_has_each_reason_once() {
    let mut nodes = Nodes::start(5);
    nodes.settle();
    let urls = nodes.urls();
    [1, 3].into_iter().for_each(|at| nodes[at].kill());
    let first = doctor(&urls.join(",")).done().expect_code(1).stdout;
    let reason = format!("PROBLEM: {}, {}: connection refused (is the server running?); ", urls[1], urls[3]);
    assert!(first.starts_with(&reason), "{first}");
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
fn quiet_says_why_a_majority_is_missing() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    Run::bare().args(&["run", "-r", &urls, "--key", "k", "-n", "--", "true"]).done().expect_code(69);
    let printed = doctor(&urls).arg("-q").done().expect_code(1).stdout;
    assert!(printed.contains("0 of 3 servers can vote, 2 are needed"), "{printed}");
    assert_eq!(printed.matches("does not vote for another ").count(), 3, "{printed}");
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
