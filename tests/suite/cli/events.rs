//! `--events FILE`: the same story as JSON lines, for machines.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal::SIGTERM;
use serde_json::Value;

use crate::support::{Redis, Run, holder, wait_until};

fn events(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("a name")).collect()
}

#[test]
fn events_tell_the_story_of_an_uncontended_run() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.jsonl");
    let run = Run::key(&redis, "deploy").arg("--events").arg(&file);
    let done = run.clone().sh("echo $REDLOCK_FENCE $REDLOCK_ATTEMPTS; exit 3").done().expect_code(3);
    let told = events(&file);
    assert_eq!(names(&told), ["acquired", "released"]);
    assert!(told.iter().all(|event| event["key"] == "deploy"));
    let words: Vec<u64> = done.stdout.split_whitespace().map(|w| w.parse().unwrap()).collect();
    for event in &told {
        assert_eq!(event["fence"].as_u64(), Some(words[0]), "{event}");
        assert_eq!(event["attempts"].as_u64(), Some(words[1]), "{event}");
        assert!(event["waited_ms"].is_u64(), "{event}");
    }
    assert!(told[1]["held_ms"].is_u64() && told[1]["exit"] == 3, "{}", told[1]);
    assert_eq!((done.stderr.as_str(), redis.held("deploy")), ("", false));

    run.sh("exit 0").done().expect_code(0);
    assert_eq!(names(&events(&file)), ["acquired", "released", "acquired", "released"], "lines are appended");
}

#[test]
fn events_tell_of_waiting_refreshing_and_loss() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.jsonl");
    let holder = holder(&redis, "deploy", &[]);
    let run =
        Run::key(&redis, "deploy").args(&["--ttl", "2s", "--node-timeout", "600ms", "--events"]).arg(&file);
    let job = run.sh("echo ready; exec sleep 60").spawn();
    wait_until("waiting is told", || names(&events(&file)).contains(&"waiting"));
    assert!(!names(&events(&file)).contains(&"acquired"));
    holder.signal(SIGTERM);
    job.wait_for_line("ready");
    wait_until("refreshing is told", || names(&events(&file)).contains(&"refreshed"));
    redis.cmd(&["DEL", "lock:deploy"]);
    job.wait().expect_code(79);
    let told = events(&file);
    let seen = names(&told);
    let at =
        |name: &str| seen.iter().position(|n| *n == name).unwrap_or_else(|| panic!("no {name} in {seen:?}"));
    assert!(
        at("waiting") < at("acquired") && at("acquired") < at("refreshed") && at("refreshed") < at("lost")
    );
    assert!(told.iter().all(|event| event["key"] == "deploy"));
}

#[test]
fn an_events_file_that_cannot_be_opened_is_told_before_the_command_runs() {
    let redis = Redis::start();
    let run = Run::key(&redis, "deploy").args(&["--events", "/no/such/directory/events"]);
    let done = run.sh("echo ran").done();
    assert!(matches!(done.code, Some(64 | 78)), "{done:?}");
    assert_eq!(done.stdout, "");
    done.expect_said(&["/no/such/directory/events"]);
    assert_eq!(redis.keys(), Vec::<String>::new());
}
