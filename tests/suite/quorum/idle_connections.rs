//! Servers that close connections, because they are idle or by CLIENT KILL.

use crate::support::{Nodes, OverlapCheck, Redis, Run, hold, queued, wait_for_sleeping_clients, wait_until};

/// Waits until the server has closed all connections of redlock that do not sleep in BLPOP. Another
/// one is the test's own.
#[track_caller]
fn wait_until_idle_are_closed(redis: &Redis) {
    let mut client = redis.connect();
    wait_until("idle connections are closed", || {
        let clients = client.cmd(&["CLIENT", "LIST"]);
        clients.lines().filter(|client| !client.contains("cmd=blpop")).count() == 1
    });
}

#[test]
fn a_connection_that_was_idle_releases_after_a_login() {
    let redis = Redis::start_with(&["--timeout", "1", "--requirepass", "secret"]);
    let url = format!("redis://:secret@127.0.0.1:{}/1", redis.port());
    let run = || Run::at(&url, "k");
    let job = hold(run());
    wait_for_sleeping_clients(&redis, 1);
    wait_until_idle_are_closed(&redis);
    let done = job.wait().expect_code(0);
    assert_eq!(done.stderr, "");
    run().arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn connections_that_were_idle_release_on_three_servers() {
    let login = ["--timeout", "1", "--requirepass", "secret"];
    let nodes = Nodes::of((0..3).map(|_| Redis::start_with(&login)).collect());
    let urls: Vec<String> =
        nodes.iter().map(|redis| format!("redis://:secret@127.0.0.1:{}/1", redis.port())).collect();
    let run = || Nodes::run_at(&urls, "k");
    let job = hold(run());
    for redis in nodes.iter() {
        wait_for_sleeping_clients(redis, 1);
        wait_until_idle_are_closed(redis);
    }
    let done = job.wait().expect_code(0);
    assert_eq!(done.stderr, "");
    run().arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_lock_is_released_after_its_connections_were_killed() {
    let nodes = Nodes::start(3);
    for killed in 1..=3 {
        let job = nodes.hold(nodes.run("k"), "k");
        nodes.iter().take(killed).for_each(|redis| {
            redis.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        });
        let done = job.wait().expect_code(0);
        assert_eq!(done.stderr, "", "{killed} servers");
        nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(0);
        nodes.all_free();
    }
}

/// The wake-up may be lost with the connection.
#[test]
fn a_waiter_whose_connection_was_closed_asks_before_it_sleeps_again() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock:k", "of another program"]);
    let waiter = Run::at(&redis.url(), "k").cmd(&["true"]).spawn();
    // One that is closed at once might not support the command.
    wait_until("the waiter has slept for a while", || {
        let clients = redis.cmd(&["CLIENT", "LIST"]);
        clients.lines().any(|client| client.contains("cmd=blpop") && client.contains(" idle=1 "))
    });
    // At one moment, or it might begin to sleep again in between.
    let mut client = redis.connect();
    for command in
        ["MULTI", "CLIENT LIST", "DEL lock:k", "CONFIG RESETSTAT", "CLIENT KILL TYPE normal SKIPME yes"]
    {
        client.cmd(&command.split(' ').collect::<Vec<_>>());
    }
    let had_slept = client.cmd(&["EXEC"]).contains(" idle=1 ");
    waiter.wait().expect_code(0);
    assert!(redis.calls("blpop") == 0 || !had_slept);
}

/// The first waiter connects to all servers ahead, and they close its idle connections.
#[test]
fn waiters_whose_connections_were_idle_are_served_in_order() {
    let nodes = Nodes::of((0..3).map(|_| Redis::start_with(&["--timeout", "1"])).collect());
    let check = OverlapCheck::new();
    let job = hold(nodes.run("k"));
    let waiters: Vec<_> = (0..5)
        .map(|at| {
            let name = at.to_string();
            let waiter = nodes.run("k").dir(check.dir()).sh(&OverlapCheck::script(&name)).spawn();
            queued(&nodes[0], "k", at + 1);
            waiter
        })
        .collect();
    nodes.iter().skip(1).for_each(wait_until_idle_are_closed);
    job.wait().expect_code(0);
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().expect_code(0)));
    assert_eq!(check.order(), ["0", "1", "2", "3", "4"]);
    check.assert_clean(5);
}
