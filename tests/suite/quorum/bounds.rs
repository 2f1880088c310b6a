//! Leases and quarantines of different lengths at the same servers.

use std::process::Command;

use crate::support::nodes::{marker_prefix, pttl};
use crate::support::{Links, MS, Nodes, Redis, Run, hold, refused, wait_until};

/// A server that answers late still reports the longest quarantine, even when it refuses.
#[test]
fn a_shorter_quarantine_lets_no_second_holder_in() {
    let mut links = Links::one_host(3);
    links.nodes().settle();
    let holder = hold(links.run_quarantined(0, "k"));
    wait_until("every server has the claim", || !links.nodes().claims("k").contains(&String::new()));
    links.restart(0);
    links.restart(1);
    links.line(0, 2).each_way(20 * MS);
    for (quarantine, args) in [("off", "-n"), ("2s", "--wait=6s")] {
        let run = links.run_quarantined(0, "k").args(&["--quarantine", quarantine, "--ttl", "2s", args]);
        let done = run.sh("echo ran").done();
        assert!(matches!(done.code, Some(69 | 75)) && done.stdout.is_empty(), "{quarantine}: {done:?}");
    }
    holder.wait().expect_code(0);
}

fn acquire_long(nodes: &Nodes) -> Run {
    Run::bare().args(&["acquire", "--key", "long", "--ttl", "2h", "-n", "--redis", &nodes.urls().join(",")])
}

/// Its quarantine follows the ttl by itself.
#[test]
fn a_long_lease_costs_other_clients_nothing() {
    let nodes = Nodes::start(3);
    nodes.settle();
    let token = acquire_long(&nodes).done().expect_code(0).stdout.trim().to_owned();
    assert!(nodes.iter().all(|redis| pttl(redis, "long") > 7_000_000));
    nodes.run_quarantined("other").arg("-n").cmd(&["true"]).done().expect_code(0);
    let release = ["release", "long", "--token", &token, "--redis", &nodes.urls().join(",")];
    Run::bare().args(&release).done().expect_code(0);
    nodes.run_quarantined("long").arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_client_that_requests_long_leases_is_named() {
    let nodes = Nodes::start(3);
    nodes.settle();
    acquire_long(&nodes).env("USER", "ignored").done().expect_code(0);
    let doctor = Run::bare().args(&["doctor", "--redis", &nodes.urls().join(",")]);
    let done = doctor.clone().done();
    let named = done.stdout.lines().filter(|line| line.contains("leases of up to 2h for another 2h"));
    let user = String::from_utf8(Command::new("id").arg("-un").output().expect("id").stdout).expect("a name");
    let user = format!("requested by {}@", user.trim());
    assert_eq!(named.filter(|line| line.contains(&user)).count(), 3, "{done:?}");
    // Two servers that lose their data wait for such leases to end.
    nodes.iter().skip(1).for_each(|redis| drop(redis.cmd(&["FLUSHALL"])));
    let other = nodes.run_quarantined("other").args(&["--quarantine", "2s", "--ttl", "2s", "-w", "5s"]);
    let done = other.cmd(&["true"]).done().expect_code(69);
    assert!(done.stderr.contains("redlock doctor shows who requested such a long lease"), "{done:?}");
}

#[test]
fn a_long_lease_needs_every_server() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    nodes[1].kill();
    let name = nodes[1].url();
    let done = acquire_long(&nodes).done().expect_code(69);
    assert!(done.stderr.contains(&name) && done.stdout.is_empty(), "{done:?}");
    nodes.all_free();
    nodes.run_quarantined("long").arg("-n").cmd(&["true"]).done().expect_code(0);
}

/// Leases longer than usual have been possible for ten minutes, and two servers have lost their data since.
#[test]
fn a_second_longer_bound_stops_no_other_client() {
    let nodes = Nodes::start(3);
    for (redis, age) in nodes.iter().zip([600, 100, 70]) {
        let seconds: u64 = redis.cmd(&["TIME"]).lines().next().expect("seconds").parse().expect("a number");
        let (since, ends) = ((seconds - age) * 1000, (seconds + 3600) * 1000);
        redis.cmd(&["SET", "lock-node", &format!("{} {since} 60000 {ends} {since}", marker_prefix(redis))]);
    }
    acquire_long(&nodes).done().expect_code(0);
    nodes.run_quarantined("other").arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn one_server_cannot_remember_a_lease_longer_than_the_quarantine() {
    let redis = Redis::start();
    let run = || Run::at(&redis.url(), "k").args(&["--quarantine", "30s", "-n"]);
    refused(run().args(&["--ttl", "10m"]), 64, &["--ttl must be at most --quarantine (30s), not 10m"]);
    refused(run().args(&["--ttl", "30s"]), 69, &["new, restarted or promoted"]);
}

#[test]
fn a_quarantine_is_as_long_as_the_lease() {
    let nodes = Nodes::start(3);
    let run = || nodes.run_quarantined("k").args(&["--quarantine", "2s", "-n"]);
    let done = refused(run(), 69, &["do not vote for another"]);
    assert!((28..=31).any(|left| done.stderr.contains(&format!("another {left}s"))), "{done:?}");
}

/// No command relies on it, so nothing has to be remembered for as long.
#[test]
fn a_minimum_hold_raises_no_bound() {
    let nodes = Nodes::start(3);
    nodes.settle();
    nodes.run_quarantined("k").args(&["--min-hold", "10m"]).cmd(&["true"]).done().expect_code(0);
    let kept = nodes.iter().filter(|redis| pttl(redis, "k") > 500_000).count();
    assert!(kept >= 2, "{kept}");
    let longest = |redis: &Redis| redis.cmd(&["GET", "lock-node"]).split(' ').nth(2).map(str::to_owned);
    assert!(nodes.iter().all(|redis| longest(redis).as_deref() == Some("30000")));
    let single = Redis::start();
    let run = Run::at(&single.url(), "k").args(&["--quarantine", "1s", "--ttl", "1s", "--min-hold", "10m"]);
    run.cmd(&["true"]).done().expect_code(0);
    assert!(pttl(&single, "k") > 500_000);
    assert_eq!(longest(&single).as_deref(), Some("1000"));
}
