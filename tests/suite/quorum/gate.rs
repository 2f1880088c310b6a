//! The gate, the first reachable server, where the queue is: dead, dying, silent, or not the same
//! one for every client.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::nodes::renewed;
use crate::support::{
    Blackhole, Job, Nodes, OverlapCheck, Proxy, Run, alive, assert_takes_less_than, expect_success, queued,
    wait_for_sleeping_clients, wait_for_sleeping_waiter, wait_until,
};

/// How long a run takes.
fn time(run: Run) -> Duration {
    let start = Instant::now();
    run.cmd(&["true"]).done().expect_code(0);
    start.elapsed()
}

#[test]
fn a_dead_gate_is_skipped_and_the_queue_is_on_the_next_server() {
    let mut nodes = Nodes::start(5);
    nodes[0].kill();
    nodes[1].kill();
    let (first, check) = (nodes.hold(nodes.run("k"), "k"), OverlapCheck::new());
    let waiters: Vec<Job> = (0..4)
        .map(|i| {
            let waiter = nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn();
            queued(&nodes[2], "k", i + 1);
            waiter
        })
        .collect();
    first.wait().expect_code(0);
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().expect_code(0)));
    check.assert_clean(4);
    assert_eq!(check.order(), ["0", "1", "2", "3"]);
    nodes.all_free();
}

#[test]
fn a_foreign_value_on_the_gate_alone_delays_no_run() {
    let (nodes, check) = (Nodes::start(3), OverlapCheck::new());
    nodes[0].cmd(&["SET", "lock:k", "foreign"]); // without expiry
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(0);
    let jobs: Vec<Job> = (0..6)
        .map(|i| nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn())
        .collect();
    expect_success(jobs);
    check.assert_clean(6);
    assert_eq!(nodes.claims("k"), ["foreign", "", ""]);
    nodes[0].cmd(&["DEL", "lock:k"]);
    nodes.all_free();
}

#[test]
fn waiters_move_when_the_gate_dies_and_again_when_it_returns() {
    let (mut nodes, check) = (Nodes::start(3), OverlapCheck::new());
    let first = nodes.hold(nodes.run("k").args(&["--ttl", "6s"]), "k");
    let waiter = |i: usize| nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn();
    let mut waiters: Vec<Job> = (0..3).map(waiter).collect();
    queued(&nodes[0], "k", 3);
    nodes[0].kill();
    queued(&nodes[1], "k", 3);
    nodes[0].restart();
    // A newcomer goes to the first server, the others may still be on the second.
    waiters.push(nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script("3")).spawn());
    wait_until("the newcomer queues", || nodes.iter().map(|redis| redis.queue_len("k")).sum::<usize>() >= 4);
    first.wait().expect_code(0);
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().expect_code(0)));
    check.assert_clean(4);
    nodes.all_free();
}

#[test]
fn a_waiter_that_loses_all_servers_keeps_trying_until_its_wait_ends() {
    let mut nodes = Nodes::start(3);
    let first = nodes.hold(nodes.run("k").args(&["--ttl", "3s"]), "k");
    let mut waiters = [
        nodes.run("k").args(&["-w", "9s"]).sh("echo ran").spawn(),
        nodes.run("k").args(&["-w", "50s"]).sh("echo ran").spawn(),
    ];
    // a waiter without a first reply has reached no majority, and would exit
    wait_for_sleeping_clients(&nodes[0], 3);
    nodes[0].kill();
    nodes[2].kill();
    first.wait_for_stderr("lost");
    first.wait().expect_code(79);
    assert!(waiters[1].is_running());
    let [short, long] = waiters;
    let done = short.wait().expect_code(69);
    assert_eq!(done.stdout, "");
    nodes[2].restart();
    assert_eq!(long.wait().expect_code(0).stdout, "ran\n");
    nodes.all_free();
}

#[test]
fn a_silent_server_costs_nothing_and_a_silent_gate_one_node_timeout() {
    let nodes = Nodes::start(5);
    nodes.warm_up();
    let (hole, swallowing) = (Blackhole::new(), Proxy::to(&nodes[4]));
    swallowing.pause();
    for silent in [hole.url(), swallowing.url()] {
        for at in 0..5 {
            let mut urls = nodes.urls();
            urls.swap(at, 4); // the server behind the proxy is listed once
            urls[at] = silent.clone();
            println!("{silent} at {at}"); // shown if the test fails
            let most = if at == 0 { 2_700 } else { 1_200 };
            let run = || Nodes::run_at(&urls, "k").args(&["--node-timeout", "1500ms"]);
            assert_takes_less_than(Duration::from_millis(most), || time(run()));
        }
    }
    swallowing.resume();
    nodes.all_free();
}

#[test]
fn a_silent_minority_with_the_gate_still_leaves_a_majority() {
    let nodes = Nodes::start(3);
    let holes = [Blackhole::new(), Blackhole::new()];
    let urls: Vec<String> = holes.iter().map(Blackhole::url).chain(nodes.urls()).collect();
    let run = || Nodes::run_at(&urls, "k").args(&["--node-timeout", "500ms"]);
    assert_takes_less_than(Duration::from_secs(3), || time(run()));
    // A silent majority is reported within about the same time.
    let urls: Vec<String> = holes.iter().map(Blackhole::url).chain([nodes[0].url()]).collect();
    assert_takes_less_than(Duration::from_secs(4), || {
        let start = Instant::now();
        let run = Nodes::run_at(&urls, "k").args(&["--node-timeout", "500ms"]);
        run.cmd(&["true"]).done().expect_code(69);
        start.elapsed()
    });
    nodes.all_free();
}

#[test]
fn a_gate_that_falls_silent_while_held_goes_unnoticed() {
    let nodes = Nodes::start(3);
    let proxy = Proxy::to(&nodes[0]);
    let mut urls = nodes.urls();
    urls[0] = proxy.url();
    let job = nodes.hold(Nodes::run_at(&urls, "k").args(&["--ttl", "3s"]), "k");
    proxy.pause();
    renewed(&nodes[1], "k", 4);
    job.wait().expect_code(0);
    proxy.resume();
    nodes.all_free();
}

#[test]
fn a_gate_whose_replies_are_lost_keeps_nothing_of_ours() {
    let nodes = Nodes::start(3);
    nodes.warm_up();
    for args in [&["-n"][..], &[]] {
        let proxy = Proxy::to(&nodes[0]);
        proxy.drop_replies(true);
        let mut urls = nodes.urls();
        urls[0] = proxy.url();
        let run = Nodes::run_at(&urls, "k").args(&["--ttl", "60s", "--node-timeout", "500ms"]).args(args);
        let job = run.stdin_pipe().sh("echo ready; read x; exit 0").spawn();
        job.wait_for_line("ready");
        assert!(nodes[0].held("k"), "the gate has voted, and its reply is lost");
        job.wait().expect_code(0);
        nodes.all_free();
    }
}

#[test]
fn clients_that_disagree_about_the_gate_all_run_one_after_another() {
    let (nodes, check) = (Nodes::start(3), OverlapCheck::new());
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];
    let jobs: Vec<Job> = (0..9)
        .map(|i| {
            let urls: Vec<String> = orders[i % 3].iter().map(|at| nodes[*at].url()).collect();
            Nodes::run_at(&urls, "k").dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn()
        })
        .collect();
    expect_success(jobs);
    check.assert_clean(9);
    let fences = check.fences();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
    nodes.all_free();
}

#[test]
fn a_signal_while_waiting_leaves_nothing_on_any_server() {
    let nodes = Nodes::start(3);
    // First in the queue behind a holder; then with the gate's vote, waiting for the others, which
    // are foreign.
    let first = nodes.hold(nodes.run("k").args(&["--ttl", "60s"]), "k");
    let claims = nodes.claims("k");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let waiter = nodes.run("k").sh("echo ran").spawn();
        // Requests in transit at that moment are not waited for.
        wait_for_sleeping_waiter(&nodes[0]);
        cancelled(waiter, signal);
        assert_eq!(nodes.claims("k"), claims);
        for redis in nodes.iter() {
            assert_eq!(redis.cmd(&["ZCARD", "lock-waiters:k"]), "0");
            assert_eq!(redis.queue_len("k"), 0);
            let lists = redis.keys().into_iter().filter(|key| key.starts_with("lock-notify")).count();
            assert_eq!(lists, 0);
        }
    }
    first.wait().expect_code(0);
    nodes.all_free();
    for at in [1, 2] {
        nodes[at].cmd(&["SET", "lock:k", "foreign", "PX", "60000"]);
    }
    for asked in [1, 3, 4, 6] {
        let before = nodes[1].calls("evalsha");
        let waiter = nodes.run("k").args(&["--ttl", "60s"]).sh("echo ran").spawn();
        wait_until("the requests are sent", || nodes[1].calls("evalsha") >= before + asked);
        cancelled(waiter, Signal::SIGTERM);
        wait_until("nothing of ours", || nodes.claims("k") == ["", "foreign", "foreign"]);
        wait_until("not in the queue", || nodes.iter().all(|redis| redis.queue_len("k") == 0));
    }
}

#[track_caller]
fn cancelled(waiter: Job, signal: Signal) {
    let pid = waiter.pid();
    waiter.signal(signal);
    let done = waiter.wait();
    assert_eq!(done.signal, Some(signal as i32), "{done:?}");
    assert_eq!(done.stdout, "");
    assert!(!alive(pid));
}
