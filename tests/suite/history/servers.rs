//! One history on several servers, and on servers found through Sentinel or Cluster.

use super::{all, history};
use crate::support::cluster::Cluster;
use crate::support::{Backend, Locks, Nodes, Run, wait_until};

fn nodes(backend: &mut Backend) -> &mut Nodes {
    let Locks::ThreeServers(nodes) = &mut backend.locks else { panic!("not three servers") };
    nodes
}

#[test]
fn a_server_that_missed_some_runs_changes_nothing() {
    let mut backend = Backend::three_servers();
    backend.run().args(&["--label", "a"]).cmd(&["true"]).done().expect_code(0);
    nodes(&mut backend)[2].cmd(&["DEL", "lock-log:k"]);
    backend.run().args(&["--label", "b"]).cmd(&["true"]).done().expect_code(0);
    nodes(&mut backend)[0].cmd(&["DEL", "lock-log:k"]);
    let runs = history(&backend, "k");
    assert_eq!(all(&runs, "outcome"), ["ran", "ran"]);
    assert_eq!((&runs[0]["run"]["label"], &runs[1]["run"]["label"]), (&"a".into(), &"b".into()));
}

#[test]
fn the_history_needs_a_majority() {
    let mut backend = Backend::three_servers();
    backend.run().cmd(&["true"]).done().expect_code(0);
    nodes(&mut backend)[1].kill();
    let done = backend.subcommand("history").arg("k").done().expect_code(0);
    assert!(done.stdout.contains("k: 1 run ") && done.stdout.contains("FAILS: "), "{done:?}");
    nodes(&mut backend)[2].kill();
    backend.subcommand("history").arg("k").done().expect_code(69);
}

#[test]
fn a_vote_that_was_never_a_lock_is_not_a_run() {
    let mut backend = Backend::three_servers();
    let url = nodes(&mut backend)[0].url();
    // As if a client had died with one vote: a lock on this server alone.
    let first = crate::support::hold(Run::at(&url, "k").args(&["--ttl", "3s"]));
    first.kill_with_guardian();
    wait_until("its lease has ended", || !nodes(&mut backend)[0].held("k"));
    assert_eq!(history(&backend, "k"), Vec::<serde_json::Value>::new());
    backend.run().cmd(&["true"]).done().expect_code(0);
    assert_eq!(all(&history(&backend, "k"), "outcome"), ["ran"]);
    let alone = Run::bare().args(&["history", "-r", &url, "k", "--json"]).done().expect_code(0);
    assert_eq!(alone.stdout.lines().count(), 2, "that server alone has both: {alone:?}");
}

#[test]
fn a_cluster_has_a_history() {
    let cluster = Cluster::start(3);
    for key in ["a", "b", "{a}c", "k"] {
        cluster.run(key).args(&["--quarantine", "off", "--label", key]).cmd(&["true"]).done().expect_code(0);
        let done = Run::bare().args(&["history", "-r", &cluster.url(), key, "--json"]).done().expect_code(0);
        let runs = done.json_lines();
        assert_eq!((runs.len(), &runs[0]["run"]["label"]), (1, &key.into()), "{done:?}");
    }
}
