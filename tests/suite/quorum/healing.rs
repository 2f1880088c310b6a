//! Servers that return empty while the lock is held are healed in time to count, and different
//! quarantine settings do not allow a second holder.

use std::time::{Duration, Instant};

use crate::support::nodes::{renewed, renewed_on_all};
use crate::support::{
    Links, MS, Nodes, Redis, Run, TREE, alive, hold, tree_of, wait_until, wait_until_within,
};

/// Every server in turn is restarted empty, is quarantined for longer than the whole test, and
/// still counts.
#[test]
fn rolling_restarts_under_a_long_quarantine_go_unnoticed() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    let run = nodes.run_quarantined("k").args(&["--ttl", "9s", "--quarantine", "1m"]);
    let mut job = nodes.hold(run, "k");
    let claim = nodes.claims("k")[0].clone();
    for at in [0, 1, 2, 0] {
        nodes[at].restart();
        let healed = || nodes[at].cmd(&["GET", "lock:k"]) == claim;
        wait_until_within(Duration::from_secs(8), "the server is healed at the next renewal", healed);
        renewed_on_all(&nodes, at, "k");
        assert!(job.is_running(), "{}", job.stderr_so_far());
    }
    renewed(&nodes[0], "k", 3); // the last of the four counts as well
    let done = job.wait().expect_code(0);
    assert!(!done.stderr.contains("lost"), "{done:?}");
    nodes.all_free();
}

/// The same at a steady pace, without waiting for the healing.
#[test]
fn restarts_every_four_seconds_go_unnoticed() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    let run = nodes.run_quarantined("k").args(&["--ttl", "4s", "--quarantine", "20s"]);
    let mut job = nodes.hold(run, "k");
    for at in [2, 1, 0] {
        nodes[at].restart();
        std::thread::sleep(4000 * MS);
        assert!(job.is_running(), "{}", job.stderr_so_far());
    }
    job.wait().expect_code(0);
    nodes.all_free();
}

/// A flushed server has lost the scripts, too.
#[test]
fn servers_that_forgot_the_scripts_are_healed_at_the_next_renewal() {
    let nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "9s"]), "k");
    let claim = nodes.claims("k")[0].clone();
    for at in [0, 2] {
        renewed(&nodes[1], "k", 1);
        nodes[at].cmd(&["FLUSHALL"]);
        nodes[at].cmd(&["SCRIPT", "FLUSH"]);
        // A renewal happens every three seconds, and the one that finds the loss repairs it.
        let healed = || nodes[at].cmd(&["GET", "lock:k"]) == claim;
        wait_until_within(Duration::from_millis(5500), "the server is healed", healed);
    }
    job.wait().expect_code(0);
    nodes.all_free();
}

/// Every reply of a majority arrives after the node timeout, but in time for its own lease.
#[test]
fn a_late_yes_counts_for_its_own_round() {
    let links = Links::one_host(3);
    let mut job = links.nodes().hold(links.run(0, "k").args(&["--ttl", "6s"]), "k");
    links.lines_of(0)[1..].iter().for_each(|line| line.to_client(600 * MS));
    let (start, claims) = (Instant::now(), links.nodes().claims("k"));
    while start.elapsed() < Duration::from_secs(12) {
        assert!(job.is_running(), "{}", job.stderr_so_far());
        std::thread::sleep(50 * MS);
    }
    assert_eq!(links.nodes().claims("k"), claims);
    links.each_way(Duration::ZERO);
    job.wait().expect_code(0);
    links.nodes().all_free();
}

/// All three servers know the long quarantine. A holds the first two, and then reaches no server;
/// the first loses its data: with the third it could let B in while A's command lives.
fn assert_no_second_holder_beside_long(short: &[&str]) {
    let mut links = Links::start(3, 2);
    links.nodes().settle();
    let long = |links: &Links| links.run_quarantined(0, "k").args(&["--ttl", "9s", "--quarantine", "9s"]);
    drop(links.nodes().hold(long(&links), "k").wait().expect_code(0));
    links.line(0, 2).refuse();
    let holder = long(&links).sh(TREE).spawn();
    let tree = tree_of(&holder);
    wait_until("A has both votes", || (0..2).all(|at| links[at].held("k")));
    links.lines_of(0).iter().for_each(|line| line.pause());
    links.restart(0);
    let other = links.run_quarantined(1, "k").args(short).sh("echo mine").spawn();
    let start = Instant::now();
    loop {
        // Read in this order: B ran beside the tree if it started before the tree was seen alive.
        let has_run = other.stdout_so_far().contains("mine");
        if !tree.iter().any(|pid| alive(*pid)) {
            break;
        }
        assert!(!has_run, "two holders after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20), "the tree lives without a server");
        std::thread::sleep(5 * MS);
    }
    holder.wait().expect_code(79);
    other.wait_for_line("mine");
    let done = other.wait().expect_code(0);
    // B had the third server's vote from the beginning, and the lock only now.
    assert!(!done.stderr.contains("after 0s"), "{done:?}");
}

#[test]
fn a_short_quarantine_beside_a_long_one_makes_no_second_holder() {
    assert_no_second_holder_beside_long(&["--ttl", "3s", "--quarantine", "3s"]);
}

#[test]
fn no_quarantine_beside_a_long_one_makes_no_second_holder() {
    assert_no_second_holder_beside_long(&["--ttl", "3s", "--quarantine", "off"]);
}

/// The longest quarantine stays: a client with a shorter one does not lower it.
#[test]
fn the_longest_quarantine_applies_to_all_clients() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    let run = |nodes: &Nodes, quarantine: &str| -> Run {
        nodes.run_quarantined("k").args(&[
            "-n",
            "--ttl",
            "2s",
            "--node-timeout",
            "600ms",
            "--quarantine",
            quarantine,
        ])
    };
    run(&nodes, "60s").cmd(&["true"]).done().expect_code(0);
    run(&nodes, "2s").cmd(&["true"]).done().expect_code(0);
    nodes[0].restart();
    nodes[1].restart();
    // A client with a short quarantine wrote this marker, and for that client it is over; the third
    // server has the longer one.
    run(&nodes, "2s").sh("echo ran").done().expect_code(69);
    let is_marked = |redis: &Redis| redis.cmd(&["GET", "lock-node"]).contains(&redis.info("run_id"));
    wait_until("marked", || nodes.iter().all(is_marked));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        for quarantine in ["2s", "off"] {
            let done = run(&nodes, quarantine).sh("echo ran").done();
            assert_eq!((done.code, done.stdout.as_str()), (Some(69), ""), "{quarantine}: {done:#?}");
        }
    }
    nodes.all_free();
}

/// Healing revives no other claim.
#[test]
fn a_quarantined_server_grants_nothing_even_if_it_was_healed() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    let run = |nodes: &Nodes| nodes.run_quarantined("k").args(&["--ttl", "3s", "--quarantine", "20s"]);
    let job = hold(run(&nodes));
    nodes[0].restart();
    wait_until("the server is healed", || nodes[0].held("k"));
    let waiter = run(&nodes).sh("echo mine").spawn();
    wait_until("the run queues on another server", || nodes[1].queue_len("k") == 1);
    assert_eq!(nodes[0].queue_len("k"), 0);
    job.wait().expect_code(0);
    waiter.wait_for_line("mine");
    waiter.wait().expect_code(0);
}
