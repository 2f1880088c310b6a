//! When nobody waits, a lock is taken in one round and given back in another.

use std::time::{Duration, Instant};

use crate::support::{Job, Links, Nodes, Redis, wait_until};

/// Much longer than what a busy machine takes to start a process.
const ROUND_TRIP: Duration = Duration::from_millis(80);
const TIMES: usize = 9;

fn whole_run(links: &Links) -> Duration {
    let start = Instant::now();
    let status = links.run(0, "k").cmd(&["true"]).command().status();
    let took = start.elapsed();
    assert!(status.expect("it was started").success());
    took
}

/// Of times from which a busy machine takes nothing away, the lower ones say most.
fn low(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 4]
}

/// How many round trips one run takes, by what it takes longer than without a latency.
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

#[test]
fn a_run_on_three_servers_takes_two_round_trips() {
    let trips = round_trips(3);
    assert!(trips < 2.6, "{trips:.2} round trips");
}

#[test]
fn a_run_on_five_servers_takes_two_round_trips() {
    let trips = round_trips(5);
    assert!(trips < 2.6, "{trips:.2} round trips");
}

/// The tokens' agreement is part of the round, also where the servers' tokens differ.
#[test]
fn tokens_that_differ_cost_no_round() {
    let nodes = Nodes::start(3);
    for (at, redis) in nodes.iter().enumerate() {
        redis.cmd(&["SET", "lock-fence:k", &(1000 + at).to_string(), "PX", "600000"]);
    }
    let run = || nodes.run("k").fence();
    nodes.warm_up();
    let calls = |redis: &Redis| redis.script_calls();
    let before: Vec<u64> = nodes.iter().map(calls).collect();
    let first = run();
    // The run does not wait for the slowest server's reply to the release.
    for (redis, before) in nodes.iter().zip(before) {
        wait_until("the vote and the release", || calls(redis) - before >= 2);
        assert_eq!(calls(redis) - before, 2, "and nothing else");
    }
    assert!(first < run());
}

/// They ask all servers at once: the one that is near to the gate finds the votes of the other at the other servers.
#[test]
fn of_two_that_come_at_once_and_do_not_wait_one_wins() {
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
