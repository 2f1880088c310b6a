//! `--supersede`: only the newest of the runs that wait with this option stays.

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGTERM};

use crate::support::host::tickets_waiting;
use crate::support::processes::wait_until_asleep;
use crate::support::{
    Backend, Done, Job, Locks, Run, expect_success, hold, wait_for_sleeping_waiter, wait_until,
};

on_backends!(one_server, three_servers, this_host:
    an_older_waiter_gives_up_at_once_and_names_its_successor,
    exactly_one_of_ten_simultaneous_runs_stays,
    the_holder_and_waiters_without_the_option_are_left_alone,
    readers_and_writers_supersede_each_other,
    the_conflict_exit_code_can_be_chosen_and_zero_skips_quietly,
    a_killed_or_cancelled_waiter_is_superseded_without_a_trace,
    the_last_event_has_the_outcome_and_the_successor,
    a_stopped_waiter_gives_up_when_it_is_continued,
    a_single_common_key_of_several_is_enough,
    a_run_that_does_not_queue_supersedes_no_waiter,
    a_waiter_stays_if_no_newer_one_comes,
    a_later_round_is_not_superseded_by_an_earlier_one;
one_server, three_servers: a_newer_run_that_does_not_have_to_wait_supersedes_as_well
);

fn superseding(backend: &Backend) -> Run {
    backend.run().arg("--supersede")
}

#[track_caller]
fn assert_superseded(done: Done, by: &str) {
    let done = done.expect_code(75);
    assert_eq!(done.stdout, "", "{done:?}");
    // After wait lines, if it was stopped for long.
    let message = done.stderr.lines().last().unwrap_or_default();
    let who = message.split_once(": superseded by ").map(|(_, who)| who);
    let gave_up = message.starts_with("redlock: gave up on \"k\" after ");
    assert!(gave_up && who.is_some_and(|who| who.contains(by)), "{done:?}");
}

/// Its messages except that it waits and then has the lock: both are printed after two seconds,
/// which a busy machine may take.
fn messages_except_wait(done: &Done) -> Vec<&str> {
    let is_of_a_wait = |line: &&str| {
        ["redlock: waiting for \"k\"", "redlock: got \"k\" after "]
            .iter()
            .any(|message| line.starts_with(message))
    };
    done.stderr.lines().filter(|line| !is_of_a_wait(line)).collect()
}

fn an_older_waiter_gives_up_at_once_and_names_its_successor(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let label = |n: usize| format!("deploy {n}");
    let run = |n: usize| superseding(backend).args(&["--label", &label(n)]).sh(&format!("echo {n} >> order"));
    let mut newest = backend.waiter(run(0), 1);
    for n in 1..5 {
        let older = std::mem::replace(&mut newest, run(n).spawn());
        assert_superseded(older.wait(), &format!("pid {} ({}, sh)", newest.pid(), label(n)));
        backend.queued(1);
    }
    first.wait().expect_code(0);
    assert_eq!(messages_except_wait(&newest.wait().expect_code(0)), Vec::<&str>::new());
    assert_eq!(backend.order(), ["4"]);
    backend.queued(0);
    backend.all_free(&["k"]);
}

fn exactly_one_of_ten_simultaneous_runs_stays(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let mut jobs: Vec<Job> = (0..10).map(|_| superseding(backend).sh("echo ran >> order").spawn()).collect();
    wait_until("nine have given up", || {
        jobs.iter_mut().map(Job::is_running).filter(|runs| *runs).count() == 1
    });
    backend.queued(1);
    first.wait().expect_code(0);
    let codes: Vec<Option<i32>> = jobs.into_iter().map(|job| job.wait().code).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(75)).count(), 9, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert_eq!(backend.order(), ["ran"]);
    backend.all_free(&["k"]);
}

fn the_holder_and_waiters_without_the_option_are_left_alone(backend: &Backend) {
    let first = hold(backend.run_for_long().arg("--supersede"));
    let plain = backend.noting_waiter(backend.run(), "plain", 1);
    let older = backend.noting_waiter(superseding(backend), "older", 2);
    let reader = backend.noting_waiter(backend.reader(), "reader", 3);
    let newer = superseding(backend).sh("echo newer >> order").spawn();
    assert_superseded(older.wait(), &format!("pid {}", newer.pid()));
    backend.queued(3);
    let last = backend.noting_waiter(backend.run(), "last", 4);
    assert_eq!(first.wait().expect_code(0).stderr, "");
    expect_success([plain, reader, newer, last]);
    assert_eq!(backend.order(), ["plain", "reader", "newer", "last"]);
    backend.all_free(&["k"]);
}

fn readers_and_writers_supersede_each_other(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let reader = || superseding(backend).arg("--shared");
    let ways: [Run; 4] = [
        superseding(backend),
        reader(),
        reader().args(&["--reader-group", "a", "--prefer", "readers"]),
        superseding(backend).args(&["--prefer", "writers"]),
    ];
    let mut older = backend.waiter(reader().cmd(&["true"]), 1);
    for way in ways {
        let newer = way.sh("echo in").spawn();
        assert_superseded(std::mem::replace(&mut older, newer).wait(), &format!("pid {}", older.pid()));
        backend.queued(1);
    }
    first.wait().expect_code(0);
    assert_eq!(older.wait().expect_code(0).stdout, "in\n");
    backend.all_free(&["k"]);
}

fn the_conflict_exit_code_can_be_chosen_and_zero_skips_quietly(backend: &Backend) {
    let first = hold(backend.run_for_long());
    for (args, code, lines) in [(&["-E", "9"][..], 9, 1), (&["-E", "0"], 0, 0), (&["-q"], 75, 0)] {
        let older = backend.waiter(superseding(backend).args(args).sh("echo ran"), 1);
        let newer = superseding(backend).sh("echo ran").spawn();
        let done = older.wait().expect_code(code);
        assert_eq!((done.stdout.as_str(), messages_except_wait(&done).len()), ("", lines), "{done:?}");
        newer.signal(SIGTERM);
        newer.wait();
        backend.queued(0);
    }
    first.wait().expect_code(0);
}

fn a_killed_or_cancelled_waiter_is_superseded_without_a_trace(backend: &Backend) {
    let first = hold(backend.run_for_long());
    for signal in [SIGKILL, SIGTERM] {
        let older = superseding(backend).sh("echo older >> order").spawn();
        wait_until("the run waits", || !queue_is_empty(backend));
        older.signal(signal);
        older.wait();
    }
    let newer = superseding(backend).sh("echo newer >> order").spawn();
    backend.queued(1); // the killed run's place is gone, too
    first.wait().expect_code(0);
    newer.wait().expect_code(0);
    assert_eq!(backend.order(), ["newer"]);
    backend.all_free(&["k"]);
}

fn queue_is_empty(backend: &Backend) -> bool {
    match &backend.locks {
        Locks::OneServer(redis) => redis.queue_len("k") == 0,
        Locks::ThreeServers(nodes) => nodes[0].queue_len("k") == 0,
        Locks::ThisHost(host) => tickets_waiting(&host.file()) == 0,
    }
}

/// Stops a waiter that sleeps behind a holder: one that is stopped earlier may have more than its
/// place, on this host even the mutex of the queue.
fn stop_asleep(backend: &Backend, waiter: &Job) {
    match backend.gate() {
        Some(gate) => wait_for_sleeping_waiter(gate),
        None => wait_until_asleep(waiter.pid()),
    }
    waiter.stop();
}

fn a_stopped_waiter_gives_up_when_it_is_continued(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let older = backend.noting_waiter(superseding(backend), "older", 1);
    stop_asleep(backend, &older);
    let newer = superseding(backend).sh("echo newer >> order").spawn();
    let by = format!("pid {}", newer.pid());
    if backend.is_this_host() {
        // The kernel has no leases: a stopped waiter keeps its place until it is continued.
        backend.queued(2);
        older.signal(SIGCONT);
        assert_superseded(older.wait(), &by);
        first.wait().expect_code(0);
        newer.wait().expect_code(0);
    } else {
        let pid = newer.pid().to_string();
        wait_until("the newer one has taken its place", || newest(backend).contains(&pid));
        first.wait().expect_code(0);
        newer.wait().expect_code(0);
        older.signal(SIGCONT);
        assert_superseded(older.wait(), &by);
    }
    assert_eq!(backend.order(), ["newer"]);
    backend.all_free(&["k"]);
}

/// The newest superseding request on the servers.
fn newest(backend: &Backend) -> String {
    match &backend.locks {
        Locks::OneServer(redis) => redis.cmd(&["GET", "lock-newest:k"]),
        Locks::ThreeServers(nodes) => nodes[0].cmd(&["GET", "lock-newest:k"]),
        Locks::ThisHost(_) => unreachable!("there is no server"),
    }
}

fn a_newer_run_that_does_not_have_to_wait_supersedes_as_well(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let older = backend.noting_waiter(superseding(backend), "older", 1);
    stop_asleep(backend, &older);
    first.wait().expect_code(0);
    // The stopped waiter loses its place; until then the newer one may have to wait.
    let newer = superseding(backend).sh("echo newer >> order").spawn();
    let newer_pid = newer.pid();
    newer.wait().expect_code(0);
    older.signal(SIGCONT);
    assert_superseded(older.wait(), &format!("pid {newer_pid}"));
    assert_eq!(backend.order(), ["newer"]);
}

fn a_single_common_key_of_several_is_enough(backend: &Backend) {
    let run = |keys: &[&str], word: &str| {
        backend.run_on(keys).arg("--supersede").sh(&format!("echo {word} >> order"))
    };
    let first = hold(backend.run_for_long());
    let older = backend.waiter(run(&["k", "a"], "older"), 1);
    let other = run(&["b"], "other");
    other.done().expect_code(0); // no common key
    let newer = run(&["b", "k"], "newer").spawn();
    assert_superseded(older.wait(), &format!("pid {}", newer.pid()));
    // What it held or waited for is free.
    assert!(backend.run_on(&["a"]).try_acquire(), "the other key is free");
    first.wait().expect_code(0);
    newer.wait().expect_code(0);
    assert_eq!(backend.order(), ["other", "newer"]);
    backend.all_free(&["a", "b", "k"]);
}

fn a_run_that_does_not_queue_supersedes_no_waiter(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let waiter = backend.noting_waiter(superseding(backend), "waiter", 1);
    for how in [&["-n"][..], &["--retries", "1", "--retry-interval", "10ms"]] {
        let done = superseding(backend).args(how).sh("echo ran >> order").done().expect_code(75);
        assert!(done.stderr.contains("held by"), "{done:?}");
    }
    first.wait().expect_code(0);
    assert_eq!(messages_except_wait(&waiter.wait().expect_code(0)), Vec::<&str>::new());
    assert_eq!(backend.order(), ["waiter"]);
}

fn a_waiter_stays_if_no_newer_one_comes(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let done = superseding(backend).args(&["-w", "300ms"]).sh("echo ran").done().expect_code(75);
    assert!(done.stderr.contains("held by"), "{done:?}");
    // A run that gave up does not supersede later ones.
    let next = backend.noting_waiter(superseding(backend), "next", 1);
    first.wait().expect_code(0);
    next.wait().expect_code(0);
    assert_eq!(backend.order(), ["next"]);
}

fn a_later_round_is_not_superseded_by_an_earlier_one(backend: &Backend) {
    for _ in 0..3 {
        superseding(backend).sh("echo ran >> order").done().expect_code(0);
        let first = hold(superseding(backend));
        let next = backend.waiter(superseding(backend).sh("echo ran >> order"), 1);
        first.wait().expect_code(0);
        next.wait().expect_code(0);
    }
    assert_eq!(backend.order().len(), 6);
    backend.all_free(&["k"]);
}

fn the_last_event_has_the_outcome_and_the_successor(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let older =
        backend.waiter(superseding(backend).args(&["--events", "events", "-E", "9"]).sh("echo ran"), 1);
    let newer = superseding(backend).args(&["--label", "second"]).cmd(&["true"]).spawn();
    older.wait().expect_code(9);
    let events = backend.noted("events");
    let ended: serde_json::Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!((&ended["event"], &ended["outcome"]), (&"ended".into(), &"superseded".into()), "{ended}");
    assert_eq!((&ended["exit"], &ended["superseded_by"]["label"]), (&9.into(), &"second".into()), "{ended}");
    assert_eq!(ended["superseded_by"]["pid"], newer.pid(), "{ended}");
    first.wait().expect_code(0);
    newer.wait().expect_code(0);
}
