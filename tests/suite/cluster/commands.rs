//! Other commands than `run` on a cluster; TLS; useless servers.

use std::time::{Duration, Instant};

use crate::documents::blocks::acl_rules;
use crate::support::cluster::Cluster;
use crate::support::processes::Watched;
use crate::support::redis::free_port;
use crate::support::tls::{Authority, Valid};
use crate::support::{Blackhole, Run, assert_takes_less_than, hold, impostor, refused, wait_until};

#[test]
fn a_lock_is_shown_and_broken_on_the_owner_of_its_slot() {
    let cluster = Cluster::start(3);
    let url = cluster.url();
    let ask = |args: &[&str]| Run::bare().args(args).args(&["--redis", &url]).done();
    // One for each master.
    for key in ["one", "two", "three"] {
        let run = || cluster.run(key).args(&["--quarantine", "off", "--label", key]);
        let holder = hold(run());
        let waiter = run().sh("echo mine").spawn();
        let queue = format!("lock-queue:{{{key}}}");
        wait_until("the run waits", || cluster.keys().contains(&queue));
        let status = ask(&["status", key]).expect_code(0);
        assert!(
            status.stdout.contains(&format!("label {key}")) || status.stdout.contains(key),
            "{status:#?}"
        );
        ask(&["status", key, "--check", "held"]).expect_code(0);
        ask(&["break", key, "--yes"]).expect_code(0);
        holder.wait().expect_code(79);
        assert_eq!(waiter.wait().expect_code(0).stdout, "mine\n");
        ask(&["status", key, "--check", "free"]).expect_code(0);
    }
}

/// One for each master.
#[test]
fn acquired_locks_are_kept_where_their_slots_are() {
    let cluster = Cluster::start(3);
    let url = cluster.url();
    let ask = |args: &[&str]| Run::bare().args(args).args(&["--redis", &url]).done();
    let watched = Watched::start();
    let pid = watched.pid().to_string();
    for (key, keeper) in [("one", None), ("two", Some(&pid)), ("three", None)] {
        let watch: Vec<&str> = keeper.iter().flat_map(|pid| ["--watch-pid", pid]).collect();
        let acquire = ["acquire", "--key", key, "--ttl", "20s", "--quarantine", "off"];
        let token = ask(&[&acquire[..], &watch].concat()).expect_code(0).stdout;
        let token = token.trim();
        refused(cluster.run(key).args(&["-n", "--quarantine", "off"]), 75, &["held by"]);
        ask(&["status", key, "--check", "owned", "--token", token]).expect_code(0);
        ask(&["extend", key, "--token", token, "--ttl", "29s"]).expect_code(0);
        cluster.renewed(cluster.owner(key), key, 20_000);
        assert!(ask(&["list"]).expect_code(0).stdout.contains(key));
        ask(&["release", key, "--token", token]).expect_code(0);
        ask(&["extend", key, "--token", token]).expect_code(79);
        assert!(!cluster.keys().contains(&format!("lock:{{{key}}}")));
        let history = ask(&["history", key]).expect_code(0).stdout;
        assert!(history.contains("1 run"), "{history}");
    }
}

/// Each slot has a quarantine of its own.
#[test]
fn a_quarantined_slot_is_shown_by_status_and_not_by_list() {
    let cluster = Cluster::start(3);
    let url = cluster.url();
    let ask = |args: &[&str]| Run::bare().args(args).args(&["--redis", &url]).done();
    ask(&["status", "k", "--check", "free"]).expect_code(0);
    refused(cluster.run("k").arg("-n"), 69, &["new, restarted or promoted"]);
    ask(&["status", "k", "--check", "free"]).expect_code(69).expect_stderr(&["promoted"]);
    let holder = hold(cluster.run("k").args(&["--quarantine", "off"]));
    ask(&["status", "k", "--check", "held"]).expect_code(0);
    let status = ask(&["status", "k"]).expect_code(0).stdout;
    assert!(status.starts_with("k: held\n") && status.contains("does not vote"), "{status}");
    let listed = ask(&["list"]).expect_code(0).stdout;
    assert!(listed.contains('k') && !listed.contains("vote"), "{listed}");
    holder.wait().expect_code(0);
}

/// The locks on the other masters are shown, as far as they serve.
#[test]
fn a_list_without_one_of_the_masters_is_reported_as_incomplete() {
    let mut cluster = Cluster::start(3);
    for at in 0..3 {
        assert_eq!(cluster[at].cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]), "OK");
    }
    let keys: [[String; 1]; 3] = [cluster.keys_of(0), cluster.keys_of(1), cluster.keys_of(2)];
    let take = |[key]: &[String; 1]| {
        let args =
            ["acquire", "--ttl", "60s", "--quarantine", "off", "--redis", &cluster.url(), "--key", key];
        Run::bare().args(&args).done().expect_code(0);
    };
    keys.iter().for_each(take);
    let (url, dead) = (cluster.url(), cluster[2].port().to_string());
    let list = |args: &[&str]| {
        let args = [&["list", "--node-timeout", "2s", "--redis", &url], args].concat();
        Run::bare().args(&args).done()
    };
    assert!(list(&[]).expect_code(0).stderr.is_empty());
    cluster.detect_failures_quickly();
    cluster[2].kill();
    for args in [&[][..], &["--json"], &["--keys"]] {
        let listed = list(args).expect_code(69);
        let message =
            format!("redlock: the list is incomplete: redis://127.0.0.1:{dead}: connection refused");
        assert!(listed.stderr.starts_with(&message) && listed.stderr.lines().count() == 1, "{listed:#?}");
        let shown = keys.each_ref().map(|[key]| listed.stdout.contains(key.as_str()));
        assert_eq!(shown, [true, true, false], "{listed:#?}");
    }
    assert!(list(&[]).stdout.contains("FAILS: connection refused"));
    // None of the living masters has one.
    list(&["no-such-lock"]).expect_code(69).expect_stderr(&["incomplete"]);
    // They have their locks, but do not serve. A server that has known for long that a master is down
    // reconsiders it only if a slot changes.
    let is_down = |at: usize, slot: &str| {
        let is_down = cluster[at].cmd(&["CLUSTER", "INFO"]).contains("cluster_state:fail");
        if !is_down {
            assert_eq!(cluster[at].cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]), "OK");
            assert_eq!(cluster[at].cmd(&["CLUSTER", "DELSLOTS", slot]), "OK");
            assert_eq!(cluster[at].cmd(&["CLUSTER", "ADDSLOTS", slot]), "OK");
        }
        is_down
    };
    wait_until("the cluster is down", || is_down(0, "0") & is_down(1, "8000"));
    list(&[]).expect_code(69).expect_stderr(&["cannot look at the locks"]).expect_stderr(&["CLUSTERDOWN"]);
}

/// The permissions on a cluster in docs/install.md.
#[test]
fn the_documented_users_can_acquire_and_list_locks_on_a_cluster() {
    let cluster = Cluster::start(3);
    let grant = |user: &str, more: &[&str]| {
        let rules = acl_rules(user);
        let rules = rules.iter().map(String::as_str).chain(more.iter().copied());
        let command: Vec<&str> = ["ACL", "SETUSER", user, "reset"].into_iter().chain(rules).collect();
        (0..3).for_each(|at| assert_eq!(cluster[at].cmd(&command), "OK"));
        cluster.url().replace("://", &format!("://{user}:password@"))
    };
    let locker = grant("locker", &["+asking", "+cluster|nodes", "+cluster|keyslot"]);
    let [used, new] = cluster.keys_of(1);
    refused(Run::at(&locker, &used).arg("-n"), 69, &["new, restarted or promoted"]);
    cluster.age_shard_marker(1);
    Run::at(&locker, &new).arg("-n").cmd(&["true"]).done().expect_code(0);
    let holders: Vec<_> = ["one", "two", "three"]
        .into_iter()
        .map(|key| hold(Run::at(&locker, key).args(&["--quarantine", "off"])))
        .collect();
    let list = |url: &str| Run::bare().args(&["list", "--redis", url]).done();
    let listed = list(&grant("viewer", &["+cluster|slots"])).expect_code(0);
    assert!(["one", "two", "three"].iter().all(|key| listed.stdout.contains(key)), "{listed:#?}");
    list(&grant("viewer", &[])).expect_code(77).expect_stderr(&["cluster"]);
    holders.into_iter().for_each(|holder| drop(holder.wait().expect_code(0)));
}

#[test]
fn all_servers_may_use_tls() {
    let authority = Authority::new();
    let cluster = Cluster::with_tls(3, &authority);
    for key in ["one", "two", "three"] {
        let run = || {
            let run = cluster.run(key).arg("--tls-ca").arg(authority.file());
            run.args(&["--quarantine", "off"])
        };
        let holder = hold(run());
        refused(run().arg("-n"), 75, &["held by"]);
        holder.wait().expect_code(0);
    }
    refused(cluster.run("k"), 78, &["certificate"]);
}

/// The URL names some servers of the cluster: one that lives and reports the truth is enough.
#[test]
fn useless_servers_are_skipped() {
    let cluster = Cluster::start(3);
    let (hole, dead) = (Blackhole::new(), free_port());
    let of = |url: &str| url.split_once("://").expect("a scheme").1.to_owned();
    let moved_to_itself = of(&impostor("-MOVED 1 :0\r\n"));
    for useless in [format!("127.0.0.1:{dead}"), of(&hole.url()), moved_to_itself.clone()] {
        let url = cluster.url().replace("://", &format!("://{useless},"));
        let run = Run::at(&url, "k").args(&["--quarantine", "off", "--node-timeout", "5s"]);
        run.cmd(&["true"]).done().expect_code(0);
    }
    // Servers that redirect us in a circle are unavailable, within the time limit of one server.
    let run = || Run::at(&format!("redis+cluster://{moved_to_itself}"), "k").args(&["--node-timeout", "1s"]);
    assert_takes_less_than(std::time::Duration::from_secs(5), || {
        let start = std::time::Instant::now();
        refused(run(), 69, &["MOVED"]);
        start.elapsed()
    });
}

/// The owner of the slot has a certificate of another authority.
#[test]
fn a_redirection_to_a_server_with_a_wrong_certificate_is_refused_at_once() {
    let (authority, other) = (Authority::new(), Authority::new());
    let cluster = Cluster::with_tls(2, &authority);
    let key = (0..).map(|n| format!("k{n}")).find(|key| cluster.owner(key) == 0).expect("a key");
    let settings = other.settings(&["localhost", "127.0.0.1"], Valid::Now, 0);
    let files = settings.iter().filter(|(name, _)| name.ends_with("cert-file") || name.ends_with("key-file"));
    let files: Vec<&str> = files.flat_map(|(name, value)| [*name, value.as_str()]).collect();
    let set = [&["CONFIG", "SET"][..], &files].concat();
    if cluster[0].cmd(&set) != "OK" {
        skip!("this server cannot change two settings at once");
    }
    let (start, timeout) = (Instant::now(), Duration::from_secs(10));
    let run = authority.run(&cluster.url(), &key).args(&["-n", "--ttl", "30s", "--node-timeout", "10s"]);
    refused(run, 78, &["--tls-ca"]);
    assert!(start.elapsed() < timeout, "{:?}", start.elapsed());
}
