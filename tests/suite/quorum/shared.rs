//! Readers on several servers: each needs a majority, whatever happens to a minority.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{
    Job, Nodes, PlainRedlock, Redis, alive, expect_success, hold, queued, tree_of, wait_until,
};

/// The number of readers with an entry on this server, dead or alive.
fn readers_at(redis: &Redis) -> usize {
    redis.cmd(&["ZCARD", "lock-shared:k"]).parse().expect("a count")
}

#[track_caller]
fn wait_for_readers_everywhere(nodes: &Nodes, readers: usize) {
    wait_until(&format!("{readers} readers on every living server"), || {
        nodes.up().all(|redis| readers_at(redis) == readers)
    });
}

#[test]
fn every_server_has_an_entry_for_every_reader() {
    let nodes = Nodes::start(3);
    let readers: Vec<Job> = (0..4).map(|_| hold(nodes.run("k").shared("60s"))).collect();
    wait_for_readers_everywhere(&nodes, 4);
    assert!(nodes.iter().all(|redis| redis.held("k")), "a foreign SET NX is kept out");
    assert!(!nodes.run("k").try_acquire());
    expect_success(readers);
    nodes.all_free();
    assert!(nodes.run("k").try_acquire());
}

#[test]
fn the_tokens_of_readers_are_all_different() {
    let nodes = Nodes::start(3);
    // The servers disagree about the last token, so the replies must be raised to those of a
    // majority.
    for (at, ahead) in [(0, 10), (1, 1000), (2, 500)] {
        let seconds: u64 = nodes[at].cmd(&["TIME"]).lines().next().unwrap().parse().unwrap();
        nodes[at].cmd(&["SET", "lock-fence:k", &((seconds + 1_000_000) * 1000 + ahead).to_string()]);
    }
    let script = "echo $REDLOCK_FENCE ready; read x; exit 0";
    let readers: Vec<Job> =
        (0..8).map(|_| nodes.run("k").shared("60s").stdin_pipe().sh(script).spawn()).collect();
    let fence = |job: &Job| job.wait_for_line("ready").split(' ').next().unwrap().parse::<u64>().unwrap();
    let fences: BTreeSet<u64> = readers.iter().map(fence).collect();
    assert_eq!(fences.len(), 8, "{fences:?}");
    expect_success(readers);
    let next = nodes.run("k").sh("echo $REDLOCK_FENCE").done().expect_code(0);
    let next: u64 = next.stdout.trim().parse().unwrap();
    assert!(next > *fences.last().unwrap(), "{next} after {fences:?}");
}

#[test]
fn readers_share_while_any_one_server_is_down() {
    for down in 0..3 {
        let mut nodes = Nodes::start(3);
        nodes[down].kill();
        let readers: Vec<Job> = (0..3).map(|_| hold(nodes.run("k").shared("60s"))).collect();
        wait_for_readers_everywhere(&nodes, 3);
        assert!(!nodes.run("k").try_acquire(), "without server {down}");
        expect_success(readers);
        assert!(nodes.run("k").try_acquire(), "without server {down}");
        nodes.all_free();
    }
}

#[test]
fn readers_survive_the_death_of_a_server_and_heal_it_when_it_returns() {
    let mut nodes = Nodes::start(3);
    let readers: Vec<Job> = (0..3).map(|_| hold(nodes.run("k").shared("4s"))).collect();
    wait_for_readers_everywhere(&nodes, 3);
    for at in [0, 2] {
        nodes[at].kill();
        assert!(!nodes.run("k").try_acquire());
        let newcomer = hold(nodes.run("k").shared("60s"));
        newcomer.wait().expect_code(0);
        nodes[at].restart();
        wait_for_readers_everywhere(&nodes, 3);
    }
    assert!(!nodes.run("k").try_acquire());
    expect_success(readers);
    nodes.all_free();
}

#[test]
fn a_reader_killed_with_its_guardian_blocks_a_writer_for_its_own_ttl_whatever_the_others_do() {
    let nodes = Nodes::start(3);
    let long = hold(nodes.run("k").shared("30s"));
    let victim = hold(nodes.run("k").shared("6s"));
    wait_for_readers_everywhere(&nodes, 2);
    let writer = nodes.run("k").sh("echo mine").spawn();
    queued(&nodes[0], "k", 1);
    let killed = Instant::now();
    victim.kill_with_guardian();
    long.wait().expect_code(0);
    writer.wait_for_line("mine");
    assert!(killed.elapsed() > Duration::from_secs(1), "before its lease ended: {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    writer.wait().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_lock_deleted_on_a_majority_is_lost_for_every_reader() {
    let nodes = Nodes::start(3);
    let run = || nodes.run("k").shared("3s").sh(crate::support::TREE).spawn();
    let readers: Vec<Job> = (0..2).map(|_| run()).collect();
    let trees: Vec<i32> = readers.iter().flat_map(tree_of).collect();
    wait_for_readers_everywhere(&nodes, 2);
    for at in [0, 2] {
        nodes[at].cmd(&["DEL", "lock:k"]);
    }
    for reader in readers {
        reader.wait().expect_code(79);
    }
    assert!(trees.iter().all(|pid| !alive(*pid)), "left alive of {trees:?}");
    nodes.all_free();
}

#[test]
fn a_lock_deleted_on_one_server_is_healed_for_every_reader() {
    let nodes = Nodes::start(3);
    let readers: Vec<Job> = (0..3).map(|_| hold(nodes.run("k").shared("4s"))).collect();
    wait_for_readers_everywhere(&nodes, 3);
    for at in [1, 0] {
        nodes[at].cmd(&["DEL", "lock:k", "lock-shared:k"]);
        wait_until("healed", || nodes[at].held("k") && readers_at(&nodes[at]) == 3);
        assert!(!nodes.run("k").try_acquire());
    }
    expect_success(readers);
    nodes.all_free();
}

#[test]
fn readers_with_different_gates_share_and_keep_a_writer_out() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls();
    let rotated = |first: usize| -> Vec<String> { (0..3).map(|i| urls[(first + i) % 3].clone()).collect() };
    let readers: Vec<Job> = (0..3)
        .map(|first| hold(Nodes::run_at(&rotated(first), "k").args(&["--shared", "--ttl", "60s"])))
        .collect();
    wait_for_readers_everywhere(&nodes, 3);
    for first in 0..3 {
        let writer = Nodes::run_at(&rotated(first), "k").arg("-n");
        writer.cmd(&["true"]).done().expect_code(75);
    }
    wait_for_readers_everywhere(&nodes, 3);
    expect_success(readers);
    nodes.all_free();
}

#[test]
fn readers_and_plain_redlock_exclude_each_other() {
    let nodes = Nodes::start(3);
    let bare = || nodes.run("k").args(&["--prefix", "", "--ttl", "20s", "--shared"]);
    let (lease, mut plain) = (Duration::from_secs(20), PlainRedlock::to(&nodes, "plain"));
    assert!(plain.try_lock("k", lease));
    bare().arg("-n").cmd(&["true"]).done().expect_code(75);
    assert_eq!(plain.unlock("k"), 3, "their values are untouched");
    let readers = [hold(bare()), hold(bare())];
    assert!(!plain.try_lock("k", lease));
    expect_success(readers);
    wait_until("free", || plain.try_lock("k", lease));
    assert_eq!(plain.unlock("k"), 3);
}
