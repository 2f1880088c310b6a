//! `--once D`: one run does it, the others wait and skip.

use nix::sys::signal::Signal::SIGKILL;
use serde_json::Value;

use crate::support::{Backend, Done, Job, Locks, Run, hold, wait_until};

on_backends!(one_server, three_servers, this_host:
    of_twenty_replicas_one_runs_and_the_others_skip,
    if_the_first_fails_the_next_one_tries,
    a_killed_run_counts_as_failed,
    a_run_that_is_stopped_counts_as_failed,
    a_run_that_is_broken_counts_as_failed,
    only_a_recent_success_counts,
    a_run_without_the_option_neither_leaves_a_mark_nor_obeys_it,
    a_waiter_behind_another_run_skips_at_once,
    a_run_that_does_not_queue_skips_as_well,
    quiet_says_nothing,
    events_and_history_have_the_outcome_and_the_run_that_did_it,
    status_shows_who_did_it_and_when,
    break_forgets_the_mark_of_a_free_lock,
    break_of_a_held_lock_leaves_an_older_mark,
    all_of_several_keys_must_be_done,
    a_minimum_hold_does_not_delay_the_others,
    the_wait_line_says_who_is_doing_it,
    runs_that_hold_the_lock_together_cannot_have_it
);

fn once(backend: &Backend) -> Run {
    backend.run().args(&["--once", "1h"])
}

/// A run that appends `word` to the notes.
fn noting(backend: &Backend, word: &str) -> Run {
    once(backend).sh(&format!("echo {word} >> order"))
}

#[track_caller]
fn assert_skipped(done: Done) {
    let done = done.expect_code(0);
    let last = done.stderr.lines().last().unwrap_or_default();
    let is_said =
        last.starts_with("redlock: \"k\" was done ") && last.ends_with("; not run again (--once 1h)");
    assert!(is_said && last.contains(" ago by "), "{done:?}");
}

fn of_twenty_replicas_one_runs_and_the_others_skip(backend: &Backend) {
    let jobs: Vec<Job> =
        (0..20).map(|n| once(backend).sh(&format!("sleep 0.2; echo {n} >> order")).spawn()).collect();
    let all: Vec<Done> = jobs.into_iter().map(|job| job.wait().expect_code(0)).collect();
    assert_eq!(backend.order().len(), 1, "{:?}", backend.order());
    let skipped = all.iter().filter(|done| done.stderr.contains("not run again")).count();
    assert_eq!(skipped, 19, "{all:?}");
    backend.all_free(&["k"]);
}

fn if_the_first_fails_the_next_one_tries(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let fails = backend.waiter(once(backend).sh("echo fails >> order; exit 3"), 1);
    let second = backend.waiter(noting(backend, "second"), 2);
    let third = backend.waiter(noting(backend, "third"), 3);
    first.wait().expect_code(0);
    fails.wait().expect_code(3);
    second.wait().expect_code(0);
    assert_skipped(third.wait());
    assert_eq!(backend.order(), ["fails", "second"]);
}

fn a_killed_run_counts_as_failed(backend: &Backend) {
    let killed = hold(once(backend).args(backend.short_ttl()));
    let next = backend.waiter(noting(backend, "next"), 1);
    killed.signal(SIGKILL);
    killed.wait();
    next.wait().expect_code(0);
    assert_skipped(noting(backend, "last").done());
    assert_eq!(backend.order(), ["next"]);
}

fn a_run_that_is_stopped_counts_as_failed(backend: &Backend) {
    let stopped = once(backend).args(&["--max-hold", "50ms"]).sh("trap 'exit 0' TERM; sleep 60 & wait");
    stopped.done().expect_code(124);
    noting(backend, "next").done().expect_code(0);
    assert_eq!(backend.order(), ["next"]);
}

fn a_run_that_is_broken_counts_as_failed(backend: &Backend) {
    let holder = hold(once(backend));
    backend.subcommand("break").args(&["k", "--yes"]).done().expect_code(0);
    holder.wait().expect_code(79);
    noting(backend, "next").done().expect_code(0);
    assert_eq!(backend.order(), ["next"]);
}

fn only_a_recent_success_counts(backend: &Backend) {
    noting(backend, "first").done().expect_code(0);
    wait_until("it was done more than 50 ms ago", || {
        let done = backend.run().args(&["--once", "50ms"]).sh("echo again >> order").done().expect_code(0);
        !done.stderr.contains("not run again")
    });
    // The run asks for another time than those before it.
    assert_skipped(noting(backend, "never").done());
    assert_eq!(backend.order(), ["first", "again"]);
}

fn a_run_without_the_option_neither_leaves_a_mark_nor_obeys_it(backend: &Backend) {
    let plain = || backend.run().sh("echo plain >> order").done().expect_code(0);
    plain();
    noting(backend, "once").done().expect_code(0);
    plain();
    assert_eq!(backend.order(), ["plain", "once", "plain"]);
}

/// It does not wait for a run that has the lock for another reason.
fn a_waiter_behind_another_run_skips_at_once(backend: &Backend) {
    noting(backend, "first").done().expect_code(0);
    let first = hold(backend.run_for_long());
    assert_skipped(noting(backend, "never").done());
    first.wait().expect_code(0);
    // So does one that waits already when the mark comes.
    backend.subcommand("break").args(&["k", "--yes"]).done().expect_code(0);
    let doing = hold(once(backend));
    let plain = backend.holding_waiter(backend.run_for_long(), 1);
    let skips = backend.waiter(noting(backend, "never"), 2);
    doing.wait().expect_code(0);
    assert_skipped(skips.wait());
    plain.wait().expect_code(0);
    assert_eq!(backend.order(), ["first"]);
}

fn a_run_that_does_not_queue_skips_as_well(backend: &Backend) {
    let doing = hold(once(backend));
    once(backend).arg("-n").sh("echo never >> order").done().expect_code(75);
    doing.wait().expect_code(0);
    for how in [&["-n"][..], &["--retries", "1", "--retry-interval", "10ms"]] {
        assert_skipped(once(backend).args(how).sh("echo never >> order").done());
    }
    assert_eq!(backend.order(), Vec::<String>::new());
}

fn quiet_says_nothing(backend: &Backend) {
    once(backend).cmd(&["true"]).done().expect_code(0);
    let done = once(backend).arg("-q").sh("echo ran").done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
}

fn events_and_history_have_the_outcome_and_the_run_that_did_it(backend: &Backend) {
    once(backend).args(&["--label", "first"]).cmd(&["true"]).done().expect_code(0);
    once(backend).args(&["--events", "events", "--label", "second"]).cmd(&["true"]).done().expect_code(0);
    let ended: Value = serde_json::from_str(backend.noted("events").last().unwrap()).unwrap();
    assert_eq!((&ended["event"], &ended["outcome"]), (&"ended".into(), &"done".into()), "{ended}");
    assert_eq!((&ended["exit"], &ended["done_by"]["label"]), (&0.into(), &"first".into()), "{ended}");
    let history = || backend.subcommand("history").args(&["k", "--json"]).done().json_lines();
    let skipped = |run: &Value| run["outcome"] == "done" && run["done_by"]["label"] == "first";
    // On servers a run that has nothing to release does not wait for its entry.
    wait_until("the history has both", || history().iter().any(skipped));
    assert_eq!(history().iter().filter(|run| run["outcome"] == "ran").count(), 1);
    let text = backend.subcommand("history").args(&["k"]).done().expect_code(0).stdout;
    assert!(text.contains("0 done already by "), "{text}");
}

fn status_of(backend: &Backend) -> Value {
    backend.subcommand("status").args(&["k", "--json"]).done().json()
}

fn status_shows_who_did_it_and_when(backend: &Backend) {
    assert_eq!(status_of(backend).get("done"), None);
    let doing = hold(once(backend).args(&["--label", "migration"]));
    assert_eq!(status_of(backend).get("done"), None);
    let pid = doing.pid();
    doing.wait().expect_code(0);
    let status = status_of(backend);
    assert_eq!((&status["done"]["label"], &status["done"]["pid"]), (&"migration".into(), &pid.into()));
    assert!(status["done"]["ago_ms"].as_u64().is_some_and(|ago| ago < 60_000), "{status}");
    assert!(status["done"]["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{status}");
    let text = backend.subcommand("status").args(&["k"]).done().stdout;
    assert!(text.contains(&format!(" pid {pid} (migration, sh) (--once)")), "{text}");
}

fn break_forgets_the_mark_of_a_free_lock(backend: &Backend) {
    once(backend).cmd(&["true"]).done().expect_code(0);
    let break_lock = |args: &[&str]| backend.subcommand("break").arg("k").args(args).done();
    let asked = break_lock(&[]).expect_code(75);
    assert!(asked.stdout.starts_with("\"k\" is free, and was done "), "{asked:?}");
    let forgot = break_lock(&["--yes"]).expect_code(0);
    assert!(forgot.stdout.starts_with("\"k\" is free; forgot that it was done "), "{forgot:?}");
    assert_eq!(break_lock(&["--yes"]).expect_code(0).stdout, "\"k\" is free\n");
    noting(backend, "again").done().expect_code(0);
    assert_eq!(backend.order(), ["again"]);
}

fn break_of_a_held_lock_leaves_an_older_mark(backend: &Backend) {
    once(backend).cmd(&["true"]).done().expect_code(0);
    let holder = hold(backend.run());
    backend.subcommand("break").args(&["k", "--yes"]).done().expect_code(0);
    holder.wait().expect_code(79);
    assert_skipped(noting(backend, "never").done());
}

fn all_of_several_keys_must_be_done(backend: &Backend) {
    let on = |keys: &[&str], word: &str| {
        backend.run_on(keys).args(&["--once", "1h"]).sh(&format!("echo {word} >> order"))
    };
    on(&["a"], "a").done().expect_code(0);
    on(&["a", "b"], "both").done().expect_code(0);
    for keys in [&["b"][..], &["b", "a"]] {
        let done = on(keys, "never").done().expect_code(0);
        let were = if keys.len() == 1 { "\"b\" was done " } else { "\"b\", \"a\" were done " };
        assert!(done.stderr.contains(were) && done.stderr.contains("not run again"), "{done:?}");
    }
    assert_eq!(backend.order(), ["a", "both"]);
}

fn a_minimum_hold_does_not_delay_the_others(backend: &Backend) {
    once(backend).args(&["--min-hold", "1h"]).cmd(&["true"]).done().expect_code(0);
    assert_skipped(noting(backend, "never").done());
}

fn the_wait_line_says_who_is_doing_it(backend: &Backend) {
    let doing = hold(once(backend).args(&["--label", "migration"]));
    let waiter = backend.waiter(once(backend).cmd(&["true"]), 1);
    let line = waiter.wait_for_stderr("waiting for");
    assert!(line.contains(&format!(" pid {} (migration, sh) is doing it since ", doing.pid())), "{line}");
    doing.wait().expect_code(0);
    assert_skipped(waiter.wait());
}

fn runs_that_hold_the_lock_together_cannot_have_it(backend: &Backend) {
    for mode in [&["--shared"][..], &["--slots", "2"]] {
        let done = once(backend).args(mode).cmd(&["true"]).done().expect_code(64);
        assert!(done.stderr.contains("cannot be used together"), "{done:?}");
    }
    for time in ["0", "367d", "soon"] {
        backend.run().args(&["--once", time]).cmd(&["true"]).done().expect_code(64);
    }
    once(backend).args(&["--slots", "1"]).cmd(&["true"]).done().expect_code(0);
}

#[test]
fn any_server_that_has_the_mark_is_enough() {
    let backend = Backend::three_servers();
    noting(&backend, "first").done().expect_code(0);
    let Locks::ThreeServers(nodes) = &backend.locks else { unreachable!() };
    let mark = nodes[0].cmd(&["GET", "lock-done:k"]);
    for without in [[1, 2], [0, 2], [0, 1]] {
        for at in 0..3 {
            nodes[at].cmd(&["SET", "lock-done:k", &mark]);
        }
        for at in without {
            nodes[at].cmd(&["DEL", "lock-done:k"]);
        }
        assert_skipped(noting(&backend, "never").done());
    }
    assert_eq!(backend.order(), ["first"]);
}
