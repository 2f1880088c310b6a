//! Slots on several servers: a majority votes for a number, whatever happens to a minority.

use std::collections::BTreeSet;

use crate::support::nodes::settle;
use crate::support::{Job, Nodes, Redis, Run, expect_success, wait_until};

fn hold_slot(run: Run) -> (Job, String) {
    let job = run.stdin_pipe().sh("echo slot $REDLOCK_SLOT; read x; exit 0").spawn();
    let slot = job.wait_for_line("slot").trim_start_matches("slot ").to_owned();
    (job, slot)
}

/// The slots that are taken on this server.
fn slots_at(redis: &Redis) -> BTreeSet<String> {
    let entries = redis.cmd(&["ZRANGE", "lock-shared:k", "0", "-1"]);
    entries.lines().filter_map(|entry| entry.split_once('/')).map(|(_, slot)| slot.to_owned()).collect()
}

#[track_caller]
fn wait_for_slots_everywhere(nodes: &Nodes, slots: &[&str]) {
    let slots: BTreeSet<String> = slots.iter().map(|slot| (*slot).to_owned()).collect();
    wait_until("every living server has these slots", || nodes.up().all(|redis| slots_at(redis) == slots));
}

fn slots(nodes: &Nodes, n: &str) -> Run {
    nodes.run("k").args(&["--slots", n, "--ttl", "60s"])
}

#[test]
fn every_server_has_the_same_number_for_a_holder() {
    let nodes = Nodes::start(3);
    let ((first, zero), (second, one)) = (hold_slot(slots(&nodes, "3")), hold_slot(slots(&nodes, "3")));
    assert_eq!((zero.as_str(), one.as_str()), ("0", "1"));
    wait_for_slots_everywhere(&nodes, &["0", "1"]);
    first.wait().expect_code(0);
    wait_for_slots_everywhere(&nodes, &["1"]);
    let (third, again) = hold_slot(slots(&nodes, "3"));
    assert_eq!(again, "0", "the lowest that is free");
    expect_success([second, third]);
    nodes.all_free();
}

#[test]
fn slots_are_unique_while_any_one_server_is_down() {
    for down in 0..3 {
        let mut nodes = Nodes::start(3);
        nodes[down].kill();
        let holders: Vec<(Job, String)> = (0..3).map(|_| hold_slot(slots(&nodes, "3"))).collect();
        let numbers: BTreeSet<&str> = holders.iter().map(|(_, slot)| slot.as_str()).collect();
        assert_eq!(numbers.len(), 3, "server {down} is down: {numbers:?}");
        slots(&nodes, "3").arg("-n").sh("echo ran").done().expect_code(75);
        expect_success(holders.into_iter().map(|(job, _)| job));
    }
}

#[test]
fn a_slot_that_a_minority_has_given_to_another_run_is_outvoted() {
    let nodes = Nodes::start(3);
    // As a stray vote of a run that has ended would.
    let stray = nodes.run("k").args(&["--slots", "2", "--ttl", "60s"]);
    let (job, slot) = hold_slot(stray);
    assert_eq!(slot, "0");
    nodes
        .iter()
        .take(2)
        .for_each(|redis| drop(redis.cmd(&["DEL", "lock:k", "lock-shared:k", "lock-info:k"])));
    let (next, slot) = hold_slot(slots(&nodes, "2"));
    assert_eq!(slot, "0", "two servers name and confirm it");
    assert!(nodes[2].cmd(&["ZCARD", "lock-shared:k"]).trim() == "1", "the third one keeps its holder");
    next.wait().expect_code(0);
    job.wait();
}

#[test]
fn a_healed_server_has_the_number_of_the_holder() {
    let nodes = Nodes::start(3);
    let run = |nodes: &Nodes| nodes.run("k").args(&["--slots", "3", "--ttl", "4s"]);
    let ((first, _), (second, one)) = (hold_slot(run(&nodes)), hold_slot(run(&nodes)));
    assert_eq!(one, "1");
    first.wait().expect_code(0);
    wait_for_slots_everywhere(&nodes, &["1"]);
    nodes[2].cmd(&["DEL", "lock:k", "lock-shared:k", "lock-info:k"]);
    wait_for_slots_everywhere(&nodes, &["1"]);
    second.wait().expect_code(0);
    nodes.all_free();
}

/// The gate was down when a run took its slot, and does not know it until the run's next renewal.
fn hold_unknown_to_the_gate(nodes: &mut Nodes, run: impl Fn(&Nodes) -> Run) -> Job {
    nodes.settle();
    nodes[0].kill();
    let (job, slot) = hold_slot(run(nodes));
    assert_eq!(slot, "0");
    nodes[0].restart();
    settle(&nodes[0]);
    job
}

#[test]
fn a_slot_that_the_gate_does_not_know_hides_no_free_one() {
    let mut nodes = Nodes::start(3);
    let run = |nodes: &Nodes| nodes.run("k").args(&["--slots", "3"]);
    let unknown = hold_unknown_to_the_gate(&mut nodes, run);
    let (second, one) = hold_slot(run(&nodes).arg("-n"));
    let (third, two) = hold_slot(run(&nodes));
    assert_eq!((one.as_str(), two.as_str()), ("1", "2"));
    run(&nodes).arg("-n").sh("echo ran").done().expect_code(75);
    expect_success([unknown, second, third]);
    nodes.all_free();
}

#[test]
fn a_waiter_gets_the_slot_that_is_released_first() {
    let mut nodes = Nodes::start(3);
    let run = |nodes: &Nodes| nodes.run("k").args(&["--slots", "2"]);
    let unknown = hold_unknown_to_the_gate(&mut nodes, run);
    let (second, _) = hold_slot(run(&nodes));
    let waiter = run(&nodes).stdin_pipe().sh("echo slot $REDLOCK_SLOT; read x; exit 0").spawn();
    let urls = nodes.urls().join(",");
    wait_until("the run waits", || {
        let found = Run::bare().args(&["status", "k", "--json", "-r", &urls]).done().json();
        found["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
    });
    second.wait().expect_code(0);
    assert_eq!(waiter.wait_for_line("slot"), "slot 1");
    expect_success([unknown, waiter]);
    nodes.all_free();
}

/// The gate has lost the claims of the holders, which have the same gate: they may be about to be
/// released.
#[test]
fn a_request_that_does_not_wait_tries_each_slot_once() {
    let nodes = Nodes::start(3);
    let holders = [hold_slot(slots(&nodes, "2")).0, hold_slot(slots(&nodes, "2")).0];
    nodes[0].cmd(&["DEL", "lock:k", "lock-shared:k", "lock-info:k"]);
    let run = slots(&nodes, "2").args(&["--ttl", "2s", "--node-timeout", "600ms", "-n", "--events=-"]);
    let done = run.sh("echo ran").done().expect_code(75);
    assert!(done.stderr.contains(r#""attempts":3,"#), "0, 1, and the wait for 0: {done:?}");
    expect_success(holders);
    nodes.all_free();
}

/// The slot is taken on one server, which is not needed until another one fails.
#[test]
fn a_server_that_fails_late_hides_no_free_slot() {
    let mut nodes = Nodes::start(3);
    let run = |nodes: &Nodes| nodes.run("k").args(&["--slots", "3", "--node-timeout", "300ms"]);
    let unknown = hold_unknown_to_the_gate(&mut nodes, run);
    nodes[2].stop();
    let (second, slot) = hold_slot(run(&nodes).arg("-n"));
    assert_eq!(slot, "1");
    nodes[2].cont();
    expect_success([unknown, second]);
}
