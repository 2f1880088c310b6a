//! A replica takes the master's place. It may not know everything that the master granted.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::nodes::renewed;
use crate::support::sentinel::{SERVICE, Sentinels, SilentSentinel};
use crate::support::{
    OverlapCheck, REPORT_SURVIVORS, Run, TREE, alive, hold, queued, refused, tree_of,
    wait_for_sleeping_waiter, wait_for_sleeping_waiters, wait_until, wait_until_within,
};

#[test]
fn the_quarantine_is_on_and_needs_a_lease() {
    let all = Sentinels::start();
    all.master.cmd(&["DEL", "lock-node"]);
    refused(all.run("k").arg("-n"), 69, &["new, restarted or promoted", "--quarantine"]);
    all.run("k").args(&["-n", "--quarantine", "off"]).cmd(&["true"]).done().expect_code(0);
    refused(all.run("k").args(&["--ttl", "none"]), 64, &["--ttl none"]);
}

fn holds(name: &str) -> String {
    format!(
        "mkdir inside || echo {name} >> overlaps; echo ready; read x; n=$(cat counter); echo $((n + 1)) > counter; \
         echo {name} $REDLOCK_FENCE >> order; rmdir inside"
    )
}

/// The new master renews the holder's lease; the waiters move there and are served in order, but
/// not before every lease of the old master has expired.
#[test]
fn a_replicated_holder_continues_and_waiters_follow_in_order() {
    let mut all = Sentinels::start();
    let check = OverlapCheck::new();
    let run = |name: &str| {
        let run = all.run("k").args(&["--ttl", "12s", "--quarantine", "12s"]).dir(check.dir());
        (name.to_owned(), run)
    };
    let (name, first) = run("first");
    let holder = first.stdin_pipe().sh(&holds(&name)).spawn();
    holder.wait_for_line("ready");
    let wait = |name: &str| run(name).1.sh(&OverlapCheck::script(name)).spawn();
    let second = wait("second");
    queued(&all.master, "k", 1);
    let third = wait("third");
    queued(&all.master, "k", 2);
    wait_for_sleeping_waiters(&all.master, 2);
    wait_until("the replica has all data", || all.replica.queue_len("k") == 2);
    let killed = Instant::now();
    all.kill_master();
    all.wait_for_failover();
    second.wait_for_stderr("promoted");
    renewed(&all.replica, "k", 1);
    holder.wait().expect_code(0);
    for waiter in [second, third] {
        waiter.wait().expect_code(0);
    }
    check.assert_clean(3);
    assert_eq!(check.order(), ["first", "second", "third"]);
    assert!(check.fences().is_sorted_by(|a, b| a < b), "{:?}", check.fences());
    assert!(killed.elapsed() > Duration::from_secs(12), "the quarantine: {:?}", killed.elapsed());
}

/// A claim that was not replicated is gone after the failover: the holder notices and is stopped,
/// and the next one starts when it is gone, although the new master never knew it.
#[test]
fn an_unreplicated_holder_is_stopped_before_the_next_one_starts() {
    let mut all = Sentinels::start();
    let run = || all.run("k").args(&["--ttl", "6s", "--quarantine", "6s"]);
    run().cmd(&["true"]).done().expect_code(0);
    wait_until("the marker is replicated", || all.replica.cmd(&["GET", "lock-node"]).contains(" 11000 "));
    // Stopped first; otherwise it would reconnect at once.
    all.replica.stop();
    all.master.cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
    let lost = run().sh(TREE).spawn();
    let tree = tree_of(&lost);
    let pids = tree.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    let next = run().env("TREE", pids).sh(REPORT_SURVIVORS);
    all.kill_master();
    all.replica.cont();
    all.wait_for_failover();
    assert!(!all.replica.held("k"), "the claim was not replicated");
    let next = next.done().expect_code(0);
    assert_eq!(next.stdout, "looked\n", "{next:#?}");
    lost.wait().expect_code(79);
    assert!(tree.iter().all(|pid| !alive(*pid)));
}

/// The old master lives, and for seconds does not know that it is no longer the master.
#[test]
fn replies_of_the_old_master_do_not_count_after_a_planned_failover() {
    let all = Sentinels::start();
    let run = |key: &str| all.run(key).args(&["--ttl", "6s"]);
    let holder = hold(run("k"));
    let waiter = run("k").sh("echo mine").spawn();
    wait_for_sleeping_waiter(&all.master);
    wait_until("the replica has all data", || all.replica.queue_len("k") == 1);
    all.fail_over();
    renewed(&all.replica, "k", 2);
    refused(run("other").arg("-n"), 69, &["promoted"]);
    // It leaves the old master at the latest when the claim there has expired.
    waiter.wait_for_stderr("promoted");
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.wait().stdout, "");
    assert!(all.replica.held("k"));
    holder.wait().expect_code(0);
    assert!(!all.replica.held("k"));
}

/// A former master that returns, with or without its data, becomes a replica; requests that it gets
/// before that do not count.
#[test]
fn an_old_master_that_returns_is_not_used() {
    let mut all = Sentinels::start();
    let run = all.run("k").args(&["--ttl", "12s", "--quarantine", "12s"]);
    let holder = hold(run.clone());
    let waiter = run.clone().sh("echo $REDLOCK_FENCE").spawn();
    wait_for_sleeping_waiter(&all.master);
    let fence: u64 = all.master.cmd(&["GET", "lock-fence:k"]).parse().unwrap();
    wait_until("the replica has all data", || all.replica.queue_len("k") == 1);
    all.kill_master();
    all.wait_for_failover();
    all.master.restart();
    renewed(&all.replica, "k", 1);
    // The Sentinel takes some time, and then closes all connections.
    wait_until_within(Duration::from_secs(50), "the Sentinel has made it a replica", || {
        all.master.connect().try_cmd(&["ROLE"]).is_ok_and(|role| role.starts_with("slave"))
    });
    renewed(&all.replica, "k", 1);
    refused(Run::key(&all.master, "k"), 78, &["replica"]);
    holder.wait().expect_code(0);
    let done = waiter.wait().expect_code(0);
    assert!(done.stdout.trim().parse::<u64>().unwrap() > fence, "{done:#?}");
    // And back: the server after this one is as new as any.
    all.begin_failover();
    let named = format!("127.0.0.1\n{}", all.master.port());
    wait_until("the first server is the master once more", || {
        all.ask(&["SENTINEL", "get-master-addr-by-name", SERVICE]) == named
    });
    refused(run.arg("-n"), 69, &["promoted"]);
}

/// Without any Sentinel there is no failover: a held lock continues, and is released.
#[test]
fn a_holder_and_a_waiter_survive_the_sentinels() {
    let mut all = Sentinels::start();
    let holder = hold(all.run("k").args(&["--ttl", "5s"]));
    let waiter = all.run("k").sh("echo mine").spawn();
    queued(&all.master, "k", 1);
    all.kill_sentinel();
    // Each of these queries the Sentinels.
    renewed(&all.master, "k", 3);
    holder.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "mine\n");
    refused(all.run("k").arg("-n"), 69, &["Sentinel", "connection refused"]);
}

/// Nor does any number of Sentinels that accept connections and never reply end it.
#[test]
fn a_holder_survives_sentinels_that_hang() {
    let mut all = Sentinels::start();
    let mute: Vec<SilentSentinel> = (0..8).map(|_| SilentSentinel::start()).collect();
    let hosts: String = mute.iter().map(|mute| format!(",127.0.0.1:{}", mute.port())).collect();
    let url = all.url().replace(&format!("/{SERVICE}"), &format!("{hosts}/{SERVICE}"));
    let holder = hold(Run::at(&url, "k").args(&["--ttl", "6s"]));
    all.kill_sentinel();
    // Longer than the lease that it had when the Sentinels fell silent.
    renewed(&all.master, "k", 4);
    holder.wait().expect_code(0);
}
