//! `--now`: the lock is free at once, and the output explains what that means.

use super::{break_in, break_on, our_user};
use crate::support::Redis;
use crate::support::{Backend, Run, hold, holder, wait_until};

on_backends!(
    one_server, three_servers:
        the_lock_is_free_at_once_and_the_holder_learns_who_broke_it,
        the_next_waiter_is_woken,
);

fn the_lock_is_free_at_once_and_the_holder_learns_who_broke_it(backend: &Backend) {
    let job =
        backend.run().args(&["--ttl", "30s"]).sh("trap '' TERM; echo ready; while :; do sleep 0.1; done");
    let job = job.spawn();
    job.wait_for_line("ready");
    let done = break_in(backend).args(&["--yes", "--now"]).env("USER", "mallory").done().expect_code(0);
    assert!(done.stdout.contains("freed \"k\": taken from "), "{done:?}");
    assert!(
        done.stdout.contains("warning: its command may overlap with the next run for up to "),
        "{done:?}"
    );
    assert!(backend.is_free());
    job.wait_for_stderr(&format!("broken by {}@", our_user()));
    job.wait().expect_code(79);
}

fn the_next_waiter_is_woken(backend: &Backend) {
    let _first = hold(backend.run().args(&["--ttl", "30s"]));
    let next = backend.waiter(backend.run().cmd(&["echo", "mine"]), 1);
    break_in(backend).args(&["--yes", "--now"]).done().expect_code(0);
    assert_eq!(next.wait().expect_code(0).stdout, "mine\n");
}

/// Even the first run of a key, whose log does not exist yet when the lock is freed.
#[test]
fn the_history_has_one_entry() {
    let redis = Redis::start();
    for n in 1..=2 {
        let job = holder(&redis, "k", &["--ttl", "30s"]);
        break_on(&redis).args(&["--yes", "--now"]).env("USER", "mallory").done().expect_code(0);
        job.wait_for_stderr("broken by ");
        job.wait().expect_code(79);
        let log = redis.cmd(&["XRANGE", "lock-log:k", "-", "+"]);
        // The holder and the breaker.
        let names = log.matches(&our_user()).count();
        assert!(log.matches("broken").count() == n && names >= 2 * n, "{log}");
    }
}

#[test]
fn a_renewal_does_not_recreate_the_lock() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "3s", "--on-lost", "warn"]);
    break_on(&redis).args(&["--yes", "--now"]).done().expect_code(0);
    job.wait_for_stderr("lost the lock");
    assert!(!redis.held("k"));
    job.wait().expect_code(0);
    assert!(Run::key(&redis, "k").try_acquire());
    wait_until("nothing is left", || redis.keys().iter().all(|key| !key.starts_with("lock-notify")));
}
