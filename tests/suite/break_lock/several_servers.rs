//! A break counts if it reaches a majority of the servers; on fewer it has no lasting effect.

use super::break_at;
use super::chosen::holder_with_token;
use crate::support::script_calls::{Requester, load};
use crate::support::{Nodes, hold, wait_until};

/// Marks the claim as lua/break.lua does, on one server only.
fn mark_on_one(nodes: &Nodes, at: usize) {
    let claim = nodes[at].cmd(&["GET", "lock:k"]);
    nodes[at].cmd(&["SET", "lock:k", &format!("{claim}!"), "KEEPTTL"]);
    let waiter = claim.split('.').next().expect("a waiter").to_owned();
    let mut record: serde_json::Value =
        serde_json::from_str(&nodes[at].cmd(&["HGET", "lock-info:k", &waiter])).expect("a record");
    record["broken"] = r#"{"user":"alice","host":"h","pid":"1"}"#.into();
    nodes[at].cmd(&["HSET", "lock-info:k", &waiter, &record.to_string()]);
    nodes[at].cmd(&["RPUSH", &format!("lock-notify:{waiter}"), &format!("{claim} {{\"user\":\"alice\"}}")]);
}

#[test]
fn a_break_on_a_minority_has_no_effect() {
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
fn a_break_on_a_majority_is_enough() {
    let mut nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "30s"]), "k");
    nodes[1].kill();
    break_at(&nodes.urls().join(",")).arg("--yes").done().expect_code(0);
    job.wait().expect_code(79);
    assert_eq!(nodes.claims("k"), ["", ""]);
}

/// The run continues, and the server has a claim without a mark when the old mark has expired
/// there.
#[test]
fn a_mark_on_a_minority_stops_no_command_and_does_not_last() {
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

/// One of three servers then hangs, and one has lost its data: less than a majority can still be
/// marked.
#[test]
fn a_break_on_a_majority_is_not_revoked() {
    let nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "60s"]), "k");
    job.stop();
    let breaking = break_at(&nodes.urls().join(",")).args(&["--yes", "--node-timeout", "200ms"]).spawn();
    let is_marked = |at: usize| nodes[at].cmd(&["GET", "lock:k"]).ends_with('!');
    wait_until("the claim is marked", || (0..3).all(is_marked));
    nodes[2].stop();
    nodes[1].cmd(&["DEL", "lock:k"]);
    let asked = nodes[0].script_calls();
    wait_until("the server got the mark once more", || {
        assert!(is_marked(0), "the mark was removed");
        nodes[0].script_calls() > asked + 8
    });
    drop((breaking, job));
    nodes[2].cont();
}

/// Two of three servers refuse the break, which shows only after all have been queried.
#[test]
fn a_break_with_now_frees_all_servers_or_none() {
    let nodes = Nodes::start(3);
    let mut job = nodes.hold(nodes.run("k").args(&["--ttl", "30s"]), "k");
    let before = nodes.claims("k");
    for at in [0, 1] {
        nodes[at].cmd(&["ACL", "SETUSER", "default", "-rpush"]);
    }
    let done = break_at(&nodes.urls().join(",")).args(&["--yes", "--now"]).done().expect_code(77);
    assert!(done.stderr.contains("nothing was broken"), "{done:?}");
    assert_eq!(nodes.claims("k"), before);
    assert!(job.is_running());
    job.wait().expect_code(0);
}

/// The holder learns of the break, and a key that cannot be deleted ends with its lease.
#[test]
fn a_lock_that_cannot_be_freed_at_once_is_still_broken() {
    let nodes = Nodes::start(3);
    let job = nodes.hold(nodes.run("k").args(&["--ttl", "3s"]), "k");
    for at in [0, 1] {
        nodes[at].cmd(&["ACL", "SETUSER", "default", "-del"]);
    }
    let done = break_at(&nodes.urls().join(",")).args(&["--yes", "--now"]).done().expect_code(0);
    assert!(done.stderr.contains("could not be freed at once"), "{done:?}");
    assert!(done.stdout.contains("broke \"k\": taken from ") && !done.stdout.contains("freed"), "{done:?}");
    job.wait().expect_code(79);
}

/// One client has marked the claim on a majority, and gives up; another one relies on that mark.
#[test]
fn a_mark_stays_until_every_client_has_removed_its_own() {
    for args in [&[][..], &["--shared"]] {
        let nodes = Nodes::start(3);
        let (job, token) = holder_with_token(nodes.run("k").args(&["--ttl", "60s"]).args(args));
        job.stop();
        let another = Requester::new(7, &["k"]);
        let by_another = |action: &str| {
            for at in [0, 1] {
                nodes[at].cmd(&load()[1]);
                let words = another.break_claim(action, &token, "3");
                nodes[at].cmd(&words.iter().map(String::as_str).collect::<Vec<_>>());
            }
        };
        let is_marked = |at: usize| {
            let sharers = nodes[at].cmd(&["ZRANGE", "lock-shared:k", "0", "-1"]);
            nodes[at].cmd(&["GET", "lock:k"]).ends_with('!') || sharers.ends_with('!')
        };
        by_another("mark");
        assert!((0..2).all(is_marked));
        let breaking = break_at(&nodes.urls().join(",")).args(&["--yes", "-w", "60s"]).spawn();
        breaking.wait_for_stderr("waiting for ");
        by_another("unmark");
        assert!((0..3).all(is_marked), "the mark was removed");
        by_another("mark");
        by_another("unmark");
        assert!((0..3).all(is_marked), "the mark was removed");
        drop((breaking, job));
    }
}

/// Servers that the holder heals after the first mark are marked as well.
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
