//! `--slots N`: at most N holders at once, each with a number of its own, first come, first served.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    Backend, Job, Redis, Run, TREE, alive, assert_stays_free, expect_success, hold, tree_of, wait_until,
};

on_backends!(one_server, three_servers, this_host:
    twelve_runs_at_once_never_share_one_of_three_slots,
    all_slots_can_be_held_together_and_the_lowest_free_number_is_taken,
    waiters_for_a_slot_are_served_in_order_of_arrival,
    waiters_enter_together_when_several_slots_are_free,
    another_number_of_slots_is_refused_and_the_one_in_use_is_named,
    slots_and_the_other_modes_are_refused_on_one_key,
    one_slot_is_the_plain_lock,
    invalid_numbers_are_usage_errors,
    the_environment_sets_the_slots_and_the_command_line_overrides_it,
    a_run_inside_a_run_gets_another_slot_or_fails_at_once,
);

fn slots(backend: &Backend, n: &str) -> Run {
    backend.run().args(&["--slots", n])
}

/// Prints its slot and holds it until its stdin is closed.
const HOLD_SLOT: &str = "echo slot $REDLOCK_SLOT; read x; exit 0";

#[track_caller]
fn slot_of(job: &Job) -> String {
    job.wait_for_line("slot").trim_start_matches("slot ").to_owned()
}

#[track_caller]
fn hold_slot(run: Run) -> (Job, String) {
    let job = run.stdin_pipe().sh(HOLD_SLOT).spawn();
    let slot = slot_of(&job);
    (job, slot)
}

/// The slot that one attempt gets.
#[track_caller]
fn next_slot(run: Run) -> String {
    run.arg("-n").sh("echo $REDLOCK_SLOT").done().expect_code(0).stdout.trim().to_owned()
}

fn twelve_runs_at_once_never_share_one_of_three_slots(backend: &Backend) {
    let script = "echo in $REDLOCK_SLOT >> order; sleep 0.1; echo out $REDLOCK_SLOT >> order";
    let jobs: Vec<Job> = (0..12).map(|_| slots(backend, "3").sh(script).spawn()).collect();
    expect_success(jobs);
    let history = backend.order();
    assert_eq!(history.len(), 24);
    let mut inside = BTreeSet::new();
    for line in &history {
        let (what, slot) = line.split_once(' ').unwrap();
        assert!(["0", "1", "2"].contains(&slot), "{line:?} in {history:?}");
        let alone = if what == "in" { inside.insert(slot) } else { inside.remove(slot) };
        assert!(alone, "two had slot {slot}: {history:?}");
    }
    backend.all_free(&["k"]);
}

fn all_slots_can_be_held_together_and_the_lowest_free_number_is_taken(backend: &Backend) {
    let (zero, one, two) =
        (hold_slot(slots(backend, "3")), hold_slot(slots(backend, "3")), hold_slot(slots(backend, "3")));
    assert_eq!([&zero.1, &one.1, &two.1], ["0", "1", "2"]);
    let refused = slots(backend, "3").arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(refused.stdout, "");
    assert!(refused.stderr.starts_with("redlock: "), "{refused:?}");
    one.0.wait().expect_code(0);
    assert_eq!(next_slot(slots(backend, "3")), "1");
    zero.0.wait().expect_code(0);
    assert_eq!(next_slot(slots(backend, "3")), "0", "0 and 1 are free");
    let again = [hold_slot(slots(backend, "3")), hold_slot(slots(backend, "3"))];
    assert_eq!([&again[0].1, &again[1].1], ["0", "1"]);
    assert!(!slots(backend, "3").try_acquire());
    again.into_iter().chain([two]).for_each(|(job, _)| drop(job.wait().expect_code(0)));
    backend.all_free(&["k"]);
}

fn waiters_for_a_slot_are_served_in_order_of_arrival(backend: &Backend) {
    let (leaves, stays) = (hold(slots(backend, "2")), hold(slots(backend, "2")));
    let waiters: Vec<Job> =
        (0..5).map(|i| backend.noting_waiter(slots(backend, "2"), &i.to_string(), i + 1)).collect();
    assert!(!slots(backend, "2").try_acquire());
    leaves.wait().expect_code(0);
    // One slot is free: they pass through it one by one.
    expect_success(waiters);
    assert_eq!(backend.order(), ["0", "1", "2", "3", "4"]);
    stays.wait().expect_code(0);
}

fn waiters_enter_together_when_several_slots_are_free(backend: &Backend) {
    let holders: Vec<Job> = (0..3).map(|_| hold(slots(backend, "3"))).collect();
    let waiters: Vec<Job> = (1..=4)
        .map(|position| backend.waiter(slots(backend, "3").stdin_pipe().sh(HOLD_SLOT), position))
        .collect();
    expect_success(holders);
    // Three of them while none has left.
    let taken: BTreeSet<String> = waiters[..3].iter().map(slot_of).collect();
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), ["0", "1", "2"]);
    assert_eq!(waiters[3].stdout_so_far(), "");
    expect_success(waiters);
    backend.all_free(&["k"]);
}

/// Refused with 78, with and without waiting; the message names the number in use.
#[track_caller]
fn assert_mismatch(run: Run, in_use: Option<u32>) {
    for run in [run.clone(), run.arg("-n")] {
        let done = run.sh("echo ran").done().expect_code(78).expect_stderr(&["slot"]);
        assert_eq!(done.stdout, "");
        if let Some(n) = in_use {
            done.expect_stderr(&[&format!("--slots {n}"), &format!("{n} slots"), &format!("slots={n}")]);
        }
    }
}

fn another_number_of_slots_is_refused_and_the_one_in_use_is_named(backend: &Backend) {
    let holder = hold(slots(backend, "3"));
    assert_mismatch(slots(backend, "4"), Some(3));
    assert_mismatch(slots(backend, "2"), Some(3));
    assert_eq!(next_slot(slots(backend, "3")), "1", "the right number is let in");
    holder.wait().expect_code(0);
    // It is free: any number is accepted.
    let holder = hold(slots(backend, "1024"));
    assert_mismatch(slots(backend, "1023"), Some(1024));
    holder.wait().expect_code(0);
}

fn slots_and_the_other_modes_are_refused_on_one_key(backend: &Backend) {
    let holder = hold(slots(backend, "5"));
    assert_mismatch(backend.run(), Some(5));
    assert_mismatch(backend.reader(), Some(5));
    assert_mismatch(slots(backend, "1"), Some(5));
    holder.wait().expect_code(0);
    let writer = hold(backend.run());
    assert_mismatch(slots(backend, "5"), None);
    writer.wait().expect_code(0);
    let reader = hold(backend.reader());
    assert_mismatch(slots(backend, "5"), None);
    reader.wait().expect_code(0);
    assert_eq!(next_slot(slots(backend, "5")), "0");
}

fn one_slot_is_the_plain_lock(backend: &Backend) {
    let (holder, slot) = hold_slot(slots(backend, "1"));
    assert_eq!(slot, "0");
    assert!(
        !backend.run().try_acquire() && !backend.reader().try_acquire() && !slots(backend, "1").try_acquire()
    );
    let waiters = [
        backend.noting_waiter(backend.run(), "plain", 1),
        backend.noting_waiter(slots(backend, "1"), "slot", 2),
        backend.noting_waiter(backend.reader(), "reader", 3),
    ];
    holder.wait().expect_code(0);
    expect_success(waiters);
    assert_eq!(backend.order(), ["plain", "slot", "reader"]);
}

fn invalid_numbers_are_usage_errors(backend: &Backend) {
    for n in ["0", "1025", "-1", "1.5", "many", "", "99999999999999999999"] {
        let run = backend.run().arg(format!("--slots={n}"));
        let done = run.sh("echo ran").done().expect_code(64).expect_stderr(&["slots"]);
        assert_eq!(done.stdout, "", "{n:?}");
    }
    backend.run().env("REDLOCK_SLOTS", "0").cmd(&["true"]).done().expect_code(64);
    slots(backend, "2").arg("--shared").cmd(&["true"]).done().expect_code(64);
    assert_eq!(next_slot(slots(backend, "1024")), "0");
}

fn the_environment_sets_the_slots_and_the_command_line_overrides_it(backend: &Backend) {
    let inherits = |n: &str| backend.run().env("REDLOCK_SLOTS", n);
    let (holder, slot) = hold_slot(inherits("2").env("REDLOCK_SLOT", "77"));
    assert_eq!(slot, "0");
    assert_eq!(next_slot(slots(backend, "2")), "1");
    assert_eq!(next_slot(inherits("9").args(&["--slots", "2"])), "1");
    assert_mismatch(inherits(""), Some(2)); // empty means not set: the plain lock
    holder.wait().expect_code(0);
}

fn a_run_inside_a_run_gets_another_slot_or_fails_at_once(backend: &Backend) {
    let nested = |n: &str| crate::support::nested(slots(backend, n), slots(backend, n));
    assert_eq!(nested("2"), "ran\ninner=0\n");
    assert_eq!(nested("1"), "inner=64\n");
    // Other runs have all the other slots: it could wait for them, but its own ancestor is in the
    // way.
    let other = hold(slots(backend, "2"));
    assert_eq!(nested("2"), "inner=64\n");
    other.wait().expect_code(0);
    // The number is that of the run around it, and a run without slots has none.
    let inner = backend.run_on(&["j"]).sh("echo inner=$REDLOCK_SLOT").shell_line();
    let done = slots(backend, "2").sh(&format!("echo outer=$REDLOCK_SLOT; {inner}")).done().expect_code(0);
    assert_eq!(done.stdout, "outer=0\ninner=\n");
}

#[test]
fn the_slot_of_a_holder_killed_with_its_guardian_becomes_free_after_its_ttl() {
    let backend = Backend::one_server();
    let (stays, _) = hold_slot(slots(&backend, "2").args(&["--ttl", "60s"]));
    let (victim, slot) = hold_slot(slots(&backend, "2").args(&["--ttl", "6s"]));
    let waiter = backend.waiter(slots(&backend, "2").stdin_pipe().sh(HOLD_SLOT), 1);
    let killed = Instant::now();
    victim.kill_with_guardian();
    assert_eq!(slot_of(&waiter), slot);
    assert!(killed.elapsed() > Duration::from_secs(1), "before its lease ended: {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    assert!(!slots(&backend, "2").try_acquire(), "both are taken once more");
    waiter.wait().expect_code(0);
    stays.wait().expect_code(0);
}

#[test]
fn the_slot_of_a_killed_holder_becomes_free_on_this_host_when_its_tree_is_gone() {
    let backend = Backend::this_host();
    let (stays, _) = hold_slot(slots(&backend, "2"));
    let victim = slots(&backend, "2").sh(TREE).spawn();
    let tree = tree_of(&victim);
    let waiter = backend.waiter(slots(&backend, "2").stdin_pipe().sh(HOLD_SLOT), 1);
    victim.signal(Signal::SIGKILL);
    victim.wait();
    assert_eq!(slot_of(&waiter), "1");
    assert!(tree.iter().all(|pid| !alive(*pid)), "{tree:?}");
    waiter.wait().expect_code(0);
    stays.wait().expect_code(0);
}

#[test]
fn a_slot_is_kept_longer_than_its_ttl_and_lost_with_the_servers_data() {
    let backend = Backend::one_server();
    let redis = backend.server();
    let run = || slots(&backend, "2").args(&["--ttl", "3s"]);
    let (mut holders, start) = ([hold(run()), hold(run())], Instant::now());
    while start.elapsed() < Duration::from_secs(6) {
        assert!(!slots(&backend, "2").try_acquire(), "after {:?}", start.elapsed());
    }
    redis.cmd(&["FLUSHALL"]);
    wait_until("both are stopped", || holders.iter_mut().all(|job| !job.is_running()));
    holders.into_iter().for_each(|job| drop(job.wait().expect_code(79)));
    assert_stays_free(redis);
}

#[test]
fn slots_and_a_foreign_set_nx_exclude_each_other() {
    let redis = Redis::start();
    let slots = || Run::key(&redis, "k").args(&["--slots", "2"]);
    let foreign = ["SET", "lock:k", "someone else", "NX", "PX", "60000"];
    let holder = hold(slots());
    assert_eq!(redis.cmd(&foreign), "");
    holder.wait().expect_code(0);
    assert_eq!(redis.cmd(&foreign), "OK");
    // Held, or held by a program without slots: both are refusals.
    let refused = slots().arg("-n").sh("echo ran").done();
    assert!(matches!(refused.code, Some(75 | 78)) && refused.stdout.is_empty(), "{refused:#?}");
    assert_eq!(redis.cmd(&["GET", "lock:k"]), "someone else");
}
