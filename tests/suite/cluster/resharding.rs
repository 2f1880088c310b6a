//! A lock's slot moves to another master.

use std::time::{Duration, Instant};

use crate::support::cluster::Cluster;
use crate::support::{OverlapCheck, hold, refused, wait_for_sleeping_waiter, wait_until};

fn name(key: &str, role: &str) -> String {
    format!("lock{role}:{{{key}}}")
}

#[test]
fn holders_and_waiters_follow_a_slot_that_moves() {
    let cluster = Cluster::start(3);
    let (from, to) = (cluster.owner("k"), (cluster.owner("k") + 1) % 3);
    let check = OverlapCheck::new();
    let run = |args: &[&str]| cluster.run("k").args(&["--quarantine", "off"]).args(args).dir(check.dir());
    let holder = hold(run(&["--ttl", "9s"]));
    let waiter = run(&[]).sh(&OverlapCheck::script("waiter")).spawn();
    let queue_length = |at: usize| cluster[at].cmd(&["ZCARD", &name("k", "-queue")]);
    wait_until("the waiter is queued", || queue_length(from) == "1");
    // While the slot is moving neither server serves it. Meanwhile the waiter retries, and the
    // holder renews.
    cluster.begin_move("k", from, to);
    let postponed = Instant::now();
    let errors = || cluster[from].info("errorstat_TRYAGAIN") + &cluster[to].info("errorstat_TRYAGAIN");
    wait_until("both got TRYAGAIN", || errors().contains("count="));
    cluster.finish_move("k", from, to);
    assert!(postponed.elapsed() < Duration::from_secs(10), "{:?}", postponed.elapsed());
    cluster.renewed(to, "k", 8000);
    wait_until("the waiter queues on the new owner", || queue_length(to) == "1");
    holder.wait().expect_code(0);
    waiter.wait().expect_code(0);
    check.assert_clean(1);
    // Queried by a client that knows nothing of the move, from any server.
    cluster.run("k").args(&["--quarantine", "off", "-n"]).cmd(&["true"]).done().expect_code(0);
    // An idle holder's slot moves back between two renewals.
    let holder = hold(run(&["--ttl", "9s"]));
    cluster.begin_move("k", to, from);
    cluster.finish_move("k", to, from);
    cluster.renewed(from, "k", 8000);
    holder.wait().expect_code(0);
    assert_eq!(cluster[from].cmd(&["EXISTS", &name("k", "")]), "0");
}

/// The server unblocks a waiter that sleeps in BLPOP.
#[test]
fn a_move_wakes_a_sleeping_waiter() {
    let cluster = Cluster::start(3);
    let (from, to) = (cluster.owner("k"), (cluster.owner("k") + 1) % 3);
    let holder = hold(cluster.run("k").args(&["--quarantine", "off"]));
    let waiter = cluster.run("k").args(&["--quarantine", "off"]).sh("echo mine").spawn();
    wait_for_sleeping_waiter(&cluster[from]);
    cluster.begin_move("k", from, to);
    cluster.finish_move("k", from, to);
    wait_for_sleeping_waiter(&cluster[to]);
    holder.wait().expect_code(0);
    waiter.wait_for_line("mine");
    waiter.wait().expect_code(0);
}

/// The new owner cannot distinguish a moved slot from one that it got in a failover, so the
/// quarantine restarts. The holder is not affected.
#[test]
fn a_moved_slot_is_quarantined_where_it_arrives() {
    let cluster = Cluster::start(3);
    let (from, to) = (cluster.owner("k"), (cluster.owner("k") + 1) % 3);
    cluster.settle("k", from);
    let run = || cluster.run("k").args(&["--ttl", "9s", "--quarantine", "9s"]);
    let holder = hold(run());
    cluster.begin_move("k", from, to);
    cluster.finish_move("k", from, to);
    cluster.renewed(to, "k", 8000);
    refused(run().arg("-n"), 69, &["new, restarted or promoted"]);
    let waiter = run().sh("echo mine").spawn();
    waiter.wait_for_stderr("promoted");
    holder.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "mine\n");
}

/// The old owner has none of a free lock's names, and redirects the request.
#[test]
fn a_free_lock_is_taken_when_its_slot_has_arrived() {
    let cluster = Cluster::start(3);
    let (from, to) = (cluster.owner("k"), (cluster.owner("k") + 1) % 3);
    cluster.begin_move("k", from, to);
    let run = || cluster.run("k").args(&["--quarantine", "off"]);
    refused(run().args(&["-n", "--node-timeout", "2s"]), 69, &["TRYAGAIN", "ASK"]);
    let waits = run().args(&["--on-unavailable", "wait"]).sh("echo mine").spawn();
    let errors = || cluster[from].info("errorstat_ASK") + &cluster[to].info("errorstat_TRYAGAIN");
    wait_until("the request was redirected", || errors().matches("count=").count() == 2);
    cluster.finish_move("k", from, to);
    assert_eq!(waits.wait().expect_code(0).stdout, "mine\n");
}
