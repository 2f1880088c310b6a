//! Servers whose clocks were wrong and are corrected: times noted for the far future count from
//! now.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Nodes, Redis, Run, ServerClock, hold, queued, wait_until, wait_until_within};

const HOUR: i64 = 3600;
const THREE: &[&str] = &["--quarantine", "3s", "--ttl", "3s", "--node-timeout", "1s"];

fn servers() -> (Nodes, Vec<ServerClock>) {
    let mut all: Vec<(Redis, ServerClock)> = (0..3).map(|_| ServerClock::start()).collect();
    all.sort_by_key(|(redis, _)| redis.port());
    let (servers, clocks) = all.into_iter().unzip();
    (Nodes::of(servers), clocks)
}

#[test]
fn a_corrected_clock_does_not_prolong_the_quarantine() {
    let (nodes, clocks) = servers();
    let run = || nodes.run_quarantined("k").args(THREE);
    clocks[..2].iter().for_each(|clock| clock.set_ahead(HOUR));
    run().arg("-n").cmd(&["true"]).done().expect_code(69); // the servers write their markers
    wait_until("all are marked", || nodes.iter().all(|redis| !redis.cmd(&["GET", "lock-node"]).is_empty()));
    clocks.iter().for_each(|clock| clock.set_ahead(0));
    run().args(&["-w", "15s"]).cmd(&["true"]).done().expect_code(0);
}

/// A killed waiter does not keep the free one of two keys, however far the clock is set back.
fn assert_a_dead_waiter_costs_seconds(run: impl Fn(&[&str]) -> Run, gate: &Redis, set_clocks: impl FnOnce()) {
    let holder = hold(run(&["a"]));
    let waiter = run(&["a", "b"]).sh("echo ran").spawn();
    queued(gate, "b", 1);
    waiter.signal(Signal::SIGKILL);
    waiter.wait();
    set_clocks();
    let next = run(&["b"]).args(&["-w", "50s"]).sh("echo mine").spawn();
    // A dead waiter costs seconds.
    wait_until_within(Duration::from_secs(15), "the free key is granted", || {
        next.stdout_so_far().contains("mine")
    });
    next.wait().expect_code(0);
    holder.wait().expect_code(0);
}

fn with_keys(first: Run, keys: &[&str]) -> Run {
    keys[1..].iter().fold(first, |run, key| run.args(&["--key", key]))
}

#[test]
fn a_dead_waiter_costs_seconds_after_a_clock_is_set_back() {
    let (redis, clock) = ServerClock::start();
    assert_a_dead_waiter_costs_seconds(
        |keys| with_keys(Run::key(&redis, keys[0]), keys),
        &redis,
        || clock.set_ahead(-600),
    );
}

#[test]
fn a_dead_waiter_costs_seconds_after_three_clocks_are_set_back() {
    let (nodes, clocks) = servers();
    let run = |keys: &[&str]| with_keys(nodes.run(keys[0]), keys);
    assert_a_dead_waiter_costs_seconds(run, &nodes[0], || {
        clocks.iter().for_each(|clock| clock.set_ahead(-600))
    });
}

/// Stamps in the future count as now: a waiter that came while the clock was ahead does not queue
/// behind all others for an hour, and one that comes after the correction does not overtake them.
#[test]
fn a_gate_with_a_corrected_clock_serves_all_its_waiters() {
    let (nodes, clocks) = servers();
    clocks[0].set_ahead(HOUR);
    let holder = nodes.hold(nodes.run("k").args(&["--ttl", "6s"]), "k");
    let early = nodes.run("k").sh("echo mine").spawn();
    queued(&nodes[0], "k", 1);
    clocks[0].set_ahead(0);
    let late = nodes.run("k").sh("echo mine").spawn();
    wait_until("both queue", || nodes.iter().map(|redis| redis.queue_len("k")).max() >= Some(2));
    holder.wait().expect_code(0);
    for job in [early, late] {
        job.wait_for_line("mine");
        job.wait().expect_code(0);
    }
}

/// The gate of an earlier run was a server whose clock is ahead, so that run's stamp is in the future;
/// on a server that is not quite as far ahead it counts as now.
#[test]
fn a_run_that_has_ended_supersedes_none_although_a_clock_was_ahead() {
    let (mut nodes, clocks) = servers();
    clocks[1].set_ahead(60);
    clocks[2].set_ahead(30);
    let run = |nodes: &Nodes| nodes.run("k").arg("--supersede");
    nodes[0].kill();
    run(&nodes).cmd(&["true"]).done().expect_code(0);
    nodes[0].restart();
    for _ in 0..2 {
        let first = hold(run(&nodes));
        let next = run(&nodes).cmd(&["true"]).spawn();
        queued(&nodes[0], "k", 1);
        first.wait().expect_code(0);
        next.wait().expect_code(0);
    }
    nodes.all_free();
}
