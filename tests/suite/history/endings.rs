//! Every way in which a run can end.

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use serde_json::Value;

use super::{all, history};
use crate::support::{Backend, HOLD, Locks, Redis, hold, wait_until};

on_backends!(
    one_server, three_servers, this_host:
        the_commands_exit_is_recorded_with_its_code_or_signal,
        a_command_that_cannot_be_started_or_is_stopped_is_recorded,
        runs_that_do_not_get_the_lock_are_recorded,
        a_superseded_run_names_the_newer_one,
        a_broken_run_names_who_broke_it,
        a_killed_run_is_recorded_by_its_guardian,
        a_run_killed_with_its_guardian_is_recorded_with_or_without_a_next_one,
        a_lease_that_ends_as_planned_is_no_failure,
        every_key_has_its_history,
        each_sharer_is_recorded,
        current_runs_and_waiters_are_listed;
    one_server, this_host: slots_are_recorded_with_their_numbers;
    one_server, three_servers: a_lock_that_was_taken_away_is_recorded_as_lost
);

fn texts(texts: impl AsRef<[&'static str]>) -> Vec<String> {
    texts.as_ref().iter().map(|text| (*text).to_owned()).collect()
}

#[track_caller]
fn last(backend: &Backend) -> Value {
    history(backend, "k").pop().expect("a run")
}

fn the_commands_exit_is_recorded_with_its_code_or_signal(backend: &Backend) {
    backend.run().args(&["--label", "first"]).sh("exit 3").done().expect_code(3);
    backend.run().sh("echo $REDLOCK_FENCE $REDLOCK_TOKEN >> order; kill -TERM $$").done();
    let runs = history(backend, "k");
    assert_eq!(all(&runs, "outcome"), ["ran", "ran"]);
    assert_eq!((all(&runs, "exit"), all(&runs, "signal")), (texts(["3", ""]), texts(["", "15"])));
    assert_eq!((all(&runs, "event"), all(&runs, "key")), (texts(["ended"; 2]), texts(["k"; 2])));
    let (first, second) = (&runs[0], &runs[1]);
    assert_eq!((&first["run"]["label"], &first["run"]["command"]), (&"first".into(), &"sh".into()));
    assert!(first["run"]["pid"].is_u64() && first["run"]["host"].is_string());
    assert!(first["waited_ms"].is_u64() && first["held_ms"].is_u64() && first["attempts"] == 1);
    assert!(first["time"].as_str().unwrap().ends_with('Z') && first["mode"] == "exclusive");
    let noted = format!("{} {}", second["fences"][0], second["token"].as_str().unwrap());
    assert_eq!(backend.order(), [noted]);
    assert!(first["fences"][0].as_u64() < second["fences"][0].as_u64(), "{runs:?}");
}

fn a_command_that_cannot_be_started_or_is_stopped_is_recorded(backend: &Backend) {
    backend.run().cmd(&["./nowhere"]).done().expect_code(127);
    backend.run().args(&["--max-hold", "50ms"]).cmd(&["sleep", "60"]).done().expect_code(124);
    let runs = history(backend, "k");
    assert_eq!(all(&runs, "outcome"), ["not_started", "max_hold"]);
    assert_eq!(all(&runs, "exit"), ["127", "124"]);
}

fn runs_that_do_not_get_the_lock_are_recorded(backend: &Backend) {
    let first = hold(backend.run_for_long());
    backend.run().args(&["-n", "--label", "one"]).cmd(&["true"]).done().expect_code(75);
    backend.run().args(&["-w", "20ms", "--label", "two", "-E", "0"]).cmd(&["true"]).done().expect_code(0);
    let retries = ["--retries", "1", "--retry-interval", "20ms", "--label", "three"];
    backend.run().args(&retries).cmd(&["true"]).done().expect_code(75);
    let waiter = backend.waiter(backend.run().args(&["--label", "four"]).cmd(&["true"]), 1);
    waiter.signal(SIGTERM);
    waiter.wait();
    first.wait().expect_code(0);
    let mut runs = history(backend, "k");
    runs.sort_by_key(|run| run["time"].to_string());
    assert_eq!(all(&runs, "outcome"), ["held", "held", "held", "cancelled", "ran"]);
    assert_eq!(all(&runs, "signal"), ["", "", "", "15", ""]);
    assert_eq!(all(&runs, "exit"), ["75", "0", "75", "", "0"]);
    assert_eq!(all(&runs, "released"), ["", "", "", "", "true"]);
    for run in &runs[..4] {
        assert!(run["waited_ms"].is_u64() && run["held_ms"].is_null() && run["fences"].is_null(), "{run}");
    }
    let labels: Vec<&str> = runs[..4].iter().filter_map(|run| run["run"]["label"].as_str()).collect();
    assert_eq!(labels, ["one", "two", "three", "four"]);
}

fn a_superseded_run_names_the_newer_one(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let older = backend.waiter(backend.run_for_long().arg("--supersede").cmd(&["true"]), 1);
    let newer = backend.run_for_long().args(&["--supersede", "--label", "newer"]).cmd(&["true"]).spawn();
    older.wait().expect_code(75);
    first.wait().expect_code(0);
    newer.wait().expect_code(0);
    let runs = history(backend, "k");
    let superseded: Vec<&Value> = runs.iter().filter(|run| run["outcome"] == "superseded").collect();
    assert_eq!((runs.len(), superseded.len()), (3, 1), "{runs:?}");
    assert_eq!(
        (&superseded[0]["superseded_by"]["label"], &superseded[0]["exit"]),
        (&"newer".into(), &75.into())
    );
    let text = backend.subcommand("history").arg("k").done().expect_code(0).stdout;
    assert!(text.contains("75 superseded by ") && text.contains("no lock"), "{text}");
}

fn a_broken_run_names_who_broke_it(backend: &Backend) {
    let first = hold(backend.run_for_long());
    backend.subcommand("break").args(&["k", "--yes"]).done().expect_code(0);
    first.wait().expect_code(79);
    let run = last(backend);
    assert_eq!((&run["outcome"], &run["exit"]), (&"lost".into(), &79.into()));
    assert_eq!(run["released"], true, "{run}");
    assert!(run["broken_by"]["pid"].is_u64() && run["held_ms"].is_u64(), "{run}");
    let text = backend.subcommand("history").arg("k").done().expect_code(0).stdout;
    assert!(text.contains("79 broken by "), "{text}");
}

fn a_killed_run_is_recorded_by_its_guardian(backend: &Backend) {
    let first = hold(backend.run_for_long().args(&["--label", "killed"]));
    first.signal(SIGKILL);
    first.wait();
    let run = last(backend);
    assert_eq!((&run["outcome"], &run["released"]), (&"killed".into(), &true.into()), "{run}");
    assert_eq!(
        (&run["run"]["label"], &run["exit"], &run["signal"]),
        (&"killed".into(), &Value::Null, &Value::Null)
    );
    assert!(run["fences"][0].is_u64() && run["held_ms"].is_u64() && run["waited_ms"].is_u64(), "{run}");
    let text = backend.subcommand("history").arg("k").done().expect_code(0).stdout;
    assert!(text.contains(" killed "), "{text}");
}

fn a_run_killed_with_its_guardian_is_recorded_with_or_without_a_next_one(backend: &Backend) {
    let is_told = |n: usize| all(&history(backend, "k"), "outcome") == vec!["expired"; n];
    for killed in 1..=2 {
        let first = hold(backend.run().args(backend.short_ttl()).args(&["--label", "killed"]));
        first.kill_with_guardian();
        // The second is the first run after the killed one.
        wait_until("the expiry is recorded", || is_told(killed));
    }
    backend.run().cmd(&["true"]).done().expect_code(0);
    let runs = history(backend, "k");
    assert_eq!(all(&runs, "outcome"), ["expired", "expired", "ran"]);
    assert_eq!((&runs[1]["run"]["label"], &runs[1]["exit"]), (&"killed".into(), &Value::Null));
    assert!(runs[1]["fences"][0].is_u64() && runs[1]["token"].is_string());
}

fn a_lease_that_ends_as_planned_is_no_failure(backend: &Backend) {
    let freeze = ["acquire", "--key", "k", "--ttl", "1s", "--label", "freeze"];
    backend.command(&freeze).done().expect_code(0);
    // With and without a next run that records it.
    wait_until("the end is recorded", || all(&history(backend, "k"), "outcome") == ["expired"]);
    backend.run().cmd(&["true"]).done().expect_code(0);
    let runs = history(backend, "k");
    assert_eq!((all(&runs, "outcome"), all(&runs, "exit")), (texts(["expired", "ran"]), texts(["", "0"])));
    let text = backend.subcommand("history").arg("k").done().expect_code(0).stdout;
    assert!(text.contains("expired") && !text.contains("failed"), "{text}");
}

fn every_key_has_its_history(backend: &Backend) {
    backend.run_on(&["k", "b"]).sh("echo $REDLOCK_FENCE >> order").done().expect_code(0);
    let runs = ["k", "b"].map(|key| history(backend, key).remove(0));
    assert_eq!(runs[0]["token"], runs[1]["token"]);
    assert_eq!(backend.order(), [format!("{} {}", runs[0]["fences"][0], runs[1]["fences"][0])]);
    assert_eq!((&runs[1]["key"], &runs[1]["outcome"]), (&"b".into(), &"ran".into()));
}

fn each_sharer_is_recorded(backend: &Backend) {
    let ttl = backend.short_ttl();
    let readers: Vec<_> = (0..3).map(|_| hold(backend.reader().args(ttl))).collect();
    readers[0].signal(SIGKILL);
    readers.into_iter().for_each(|reader| drop(reader.wait()));
    wait_until("all three are recorded", || {
        let mut outcomes = all(&history(backend, "k"), "outcome");
        outcomes.sort();
        outcomes == ["killed", "ran", "ran"]
    });
    wait_until("the lock is free", || backend.is_free());
    let runs = history(backend, "k");
    assert_eq!(all(&runs, "mode").iter().filter(|mode| *mode == "shared").count(), 3, "{runs:?}");
    assert_eq!(all(&runs, "outcome").iter().filter(|outcome| *outcome == "killed").count(), 1, "{runs:?}");
}

fn slots_are_recorded_with_their_numbers(backend: &Backend) {
    let slots = || backend.run_for_long().args(&["--slots", "2"]);
    let holders = [hold(slots()), hold(slots())];
    let running = history(backend, "k");
    assert_eq!((all(&running, "event"), all(&running, "slot")), (texts(["acquired"; 2]), texts(["0", "1"])));
    holders.into_iter().for_each(|holder| drop(holder.wait().expect_code(0)));
    let runs = history(backend, "k");
    let mut slots = all(&runs, "slot");
    slots.sort();
    assert_eq!((slots, all(&runs, "mode")), (texts(["0", "1"]), texts(["slots"; 2])));
    let text = backend.subcommand("history").arg("k").done().expect_code(0).stdout;
    assert!(text.contains("\nslot 0 ") && text.contains("\nslot 1 "), "{text}");
}

fn current_runs_and_waiters_are_listed(backend: &Backend) {
    let first = hold(backend.run_for_long().args(&["--label", "first"]));
    let second = backend.waiter(backend.run_for_long().args(&["--label", "second"]).stdin_pipe().sh(HOLD), 1);
    let runs = history(backend, "k");
    assert_eq!(all(&runs, "event"), ["acquired", "waiting"]);
    assert_eq!((&runs[0]["run"]["label"], &runs[1]["run"]["label"]), (&"first".into(), &"second".into()));
    assert!(runs[0]["held_ms"].is_u64() && runs[1]["waited_ms"].is_u64() && runs[0]["outcome"].is_null());
    let text = backend.subcommand("history").arg("k").done().expect_code(0).stdout;
    assert!(text.contains("running") && text.contains("waiting"), "{text}");
    first.wait().expect_code(0);
    second.wait_for_line("ready");
    let runs = history(backend, "k");
    assert_eq!(all(&runs, "event"), ["ended", "acquired"]);
    let is_one_clock = !matches!(backend.locks, Locks::ThreeServers(_));
    assert_eq!(runs[1]["waited_ms"].as_u64().is_some_and(|waited| waited > 0), is_one_clock, "{runs:?}");
    second.wait().expect_code(0);
}

fn a_lock_that_was_taken_away_is_recorded_as_lost(backend: &Backend) {
    let servers: Vec<&Redis> = match &backend.locks {
        Locks::OneServer(redis) => vec![redis],
        Locks::ThreeServers(nodes) => nodes.iter().collect(),
        Locks::ThisHost(_) => unreachable!("nobody can take it away there"),
    };
    let modes: &[&[&str]] = &[&[], &["-s"], &["--slots", "2"]];
    let several = servers.len() > 1;
    let mut outcomes = Vec::new();
    for mode in modes.iter().filter(|mode| !(several && mode.contains(&"--slots"))) {
        let first = hold(backend.run().args(&["--ttl", "3s"]).args(mode));
        servers.iter().for_each(|redis| drop(redis.cmd(&["DEL", "lock:k"])));
        first.wait_for_stderr("lost the lock");
        first.wait().expect_code(79);
        outcomes.push("lost");
        let runs = history(backend, "k");
        assert_eq!((all(&runs, "outcome"), &runs.last().unwrap()["exit"]), (texts(&outcomes), &79.into()));
        // The run has recorded its own end: the next one has nothing to add.
        let left: Vec<String> = servers.iter().flat_map(|redis| redis.keys()).collect();
        assert!(!left.iter().any(|key| key.contains("-info:") || key.contains("-shared:")), "{left:?}");
    }
    backend.run().cmd(&["true"]).done().expect_code(0);
    outcomes.push("ran");
    assert_eq!(all(&history(backend, "k"), "outcome"), outcomes);
}
