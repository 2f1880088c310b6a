//! `redlock doctor` finds faults of servers, settings and this host, and leaves nothing behind.

mod discovery;
mod host;
mod output;
mod permissions;
mod servers;
mod unresponsive;

use serde_json::Value;

use crate::support::{Redis, Run};

/// `redlock doctor --redis URL`.
fn doctor(url: &str) -> Run {
    Run::bare().args(&["doctor", "--redis", url])
}

/// The output of `redlock doctor --json`, which must exit with this code.
#[track_caller]
fn diagnosis(run: Run, code: i32) -> Value {
    let done = run.arg("--json").done().expect_code(code);
    assert_eq!(done.stdout.lines().count(), 1, "{done:?}");
    let found = done.json();
    assert_eq!(found["ok"], code == 0, "{found}");
    found
}

/// All results of a check: "level text".
fn results(found: &Value, check: &str) -> Vec<String> {
    let checks = found["checks"].as_array().expect("a list").iter();
    let of_check = checks.filter(|result| result["name"] == check);
    of_check.map(|result| format!("{} {}", text(&result["level"]), text(&result["text"]))).collect()
}

/// The only result of a check has this level and contains this text.
#[track_caller]
fn expect(found: &Value, check: &str, level: &str, message: &str) {
    let results = results(found, check);
    let is_so = results.len() == 1 && results[0].starts_with(level) && results[0].contains(message);
    assert!(is_so, "{check} is not {level} with {message:?}: {results:?}\n{found:#}");
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Every key, including logs.
fn all_keys(redis: &Redis) -> Vec<String> {
    let mut keys: Vec<String> = redis.cmd(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    keys
}
