//! Fencing tokens over a majority: one number, always larger, that survives the loss of a minority.

use std::time::{Duration, Instant};

use crate::support::{Nodes, Proxy, Redis, Refused, measure_short_run, wait_until};

/// The server's last fence, 0 for none.
fn remembered(redis: &Redis) -> u64 {
    redis.cmd(&["GET", "lock-fence:k"]).parse().unwrap_or(0)
}

/// Ahead of every server's clock, so that only an earlier fence can make a larger one.
fn far_ahead(redis: &Redis) -> u64 {
    let seconds: u64 = redis.cmd(&["TIME"]).lines().next().unwrap().parse().unwrap();
    (seconds + 1_000_000) * 1000
}

fn set(redis: &Redis, fence: u64) {
    redis.cmd(&["SET", "lock-fence:k", &fence.to_string()]);
}

#[test]
fn tokens_grow_over_every_minority_and_a_majority_remembers_each() {
    let (nodes, refused) = (Nodes::start(5), Refused::new());
    nodes.iter().for_each(|redis| set(redis, far_ahead(redis)));
    let mut last = far_ahead(&nodes[0]);
    let minorities: Vec<u32> = (0..32).filter(|set: &u32| set.count_ones() <= 2).collect();
    for pass in 0..2 {
        for down in &minorities {
            let mut urls = nodes.urls();
            for (at, url) in urls.iter_mut().enumerate().filter(|(at, _)| down >> at & 1 == 1) {
                assert!(at < 5);
                *url = refused.url();
            }
            let token = Nodes::run_at(&urls, "k").arg("-n").fence();
            assert!(token > last, "pass {pass}, {down:05b} down: {token} after {last}");
            let agree = nodes.iter().filter(|redis| remembered(redis) == token).count();
            assert!(agree >= 3, "pass {pass}, {down:05b} down: {agree} remember {token}");
            last = token;
        }
    }
}

#[test]
fn different_replies_are_raised_to_the_largest_on_a_majority() {
    // Any majority of voters includes one of the two servers with a large number.
    let nodes = Nodes::start(3);
    for (low, one, two) in [(0, 1, 2), (1, 0, 2), (2, 0, 1), (0, 2, 1)] {
        let base = nodes.iter().map(remembered).max().unwrap().max(far_ahead(&nodes[0]));
        nodes[low].cmd(&["DEL", "lock-fence:k"]);
        set(&nodes[one], base + 10);
        set(&nodes[two], base + 1000);
        let token = nodes.run("k").arg("-n").fence();
        assert!(token > base + 10, "{low} had no fence: {token} with {} and {}", base + 10, base + 1000);
        let agree = nodes.iter().filter(|redis| remembered(redis) == token).count();
        assert!(agree >= 2, "{agree} remember {token}");
        // The server that lost its counter starts from the newcomer's proposal, if its vote is late.
        let kept = [one, two].map(|at| remembered(&nodes[at]));
        assert!(kept[0] >= base + 10 && kept[1] >= base + 1000, "a fence was lowered: {kept:?}");
    }
}

#[test]
fn a_token_that_only_one_server_has_is_not_granted() {
    // Two of three vote with different numbers, and the raise of the smaller one gets no reply.
    let (nodes, refused) = (Nodes::start(2), Refused::new());
    let (gate, other) = (Proxy::to(&nodes[0]), Proxy::to(&nodes[1]));
    let urls = [gate.url(), other.url(), refused.url()];
    Nodes::run_at(&urls, "k").arg("-n").fence();
    let large = far_ahead(&nodes[1]);
    set(&nodes[1], large);
    other.delay(Duration::from_secs(3));
    let run = Nodes::run_at(&urls, "k").args(&["-n", "--ttl", "60s", "--node-timeout", "6s"]);
    let job = run.sh("echo ran").spawn();
    wait_until("the second has voted", || remembered(&nodes[1]) > large);
    gate.pause();
    let done = job.wait().expect_code(69);
    assert_eq!(done.stdout, "", "{done:#?}");
    assert!(remembered(&nodes[0]) < large, "the server never got the token");
    gate.resume();
    nodes.all_free();
}

#[test]
fn a_run_costs_every_server_two_commands_when_the_replies_agree() {
    let nodes = Nodes::start(5);
    nodes.warm_up();
    for _ in 0..5 {
        let cost = measure_short_run(|| {
            let before: Vec<u64> = nodes.iter().map(Redis::script_calls).collect();
            let start = Instant::now();
            nodes.run("k").cmd(&["true"]).done().expect_code(0);
            let took = start.elapsed();
            let cost = nodes.iter().zip(before).map(|(redis, before)| {
                wait_until("the release has arrived", || redis.script_calls() >= before + 2);
                redis.script_calls() - before
            });
            (took, cost.collect::<Vec<u64>>())
        });
        assert_eq!(cost, [2; 5], "a vote and a release");
    }
}

#[test]
fn the_counter_survives_the_loss_of_any_minority() {
    let nodes = Nodes::start(5);
    nodes.warm_up();
    for (one, two) in (0..5).flat_map(|one| (0..one).map(move |two| (one, two))) {
        let base = nodes.iter().map(remembered).max().unwrap().max(far_ahead(&nodes[0]));
        nodes.iter().for_each(|redis| set(redis, base));
        let last = nodes.run("k").fence();
        wait_until("every server got the request", || nodes.iter().all(|redis| remembered(redis) == last));
        nodes[one].cmd(&["FLUSHALL"]);
        nodes[two].cmd(&["FLUSHALL"]);
        let token = nodes.run("k").fence();
        assert!(token > last, "without {one} and {two}: {token} after {last}");
    }
}

#[test]
fn a_healed_server_gets_the_token() {
    let nodes = Nodes::start(3);
    nodes.iter().for_each(|redis| set(redis, far_ahead(redis)));
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "4s"]), "k");
    let token = remembered(&nodes[1]);
    for at in [2, 0] {
        nodes[at].cmd(&["FLUSHALL"]);
        wait_until("healed", || nodes[at].held("k"));
        assert_eq!(remembered(&nodes[at]), token, "server {at}");
    }
    // A server with a larger fence keeps it.
    nodes[1].cmd(&["DEL", "lock:k"]);
    set(&nodes[1], token + 5);
    wait_until("healed", || nodes[1].held("k"));
    assert_eq!(remembered(&nodes[1]), token + 5);
    job.wait().expect_code(0);
    assert!(nodes.run("k").fence() > token);
}

#[test]
fn the_command_sees_the_token_and_the_claim_that_the_servers_have() {
    let nodes = Nodes::start(3);
    let script = "echo $REDLOCK_FENCE $REDLOCK_TOKEN ready; read x; exit 0";
    let job = nodes.run("k").stdin_pipe().sh(script).spawn();
    let line = job.wait_for_line("ready");
    let words: Vec<&str> = line.split(' ').collect();
    wait_until("all have voted", || nodes.claims("k") == [words[1]; 3]);
    assert!(nodes.iter().filter(|redis| remembered(redis).to_string() == words[0]).count() >= 2);
    job.wait().expect_code(0);
}
