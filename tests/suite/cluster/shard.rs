//! The first lock of a slot: it waits only if its master may have lost what it granted, or got the
//! slot recently.

use crate::support::cluster::Cluster;
use crate::support::redis::is_before_7;
use crate::support::{Run, refused, wait_until};

const ARGS: [&str; 5] = ["--ttl", "2s", "--quarantine", "2s", "-n"];
const WAITS: [&str; 1] = ["new, restarted or promoted"];

fn assert_quarantined(cluster: &Cluster, key: &str) {
    refused(cluster.run(key).args(&ARGS), 69, &WAITS);
}

fn assert_granted(cluster: &Cluster, key: &str) {
    cluster.run(key).args(&ARGS).cmd(&["true"]).done().expect_code(0);
}

/// A key of this master was used an hour ago.
fn use_long_ago(cluster: &Cluster, at: usize, key: &str) {
    assert_quarantined(cluster, key);
    cluster.age_shard_marker(at);
}

#[test]
fn a_new_key_of_a_known_master_does_not_wait() {
    let mut cluster = Cluster::start(3);
    let [first, second, third, fourth, fifth, sixth, last] = cluster.keys_of(0);
    let [elsewhere] = cluster.keys_of(1);
    // The whole quarantine, once for each master.
    cluster.run(&first).args(&ARGS[..4]).cmd(&["true"]).done().expect_code(0);
    assert_granted(&cluster, &second);
    assert_quarantined(&cluster, &elsewhere);
    // The server loses its data.
    cluster[0].cmd(&["FLUSHALL"]);
    assert_quarantined(&cluster, &second);
    assert_quarantined(&cluster, &third);
    cluster.age_shard_marker(0);
    assert_granted(&cluster, &fourth);
    // It keeps its data, which may be old, but is another process.
    cluster[0].cmd(&["CONFIG", "SET", "appendonly", "yes"]);
    wait_until("the data is on disk", || cluster[0].info("aof_rewrite_in_progress") == "0");
    cluster[0].kill();
    cluster[0].restart();
    cluster.wait_until_it_serves(0..3);
    assert_quarantined(&cluster, &fifth);
    cluster.age_shard_marker(0);
    assert_granted(&cluster, &sixth);
    // A longer quarantine must be waited for separately.
    refused(cluster.run(&last).args(&["--ttl", "2h", "--quarantine", "2h", "-n"]), 69, &WAITS);
}

#[test]
fn a_promoted_master_is_quarantined_once_for_all_its_slots() {
    let mut cluster = Cluster::with_replicas(3);
    let [used, new, other] = cluster.keys_of(0);
    use_long_ago(&cluster, 0, &used);
    assert_granted(&cluster, &other);
    let name = shard_marker(&cluster, 0);
    cluster.wait_for_replica(3, &["GET", &name], &cluster[0].cmd(&["GET", &name]));
    cluster.detect_failures_quickly();
    cluster[0].kill();
    cluster.wait_for_promotion(3);
    cluster.wait_until_it_serves(1..=3);
    assert_quarantined(&cluster, &new);
    assert_quarantined(&cluster, &used);
    cluster.age_shard_marker(3);
    // Its marker is the old master's.
    let free = ["status", &other, "--check", "free", "--redis"];
    Run::bare().args(&free).arg(cluster.url()).done().expect_code(0);
    assert_granted(&cluster, &other);
}

fn shard_marker(cluster: &Cluster, at: usize) -> String {
    cluster[at].keys().into_iter().find(|name| name.starts_with("lock-shard:")).expect("a shard marker")
}

/// A slot that arrives without a marker was never used, or was lost with its owner.
#[test]
fn a_master_that_gets_a_slot_is_quarantined() {
    let cluster = Cluster::start(3);
    let ([used, moved, new, later], [there, new_there]) = (cluster.keys_of(0), cluster.keys_of(1));
    use_long_ago(&cluster, 0, &used);
    use_long_ago(&cluster, 1, &there);
    cluster.begin_move(&moved, 0, 1);
    // Its slots are uncertain meanwhile.
    assert_quarantined(&cluster, &new);
    cluster.finish_move(&moved, 0, 1);
    assert_quarantined(&cluster, &moved);
    assert_quarantined(&cluster, &new_there);
    assert_quarantined(&cluster, &later);
}

/// Whether the other master gets a new epoch for it, or has the highest.
#[test]
fn a_slot_that_leaves_and_returns_is_noticed() {
    for (at, other) in [(0, 1), (1, 2)] {
        let cluster = Cluster::start(3);
        let [used, moved, new] = cluster.keys_of(at);
        use_long_ago(&cluster, at, &used);
        for (from, to) in [(at, other), (other, at)] {
            cluster.begin_move(&moved, from, to);
            cluster.finish_move(&moved, from, to);
        }
        assert_quarantined(&cluster, &new);
    }
}

/// As `redis-cli --cluster fix` does when a master is lost with its data.
#[test]
fn a_slot_taken_from_a_dead_master_is_quarantined() {
    let mut cluster = Cluster::start(3);
    let ([used, new], [lost]) = (cluster.keys_of(0), cluster.keys_of(2));
    use_long_ago(&cluster, 0, &used);
    cluster[2].kill();
    let slot = cluster.slot(&lost).to_string();
    for at in 0..2 {
        assert_eq!(cluster[at].cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]), "OK");
        assert_eq!(cluster[at].cmd(&["CLUSTER", "DELSLOTS", &slot]), "OK");
    }
    assert_granted(&cluster, &new);
    assert_eq!(cluster[0].cmd(&["CLUSTER", "ADDSLOTS", &slot]), "OK");
    assert_eq!(cluster[1].cmd(&["CLUSTER", "SETSLOT", &slot, "NODE", &cluster.id(0)]), "OK");
    cluster.wait_until_it_serves(0..2);
    assert_quarantined(&cluster, &lost);
}

/// Nothing is known of its slots then.
#[test]
fn a_master_that_does_not_report_its_slots_is_quarantined_for_each_of_them() {
    if is_before_7() {
        skip!("an ACL of Redis 6 cannot forbid a subcommand alone");
    }
    let cluster = Cluster::start(3);
    let [used, new, other, last] = cluster.keys_of(0);
    use_long_ago(&cluster, 0, &used);
    for denied in ["-cluster|nodes", "-cluster|keyslot"] {
        for at in 0..3 {
            let rules = ["ACL", "SETUSER", "limited", "reset", "on", ">word", "~*", "&*", "+@all", denied];
            assert_eq!(cluster[at].cmd(&rules), "OK");
        }
        let url = cluster.url().replace("://", "://limited:word@");
        refused(Run::at(&url, &new).args(&ARGS), 69, &WAITS);
    }
    assert_granted(&cluster, &other);
    // The key has a foreign value.
    let name = shard_marker(&cluster, 0);
    cluster[0].cmd(&["DEL", &name]);
    cluster[0].cmd(&["RPUSH", &name, "x"]);
    assert_quarantined(&cluster, &last);
    assert_eq!(cluster[0].cmd(&["TYPE", &name]), "list");
}
