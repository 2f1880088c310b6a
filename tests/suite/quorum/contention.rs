//! Many clients at once on several servers, other programs that implement plain Redlock, killed
//! holders.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Job, Links, Nodes, OverlapCheck, PlainRedlock, expect_success, queued, wait_until};

const BARE: &[&str] = &["--prefix", "", "--ttl", "20s"];

#[test]
fn ten_clients_at_once_on_five_servers_all_run_one_after_another() {
    let (nodes, check) = (Nodes::start(5), OverlapCheck::new());
    let jobs: Vec<Job> = (0..10)
        .map(|i| nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn())
        .collect();
    expect_success(jobs);
    check.assert_clean(10);
    let fences = check.fences();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
    nodes.all_free();
}

#[test]
fn waiters_on_five_servers_are_served_in_order_of_arrival() {
    let (nodes, check) = (Nodes::start(5), OverlapCheck::new());
    let first = nodes.hold(nodes.run("k").args(&["--ttl", "60s"]), "k");
    let waiters: Vec<Job> = (0..10)
        .map(|i| {
            let waiter = nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn();
            queued(&nodes[0], "k", i + 1);
            waiter
        })
        .collect();
    let claims = nodes.claims("k");
    assert!(claims.iter().all(|claim| *claim == claims[0]), "waiters take no other votes: {claims:?}");
    first.wait().expect_code(0);
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().expect_code(0)));
    check.assert_clean(10);
    let arrived: Vec<String> = (0..10).map(|i: usize| i.to_string()).collect();
    assert_eq!(check.order(), arrived);
    nodes.all_free();
}

#[test]
fn five_rounds_of_eight_clients_with_two_dying_servers_lose_no_update() {
    let (mut nodes, check) = (Nodes::start(5), OverlapCheck::new());
    for round in 0..5 {
        let jobs: Vec<Job> = (0..8)
            .map(|i| nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn())
            .collect();
        match round {
            1 => nodes[3].kill(),
            2 => nodes[0].kill(),
            3 => nodes[3].restart(),
            _ => {}
        }
        expect_success(jobs);
    }
    check.assert_clean(40);
    let fences = check.fences();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
    nodes.all_free();
}

#[test]
fn a_holder_killed_with_its_guardian_is_succeeded_after_its_lease() {
    let nodes = Nodes::start(3);
    let first = nodes.hold(nodes.run("k").args(&["--ttl", "6s"]), "k");
    let next = nodes.run("k").args(&["--ttl", "3s"]).sh("echo mine").spawn();
    queued(&nodes[0], "k", 1);
    let killed = Instant::now();
    first.kill_with_guardian();
    next.wait_for_line("mine");
    assert!(killed.elapsed() > Duration::from_secs(1), "before the lease ended: {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    next.wait().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_killed_head_of_the_queue_costs_seconds_and_not_a_lease() {
    let nodes = Nodes::start(3);
    let first = nodes.hold(nodes.run("k").args(&["--ttl", "60s"]), "k");
    let head = nodes.run("k").args(&["--ttl", "60s"]).cmd(&["true"]).spawn();
    queued(&nodes[0], "k", 1);
    let next = nodes.run("k").args(&["--ttl", "60s"]).sh("echo mine").spawn();
    queued(&nodes[0], "k", 2);
    head.signal(Signal::SIGKILL);
    assert_eq!(head.wait().signal, Some(9));
    let start = Instant::now();
    first.wait().expect_code(0);
    next.wait_for_line("mine");
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    next.wait().expect_code(0);
    nodes.all_free();
}

/// The gate already has its request, and executes it when the lock is released; so it has the vote.
#[test]
fn a_stopped_head_of_the_queue_costs_seconds_and_not_a_lease() {
    let links = Links::one_host(3);
    links.warm_up();
    links.each_way(Duration::from_millis(10));
    let run = || links.run(0, "k").args(&["--ttl", "60s"]);
    let first = links.nodes().hold(run(), "k");
    let head = run().sh("echo mine").spawn();
    queued(&links[0], "k", 1);
    let next = run().sh("echo mine").spawn();
    queued(&links[0], "k", 2);
    head.stop();
    let start = Instant::now();
    first.wait().expect_code(0);
    next.wait_for_line("mine");
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    next.wait().expect_code(0);
    head.signal(Signal::SIGCONT);
    head.wait_for_line("mine");
    head.wait().expect_code(0);
    links.nodes().all_free();
}

#[test]
fn plain_redlock_and_redlock_exclude_each_other() {
    let nodes = Nodes::start(3);
    let (lease, mut plain) = (Duration::from_secs(20), PlainRedlock::to(&nodes, "plain"));
    // They hold: we are refused, or wait until they release.
    assert!(plain.try_lock("k", lease));
    let refused = nodes.run("k").args(BARE).arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(refused.stdout, "");
    let waiter = nodes.run("k").args(BARE).stdin_pipe().sh("echo ready; read x; exit 0").spawn();
    wait_until("the run queues", || nodes[0].cmd(&["ZCARD", "bare-queue:k"]) == "1");
    assert_eq!(plain.unlock("k"), 3, "their values are untouched");
    // We hold: they are refused, and take nothing from us.
    waiter.wait_for_line("ready");
    let votes = |key: &str| nodes.iter().filter(|redis| redis.cmd(&["EXISTS", key]) == "1").count();
    assert!(votes("k") >= 2);
    assert!(!plain.try_lock("k", lease));
    assert!(votes("k") >= 2, "a majority is still ours");
    waiter.wait().expect_code(0);
    wait_until("free", || votes("k") == 0);
    assert!(plain.try_lock("k", lease));
    assert_eq!(plain.unlock("k"), 3);
    // lock:k is another lock.
    assert!(plain.try_lock("lock:k", lease));
    nodes.run("k").args(BARE).arg("-n").cmd(&["true"]).done().expect_code(0);
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(75);
    plain.unlock("lock:k");
    nodes.all_free();
}

#[test]
fn plain_redlock_and_redlock_together_lose_no_update() {
    let (nodes, check) = (Nodes::start(3), OverlapCheck::new());
    std::thread::scope(|scope| {
        for name in ["plain-a", "plain-b"] {
            let (mut plain, check) = (PlainRedlock::to(&nodes, name), &check);
            scope.spawn(move || {
                for _ in 0..10 {
                    plain.lock("k", Duration::from_secs(20), Duration::from_secs(40));
                    check.enter(name);
                    plain.unlock("k");
                }
            });
        }
        for worker in 0..4 {
            let (nodes, check) = (&nodes, &check);
            scope.spawn(move || {
                for _ in 0..5 {
                    let script = OverlapCheck::script(&format!("redlock-{worker}"));
                    nodes.run("k").args(BARE).dir(check.dir()).sh(&script).done().expect_code(0);
                }
            });
        }
    });
    check.assert_clean(40);
    nodes.all_free();
}

#[test]
fn holders_and_waiters_of_different_keys_do_not_interfere() {
    let nodes = Nodes::start(3);
    let first = nodes.hold(nodes.run("a"), "a");
    let second = nodes.hold(nodes.run("b"), "b");
    nodes.run("c").arg("-n").cmd(&["true"]).done().expect_code(0);
    first.wait().expect_code(0);
    second.wait().expect_code(0);
    nodes.all_free();
}
