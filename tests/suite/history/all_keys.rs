//! `redlock history` without a key, and with a pattern.

use serde_json::Value;

use super::all;
use crate::support::{Backend, Redis, Run, hold};

on_backends!(
    one_server, three_servers, this_host:
        the_runs_of_all_locks_are_in_one_list,
        the_failed_runs_of_all_locks_can_be_selected;
);

fn histories(backend: &Backend, args: &[&str]) -> Vec<Value> {
    backend.subcommand("history").args(args).arg("--json").done().expect_code(0).json_lines()
}

/// Two runs of web-a, one of web-b, which fails, and one of db, which goes on.
fn some_runs(backend: &Backend) -> crate::support::Job {
    for (key, code) in [("web-a", 0), ("web-b", 3), ("web-a", 0)] {
        backend.run_on(&[key]).sh(&format!("exit {code}")).done().expect_code(code);
    }
    hold(backend.run_on(&["db"]))
}

fn the_runs_of_all_locks_are_in_one_list(backend: &Backend) {
    let _holder = some_runs(backend);
    let runs = histories(backend, &[]);
    assert_eq!(all(&runs, "key"), ["web-a", "web-b", "web-a", "db"], "in the order in which they began");
    assert_eq!(all(&runs, "event"), ["ended", "ended", "ended", "acquired"]);
    assert_eq!(all(&histories(backend, &["web-*"]), "key"), ["web-a", "web-b", "web-a"]);
    assert_eq!(all(&histories(backend, &["web-*", "--limit", "2"]), "key"), ["web-b", "web-a"]);
    assert_eq!(all(&histories(backend, &["--since", "yesterday"]), "key").len(), 4);
    assert_eq!(histories(backend, &["--key", "web-*"]).len(), 0, "--key is literal");
    let text = backend.subcommand("history").done().expect_code(0).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("3 locks: 3 runs since ") && lines[0].ends_with(", 1 failed, 1 running"),
        "{text}"
    );
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[3])[..4], ["web-b", "1", "1", "0"], "failures first: {text}");
    let runs_at = lines.iter().position(|line| line.starts_with("STARTED")).expect("a list of runs");
    let keys: Vec<String> = lines[runs_at + 1..].iter().map(|line| words(line)[1].clone()).collect();
    assert_eq!(keys, ["db", "web-a", "web-b", "web-a"], "the newest first: {text}");
}

fn the_failed_runs_of_all_locks_can_be_selected(backend: &Backend) {
    let _holder = some_runs(backend);
    let failed = histories(backend, &["--failed"]);
    assert_eq!((all(&failed, "key"), all(&failed, "exit")), (vec!["web-b".into()], vec!["3".into()]));
    assert_eq!(histories(backend, &["web-a", "--failed"]).len(), 0);
    let text = backend.subcommand("history").arg("--failed").done().expect_code(0).stdout;
    assert!(text.starts_with("1 lock: 1 run ") && !text.contains("db"), "{text}");
    let text = backend.subcommand("history").args(&["web-a", "--failed"]).done().expect_code(0).stdout;
    assert!(text.starts_with("web-a: 2 runs ") && text.trim_end().ends_with("WHO"), "{text}");
    let none = backend.subcommand("history").args(&["web-a*", "--failed"]).done().expect_code(0).stdout;
    assert_eq!(none, "no failed runs in the history\n");
}

#[test]
fn a_picture_needs_one_key_and_other_locks_are_left_out() {
    let redis = Redis::start();
    let history = |args: &[&str]| Run::bare().args(&["history", "-r", &redis.url()]).args(args).done();
    assert!(history(&["--svg", "-"]).expect_code(64).stderr.contains("--svg requires one KEY"));
    redis.cmd(&["SET", "lock:other-program", "x"]);
    assert_eq!(history(&["--json"]).expect_code(0).stdout, "");
}
