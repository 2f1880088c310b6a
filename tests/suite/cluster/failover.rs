//! A replica takes the place of the master of a lock's slot.

use crate::support::cluster::Cluster;
use crate::support::{
    OverlapCheck, REPORT_SURVIVORS, TREE, alive, hold, refused, tree_of, wait_for_sleeping_waiter, wait_until,
};

/// Long enough for the replica to become the master within the lease.
const ARGS: [&str; 4] = ["--ttl", "12s", "--quarantine", "12s"];

#[test]
fn a_holder_continues_and_a_waiter_waits_for_every_lease_of_the_old_master() {
    let mut cluster = Cluster::with_replicas(3);
    let (master, replica) = (cluster.owner("k"), cluster.owner("k") + 3);
    cluster.settle("k", master);
    let check = OverlapCheck::new();
    let holder = hold(cluster.run("k").args(&ARGS));
    let fence: u64 = cluster[master].cmd(&["GET", "lock-fence:{k}"]).parse().unwrap();
    let waiter = cluster.run("k").args(&ARGS).dir(check.dir()).sh(&OverlapCheck::script("waiter")).spawn();
    wait_for_sleeping_waiter(&cluster[master]);
    cluster.wait_for_replica(replica, &["ZCARD", "lock-queue:{k}"], "1");
    cluster.detect_failures_quickly();
    cluster[master].kill();
    cluster.wait_for_promotion(replica);
    // The holder is renewed there, and no other request is granted.
    cluster.renewed(replica, "k", 11_000);
    waiter.wait_for_stderr("promoted");
    refused(cluster.run("k").args(&ARGS).arg("-n"), 69, &["promoted"]);
    holder.wait().expect_code(0);
    check.assert_clean(0);
    // The old master returns, empty, and learns that it is a replica now.
    cluster[master].restart();
    waiter.wait().expect_code(0);
    check.assert_clean(1);
    assert!(check.fences()[0] > fence, "{:?} after {fence}", check.fences());
    // A client that contacts the old master first gets the same result.
    wait_until("the old master is a replica", || cluster[master].info("role") == "slave");
    cluster.run("k").args(&ARGS).arg("-n").cmd(&["true"]).done().expect_code(0);
}

/// As with Sentinel: a claim that was not replicated is gone after the failover.
#[test]
fn an_unreplicated_holder_is_stopped_before_the_next_one_starts() {
    let mut cluster = Cluster::with_replicas(3);
    let (master, replica) = (cluster.owner("k"), cluster.owner("k") + 3);
    cluster.settle("k", master);
    cluster.run("k").args(&ARGS).cmd(&["true"]).done().expect_code(0);
    cluster.wait_for_replica(replica, &["EXISTS", "lock-fence:{k}"], "1");
    // The replica is stopped first; otherwise it would reconnect at once.
    cluster.detect_failures_quickly();
    cluster[replica].stop();
    cluster[master].cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
    let lost = cluster.run("k").args(&ARGS).sh(TREE).spawn();
    let tree = tree_of(&lost);
    let pids = tree.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    cluster[master].kill();
    cluster[replica].cont();
    cluster.wait_for_promotion(replica);
    assert_eq!(cluster[replica].cmd(&["EXISTS", "lock:{k}"]), "0", "the claim was not replicated");
    let next = cluster.run("k").args(&ARGS).env("TREE", pids).sh(REPORT_SURVIVORS).done().expect_code(0);
    assert_eq!(next.stdout, "looked\n", "{next:#?}");
    lost.wait().expect_code(79);
    assert!(tree.iter().all(|pid| !alive(*pid)));
}

/// As an operator does before an upgrade: the replica has all data, the old master stays as a
/// replica.
#[test]
fn holders_and_waiters_follow_a_planned_failover() {
    let cluster = Cluster::with_replicas(3);
    let (master, replica) = (cluster.owner("k"), cluster.owner("k") + 3);
    cluster.settle("k", master);
    let holder = hold(cluster.run("k").args(&ARGS));
    let waiter = cluster.run("k").args(&ARGS).sh("echo mine").spawn();
    wait_for_sleeping_waiter(&cluster[master]);
    wait_until("the replica takes over", || cluster[replica].cmd(&["CLUSTER", "FAILOVER"]) == "OK");
    cluster.wait_for_promotion(replica);
    cluster.renewed(replica, "k", 11_000);
    waiter.wait_for_stderr("promoted");
    holder.wait().expect_code(0);
    assert_eq!(cluster[replica].cmd(&["EXISTS", "lock:{k}"]), "0");
    assert_eq!(waiter.wait().expect_code(0).stdout, "mine\n");
}
