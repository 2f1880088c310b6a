//! Holders that cannot reply: dead, stopped, of another program or an older version.

use super::{break_in, break_on};
use crate::support::{Backend, Pty, REPORT_SURVIVORS, Redis, Run, TREE, alive, holder, tree_of, wait_until};

on_backends!(
    one_server, three_servers:
        a_stopped_holder_loses_the_lock_with_its_lease_and_the_next_one_never_runs_beside_it,
);

fn a_stopped_holder_loses_the_lock_with_its_lease_and_the_next_one_never_runs_beside_it(backend: &Backend) {
    let job = backend.run().args(&["--ttl", "6s"]).sh(TREE).spawn();
    let tree = tree_of(&job);
    job.stop();
    let pids: Vec<String> = tree.iter().map(i32::to_string).collect();
    let next = backend.waiter(backend.run().env("TREE", pids.join(" ")).sh(REPORT_SURVIVORS), 1);
    let done = break_in(backend).arg("--yes").done().expect_code(0);
    assert!(done.stdout.contains("; its lease expired after "), "{done:?}");
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
    assert!(!tree.iter().any(|pid| alive(*pid)), "{tree:?}");
}

/// Kills a run and its guardian, which leave a lock without an expiry.
fn leftover(redis: &Redis) {
    let dead = holder(redis, "k", &["--ttl", "none", "-q"]);
    dead.kill_with_guardian();
    assert!(redis.held("k"));
}

#[test]
fn only_now_frees_a_lock_without_expiry_whose_holder_is_silent() {
    let redis = Redis::start();
    leftover(&redis);
    let next = Run::key(&redis, "k").cmd(&["echo", "mine"]).spawn();
    wait_until("the break waits", || redis.queue_len("k") == 1);
    let done = break_on(&redis).args(&["--yes", "-w", "3s"]).done().expect_code(75);
    assert!(done.stderr.contains("waiting for ") && done.stderr.contains("to release \"k\""), "{done:?}");
    assert!(done.stderr.contains("it never expires: if its run is dead, --now frees it"), "{done:?}");
    assert!(redis.held("k"));
    break_on(&redis).args(&["--yes", "--now"]).done().expect_code(0);
    assert_eq!(next.wait().expect_code(0).stdout, "mine\n");
}

#[test]
fn a_living_holder_without_an_expiry_listens() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "none", "-q"]);
    let done = break_on(&redis).arg("--yes").done().expect_code(0);
    assert!(done.stdout.contains("its command was stopped"), "{done:?}");
    job.wait().expect_code(79);
    assert!(!redis.held("k"));
}

/// Like a version of redlock without marks, and like every library: compare the value, then renew.
#[test]
fn a_marked_claim_cannot_be_renewed() {
    let redis = Redis::start();
    leftover(&redis);
    let claim = redis.cmd(&["GET", "lock:k"]);
    break_on(&redis).args(&["--yes", "-w", "0"]).done().expect_code(75);
    let renew = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], 1000) end return 0";
    assert_eq!(redis.cmd(&["EVAL", renew, "1", "lock:k", &claim]), "0");
    assert_eq!(redis.cmd(&["PTTL", "lock:k"]), "-1");
    let shown = break_on(&redis).done().expect_code(75);
    assert!(shown.stdout.contains("being broken by ") && shown.stdout.contains(&claim), "{shown:?}");
}

#[test]
fn a_lock_kept_by_a_minimum_hold_alone_is_freed_at_once() {
    let redis = Redis::start();
    Run::key(&redis, "k").args(&["--min-hold", "10m"]).cmd(&["true"]).done().expect_code(0);
    let shown = break_on(&redis).done().expect_code(75);
    assert!(shown.stdout.contains("kept by --min-hold of "), "{shown:?}");
    let done = break_on(&redis).arg("--yes").done().expect_code(0);
    assert!(done.stdout.contains("no longer kept by --min-hold"), "{done:?}");
    assert!(!redis.held("k"));
}

#[test]
fn only_now_deletes_a_foreign_lock() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock:k", "theirs", "PX", "60000"]);
    let done = break_on(&redis).arg("--yes").done().expect_code(75);
    assert!(done.stderr.contains("another program") && done.stderr.contains("--now"), "{done:?}");
    assert_eq!(redis.cmd(&["GET", "lock:k"]), "theirs");
    break_on(&redis).args(&["--yes", "--now"]).done().expect_code(0);
    assert!(!redis.held("k"));
}

/// Only the lock that was shown is deleted; nor does a request that a slow server executes late
/// delete another one.
#[test]
fn a_later_foreign_lock_is_not_deleted() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock:k", "theirs", "PX", "60000"]);
    let terminal = Pty::run(break_on(&redis).arg("--now"));
    terminal.wait_for("[y/N]");
    redis.cmd(&["SET", "lock:k", "another's", "PX", "60000"]);
    terminal.type_in("y\n");
    let done = terminal.wait().expect_code(0);
    assert!(done.stdout.contains("nothing was broken"), "{done:?}");
    assert_eq!(redis.cmd(&["GET", "lock:k"]), "another's");
}

#[test]
fn a_break_works_on_a_server_out_of_memory() {
    let redis = Redis::start();
    for args in [&["--yes"][..], &["--yes", "--now"]] {
        let job = holder(&redis, "k", &["--ttl", "30s"]);
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        wait_until("the server is out of memory", || redis.cmd(&["SET", "x", "1"]).contains("OOM"));
        break_on(&redis).args(args).done().expect_code(0);
        assert!(!redis.held("k"), "{args:?}");
        job.wait_for_stderr("broken by ");
        job.wait().expect_code(79);
        redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
    }
}

/// Late rather than never: the mark is there when the holder continues.
#[test]
fn a_stopped_holder_without_an_expiry_learns_of_the_break_when_it_continues() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "none", "-q"]);
    job.stop();
    break_on(&redis).args(&["--yes", "-w", "200ms"]).done().expect_code(75);
    job.signal(nix::sys::signal::Signal::SIGCONT);
    job.wait_for_stderr("broken by ");
    job.wait().expect_code(79);
    wait_until("the lock is free", || !redis.held("k"));
}
