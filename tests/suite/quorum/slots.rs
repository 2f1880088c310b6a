//! Slots on several servers: a majority votes for a number, whatever happens to a minority.

use std::collections::BTreeSet;

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
