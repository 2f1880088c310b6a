//! A break counts if a majority of the servers has it; what reaches fewer changes nothing that lasts.

use super::break_at;
use crate::support::{Nodes, hold, wait_until};

/// Marks the claim as lua/break.lua does, on one server only.
fn mark_on_one(nodes: &Nodes, at: usize) {
    let claim = nodes[at].cmd(&["GET", "lock:k"]);
    nodes[at].cmd(&["SET", "lock:k", &format!("{claim}!"), "KEEPTTL"]);
    nodes[at].cmd(&["HSET", "lock-info:k", "broken", r#"{"user":"alice","host":"h","pid":"1"}"#]);
    let waiter = claim.split('.').next().expect("a waiter").to_owned();
    nodes[at].cmd(&["RPUSH", &format!("lock-notify:{waiter}"), &format!("{claim} {{\"user\":\"alice\"}}")]);
}

#[test]
fn a_minority_does_the_same_as_none() {
    let mut nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "30s"]), "k");
    let before = nodes.claims("k");
    nodes[0].kill();
    nodes[1].kill();
    for args in [&["--yes"][..], &["--yes", "--now"]] {
        let done = break_at(&nodes.urls().join(",")).args(args).done().expect_code(69);
        assert!(done.stderr.contains("nothing was broken"), "{done:?}");
        assert_eq!(nodes.claims("k"), before[..1]);
    }
    drop(job);
}

#[test]
fn a_majority_is_enough() {
    let mut nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "30s"]), "k");
    nodes[1].kill();
    break_at(&nodes.urls().join(",")).arg("--yes").done().expect_code(0);
    job.wait().expect_code(79);
    assert_eq!(nodes.claims("k"), ["", ""]);
}

/// It goes on, and that server has a claim without a mark again when the old one has expired there.
#[test]
fn a_mark_on_a_minority_stops_nothing_and_does_not_last() {
    let nodes = Nodes::start(3);
    let mut job = nodes.hold(nodes.run("k").args(&["--ttl", "4s"]), "k");
    mark_on_one(&nodes, 1);
    wait_until("the mark is gone", || {
        let claims = nodes.claims("k");
        claims[0] == claims[1] && !claims[0].is_empty()
    });
    assert!(job.is_running());
    let done = job.wait().expect_code(0);
    assert!(!done.stderr.contains("lost"), "{done:?}");
}

/// Of three servers one then hangs, and one has lost its data: less than a majority can still be marked again.
#[test]
fn what_a_majority_was_told_is_not_taken_back() {
    let nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "60s"]), "k");
    job.stop();
    let breaking = break_at(&nodes.urls().join(",")).args(&["--yes", "--node-timeout", "200ms"]).spawn();
    let is_marked = |at: usize| nodes[at].cmd(&["GET", "lock:k"]).ends_with('!');
    wait_until("it is marked", || (0..3).all(is_marked));
    nodes[2].stop();
    nodes[1].cmd(&["DEL", "lock:k"]);
    let asked = nodes[0].script_calls();
    wait_until("it was told again", || {
        assert!(is_marked(0), "the mark was taken back");
        nodes[0].script_calls() > asked + 8
    });
    drop((breaking, job));
    nodes[2].cont();
}

/// Whatever the holder heals after the first mark is marked as well.
#[test]
fn a_server_that_lost_its_data_does_not_save_the_holder() {
    let mut nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "3s"]), "k");
    nodes[2].restart();
    break_at(&nodes.urls().join(",")).arg("--yes").done().expect_code(0);
    job.wait().expect_code(79);
    nodes.all_free();
}

#[test]
fn readers_on_several_servers_are_broken_one_by_one() {
    let nodes = Nodes::start(3);
    let reader = || hold(nodes.run("k").args(&["--shared", "--ttl", "30s"]));
    let (one, two) = (reader(), reader());
    let done = break_at(&nodes.urls().join(",")).arg("--yes").done().expect_code(0);
    assert_eq!(done.stdout.lines().count(), 2, "{done:?}");
    one.wait().expect_code(79);
    two.wait().expect_code(79);
    nodes.all_free();
}
