//! The faults that a server can have, each reproduced with a real one.

use super::{all_keys, diagnosis, doctor, expect, results, text};
use crate::support::{Nodes, Redis, Refused, ServerClock, wait_until};

/// A server that keeps its data.
fn healthy() -> Redis {
    Redis::start_with(&["--appendonly", "yes"])
}

#[test]
fn a_healthy_server_has_only_ok_results() {
    let redis = healthy();
    let found = diagnosis(doctor(&redis.url()), 0);
    for level in ["problems", "warnings", "unknown"] {
        assert_eq!(found[level], 0, "{found:#}");
    }
    expect(&found, "role", "ok", "master");
    let valkey = redis.info("valkey_version");
    let version = if valkey.is_empty() { redis.info("redis_version") } else { valkey };
    expect(&found, "version", "ok", &version);
    expect(&found, "eviction", "ok", "noeviction");
    expect(&found, "persistence", "ok", "append-only file, fsync everysec");
    expect(&found, "permissions", "ok", "took, extended and released");
    expect(&found, "quorum", "ok", "grants locks");
    let server = &found["servers"][0];
    assert_eq!((&server["url"], &server["state"]), (&redis.url().into(), &"ok".into()), "{server}");
    assert_eq!((&server["vote"], &server["role"]), (&true.into(), &"master".into()), "{server}");
    assert!(server["rtt_ms"].as_f64().is_some_and(|rtt| rtt > 0.0), "{server}");
    assert_eq!(text(&server["run_id"]), redis.info("run_id"), "{server}");
    assert_eq!(found["quorum"]["may_fail"], 0, "{found:#}");
}

#[test]
fn a_server_that_evicts_keys_is_a_problem() {
    let redis = healthy();
    redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    // It has no memory limit to reach.
    expect(&diagnosis(doctor(&redis.url()), 0), "eviction", "ok", "volatile-ttl");
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let found = diagnosis(doctor(&redis.url()), 1);
    expect(&found, "eviction", "problem", "maxmemory-policy is volatile-ttl");
    let check = found["checks"].as_array().unwrap().iter().find(|check| check["name"] == "eviction").unwrap();
    assert!(text(&check["fix"]).contains("noeviction") && text(&check["why"]).contains("deleted"), "{check}");
    // It grants locks anyway.
    expect(&found, "quorum", "ok", "grants locks");
}

#[test]
fn a_full_server_is_a_problem() {
    let redis = healthy();
    redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_until("the server is out of memory", || redis.cmd(&["SET", "x", "1"]).contains("OOM"));
    let found = diagnosis(doctor(&redis.url()), 1);
    expect(&found, "permissions", "problem", "out of memory");
    expect(&found, "memory", "warning", "memory");
    assert_eq!(found["servers"][0]["state"], "down", "{found:#}");
    assert_eq!(all_keys(&redis), Vec::<String>::new());
}

#[test]
fn a_replica_is_a_problem_and_its_master_is_named() {
    let (primary, replica) = (healthy(), Redis::start());
    replica.cmd(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    wait_until("the server is a replica", || replica.info("role") == "slave");
    let found = diagnosis(doctor(&replica.url()), 1);
    expect(&found, "role", "problem", &format!("replica of 127.0.0.1:{}", primary.port()));
    assert_eq!(
        (&found["servers"][0]["state"], &found["servers"][0]["vote"]),
        (&"replica".into(), &false.into())
    );
}

#[test]
fn a_server_that_is_down_or_refuses_us_is_a_problem() {
    let gone = Refused::new();
    let found = diagnosis(doctor(&gone.url()), 1);
    expect(&found, "reachable", "problem", "connection refused");
    assert_eq!(found["servers"][0]["state"], "down", "{found:#}");
    let redis = Redis::start_with(&["--requirepass", "the-right-one"]);
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}", redis.port());
    for login in ["", ":not-this-word@"] {
        let found = diagnosis(doctor(&at(login)), 1);
        expect(&found, "reachable", "problem", "password");
        assert_eq!(found["servers"][0]["state"], "refused", "{found:#}");
        assert!(!found.to_string().contains("not-this-word"), "{found:#}");
    }
    let found = diagnosis(doctor(&at(":the-right-one@")), 0);
    assert!(!found.to_string().contains("the-right-one"), "{found:#}");
}

#[test]
fn a_server_that_loses_locks_in_a_restart_causes_a_warning_unless_quarantined() {
    let redis = Redis::start();
    expect(&diagnosis(doctor(&redis.url()), 0), "persistence", "warning", "keeps no data");
    redis.cmd(&["CONFIG", "SET", "save", "3600 1"]);
    expect(&diagnosis(doctor(&redis.url()), 0), "persistence", "warning", "only snapshots");
    let found = diagnosis(doctor(&redis.url()).args(&["--quarantine", "30s"]), 0);
    expect(&found, "persistence", "ok", "quarantine");
}

/// The advice for one server.
#[test]
fn three_servers_are_not_advised_to_be_three() {
    let nodes = Nodes::start(3);
    let found = diagnosis(doctor(&nodes.urls().join(",")).args(&["--quarantine", "off"]), 0);
    let checks = found["checks"].as_array().unwrap().iter().filter(|check| check["name"] == "persistence");
    for check in checks {
        let fix = check["fix"].as_str().unwrap();
        assert!(fix.contains("--quarantine") && !fix.contains("three servers"), "{fix}");
    }
}

#[test]
fn a_majority_can_vote_and_every_server_that_cannot_is_named() {
    let mut nodes = Nodes::start(3);
    nodes.settle();
    let urls = nodes.urls().join(",");
    let found = diagnosis(doctor(&urls), 0);
    expect(&found, "quorum", "ok", "3 of 3 servers can vote, tolerates the loss of 1 more");
    assert_eq!(found["quorum"]["may_fail"], 1, "{found:#}");
    nodes[0].kill();
    let found = diagnosis(doctor(&urls), 1);
    expect(&found, "reachable", "problem", "connection refused");
    expect(&found, "quorum", "warning", "2 of 3 servers can vote, tolerates no further loss");
    assert!(text(&found["summary"]).contains(&nodes.urls()[0]), "{found:#}");
    nodes[1].kill();
    expect(&diagnosis(doctor(&urls), 1), "quorum", "problem", "1 of 3 servers can vote, 2 are needed");
}

#[test]
fn an_even_number_of_servers_causes_a_warning() {
    let nodes = Nodes::start(2);
    nodes.settle();
    let found = diagnosis(doctor(&nodes.urls().join(",")), 0);
    let results = results(&found, "quorum");
    assert!(results.contains(&"warning 2 is an even number of servers".to_owned()), "{results:?}");
}

#[test]
fn the_same_server_twice_is_a_problem() {
    let (a, b) = (Redis::start(), Redis::start());
    let twice = [a.url(), format!("redis://localhost:{}", a.port()), b.url()].join(",");
    let found = diagnosis(doctor(&twice), 1);
    let twins: Vec<String> =
        results(&found, "identity").into_iter().filter(|result| result.starts_with("problem")).collect();
    assert!(twins.len() == 1 && twins[0].contains("is the same server as redis://"), "{twins:?}");
}

#[test]
fn a_quarantine_is_reported_with_its_remaining_time_and_not_started() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    let found = diagnosis(doctor(&urls), 0);
    let fresh = results(&found, "quarantine");
    assert!(
        fresh.iter().all(|message| message.contains("starts voting 31s after the first run")),
        "{fresh:?}"
    );
    assert!(nodes.iter().all(|redis| all_keys(redis).is_empty()), "not even a marker is left");
    nodes.settle();
    let now: u64 = nodes[0].cmd(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let marker = format!("another.reign {} 30000 {}", (now - 3600) * 1000, (now + 30) * 1000);
    nodes[0].cmd(&["SET", "lock-node", &marker]);
    let found = diagnosis(doctor(&urls), 0);
    assert_eq!(found["servers"][0]["state"], "quarantined", "{found:#}");
    assert_eq!(found["servers"][0]["vote"], false, "{found:#}");
    assert!(results(&found, "quarantine")[0].contains("does not vote for another 31s"), "{found:#}");
    expect(&found, "quorum", "warning", "2 of 3 servers can vote, tolerates no further loss");
    assert_eq!(nodes[0].cmd(&["GET", "lock-node"]), marker);
    // Without a quarantine in its own settings a single server votes at once.
    expect(&diagnosis(doctor(&nodes.urls()[0]), 0), "quorum", "ok", "grants locks");
}

#[test]
fn a_restarted_server_is_in_quarantine() {
    let mut nodes = Nodes::of((0..3).map(|_| healthy()).collect());
    nodes.settle();
    let urls = nodes.urls().join(",");
    let quarantine = ["--quarantine", "10m", "--ttl", "10m"];
    expect(&diagnosis(doctor(&urls), 0), "quorum", "ok", "3 of 3 servers can vote");
    nodes[2].restart();
    assert_ne!(nodes[2].cmd(&["GET", "lock-node"]), "", "the server has its data");
    let found = diagnosis(doctor(&urls).args(&quarantine), 0);
    let results = results(&found, "quarantine");
    assert!(
        results[2].starts_with("warning does not vote for another 10m") && results[2].contains(", up "),
        "{results:?}"
    );
    assert!(results[..2].iter().all(|message| message.starts_with("ok")), "{results:?}");
    expect(&found, "quorum", "warning", "2 of 3 servers can vote, tolerates no further loss");
}

#[test]
fn different_clocks_cause_a_warning() {
    let (redis, clock) = ServerClock::start();
    let others = [Redis::start(), Redis::start()];
    let urls = [redis.url(), others[0].url(), others[1].url()].join(",");
    clock.set_ahead(10);
    let found = diagnosis(doctor(&urls), 0);
    let results = results(&found, "clock");
    assert!(
        results
            .iter()
            .any(|message| message.starts_with("warning its clock is") && message.contains("ahead of")),
        "{results:?}"
    );
    assert!(
        results.iter().any(|message| message.starts_with("warning their clocks differ by")),
        "{results:?}"
    );
    // For a single server it does not matter.
    expect(&diagnosis(doctor(&redis.url()), 0), "clock", "ok", "clock +");
    clock.set_ahead(-3600);
    expect(&diagnosis(doctor(&redis.url()), 0), "clock", "warning", "behind");
}
