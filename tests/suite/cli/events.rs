//! `--events FILE`: the same story as JSON lines, for machines.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal::SIGTERM;
use serde_json::Value;

use crate::support::{Backend, Redis, Run, hold, holder, wait_until};

on_backends!(one_server, three_servers, this_host: events_tell_the_story_of_a_run);

fn events(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("a name")).collect()
}

fn events_tell_the_story_of_a_run(backend: &Backend) {
    let file = backend.notes().join("events.jsonl");
    let run = || backend.run().arg("--events").arg(&file);
    let done = run().sh("echo $REDLOCK_FENCE $REDLOCK_ATTEMPTS; exit 3").done().expect_code(3);
    assert_eq!(done.stderr, "");
    let written = events(&file);
    assert_eq!(names(&written), ["acquired", "released"]);
    assert!(written.iter().all(|event| event["key"] == "k"));
    let words: Vec<u64> = done.stdout.split_whitespace().map(|w| w.parse().unwrap()).collect();
    for event in &written {
        assert_eq!(event["fence"].as_u64(), Some(words[0]), "{event}");
        assert_eq!(event["attempts"].as_u64(), Some(words[1]), "{event}");
        assert!(event["waited_ms"].is_u64(), "{event}");
    }
    assert!(written[1]["held_ms"].is_u64() && written[1]["exit"] == 3, "{}", written[1]);

    let first = hold(backend.run());
    let job = run().cmd(&["true"]).spawn();
    wait_until("the wait is reported", || names(&events(&file)).last() == Some(&"waiting"));
    first.wait().expect_code(0);
    job.wait().expect_code(0);
    let written = events(&file);
    assert_eq!(names(&written)[..3], ["acquired", "released", "waiting"], "lines are appended");
    assert_eq!(names(&written)[written.len() - 2..], ["acquired", "released"]);
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
fn an_events_file_that_cannot_be_opened_is_reported_before_the_command_runs() {
    let redis = Redis::start();
    let run = Run::key(&redis, "deploy").args(&["--events", "/no/such/directory/events"]);
    let done = run.sh("echo ran").done();
    assert!(matches!(done.code, Some(64 | 78)), "{done:?}");
    assert_eq!(done.stdout, "");
    done.expect_said(&["/no/such/directory/events"]);
    assert_eq!(redis.keys(), Vec::<String>::new());
}
