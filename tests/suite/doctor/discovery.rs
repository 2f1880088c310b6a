//! Sentinel, Cluster and TLS.

use super::{all_keys, diagnosis, doctor, expect, results, text};
use crate::support::cluster::Cluster;
use crate::support::redis::free_port;
use crate::support::sentinel::Sentinels;
use crate::support::tls::{Authority, Valid};
use crate::support::{Redis, Run, refused, wait_until};

#[test]
fn a_master_behind_sentinels_needs_min_replicas() {
    let all = Sentinels::start();
    let before = all_keys(&all.master);
    let found = diagnosis(doctor(&all.url()), 0);
    expect(&found, "replicas", "warning", "min-replicas-to-write is 0");
    expect(&found, "role", "ok", "master with 1 replica");
    expect(&found, "sentinel", "ok", &format!("names 127.0.0.1:{}", all.master.port()));
    expect(&found, "quorum", "ok", "grants locks");
    assert!(
        text(&found["servers"][0]["url"]).ends_with(&format!("(127.0.0.1:{})", all.master.port())),
        "{found:#}"
    );
    assert_eq!(all_keys(&all.master), before);
    all.master.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    wait_until("the replica counts", || all.master.info("min_slaves_good_slaves") == "1");
    // The Sentinel waits for only half of that.
    all.set_down_after(5_000);
    expect(&diagnosis(doctor(&all.url()), 0), "replicas", "warning", "min-replicas-max-lag is 10s");
    all.set_down_after(60_000);
    expect(&diagnosis(doctor(&all.url()), 0), "replicas", "ok", "min-replicas-to-write 1");
    let found = diagnosis(doctor(&all.url_behind(&[free_port()])), 0);
    let sentinels = results(&found, "sentinel");
    assert!(
        sentinels[0].starts_with("warning connection refused") && sentinels[1].starts_with("ok"),
        "{sentinels:?}"
    );
    // The Sentinel given as a server.
    let found = diagnosis(doctor(&format!("redis://127.0.0.1:{}", all.port())), 1);
    expect(&found, "role", "problem", "is a Sentinel");
}

#[test]
fn every_master_of_a_cluster_is_examined() {
    let mut cluster = Cluster::start(3);
    let found = diagnosis(doctor(&cluster.url()), 0);
    assert_eq!(found["servers"].as_array().unwrap().len(), 3, "{found:#}");
    assert_eq!(
        results(&found, "permissions").iter().filter(|message| message.starts_with("ok took")).count(),
        3
    );
    assert!(
        results(&found, "replicas").iter().all(|message| message == "warning has no replica"),
        "{found:#}"
    );
    let unused = results(&found, "quarantine");
    assert!(unused.iter().all(|message| message.starts_with("warning not used together with")), "{found:#}");
    assert_eq!(
        (&found["quorum"]["servers"], &found["quorum"]["can_vote"]),
        (&1.into(), &0.into()),
        "{found:#}"
    );
    let found = diagnosis(doctor(&cluster.url()).args(&["--quarantine", "off"]), 0);
    assert_eq!(found["quorum"]["can_vote"], 1, "{found:#}");
    assert_eq!(cluster.keys(), Vec::<String>::new());
    assert!((0..3).all(|at| all_keys(&cluster[at]).is_empty()));
    // Without the list of masters one of them is examined.
    for at in 0..3 {
        let rules = ["ACL", "SETUSER", "limited", "on", ">word", "~*", "&*", "+@all", "-cluster"];
        assert_eq!(cluster[at].cmd(&rules), "OK");
    }
    let found = diagnosis(doctor(&cluster.url().replace("://", "://limited:word@")), 0);
    expect(&found, "masters", "unknown", "masters");
    expect(&found, "permissions", "ok", "took");
    assert!((0..3).all(|at| all_keys(&cluster[at]).is_empty()));
    let found = diagnosis(doctor(&cluster[0].url()), 1);
    expect(&found, "role", "problem", "node of a Redis Cluster");
    let fix = found["checks"].as_array().unwrap().iter().find(|check| check["name"] == "role").unwrap();
    assert!(text(&fix["fix"]).contains("redis+cluster://"), "{fix}");
    cluster[2].kill();
    let found = diagnosis(doctor(&cluster.url()), 1);
    expect(&found, "reachable", "problem", "connection refused");
}

/// The first lock there would have to wait; the advice says so, with a key of that master.
#[test]
fn a_master_of_a_cluster_is_identified_by_its_shard_marker() {
    let mut cluster = Cluster::with_replicas(3);
    let state = |port: u16| {
        let found = diagnosis(doctor(&cluster.url()), 0);
        let checks = found["checks"].as_array().unwrap();
        let is_it = |check: &&serde_json::Value| {
            check["name"] == "quarantine" && text(&check["server"]).contains(&port.to_string())
        };
        checks.iter().find(is_it).cloned().unwrap_or_else(|| panic!("{found:#}"))
    };
    let fix = text(&state(cluster[0].port())["fix"]).to_owned();
    let key = fix.split_ascii_whitespace().skip_while(|word| *word != "--key").nth(1).expect(&fix);
    assert_eq!(cluster.owner(key), 0, "{fix}");
    cluster.run(key).arg("-n").cmd(&["true"]).done().expect_code(69);
    let message = state(cluster[0].port());
    assert!(text(&message["text"]).starts_with("does not vote for another "), "{message}");
    cluster.age_shard_marker(0);
    assert_eq!(state(cluster[0].port())["level"], "ok");
    let names = cluster[0].keys();
    let name = names.iter().find(|name| name.starts_with("lock-shard:")).expect("a shard marker");
    cluster.wait_for_replica(3, &["GET", name], &cluster[0].cmd(&["GET", name]));
    // A promoted server has not been known for long, however long it has been up.
    let port = cluster[3].port();
    cluster.detect_failures_quickly();
    cluster[0].kill();
    cluster.wait_for_promotion(3);
    cluster.wait_until_it_serves(1..=3);
    let url = format!("redis+cluster://127.0.0.1:{port}");
    let found = diagnosis(doctor(&url), 0);
    let message = results(&found, "quarantine");
    assert!(
        message.iter().any(|message| message.starts_with("warning does not vote for another 36")),
        "{found:#}"
    );
}

/// Its locks would not have the names that clients with the right URL use.
#[test]
fn a_single_server_is_not_a_cluster() {
    let redis = Redis::start();
    let url = redis.url().replace("redis://", "redis+cluster://");
    let found = diagnosis(doctor(&url), 1);
    expect(&found, "reachable", "problem", "not part of a Redis Cluster: use redis://");
    let listed = Run::bare().args(&["list", "--redis", &url]).done().expect_code(78);
    listed.expect_stderr(&["not part of a Redis Cluster"]);
    for quarantine in ["off", "30s"] {
        let args = ["--quarantine", quarantine];
        refused(Run::at(&url, "k").args(&args), 78, &["not part of a Redis Cluster: use redis://"]);
        let acquire = Run::bare().args(&["acquire", "--key", "k", "--redis", &url]).args(&args);
        acquire.done().expect_code(78).expect_stderr(&["not part of a Redis Cluster"]);
    }
    assert!(all_keys(&redis).is_empty());
}

#[test]
fn the_advice_depends_on_the_fault_of_a_certificate() {
    let authority = Authority::new();
    let fix = |valid: Valid, names: &[&str]| {
        let server = authority.serve_with(names, valid, &[]);
        let found = diagnosis(doctor(&server.url()).arg("--tls-ca").arg(authority.file()), 1);
        expect(&found, "reachable", "problem", "certificate");
        let checks = found["checks"].as_array().unwrap();
        text(&checks.iter().find(|check| check["name"] == "reachable").unwrap()["fix"]).to_owned()
    };
    assert!(fix(Valid::Before, &["127.0.0.1"]).contains("renew its certificate"));
    assert!(fix(Valid::Now, &["other.example"]).contains("--tls-server-name"));
}

#[test]
fn a_certificate_that_expires_soon_causes_a_warning() {
    let authority = Authority::new();
    let at = |url: &str| doctor(url).arg("--tls-ca").arg(authority.file());
    let server = authority.serve();
    expect(&diagnosis(at(&server.url()), 0), "certificate", "ok", "valid for");
    let server = authority.serve_with(&["127.0.0.1"], Valid::Soon, &[]);
    expect(&diagnosis(at(&server.url()), 0), "certificate", "warning", "expires in 4 days");
    let server = authority.serve_with(&["127.0.0.1"], Valid::Before, &[]);
    expect(&diagnosis(at(&server.url()), 1), "reachable", "problem", "expired");
}
