//! Servers fall silent while a lock is held and other runs wait for it.

use super::{hold, queue, stopped};
use crate::support::{Journal, Network, queued};

/// Hosts 1 to 3 have a server each, of which the first is the gate; the runs are on host 4.
const RUNS: u8 = 4;

/// The holder keeps its lock, and the others get it in the order in which they came.
#[track_caller]
fn assert_unnoticed(network: &Network, cut: impl FnOnce(&Network)) {
    let (servers, journal) = (network.servers(&[1, 2, 3]), Journal::new());
    let run = || servers.run("k", "4s");
    let holder = hold(network.host(RUNS), run(), &journal, "holder");
    let waiters = ["second", "third"].map(|name| {
        let waiter = queue(network.host(RUNS), run(), &journal, name);
        let place = if name == "second" { 1 } else { 2 };
        servers.0[0].ask(|gate| queued(gate, "k", place));
        waiter
    });
    cut(network);
    // Two renewals later its lease would be over.
    servers.0[1].ask(|redis| crate::support::nodes::renewed(redis, "k", 3));
    holder.wait().expect_code(0);
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().expect_code(0)));
    assert_eq!(journal.started(), ["holder", "second", "third"]);
    assert!(journal.has_ended("holder"));
    network.mend();
    servers.wait_until_free("k");
}

#[test]
fn a_silent_gate_costs_neither_the_lock_nor_the_order() {
    assert_unnoticed(&network!(4), |network| network.cut_off(1));
}

#[test]
fn a_gate_that_receives_nothing_costs_neither_the_lock_nor_the_order() {
    assert_unnoticed(&network!(4), |network| network.cut_one_way(RUNS, 1));
}

#[test]
fn a_gate_whose_replies_are_lost_costs_neither_the_lock_nor_the_order() {
    assert_unnoticed(&network!(4), |network| network.cut_one_way(1, RUNS));
}

#[test]
fn a_silent_minority_costs_neither_the_lock_nor_the_order() {
    assert_unnoticed(&network!(4), |network| network.cut_off(3));
}

#[test]
fn a_silent_majority_stops_the_holder_and_a_waiter_runs_when_it_is_back() {
    let network = network!(4);
    let (servers, journal) = (network.servers(&[1, 2, 3]), Journal::new());
    let run = || servers.run("k", "4s");
    let holder = hold(network.host(RUNS), run(), &journal, "holder");
    let waiter = queue(network.host(RUNS), run(), &journal, "waiter");
    servers.0[0].ask(|gate| queued(gate, "k", 1));
    [1, 2].into_iter().for_each(|host| network.cut_off(host));
    stopped(holder);
    assert_eq!(journal.started(), ["holder"], "a minority grants nothing");
    network.mend();
    waiter.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder", "waiter"]);
    servers.wait_until_free("k");
}
