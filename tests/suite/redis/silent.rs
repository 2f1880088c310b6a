//! A server that falls silent while a run waits for it, or that is silent from the start: time limits
//! are kept.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    Job, Nodes, Run, assert_takes_less_than, hold, queued, wait_for_sleeping_waiter, wait_until,
};

/// A holder, and a waiter that sleeps at the first server.
fn holder_and_waiter(nodes: &Nodes, args: &[&str]) -> (Job, Job, Instant) {
    let holder = hold(nodes.run("k"));
    let started = Instant::now();
    let waiter = nodes.run("k").args(args).cmd(&["true"]).spawn();
    queued(&nodes[0], "k", 1);
    wait_for_sleeping_waiter(&nodes[0]);
    (holder, waiter, started)
}

/// How much longer than `-w 3s` a run waits if so many servers fall silent, and its exit code.
fn overrun(silent: usize, nodes: &Nodes) -> (Duration, Option<i32>) {
    let (holder, waiter, started) = holder_and_waiter(nodes, &["-w", "3s"]);
    (0..silent).for_each(|at| nodes[at].stop());
    let code = waiter.wait().code;
    let overrun = started.elapsed().saturating_sub(Duration::from_secs(3));
    (0..silent).for_each(|at| nodes[at].cont());
    holder.wait().expect_code(0);
    wait_until("all is free", || nodes.claims("k").iter().all(String::is_empty));
    (overrun, code)
}

#[test]
fn a_wait_ends_in_time_if_the_only_server_falls_silent() {
    let nodes = Nodes::start(1);
    assert_takes_less_than(Duration::from_millis(1300), || {
        let (overrun, code) = overrun(1, &nodes);
        assert_eq!(code, Some(69));
        overrun
    });
}

#[test]
fn a_wait_ends_in_time_if_all_servers_fall_silent() {
    let nodes = Nodes::start(3);
    assert_takes_less_than(Duration::from_millis(1300), || {
        let (overrun, code) = overrun(3, &nodes);
        assert_eq!(code, Some(69));
        overrun
    });
}

/// The others know that the lock is held.
#[test]
fn a_wait_ends_in_time_and_held_if_the_gate_falls_silent() {
    let nodes = Nodes::start(3);
    assert_takes_less_than(Duration::from_millis(1300), || {
        let (overrun, code) = overrun(1, &nodes);
        assert!(matches!(code, Some(69 | 75)), "{code:?}");
        if code == Some(75) { overrun } else { Duration::MAX }
    });
}

fn assert_a_signal_ends_a_waiter(nodes: &Nodes) {
    assert_takes_less_than(Duration::from_millis(1200), || {
        let (holder, waiter, _) = holder_and_waiter(nodes, &[]);
        nodes.iter().for_each(|redis| redis.stop());
        let signalled = Instant::now();
        waiter.signal(Signal::SIGTERM);
        assert_eq!(waiter.wait().signal, Some(Signal::SIGTERM as i32));
        let spent = signalled.elapsed();
        nodes.iter().for_each(|redis| redis.cont());
        holder.wait().expect_code(0);
        spent
    });
}

#[test]
fn a_signal_soon_ends_a_waiter_of_one_silent_server() {
    assert_a_signal_ends_a_waiter(&Nodes::start(1));
}

#[test]
fn a_signal_soon_ends_a_waiter_of_three_silent_servers() {
    assert_a_signal_ends_a_waiter(&Nodes::start(3));
}

/// A renewal that fails is followed by the next one at once, so one is in progress. The release has
/// its time limit as well.
#[test]
fn a_renewal_without_a_reply_does_not_delay_the_exit() {
    let nodes = Nodes::start(1);
    assert_takes_less_than(Duration::from_millis(4200), || {
        let mut run = hold(nodes.run("k").args(&["--ttl", "12s", "-v"]));
        nodes[0].stop();
        run.wait_for_stderr("cannot renew");
        let ended = Instant::now();
        drop(run.take_stdin());
        run.wait().expect_code(0);
        let spent = ended.elapsed();
        nodes[0].cont();
        wait_until("it is free", || nodes.claims("k").iter().all(String::is_empty));
        spent
    });
}

#[test]
fn status_release_and_extend_take_one_node_timeout_if_all_servers_are_silent() {
    for nodes in [Nodes::start(1), Nodes::start(3)] {
        nodes.iter().for_each(|redis| redis.stop());
        let token = "0d0d0d0d-0000-4000-8000-000000000001.1";
        let calls: [&[&str]; 3] =
            [&["status"], &["release", "--token", token], &["extend", "--token", token, "--ttl", "20s"]];
        for call in calls {
            assert_takes_less_than(Duration::from_millis(1700), || {
                let started = Instant::now();
                let servers = nodes.urls().join(",");
                let run = Run::bare().args(call).args(&["k", "--node-timeout", "1s", "--redis", &servers]);
                run.done().expect_code(69);
                started.elapsed()
            });
        }
    }
}
