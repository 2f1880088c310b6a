//! `--cancel-in-progress`: the newest run stops the one that holds the lock, if that has the option, too.

use nix::sys::signal::Signal::SIGKILL;
use serde_json::Value;

use crate::support::{Backend, Job, Run, hold};

on_backends!(one_server, three_servers, this_host:
    the_newest_run_stops_the_one_that_holds_the_lock,
    the_next_command_starts_when_the_old_one_is_gone,
    a_holder_or_a_waiter_without_the_option_is_never_stopped,
    a_holder_is_stopped_only_by_the_next_in_the_queue,
    a_holder_is_stopped_when_the_waiter_before_the_newest_gives_up,
    of_several_waiters_only_the_newest_stays,
    of_ten_simultaneous_runs_the_last_one_succeeds,
    a_holder_that_would_run_on_without_the_lock_is_stopped,
    events_and_history_have_the_run_that_superseded_it,
    a_run_that_does_not_queue_stops_no_holder,
    a_stopped_run_keeps_no_minimum_hold,
    one_common_key_of_several_is_enough,
    a_stopped_run_has_not_done_it,
    runs_that_hold_the_lock_together_cannot_have_it
);

fn cancelling(backend: &Backend) -> Run {
    backend.run().arg("--cancel-in-progress")
}

/// Appends `word` to the notes.
fn noting(backend: &Backend, word: &str) -> Run {
    cancelling(backend).sh(&format!("echo {word} >> order"))
}

/// Unlike [`hold`], the command does not end when the test waits for it.
fn hold_until_stopped(run: Run) -> Job {
    let job = run.sh("echo ready; exec sleep 300").spawn();
    job.wait_for_line("ready");
    job
}

#[track_caller]
fn assert_stopped(job: Job, by: &str) {
    let done = job.wait().expect_code(79);
    let lost = "redlock: lost the lock \"k\": superseded by ";
    let line = done.stderr.lines().find(|line| line.starts_with(lost));
    assert!(line.is_some_and(|line| line.contains(by) && line.contains("--cancel-in-progress")), "{done:?}");
}

fn the_newest_run_stops_the_one_that_holds_the_lock(backend: &Backend) {
    let mut older = hold(cancelling(backend));
    for n in 0..3 {
        let newer = hold(cancelling(backend).args(&["--label", &format!("deploy {n}")]));
        assert_stopped(older, &format!("pid {} (deploy {n}, sh)", newer.pid()));
        older = newer;
    }
    older.wait().expect_code(0);
    backend.all_free(&["k"]);
}

fn the_next_command_starts_when_the_old_one_is_gone(backend: &Backend) {
    let script = "trap 'sleep 0.5; echo gone >> order; exit 0' TERM; echo ready; sleep 60 & wait; wait";
    let older = cancelling(backend).args(&["--kill-after", "5s"]).sh(script).spawn();
    older.wait_for_line("ready");
    noting(backend, "newer").done().expect_code(0);
    older.wait().expect_code(79);
    assert_eq!(backend.order(), ["gone", "newer"]);
}

fn a_holder_or_a_waiter_without_the_option_is_never_stopped(backend: &Backend) {
    for args in [&[][..], &["--supersede"]] {
        let holder = hold(backend.run_for_long().args(args));
        let newer = backend.waiter(noting(backend, "newer"), 1);
        holder.wait().expect_code(0);
        newer.wait().expect_code(0);
    }
    // Nor does a waiter without it stop a holder that has it.
    let holder = hold(cancelling(backend));
    let newer = backend.waiter(backend.run().arg("--supersede").cmd(&["true"]), 1);
    holder.wait().expect_code(0);
    newer.wait().expect_code(0);
}

fn a_holder_is_stopped_only_by_the_next_in_the_queue(backend: &Backend) {
    let holder = hold(cancelling(backend).args(&["--events", "events"]));
    let plain = backend.noting_waiter(backend.run_for_long(), "plain", 1);
    let newest = backend.waiter(noting(backend, "newest"), 2);
    // By then it has asked for the lock twice. The holder would have been stopped in favour of a run
    // that does something else.
    newest.wait_for_stderr("place 2 of 2");
    holder.wait().expect_code(0);
    plain.wait().expect_code(0);
    newest.wait().expect_code(0);
    assert_eq!(backend.order(), ["plain", "newest"]);
}

fn a_holder_is_stopped_when_the_waiter_before_the_newest_gives_up(backend: &Backend) {
    let holder = hold_until_stopped(cancelling(backend));
    let plain = backend.noting_waiter(backend.run_for_long(), "plain", 1);
    let newest = backend.waiter(noting(backend, "newest"), 2);
    plain.signal(SIGKILL);
    plain.wait();
    assert_stopped(holder, &format!("pid {}", newest.pid()));
    newest.wait().expect_code(0);
    assert_eq!(backend.order(), ["newest"]);
}

fn of_several_waiters_only_the_newest_stays(backend: &Backend) {
    let holder = hold(backend.run_for_long());
    let older = backend.waiter(noting(backend, "older"), 1);
    let newer = noting(backend, "newer").spawn();
    let gave_up = older.wait().expect_code(75);
    assert!(gave_up.stderr.contains("superseded by "), "{gave_up:?}");
    backend.queued(1);
    holder.wait().expect_code(0);
    newer.wait().expect_code(0);
    assert_eq!(backend.order(), ["newer"]);
}

fn of_ten_simultaneous_runs_the_last_one_succeeds(backend: &Backend) {
    let script = "echo begin >> order; sleep 0.3; echo end >> order";
    let jobs: Vec<Job> = (0..10).map(|_| cancelling(backend).sh(script).spawn()).collect();
    let codes: Vec<Option<i32>> = jobs.into_iter().map(|job| job.wait().code).collect();
    assert!(codes.iter().all(|code| matches!(code, Some(0 | 75 | 79))), "{codes:?}");
    assert!(codes.contains(&Some(0)), "{codes:?}");
    assert_eq!(backend.order().last().map(String::as_str), Some("end"));
    backend.all_free(&["k"]);
}

fn a_holder_that_would_run_on_without_the_lock_is_stopped(backend: &Backend) {
    let older = hold_until_stopped(cancelling(backend).args(&["--on-lost", "warn"]));
    let newer = noting(backend, "newer").spawn();
    assert_stopped(older, &format!("pid {}", newer.pid()));
    newer.wait().expect_code(0);
}

fn events_and_history_have_the_run_that_superseded_it(backend: &Backend) {
    let older = hold_until_stopped(cancelling(backend).args(&["--events", "events"]));
    let newer = cancelling(backend).args(&["--label", "second"]).cmd(&["true"]).spawn();
    older.wait().expect_code(79);
    newer.wait().expect_code(0);
    let events: Vec<Value> =
        backend.noted("events").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let event = |name: &str| events.iter().find(|event| event["event"] == name).unwrap_or(&Value::Null);
    assert_eq!((&event("lost")["cause"], &event("lost")["action"]), (&"superseded".into(), &"stop".into()));
    assert_eq!(event("lost")["superseded_by"]["label"], "second");
    let ended = event("ended");
    assert_eq!((&ended["outcome"], &ended["exit"]), (&"superseded".into(), &79.into()), "{ended}");
    assert_eq!(ended["superseded_by"]["label"], "second");
    assert_eq!(ended["released"], true);
    let history = backend.subcommand("history").args(&["k", "--json"]).done().json_lines();
    let run = history.iter().find(|run| run["outcome"] == "superseded").expect("the stopped run");
    assert_eq!((&run["exit"], &run["superseded_by"]["label"]), (&79.into(), &"second".into()), "{run}");
    assert!(run["held_ms"].is_u64(), "{run}");
    let text = backend.subcommand("history").args(&["k"]).done().expect_code(0).stdout;
    assert!(text.contains("79 superseded by "), "{text}");
}

fn a_run_that_does_not_queue_stops_no_holder(backend: &Backend) {
    let holder = hold(cancelling(backend));
    for how in [&["-n"][..], &["--retries", "1", "--retry-interval", "10ms"]] {
        cancelling(backend).args(how).cmd(&["true"]).done().expect_code(75);
    }
    holder.wait().expect_code(0);
}

fn a_stopped_run_keeps_no_minimum_hold(backend: &Backend) {
    let older = hold(cancelling(backend).args(&["--min-hold", "1h"]));
    noting(backend, "newer").done().expect_code(0);
    older.wait().expect_code(79);
    assert_eq!(backend.order(), ["newer"]);
}

fn one_common_key_of_several_is_enough(backend: &Backend) {
    let older = hold_until_stopped(backend.run_on(&["a", "k"]).arg("--cancel-in-progress"));
    let newer = backend.run_on(&["b", "k"]).arg("--cancel-in-progress").cmd(&["true"]).spawn();
    let stopped = older.wait().expect_code(79);
    assert!(stopped.stderr.contains(&format!(" pid {} ", newer.pid())), "{stopped:?}");
    newer.wait().expect_code(0);
    backend.all_free(&["a", "b", "k"]);
}

fn a_stopped_run_has_not_done_it(backend: &Backend) {
    let once = || cancelling(backend).args(&["--once", "1h"]);
    let older = once().sh("trap 'exit 0' TERM; echo ready; sleep 60 & wait").spawn();
    older.wait_for_line("ready");
    once().sh("echo newer >> order").done().expect_code(0);
    older.wait().expect_code(79);
    assert_eq!(backend.order(), ["newer"]);
}

fn runs_that_hold_the_lock_together_cannot_have_it(backend: &Backend) {
    for mode in [&["--shared"][..], &["--slots", "2"]] {
        let done = cancelling(backend).args(mode).cmd(&["true"]).done().expect_code(64);
        assert!(done.stderr.contains("cannot be used together"), "{done:?}");
    }
    let of_acquire = backend.subcommand("acquire").args(&["-k", "k", "--cancel-in-progress"]).done();
    of_acquire.expect_code(64);
    assert!(backend.is_free());
}
