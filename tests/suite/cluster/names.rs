//! Where a lock is in a cluster, and what is reported when it cannot be there.

use crate::support::cluster::Cluster;
use crate::support::{Run, hold, refused, wait_until};

#[test]
fn all_names_of_a_lock_are_in_one_slot_whatever_is_in_the_key() {
    let mut cluster = Cluster::start(3);
    let run = |key: &str| cluster.run(key).args(&["--quarantine", "off"]);
    for key in ["deploy", "a{b}c", "{}", "}", "{a", "a}{b}", "{{x}}", "{x}"] {
        let holder = hold(run(key).args(&["--min-hold", "1ms"]));
        let waiter = run(key).args(&["-w", "30s"]).sh("echo mine").spawn();
        let names = cluster.keys();
        let lock: Vec<&String> = names.iter().filter(|name| name.starts_with("lock:")).collect();
        assert_eq!(lock.len(), 1, "{key}: {names:?}");
        wait_until("the run is queued", || cluster.keys().iter().any(|name| name.starts_with("lock-queue:")));
        let slots: Vec<usize> = cluster.keys().iter().map(|name| cluster.slot(name)).collect();
        assert!(slots.iter().all(|slot| *slot == cluster.slot(lock[0])), "{key}: {:?}", cluster.keys());
        refused(run(key).arg("-n"), 75, &["held by"]);
        holder.wait().expect_code(0);
        waiter.wait_for_line("mine");
        waiter.wait().expect_code(0);
        (0..3).for_each(|at| drop(cluster[at].cmd(&["FLUSHALL"])));
    }
    // Two keys that look alike are two locks.
    let one = hold(run("x"));
    run("{x}").arg("-n").cmd(&["true"]).done().expect_code(0);
    one.wait().expect_code(0);
    // Several keys need a common tag.
    refused(run("a").args(&["--key", "b"]), 64, &["hash tag in common"]);
    refused(run("a").args(&["--prefix", "{p"]), 64, &["--prefix"]);
    let both = hold(run("{app}:a").args(&["--key", "{app}:b"]));
    let waiter = run("{app}:b").sh("echo mine").spawn();
    waiter.wait_for_stderr("waiting");
    both.wait().expect_code(0);
    waiter.wait_for_line("mine");
    waiter.wait().expect_code(0);
    // Slots, readers and bare keys as on one server.
    let slot = hold(run("s").args(&["--slots", "2"]));
    run("s").args(&["--slots", "2", "-n"]).cmd(&["true"]).done().expect_code(0);
    slot.wait().expect_code(0);
    let bare = hold(run("bare-key").args(&["--prefix", ""]));
    assert!(cluster.keys().contains(&"bare-key".to_owned()), "{:?}", cluster.keys());
    bare.wait().expect_code(0);
    // All masters are queried.
    let holders: Vec<_> = ["one", "two", "three", "{four}x"].map(run).into_iter().map(hold).collect();
    let list = |more: &[&str]| Run::bare().args(&["list", "--redis", &cluster.url()]).args(more).done();
    let listed = list(&[]).expect_code(0);
    assert!(["one", "two", "three", "{four}x"].iter().all(|key| listed.stdout.contains(key)), "{listed:#?}");
    let listed = list(&["t*"]).expect_code(0);
    assert!(listed.stdout.contains("three") && !listed.stdout.contains("one"), "{listed:#?}");
    let status = Run::bare().args(&["status", "--redis", &cluster.url(), "{four}x"]).done().expect_code(0);
    assert!(status.stdout.contains("held"), "{status:#?}");
    holders.into_iter().for_each(|holder| drop(holder.wait().expect_code(0)));
    // A single server of the cluster gets advice what to use instead.
    refused(Run::key(&cluster[0], "k"), 78, &["redis+cluster://"]);
    // Without one of its masters the cluster serves no request.
    cluster.detect_failures_quickly();
    cluster[2].kill();
    wait_until("the cluster is down", || cluster[0].cmd(&["CLUSTER", "INFO"]).contains("cluster_state:fail"));
    let down = cluster.run("k").args(&["--quarantine", "off", "--node-timeout", "3s"]);
    refused(down, 69, &["CLUSTERDOWN"]);
}
