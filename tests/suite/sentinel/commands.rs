//! Every command finds the master, even after a failover, and with TLS.

use crate::support::nodes::renewed;
use crate::support::processes::Watched;
use crate::support::sentinel::Sentinels;
use crate::support::tls::Authority;
use crate::support::{Run, hold, refused, wait_for_sleeping_waiter, wait_until};

#[test]
fn a_lock_is_shown_and_broken_on_the_current_master() {
    let all = Sentinels::start();
    let url = all.url();
    let ask = |args: &[&str]| Run::bare().args(args).args(&["--redis", &url]).done();
    let holder = hold(all.run("k").args(&["--label", "the holder"]));
    let waiter = all.run("k").args(&["--label", "the waiter", "--quarantine", "off"]);
    let waiter = waiter.sh("echo mine").spawn();
    wait_for_sleeping_waiter(&all.master);
    for is_moved in [false, true] {
        if is_moved {
            wait_until("the replica has all data", || all.replica.queue_len("k") == 1);
            all.fail_over();
        }
        let status = ask(&["status", "k"]).expect_code(0);
        assert!(status.stdout.contains("the holder") && status.stdout.contains("the waiter"), "{status:#?}");
        assert!(ask(&["list"]).expect_code(0).stdout.contains("the holder"));
        // The new master does not know what the old one granted but did not replicate.
        let other = ask(&["status", "other", "--check", "free"]);
        assert_eq!(other.code, Some(if is_moved { 69 } else { 0 }), "{other:#?}");
        let json = ask(&["status", "other", "--json"]).expect_code(0).stdout;
        assert_eq!(json.contains(r#""state":"quarantined","cause""#), is_moved, "{json}");
    }
    ask(&["break", "k", "--yes"]).expect_code(0);
    holder.wait().expect_code(79);
    assert_eq!(waiter.wait().expect_code(0).stdout, "mine\n");
}

/// By its token, and by a keeper, which finds the new master by itself.
#[test]
fn an_acquired_lock_survives_a_failover() {
    let all = Sentinels::start();
    let url = all.url();
    let ask = |args: &[&str]| Run::bare().args(args).args(&["--redis", &url]).done();
    let watched = Watched::start();
    let pid = watched.pid().to_string();
    let kept = ask(&["acquire", "--key", "kept", "--ttl", "6s", "--watch-pid", &pid]).expect_code(0).stdout;
    let token = ask(&["acquire", "--key", "k", "--ttl", "25s"]).expect_code(0).stdout;
    let (kept, token) = (kept.trim(), token.trim());
    wait_until("the replica has all data", || all.replica.held("k") && all.replica.held("kept"));
    all.fail_over();
    ask(&["extend", "k", "--token", token, "--ttl", "29s"]).expect_code(0);
    let left: u64 = all.replica.cmd(&["PTTL", "lock:k"]).parse().unwrap();
    assert!(left > 25_000, "{left}");
    ask(&["status", "k", "--check", "owned", "--token", token]).expect_code(0);
    renewed(&all.replica, "kept", 2);
    ask(&["status", "kept", "--check", "owned", "--token", kept]).expect_code(0);
    for (key, token) in [("k", token), ("kept", kept)] {
        ask(&["release", key, "--token", token]).expect_code(0);
        ask(&["release", key, "--token", token]).expect_code(79);
        assert!(!all.replica.held(key));
        let history = ask(&["history", key]).expect_code(0).stdout;
        assert!(history.contains("1 run"), "{history}");
    }
}

#[test]
fn sentinels_master_and_replica_may_all_use_tls() {
    let authority = Authority::new();
    let all = Sentinels::with_tls(&authority);
    let run = |key: &str| all.run(key).arg("--tls-ca").arg(authority.file()).args(&["--ttl", "6s"]);
    let holder = hold(run("k"));
    assert!(all.master.held("k"));
    refused(run("k").arg("-n"), 75, &["held by"]);
    // Nothing is sent to a server without a verified certificate, including Sentinels.
    refused(all.run("k"), 78, &["certificate"]);
    wait_until("the replica has all data", || all.replica.held("k"));
    all.fail_over();
    renewed(&all.replica, "k", 2);
    refused(run("other").arg("-n"), 69, &["promoted"]);
    holder.wait().expect_code(0);
    assert!(!all.replica.held("k"));
    // A Sentinel that is contacted without TLS.
    let plain = all.url().replace("rediss+", "redis+");
    refused(Run::at(&plain, "k"), 69, &["if it expects TLS"]);
}
