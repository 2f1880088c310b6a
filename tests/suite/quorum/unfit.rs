//! Sets of servers that cannot hold a lock: refused with exit 78, and nothing is left behind.
//! sick_minority.rs tests minorities of servers that are unfit by themselves.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use crate::support::nodes::renewed;
use crate::support::{Nodes, Run, holder, refused, tree_of, wait_until};

/// Tried a few times, without and with waiting: never granted, always 78.
#[track_caller]
fn assert_unfit(urls: &[String], message: &[&str]) {
    for _ in 0..3 {
        refused(Nodes::run_at(urls, "k").args(&["-n", "--ttl", "60s"]), 78, message);
        refused(Nodes::run_at(urls, "k").args(&["--ttl", "60s"]), 78, message);
    }
}

/// Refused as one server with two names. The servers beyond the majority are checked only briefly:
/// on a busy machine a majority of different servers may grant the lock before the other name has
/// replied.
#[track_caller]
fn assert_refused_as_duplicate(urls: &[String]) {
    for args in [&["-n", "--ttl", "60s"][..], &["--ttl", "60s"]] {
        let mut attempts = (0..10).map(|_| Nodes::run_at(urls, "k").args(args).sh("exit 3").done());
        let refused = attempts.find(|done| done.code != Some(3)).expect("not once refused");
        refused.expect_code(78).expect_stderr(&["same server", "twice"]);
    }
}

#[test]
fn the_same_server_twice_is_refused_under_any_name() {
    let nodes = Nodes::start(3);
    let port = nodes[0].port();
    let aliases = [
        format!("redis://127.0.0.1:{port}"),
        format!("redis://localhost:{port}"),
        format!("redis://127.0.0.1:{port}/1"),
        format!("unix://{}", nodes[0].socket().display()),
    ];
    for alias in aliases {
        for set in [
            [nodes[0].url(), alias.clone(), nodes[1].url()],
            [nodes[1].url(), nodes[0].url(), alias.clone()],
            [alias.clone(), nodes[1].url(), nodes[0].url()],
        ] {
            assert_refused_as_duplicate(&set);
        }
        nodes.all_free(); // a late vote is released after the run has ended
        // There is no majority of different servers: the lock is never granted, however late the
        // replies are.
        assert_unfit(&[alias.clone(), nodes[0].url(), alias.clone()], &["same server", "twice"]);
        nodes.all_free();
    }
    let five = [nodes[1].url(), nodes[2].url(), nodes[0].url(), "redis://127.0.0.1:1".into()];
    assert_refused_as_duplicate(&[&five[..], &[format!("redis://localhost:{port}")]].concat());
    nodes.all_free();
    let mut other_db = nodes[0].connect();
    other_db.cmd(&["SELECT", "1"]);
    assert!(!other_db.keys().contains(&"lock:k".to_owned()), "left in the other db");
}

#[test]
fn a_server_listed_twice_that_comes_up_later_never_counts_twice() {
    let (mut nodes, dir) = (Nodes::start(3), tempfile::tempdir().unwrap());
    let late = ["late1", "late2"].map(|name| dir.path().join(name));
    let mut urls = nodes.urls();
    urls.extend(late.iter().map(|path| format!("unix://{}", path.display())));
    let script = "sleep 300 & echo pids $$ $!; wait";
    let job = Nodes::run_at(&urls, "k").args(&["--ttl", "3s"]).sh(script).spawn();
    let tree = tree_of(&job);
    renewed(&nodes[2], "k", 1);
    // Now three of the five addresses lead to one server, and only that one is left.
    late.iter().for_each(|path| symlink(nodes[2].socket(), path).unwrap());
    nodes[0].kill();
    nodes[1].kill();
    let start = Instant::now();
    let done = job.wait().expect_code(79);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert!(!tree.iter().any(|pid| crate::support::alive(*pid)), "{done:?}");
}

#[test]
fn a_key_held_on_one_server_is_refused_on_three_and_vice_versa() {
    let nodes = Nodes::start(3);
    for at in 0..3 {
        let single = holder(&nodes[at], "k", &["--ttl", "60s"]);
        let claim = nodes.claims("k");
        assert_unfit(&nodes.urls(), &["on one server", "over 3 servers"]);
        wait_until("only the holder's claim is left", || nodes.claims("k") == claim);
        single.wait().expect_code(0);
        nodes.all_free();
    }
    let several = nodes.hold(nodes.run("k").args(&["--ttl", "60s"]), "k");
    let claims = nodes.claims("k");
    for redis in nodes.iter() {
        refused(Run::key(redis, "k").arg("-n"), 78, &["on one server", "over 3 servers"]);
        refused(Run::key(redis, "k"), 78, &["on one server", "over 3 servers"]);
    }
    let five = [nodes.urls(), vec!["redis://127.0.0.1:1".into(), "redis://127.0.0.1:2".into()]].concat();
    refused(Nodes::run_at(&five, "k").arg("-n"), 78, &["on one server", "over 3 servers"]);
    assert_eq!(nodes.claims("k"), claims);
    several.wait().expect_code(0);
    nodes.all_free();
    // Not held: any number of servers may take it.
    holder(&nodes[0], "k", &[]).wait().expect_code(0);
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(0);
}
