//! A server that may have lost a lock does not vote until every lease that it may have granted has
//! expired.

use std::time::{Duration, Instant};

use crate::support::nodes::settle;
use crate::support::{Nodes, REPORT_SURVIVORS, Redis, Run, TREE, alive, refused, tree_of, wait_until};

/// With a longer node timeout than a lease of that length implies.
const THREE: &[&str] = &["--quarantine", "3s", "--ttl", "3s", "--node-timeout", "1s"];

fn marker(redis: &Redis) -> String {
    redis.cmd(&["GET", "lock-node"])
}

/// Whether the text reports this server as quarantined.
fn names(text: &str, redis: &Redis) -> bool {
    text.contains(&redis.port().to_string())
}

#[test]
fn a_quarantined_majority_is_unavailable_with_nonblock_and_reported_with_its_time() {
    let nodes = Nodes::start(3);
    let run = || nodes.run_quarantined("k").args(&["--quarantine", "20s", "--ttl", "20s", "-n"]);
    let done = refused(run(), 69, &["quarantine"]);
    let quarantined = nodes.iter().filter(|redis| names(&done.stderr, redis)).count();
    assert_eq!(quarantined, 3, "{done:#?}");
    let seconds = (15..=22).any(|s| done.stderr.contains(&format!("{s}s")));
    assert!(seconds, "for how long: {done:#?}");
    assert!(done.stderr.contains("--quarantine"), "how to switch it off: {done:#?}");
    nodes.all_free();
    // One of three is not a majority.
    settle(&nodes[0]);
    refused(run(), 69, &["quarantine"]);
    settle(&nodes[2]);
    run().cmd(&["true"]).done().expect_code(0);
    nodes.all_free();
}

#[test]
fn the_default_is_thirty_seconds_for_several_servers_and_none_for_one() {
    let nodes = Nodes::start(3);
    refused(nodes.run_quarantined("k").arg("-n"), 69, &["quarantine"]);
    Run::key(&nodes[0], "one").arg("-n").cmd(&["true"]).done().expect_code(0);
    // The servers stay quarantined, whatever was done with one server, even for a client that has
    // switched it off: the longest quarantine of any client counts for all.
    refused(nodes.run_quarantined("k").arg("-n"), 69, &["quarantine"]);
    refused(nodes.run("k").arg("-n"), 69, &["quarantine"]);
    nodes.all_free();
    // Where no client uses a quarantine, off means off, typed or inherited.
    let nodes = Nodes::start(3);
    let inherited = nodes.run_quarantined("k").arg("-n").env("REDLOCK_QUARANTINE", "off");
    inherited.cmd(&["true"]).done().expect_code(0);
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_lock_without_a_lease_is_refused_with_a_quarantine() {
    let nodes = Nodes::start(3);
    refused(nodes.run_quarantined("k").args(&["--ttl", "none"]), 64, &["quarantine", "--ttl"]);
    nodes.run("k").args(&["--ttl", "10m"]).cmd(&["true"]).done().expect_code(0);
    nodes.settle();
    nodes.run_quarantined("k").args(THREE).cmd(&["true"]).done().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_waiter_waits_for_the_end_of_the_quarantine_and_reports_it() {
    let nodes = Nodes::start(3);
    let start = Instant::now();
    let waiter = nodes.run_quarantined("k").args(THREE).sh("echo mine").spawn();
    wait_until("marked", || nodes.iter().all(|redis| !marker(redis).is_empty()));
    let marked: Vec<String> = nodes.iter().map(marker).collect();
    let line = waiter.wait_for_stderr("quarantine");
    assert!(nodes.iter().any(|redis| names(&line, redis)), "{line}");
    waiter.wait_for_line("mine");
    assert!(start.elapsed() >= Duration::from_secs(3), "too early: {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    waiter.wait().expect_code(0);
    for (redis, marked) in nodes.iter().zip(marked) {
        assert!(marked.starts_with(&redis.info("run_id")), "{marked}");
        let first_seen = |marker: &str| marker.split(' ').take(2).collect::<String>();
        assert_eq!(first_seen(&marker(redis)), first_seen(&marked), "the first-seen time does not change");
        assert_eq!(redis.keys_without_ttl(), ["lock-node"]);
    }
    nodes.all_free();
}

#[test]
fn a_wait_shorter_than_the_quarantine_ends_unavailable() {
    let nodes = Nodes::start(3);
    let start = Instant::now();
    refused(nodes.run_quarantined("k").args(&["-w", "1500ms"]), 69, &["quarantine"]);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    nodes.all_free();
}

/// A majority is quarantined whatever replaced its data.
#[test]
fn a_restart_flush_copy_or_promotion_quarantines_a_server() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    let run = |nodes: &Nodes| nodes.run_quarantined("k").args(&["-n"]).args(THREE);
    run(&nodes).cmd(&["true"]).done().expect_code(0);
    type Forget = fn(&mut Redis);
    let one_by_one: [(&str, Forget); 5] = [
        ("restarted", |redis| redis.restart()),
        ("flushed", |redis| drop(redis.cmd(&["FLUSHALL"]))),
        ("promoted again", |redis| {
            redis.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
            redis.cmd(&["REPLICAOF", "NO", "ONE"]);
        }),
        ("a restored copy", |redis| drop(redis.cmd(&["SET", "lock-node", &format!("{} 1", "0".repeat(40))]))),
        ("not a marker", |redis| drop(redis.cmd(&["SET", "lock-node", "nonsense"]))),
    ];
    for (what, forget) in one_by_one {
        nodes.settle();
        forget(&mut nodes[1]);
        run(&nodes).cmd(&["true"]).done().expect_code(0);
        forget(&mut nodes[0]);
        let done = run(&nodes).sh("echo ran").done();
        assert_eq!((done.code, done.stdout.as_str()), (Some(69), ""), "{what}: {done:#?}");
        assert!(names(&done.stderr, &nodes[0]) && names(&done.stderr, &nodes[1]), "{what}: {done:#?}");
        assert!(marker(&nodes[0]).starts_with(&nodes[0].info("run_id")), "{what}: the marker is replaced");
    }
    nodes.all_free();
}

#[test]
fn a_promoted_replica_is_quarantined() {
    let (nodes, replica) = (Nodes::start(3), Redis::start());
    nodes.settle();
    nodes[2].cmd(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    replica.cmd(&["REPLICAOF", "127.0.0.1", &nodes[2].port().to_string()]);
    wait_until("the replica has the marker", || marker(&replica) == marker(&nodes[2]));
    replica.cmd(&["REPLICAOF", "NO", "ONE"]);
    let urls = [nodes[0].url(), "redis://127.0.0.1:1".into(), replica.url()].join(",");
    let done = refused(Run::at(&urls, "k").arg("-n").args(THREE), 69, &["quarantine"]);
    assert!(names(&done.stderr, &replica), "{done:#?}");
    assert!(
        done.stderr.contains("127.0.0.1:1:") && done.stderr.contains("refused"),
        "the dead server: {done:#?}"
    );
}

/// A holds n1 and n2 while n3 is down. n2 loses its data, n3 returns: these two could let B in.
fn assert_no_second_holder_after(forget: fn(&mut Redis)) {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    nodes[2].kill();
    let holder = nodes.run_quarantined("k").args(THREE).sh(TREE).spawn();
    let tree = tree_of(&holder);
    forget(&mut nodes[1]);
    nodes[2].restart();
    let mut asked = 0;
    let pids = tree.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    while tree.iter().any(|pid| alive(*pid)) {
        // On a busy machine the holder may be gone when this client starts: it checks that itself.
        let run = nodes.run_quarantined("k").arg("-n").args(THREE);
        let done = run.env("TREE", &pids).sh(REPORT_SURVIVORS).done();
        assert!(!done.stdout.contains("overlap"), "beside the holder: {done:#?}");
        assert!(matches!(done.code, Some(0 | 69 | 75)), "{done:#?}");
        asked += 1;
        if asked == 5 {
            // The holder is stopped when its lease ends, or was healed.
            nodes[0].kill();
        }
    }
    assert!(asked >= 2, "asked {asked} times");
    holder.wait().expect_code(79);
    // A waiter is let in when the quarantine of the two is over, with the third server gone.
    let patient = nodes.run_quarantined("k").args(THREE).sh("echo ran").spawn();
    patient.wait_for_line("ran");
    patient.wait().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_restarted_server_does_not_let_a_second_holder_in() {
    assert_no_second_holder_after(|redis| redis.restart());
}

#[test]
fn a_flushed_server_does_not_let_a_second_holder_in() {
    assert_no_second_holder_after(|redis| drop(redis.cmd(&["FLUSHALL"])));
}

#[test]
fn a_holder_keeps_its_lock_while_a_majority_is_quarantined() {
    // Its lease needs the servers' extensions, not their votes.
    let mut nodes = Nodes::start(3);
    nodes.settle();
    // Long enough for a restart between two refreshes: a server that is away for longer counts only
    // later.
    let nine = &["--ttl", "9s", "--quarantine", "9s"];
    let run = nodes.run_quarantined("k").args(nine);
    let mut job = nodes.hold(run, "k");
    for at in [0, 1] {
        crate::support::nodes::renewed(&nodes[at], "k", 1);
        nodes[at].restart();
        wait_until("healed", || nodes[at].held("k"));
        crate::support::nodes::renewed(&nodes[at], "k", 1);
    }
    assert!(job.is_running(), "{}", job.stderr_so_far());
    let done = nodes.run_quarantined("k").arg("-n").args(nine).sh("echo ran").done();
    assert!(matches!(done.code, Some(69 | 75)), "{done:#?}");
    job.wait().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_single_server_is_quarantined_once_on_request() {
    let redis = Redis::start();
    let run = || Run::key(&redis, "k").args(&["--quarantine", "3s", "--ttl", "3s"]);
    refused(run().arg("-n"), 69, &["quarantine"]);
    run().cmd(&["true"]).done().expect_code(0);
    // Even a lock held over many leases, and the next at once.
    let mark = marker(&redis);
    run().cmd(&["sleep", "4"]).done().expect_code(0);
    run().arg("-n").cmd(&["true"]).done().expect_code(0);
    let first_seen = |marker: &str| marker.split(' ').take(2).collect::<String>();
    assert_eq!(first_seen(&marker(&redis)), first_seen(&mark), "the quarantine does not restart");
    assert!(mark.starts_with(&redis.info("run_id")), "{mark}");
}

/// The server begins a new replication history, but has lost nothing.
#[test]
fn a_freed_replication_backlog_is_no_restart() {
    let nodes = Nodes::of((0..3).map(|_| Redis::start_with(&["--repl-backlog-ttl", "1"])).collect());
    for redis in nodes.iter() {
        let port = redis.port().to_string();
        let replica =
            Redis::start_with(&["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port]);
        wait_until("it has a replica", || replica.info("master_link_status") == "up");
        crate::support::nodes::settle(redis);
        let before = redis.info("master_replid");
        drop(replica);
        wait_until("the backlog is freed", || redis.info("repl_backlog_active") == "0");
        wait_until("the history is new", || redis.info("master_replid") != before);
    }
    nodes.run_quarantined("k").arg("-n").cmd(&["true"]).done().expect_code(0);
}
