//! Without waiters, a lock is acquired in one round and released in another.

use std::time::{Duration, Instant};

use crate::support::{Job, Links, Nodes, Redis, measure_short_run, wait_until};

/// Much longer than a busy machine takes to start a process.
const ROUND_TRIP: Duration = Duration::from_millis(80);
const TIMES: usize = 9;

fn whole_run(links: &Links) -> Duration {
    let start = Instant::now();
    let status = links.run(0, "k").cmd(&["true"]).command().status();
    let took = start.elapsed();
    assert!(status.expect("redlock can be started").success());
    took
}

/// A busy machine only adds to these times, so the lower ones mean most.
fn low(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 4]
}

/// The round trips of one run: its time beyond that of a run without latency.
fn round_trips(servers: usize) -> f64 {
    let links = Links::one_host(servers);
    links.warm_up();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        links.each_way(Duration::ZERO);
        near.push(whole_run(&links));
        links.each_way(ROUND_TRIP / 2);
        far.push(whole_run(&links));
    }
    println!("{servers} servers, near: {near:?}, far: {far:?}"); // shown if the test fails
    low(far).saturating_sub(low(near)).div_duration_f64(ROUND_TRIP)
}

/// A busy machine makes runs longer, not shorter: one of three measurements must find two.
#[track_caller]
fn assert_two_round_trips(servers: usize) {
    let mut measured = Vec::new();
    while measured.len() < 3 {
        let trips = round_trips(servers);
        if trips < 2.6 {
            return;
        }
        measured.push(trips);
    }
    panic!("never two round trips: {measured:.2?}");
}

#[test]
fn a_run_on_three_servers_takes_two_round_trips() {
    assert_two_round_trips(3);
}

#[test]
fn a_run_on_five_servers_takes_two_round_trips() {
    assert_two_round_trips(5);
}

/// The agreement on a token is part of the round, even if the servers' tokens differ.
#[test]
fn different_tokens_cost_no_extra_round() {
    let nodes = Nodes::start(3);
    for (at, redis) in nodes.iter().enumerate() {
        redis.cmd(&["SET", "lock-fence:k", &(1000 + at).to_string(), "PX", "600000"]);
    }
    let run = || nodes.run("k").fence();
    nodes.warm_up();
    let calls = |redis: &Redis| redis.script_calls();
    let mut last = 0;
    let cost = measure_short_run(|| {
        let (before, start): (Vec<u64>, _) = (nodes.iter().map(calls).collect(), Instant::now());
        let token = run();
        let took = start.elapsed();
        assert!(std::mem::replace(&mut last, token) < token);
        // The run does not wait for the slowest server's reply to the release.
        let cost = nodes.iter().zip(before).map(|(redis, before)| {
            wait_until("the vote and the release", || calls(redis) - before >= 2);
            calls(redis) - before
        });
        (took, cost.collect::<Vec<u64>>())
    });
    assert_eq!(cost, [2; 3], "and nothing else");
    assert!(last < run());
}

/// Both ask all servers at once: the one close to the gate finds the other's votes on the other
/// servers.
#[test]
fn one_of_two_simultaneous_clients_wins_without_waiting() {
    let links = Links::start(3, 2);
    links.warm_up();
    let ms = Duration::from_millis;
    links.lines_of(0)[1..].iter().for_each(|line| line.each_way(ms(40)));
    links.lines_of(1)[0].each_way(ms(80));
    for round in 0..5 {
        let args = ["-n", "--ttl", "60s", "--node-timeout", "2s"];
        let run = |host| links.run(host, "k").args(&args).stdin_pipe().sh("echo ran; read x; exit 0").spawn();
        let jobs: [Job; 2] = [1, 0].map(run);
        let codes = jobs.map(|job| job.wait().code);
        assert!(codes.contains(&Some(0)), "round {round}: {codes:?}");
        assert!(codes.iter().all(|code| matches!(code, Some(0 | 75))), "round {round}: {codes:?}");
        links.nodes().all_free();
    }
}
