//! --min-hold: the lock stays taken for that long after the grant, and redlock does not wait for
//! it.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};

use crate::support::{Backend, Job, Run, TREE, alive, hold, tree_of, wait_until};

on_backends!(
    one_server, three_servers, this_host:
        the_first_waiter_gets_the_lock_by_itself_when_the_time_ends,
        attempts_waits_and_signals_work_as_usual_while_the_lock_stays,
        a_command_that_takes_longer_frees_the_lock_when_it_exits,
        a_killed_run_keeps_the_lock_and_its_tree_is_gone,
        a_run_that_max_hold_ends_keeps_the_lock,
        a_command_that_cannot_be_started_frees_the_lock_at_once,
        a_cancelled_waiter_keeps_nothing,
        a_readers_entry_stays_and_keeps_writers_out_but_not_readers,
        a_writer_enters_by_itself_when_the_readers_time_ends,
        several_keys_all_stay_taken;
    one_server, three_servers, this_host:
        a_slot_stays_taken_with_its_number,
        a_waiter_gets_the_slot_by_itself_when_its_time_ends,
);

/// Holds the key with this --min-hold and more arguments, until its stdin is closed.
fn hold_at_least(backend: &Backend, time: &str, args: &[&str]) -> Job {
    hold(backend.run_for_long().args(&["--min-hold", time]).args(args))
}

fn the_first_waiter_gets_the_lock_by_itself_when_the_time_ends(backend: &Backend) {
    const TIME: Duration = Duration::from_millis(1500);
    let directory = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let first = hold_at_least(backend, "1500ms", &[]);
    let waiters: Vec<Job> = (1..=2)
        .map(|n| backend.waiter(backend.run().dir(directory.path()).sh(&format!("echo {n} >> order")), n))
        .collect();
    first.wait().expect_code(0);
    let order = || std::fs::read_to_string(directory.path().join("order")).unwrap_or_default();
    wait_until("the first waiter has the lock", || !order().is_empty());
    assert!(start.elapsed() >= TIME, "{:?} after the start", start.elapsed());
    for waiter in waiters {
        waiter.wait().expect_code(0);
    }
    assert_eq!(order(), "1\n2\n");
}

fn attempts_waits_and_signals_work_as_usual_while_the_lock_stays(backend: &Backend) {
    hold_at_least(backend, "1m", &[]).wait().expect_code(0);
    backend.run().arg("-n").sh("echo ran").done().expect_code(75);
    let start = Instant::now();
    backend.run().args(&["-w", "1.5"]).sh("echo ran").done().expect_code(75);
    assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
    backend.run().args(&["--retries", "1", "--retry-interval", "9ms"]).cmd(&["true"]).done().expect_code(75);
    let waiter = backend.waiter(backend.run().sh("echo ran"), 1);
    waiter.signal(SIGTERM);
    assert_eq!(waiter.wait().signal, Some(SIGTERM as i32));
    assert!(!backend.is_free());
}

fn a_command_that_takes_longer_frees_the_lock_when_it_exits(backend: &Backend) {
    backend.run_for_long().args(&["--min-hold", "300ms"]).sh("sleep 0.4").done().expect_code(0);
    assert!(backend.is_free());
}

fn a_killed_run_keeps_the_lock_and_its_tree_is_gone(backend: &Backend) {
    let job = backend.run_for_long().args(&["--min-hold", "1m"]).sh(TREE).spawn();
    let tree = tree_of(&job);
    job.signal(SIGKILL);
    job.wait();
    wait_until("the tree is gone", || !tree.iter().any(|pid| alive(*pid)));
    assert!(!backend.is_free());
}

fn a_run_that_max_hold_ends_keeps_the_lock(backend: &Backend) {
    let run = backend.run_for_long().args(&["--min-hold", "1m", "--max-hold", "300ms"]);
    run.sh("exec sleep 60").done().expect_code(124);
    assert!(!backend.is_free());
}

fn a_command_that_cannot_be_started_frees_the_lock_at_once(backend: &Backend) {
    for (command, code) in [("/no/such/command", 127), ("/etc/passwd", 126)] {
        backend.run().args(&["--min-hold", "1m"]).cmd(&[command]).done().expect_code(code);
        assert!(backend.is_free(), "{code}");
    }
}

fn a_cancelled_waiter_keeps_nothing(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let waiter = backend.waiter(backend.run().args(&["--min-hold", "1m"]).sh("echo ran"), 1);
    waiter.signal(SIGTERM);
    assert_eq!(waiter.wait().signal, Some(SIGTERM as i32));
    backend.run().args(&["-n", "--min-hold", "1m"]).cmd(&["true"]).done().expect_code(75);
    first.wait().expect_code(0);
    assert!(backend.is_free());
}

fn a_readers_entry_stays_and_keeps_writers_out_but_not_readers(backend: &Backend) {
    hold_at_least(backend, "1m", &["-s"]).wait().expect_code(0);
    // Readers without the option come and go; they must not remove this entry.
    for _ in 0..2 {
        backend.run().args(&["-n", "-s"]).cmd(&["true"]).done().expect_code(0);
    }
    // Nor does an expired lease, that of a killed reader, remove it.
    let killed = hold(backend.run().args(&["-n", "-s"]).args(backend.short_ttl()));
    killed.signal(SIGKILL);
    killed.wait();
    let writer = backend.run().args(&["-w", "4"]).sh("echo ran").done(); // longer than that lease
    assert_eq!(writer.code, Some(75));
}

fn a_writer_enters_by_itself_when_the_readers_time_ends(backend: &Backend) {
    let start = Instant::now();
    let reader = hold_at_least(backend, "1500ms", &["-s"]);
    let writer = backend.waiter(backend.run().sh("echo mine"), 1);
    reader.wait().expect_code(0);
    writer.wait_for_line("mine");
    assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
    writer.wait().expect_code(0);
    assert!(backend.is_free());
}

fn a_slot_stays_taken_with_its_number(backend: &Backend) {
    let slots = |args: &[&str]| backend.run().args(&["--slots", "2"]).args(args);
    let number = |run: Run| run.sh("echo $REDLOCK_SLOT").done().expect_code(0).stdout;
    assert_eq!(number(slots(&["--min-hold", "1m"])), "0\n");
    assert_eq!(number(slots(&["-n"])), "1\n", "slot 0 is still taken");
    assert_eq!(number(slots(&["-n", "--min-hold", "1m"])), "1\n");
    slots(&["-n"]).sh("echo ran").done().expect_code(75);
}

fn a_waiter_gets_the_slot_by_itself_when_its_time_ends(backend: &Backend) {
    let slots = |args: &[&str]| backend.run().args(&["--slots", "2"]).args(args);
    let start = Instant::now();
    let stays = hold(slots(&[]));
    slots(&["--min-hold", "1500ms"]).cmd(&["true"]).done().expect_code(0);
    let next = slots(&[]).sh("echo slot $REDLOCK_SLOT").done().expect_code(0);
    assert_eq!(next.stdout, "slot 1\n");
    assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
    stays.wait().expect_code(0);
}

fn several_keys_all_stay_taken(backend: &Backend) {
    let run = backend.run().args(&["--key", "second", "--min-hold", "1m"]);
    run.sh("exit 3").done().expect_code(3);
    assert!(!backend.is_free(), "the first key");
    backend.run_on(&["second"]).arg("-n").sh("echo ran").done().expect_code(75);
    let done = backend.run_on(&["third", "second"]).arg("-n").cmd(&["true"]).done().expect_code(75);
    assert!(done.stderr.contains("\"second\" is free again in "), "{done:?}");
    assert!(backend.run_on(&["third"]).try_acquire());
}
