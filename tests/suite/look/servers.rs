//! Several servers in one view: the majority decides, and differences are shown.

use super::{look, status};
use crate::support::{Nodes, Redis, Run, holder, wait_until};

#[test]
fn a_server_that_is_down_is_shown() {
    let mut nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    let _holder = nodes.hold(nodes.run("k").args(&["--ttl", "20s"]), "k");
    let found = status(&urls, "k");
    assert!(found["servers"].as_array().unwrap().iter().all(|server| server["vote"] == true), "{found}");
    nodes[0].kill();
    let found = status(&urls, "k");
    assert_eq!((&found["state"], &found["servers"][0]["state"]), (&"held".into(), &"down".into()));
    assert!(found["servers"][0]["cause"].as_str().unwrap().contains("refused"), "{found}");
    assert!(found["servers"][0]["vote"].is_null(), "{found}");
    let text = look("status", &urls, &["k"]).done().expect_code(0).stdout;
    assert!(text.contains("FAILS: connection refused") && text.contains("agrees"), "{text}");
    let list = look("list", &urls, &[]).done().expect_code(0).stdout;
    assert!(list.contains("k    held") && list.contains("FAILS: connection refused"), "{list}");
}

/// Their state is a hint for people, and nothing else.
#[test]
fn the_remaining_minority_is_shown_but_decides_nothing() {
    let mut nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    let _holder = nodes.hold(nodes.run("k").args(&["--ttl", "60s", "--label", "nightly"]), "k");
    nodes[0].kill();
    nodes[1].kill();
    let shown = look("status", &urls, &["k"]).done().expect_code(69);
    assert!(
        shown.stdout.starts_with("k: not decided: held, as far as 1 of 3 servers can tell\n"),
        "{shown:?}"
    );
    assert!(shown.stdout.contains("nightly"), "{shown:?}");
    assert_eq!(shown.stdout.matches("FAILS: connection refused").count(), 2, "{shown:?}");
    assert!(shown.stderr.contains("only 1 of 3 servers can vote, 2 are needed"), "{shown:?}");
    let free = look("status", &urls, &["other"]).done().expect_code(69);
    assert!(free.stdout.starts_with("other: not decided: not held, as far as 1 of 3"), "{free:?}");
    let list = look("list", &urls, &[]).done().expect_code(69);
    assert!(list.stdout.contains("k    held?") && list.stdout.contains("? not decided"), "{list:?}");
    for (command, args) in [("status", &["k", "--json"][..]), ("list", &["--json"])] {
        let done = look(command, &urls, args).done().expect_code(69);
        let found = done.json();
        assert!(found.get("state").is_none() && found["holders"][0]["label"] == "nightly", "{found}");
        let servers: Vec<_> = (0..3).map(|at| &found["servers"][at]).collect();
        assert!(servers.iter().all(|server| server.get("vote").is_none()), "{found}");
        assert_eq!(servers.iter().filter(|server| server["state"] == "down").count(), 2, "{found}");
    }
    for check in ["held", "free"] {
        let done = look("status", &urls, &["k", "--check", check]).done().expect_code(69);
        assert_eq!(done.stdout, "");
    }
    nodes[2].kill();
    assert_eq!(look("status", &urls, &["k"]).done().expect_code(69).stdout, "", "there is nothing to show");
    assert_eq!(look("list", &urls, &[]).done().expect_code(69).stdout, "");
}

#[test]
fn a_claim_on_a_minority_is_not_a_lock_but_is_shown() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    let stray = "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1";
    nodes[1].cmd(&["SET", "lock:k", stray, "PX", "600000"]);
    let found = status(&urls, "k");
    assert_eq!((&found["state"], &found["servers"][1]["vote"]), (&"free".into(), &false.into()), "{found}");
    assert!(found["servers"][1]["cause"].as_str().unwrap().starts_with("says held by"), "{found}");
    assert!(look("list", &urls, &["--json"]).done().expect_code(0).json_lines().is_empty());
    // A lock that an unreachable server could complete to a majority is not free.
    let down = [nodes.urls()[1].clone(), nodes.urls()[2].clone(), "redis://127.0.0.1:1".into()].join(",");
    look("status", &down, &["k", "--check", "free"]).done().expect_code(1);
    nodes[0].cmd(&["SET", "lock:k", stray, "PX", "600000"]);
    let found = status(&urls, "k");
    assert_eq!((&found["state"], &found["servers"][2]["cause"]), (&"held".into(), &"says free".into()));
}

/// The lock cannot be taken now, and the servers that do not vote may have lost its holder.
#[test]
fn a_lock_with_too_few_voters_is_not_reported_as_free() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    nodes.run_quarantined("k").arg("-n").cmd(&["true"]).done().expect_code(69);
    for check in ["free", "held"] {
        let done = look("status", &urls, &["k", "--check", check]).done().expect_code(69);
        assert!(done.stderr.contains("only 0 of 3 servers can vote"), "{done:?}");
    }
    look("status", &urls, &["k", "--wait-free", "-w", "10ms"]).done().expect_code(69);
    let shown = look("status", &urls, &["k"]).done().expect_code(0).stdout;
    assert!(shown.starts_with("k: not held, as far as") && shown.contains("does not vote for"), "{shown}");
    assert!(status(&urls, "k").get("state").is_none(), "the lock may be held");
}

#[test]
fn the_same_server_twice_counts_once() {
    let (a, b) = (Redis::start(), Redis::start());
    let twice = [a.url(), format!("redis://localhost:{}", a.port()), b.url()].join(",");
    let found = status(&twice, "k");
    let twins =
        found["servers"].as_array().unwrap().iter().filter(|server| server["state"] == "unfit").count();
    assert_eq!(twins, 1, "{found}");
}

#[test]
fn a_replica_is_queried_and_named() {
    let primary = Redis::start();
    let _holder = holder(&primary, "k", &["--ttl", "60s"]);
    let replica = Redis::start();
    replica.cmd(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    wait_until("the replica has the lock", || replica.cmd(&["EXISTS", "lock:k"]) == "1");
    let found = status(&replica.url(), "k");
    assert_eq!((&found["state"], &found["servers"][0]["state"]), (&"held".into(), &"replica".into()));
    assert_eq!(look("list", &replica.url(), &["--json"]).done().expect_code(0).json_lines().len(), 1);
}

/// A replica has the data of its primary, including its marker.
#[test]
fn a_replica_is_not_mistaken_for_its_primary() {
    let nodes = Nodes::start(3);
    nodes[0].cmd(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    nodes[1].cmd(&["REPLICAOF", "127.0.0.1", &nodes[0].port().to_string()]);
    wait_until("the replica is connected", || nodes[1].info("master_link_status") == "up");
    nodes.run("k").cmd(&["true"]).done().expect_code(0);
    let marker = |at: usize| nodes[at].cmd(&["GET", "lock-node"]);
    assert!(marker(0).contains(&nodes[0].info("master_replid")));
    wait_until("the replica has its primary's marker", || marker(1) == marker(0));
    let found = status(&nodes.urls().join(","), "k");
    let states = found["servers"].as_array().unwrap().iter().map(|server| server["state"].as_str().unwrap());
    assert_eq!(states.filter(|state| *state == "replica").count(), 1, "{found}");
    assert!(!found.to_string().contains("unfit"), "{found}");
}

/// It keeps other clients out until it expires: as a run that was killed while it collected votes
/// leaves it.
#[test]
fn a_claim_on_the_gate_alone_is_shown_as_held_and_can_be_broken() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    let gate = &nodes[0];
    let acquire = ["acquire", "--key", "k", "--ttl", "20s", "--redis", &urls];
    Run::bare().args(&acquire).done().expect_code(0);
    [1, 2].into_iter().for_each(|at| drop(nodes[at].cmd(&["DEL", "lock:k", "lock-info:k"])));
    assert!(!nodes.run("k").try_acquire());
    assert_eq!(status(&urls, "k")["state"], "held");
    look("status", &urls, &["k", "--check", "free"]).done().expect_code(1);
    let list = look("list", &urls, &[]).done().expect_code(0).stdout;
    assert!(list.contains("k    held"), "{list}");
    look("break", &urls, &["k", "--now", "--yes"]).done().expect_code(0);
    assert_eq!(gate.cmd(&["GET", "lock:k"]), "");
    look("status", &urls, &["k", "--check", "free"]).done().expect_code(0);
    assert!(nodes.run("k").try_acquire());
}
