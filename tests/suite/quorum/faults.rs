//! Servers that are slow, die, lose their data or are flushed while the lock is held.

use std::time::{Duration, Instant};

use crate::support::nodes::{renewed, settle};
use crate::support::{
    Links, Nodes, Proxy, Redis, TREE, alive, assert_takes_less_than, hold, pttl, tree_of, wait_until,
    wait_until_within,
};

/// URLs of which the one at this index leads through the proxy.
fn through(nodes: &Nodes, at: usize, proxy: &Proxy) -> Vec<String> {
    let mut urls = nodes.urls();
    urls[at] = proxy.url();
    urls
}

#[test]
fn one_slow_server_of_five_costs_nothing() {
    let nodes = Nodes::start(5);
    nodes.warm_up();
    for at in 1..5 {
        let proxy = Proxy::to(&nodes[at]);
        proxy.delay(Duration::from_secs(2));
        assert_takes_less_than(Duration::from_millis(1500), || {
            let start = Instant::now();
            let run = Nodes::run_at(&through(&nodes, at, &proxy), "k").args(&["--node-timeout", "5s"]);
            let done = run.sh("echo ran").done().expect_code(0);
            assert_eq!(done.stderr, "");
            start.elapsed()
        });
    }
    // While the lock is held, too: several refreshes whose reply arrives after the next one is due.
    let proxy = Proxy::to(&nodes[3]);
    proxy.delay(Duration::from_millis(1800));
    let run = Nodes::run_at(&through(&nodes, 3, &proxy), "k").args(&["--ttl", "3s"]);
    let job = nodes.hold(run, "k");
    renewed(&nodes[0], "k", 5);
    let done = job.wait().expect_code(0);
    assert_eq!(done.stderr, "");
    nodes.all_free();
}

#[test]
fn two_of_five_servers_killed_while_held_change_nothing_and_a_third_stops_the_command() {
    let mut nodes = Nodes::start(5);
    let job = nodes.run("k").args(&["--ttl", "3s"]).sh(TREE).spawn();
    let tree = tree_of(&job);
    wait_until("all have voted", || nodes.claims("k").iter().all(|claim| !claim.is_empty()));
    let claim = nodes.claims("k")[4].clone();
    nodes[0].kill();
    nodes[3].kill();
    renewed(&nodes[4], "k", 4); // longer than the lease from before the kill
    assert!(tree.iter().all(|pid| alive(*pid)), "{}", job.stderr_so_far());
    assert_eq!(nodes.claims("k"), [&claim; 3].map(String::as_str));
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(75);
    nodes[1].kill();
    let dead = || !tree.iter().any(|pid| alive(*pid));
    // The lease began before the kill, and the tree is gone before the lease ends.
    wait_until_within(Duration::from_millis(3100), "the tree is gone within the lease", dead);
    job.wait().expect_code(79).expect_stderr(&["lost"]);
}

#[test]
fn only_the_servers_that_hang_are_named() {
    let nodes = Nodes::start(3);
    // The failing renewal reaches its time limit before the lease is overdue.
    let job = nodes.run("k").args(&["--ttl", "9s", "--node-timeout", "1s"]).cmd(&["sleep", "300"]).spawn();
    wait_until("all have voted", || nodes.claims("k").iter().all(|claim| !claim.is_empty()));
    nodes[1].stop();
    nodes[2].stop();
    let lost = job.wait().expect_code(79);
    nodes[1].cont();
    nodes[2].cont();
    let line = lost.stderr.lines().find(|line| line.contains("lost the lock")).expect("a line");
    assert!(line.contains(&nodes[1].url()) && line.contains(&nodes[2].url()), "{line}");
    assert!(!line.contains(&nodes[0].url()), "{line}");
}

/// From the server's own marker and clock.
fn quarantine_is_over(node: &Redis, quarantine_ms: u64) -> bool {
    let since = node.cmd(&["GET", "lock-node"]);
    let since: u64 = since.split(' ').nth(1).and_then(|since| since.parse().ok()).expect("a mark");
    let time = node.cmd(&["TIME"]);
    let seconds: u64 = time.split_whitespace().next().and_then(|now| now.parse().ok()).expect("a time");
    seconds * 1000 > since + quarantine_ms + 1000
}

/// Every server in turn loses all its data while the lock is held.
fn every_server_loses_its_data_in_turn(run_args: &[&str], mut forget: impl FnMut(&mut Nodes, usize)) {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    let run = nodes.run_quarantined("k").args(&["--ttl", "3s"]).args(run_args);
    let mut job = nodes.hold(run, "k");
    let claim = nodes.claims("k")[0].clone();
    for at in 0..3 {
        forget(&mut nodes, at);
        wait_until("healed", || nodes[at].cmd(&["GET", "lock:k"]) == claim);
        renewed(&nodes[at], "k", 1);
        // A server that was away for long is healed, but counts only after its quarantine.
        wait_until("the quarantine is over", || {
            run_args.contains(&"off") || quarantine_is_over(&nodes[at], 3000)
        });
        renewed(&nodes[at], "k", 1); // and counts from then on
        assert!(job.is_running(), "{}", job.stderr_so_far());
    }
    assert_eq!(nodes.claims("k"), [&claim; 3].map(String::as_str));
    let held = nodes.run_quarantined("k").args(&["-n", "--ttl", "3s"]).args(run_args);
    let code = held.sh("echo ran").done().code;
    assert!(matches!(code, Some(75 | 69)), "{code:?}");
    job.wait().expect_code(0);
    nodes.all_free();
}

#[test]
fn restarting_every_server_empty_in_turn_goes_unnoticed() {
    every_server_loses_its_data_in_turn(&["--quarantine", "off"], |nodes, at| nodes[at].restart());
}

#[test]
fn restarting_every_server_empty_in_turn_goes_unnoticed_under_quarantine() {
    every_server_loses_its_data_in_turn(&["--quarantine", "3s"], |nodes, at| nodes[at].restart());
}

#[test]
fn flushing_every_server_in_turn_goes_unnoticed() {
    every_server_loses_its_data_in_turn(&["--quarantine", "3s"], |nodes, at| {
        nodes[at].cmd(&["FLUSHALL"]);
    });
}

#[test]
fn a_lock_deleted_on_a_majority_is_lost_and_never_reappears() {
    let sets =
        [("off", &[0, 1][..]), ("off", &[1, 2]), ("off", &[0, 2]), ("off", &[0, 1, 2]), ("3s", &[0, 1])];
    for (quarantine, broken) in sets {
        let nodes = Nodes::start(3);
        nodes.settle();
        let run = nodes.run_quarantined("k").args(&["--ttl", "3s", "--quarantine", quarantine]);
        let job = run.sh(TREE).spawn();
        let tree = tree_of(&job);
        wait_until("all have voted", || nodes.claims("k").iter().all(|claim| !claim.is_empty()));
        broken.iter().for_each(|at| drop(nodes[*at].cmd(&["DEL", "lock:k"])));
        let taken_back = || broken.iter().any(|at| nodes[*at].held("k"));
        let mut job = job;
        let start = Instant::now();
        while job.is_running() {
            assert!(!taken_back(), "{broken:?}: reappeared after {:?}", start.elapsed());
            assert!(start.elapsed() < Duration::from_secs(20), "still runs");
        }
        job.wait().expect_code(79).expect_stderr(&["lost"]);
        assert!(!tree.iter().any(|pid| alive(*pid)));
        nodes.all_free();
    }
}

#[test]
fn a_lock_deleted_on_a_minority_is_healed_but_a_foreign_value_is_left_alone() {
    let nodes = Nodes::start(5);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "4s"]), "k");
    let claim = nodes.claims("k")[0].clone();
    for at in 0..5 {
        nodes[at].cmd(&["DEL", "lock:k"]);
        nodes[(at + 1) % 5].cmd(&["DEL", "lock:k"]);
        wait_until("healed", || nodes.claims("k").iter().all(|now| *now == claim));
    }
    nodes[0].cmd(&["SET", "lock:k", "foreign", "PX", "60000"]);
    nodes[2].cmd(&["SET", "lock:k", "foreign", "PX", "60000"]);
    renewed(&nodes[1], "k", 3);
    let claims = nodes.claims("k");
    assert_eq!([&claims[0], &claims[2]], ["foreign", "foreign"]);
    job.wait().expect_code(0);
    wait_until("released", || nodes.claims("k") == ["foreign", "", "foreign", "", ""]);
}

#[test]
fn a_majority_taken_by_another_program_is_a_lost_lock() {
    let nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "3s"]), "k");
    for at in [0, 1] {
        nodes[at].cmd(&["SET", "lock:k", "foreign", "PX", "60000"]);
    }
    job.wait_for_stderr("lost");
    job.wait().expect_code(79);
    wait_until("our lock is gone", || nodes.claims("k") == ["foreign", "foreign", ""]);
}

#[test]
fn the_vote_of_a_late_server_is_not_left_behind() {
    let nodes = Nodes::start(3);
    nodes.warm_up();
    for at in [1, 2] {
        // First its replies arrive after the run has ended; then its requests do.
        for late_requests in [false, true] {
            assert_takes_less_than(Duration::from_millis(2500), || {
                let (proxy, calls) = (Proxy::to(&nodes[at]), nodes[at].script_calls());
                if late_requests {
                    proxy.pause();
                } else {
                    proxy.delay(Duration::from_secs(3));
                }
                let run = Nodes::run_at(&through(&nodes, at, &proxy), "k").args(&["--ttl", "60s"]);
                let start = Instant::now();
                run.cmd(&["true"]).done().expect_code(0);
                let spent = start.elapsed();
                assert!(proxy.requests() > 0, "the request was sent");
                proxy.resume();
                // The vote request, and behind it the release of that vote.
                wait_until("both have arrived", || nodes[at].script_calls() >= calls + 2);
                nodes.all_free();
                spent
            });
        }
    }
}

#[test]
fn a_release_does_not_wait_for_a_server_slower_than_a_majority() {
    let nodes = Nodes::start(3);
    nodes.warm_up();
    for at in 0..3 {
        assert_takes_less_than(Duration::from_millis(1500), || {
            let proxy = Proxy::to(&nodes[at]);
            let run = Nodes::run_at(&through(&nodes, at, &proxy), "k").args(&["--node-timeout", "5s"]);
            let job = nodes.hold(run, "k");
            proxy.delay(Duration::from_secs(2));
            let start = Instant::now();
            let done = job.wait().expect_code(0);
            assert_eq!(done.stderr, "");
            let spent = start.elapsed();
            nodes.all_free();
            spent
        });
    }
}

/// The server's first reply would be that it does not have the script, and arrives after the run
/// has ended.
#[test]
fn the_first_release_reaches_a_server_slower_than_a_majority() {
    for at in 0..3 {
        let links = Links::one_host(3); // servers that have not loaded the scripts
        let job = links.nodes().hold(links.run(0, "k").args(&["--ttl", "60s"]), "k");
        links.line(0, at).delay(Duration::from_millis(500));
        job.wait().expect_code(0);
        links.nodes().all_free();
    }
}

#[test]
fn a_server_that_stops_and_returns_while_held_goes_unnoticed_and_releases_its_vote() {
    let nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "4s"]), "k");
    nodes[0].stop();
    renewed(&nodes[1], "k", 3);
    nodes[0].cont();
    nodes.run("k").args(&["-n", "--ttl", "60s"]).cmd(&["true"]).done().expect_code(75);
    let done = job.wait().expect_code(0);
    assert_eq!(done.stderr, "");
    nodes.all_free();
}

#[test]
fn a_server_that_was_down_at_the_start_joins_while_held() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    nodes[1].kill();
    let run = nodes.run_quarantined("k").args(&["--ttl", "3s", "--quarantine", "3s"]);
    let job = nodes.hold(run, "k");
    nodes[1].restart();
    settle(&nodes[1]);
    wait_until("the server has the claim, too", || nodes[1].held("k"));
    nodes[0].kill();
    renewed(&nodes[1], "k", 4);
    job.wait().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_healed_server_counts_min_hold_from_the_grant() {
    let nodes = Nodes::start(3);
    let run = nodes.run("k").args(&["--ttl", "4s", "--min-hold", "60s"]);
    let job = hold(run);
    let healthy = pttl(&nodes[0], "k");
    nodes[2].cmd(&["FLUSHALL"]);
    wait_until("the server is healed", || nodes[2].held("k"));
    job.wait().expect_code(0);
    // Read before and after the healed one, as the machine may pause between two reads.
    let left = [0, 2, 0].map(|at| pttl(&nodes[at], "k"));
    let is_alike = left[1] < left[0] + 500 && left[1] > left[2] - 500;
    assert!(left[0] < healthy && is_alike, "{left:?}, at first {healthy}");
}
