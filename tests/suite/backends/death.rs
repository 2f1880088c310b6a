//! When redlock dies, its guardian stops the command's tree and then releases the lock, long before
//! the lease ends.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::SIGKILL;

use crate::support::cluster::Cluster;
use crate::support::processes::{children, guardian_of, pid_in, send};
use crate::support::sentinel::Sentinels;
use crate::support::{
    Backend, Job, Locks, REPORT_SURVIVORS, Redis, Run, STUBBORN_TREE, TREE, alive, hold, tree_of, wait_until,
};

on_backends!(
    one_server, three_servers, this_host:
        the_next_waiter_starts_at_once_and_after_the_tree_is_gone,
        a_killed_waiter_does_not_delay_the_next_one,
        a_reader_and_a_slot_are_released,
        several_keys_are_all_released,
        a_minimum_hold_still_counts_from_the_grant,
        a_daemon_of_the_command_survives,
        a_run_under_an_outer_lock_releases_nothing;
    one_server, three_servers:
        a_lock_that_another_run_holds_by_now_is_left_alone,
        a_run_killed_with_its_guardian_leaves_a_lease_that_expires
);

/// Every lease in these tests lasts for at least a minute; this leaves time for a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// The waiter gets the lock soon after redlock is killed.
#[track_caller]
fn assert_succeeded_soon(victim: Job, next: &Job, line: &str) {
    let killed = Instant::now();
    victim.signal(SIGKILL);
    next.wait_for_line(line);
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    assert_eq!(victim.wait().signal, Some(SIGKILL as i32));
}

fn the_next_waiter_starts_at_once_and_after_the_tree_is_gone(backend: &Backend) {
    for script in [TREE, STUBBORN_TREE] {
        let victim = backend.run_for_long().sh(script).spawn();
        let tree = tree_of(&victim);
        let pids: Vec<String> = tree.iter().map(i32::to_string).collect();
        let next = backend.waiter(backend.run().env("TREE", pids.join(" ")).sh(REPORT_SURVIVORS), 1);
        assert_succeeded_soon(victim, &next, "looked");
        assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
        assert!(backend.is_free());
    }
}

fn a_killed_waiter_does_not_delay_the_next_one(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let victim = backend.waiter(backend.run_for_long().sh("echo ran"), 1);
    let next = backend.waiter(backend.run_for_long().sh("echo mine"), 2);
    victim.signal(SIGKILL);
    assert_eq!(victim.wait().stdout, "");
    backend.queued(1);
    let released = Instant::now();
    first.wait().expect_code(0);
    next.wait_for_line("mine");
    assert!(released.elapsed() < SOON, "{:?}", released.elapsed());
    next.wait().expect_code(0);
}

fn a_reader_and_a_slot_are_released(backend: &Backend) {
    let slot: &[&str] = &["--slots", "1"];
    for (mode, next) in [(&["--shared"][..], &[][..]), (slot, slot)] {
        let victim = hold(backend.run_for_long().args(mode));
        let next = backend.waiter(backend.run().args(next).sh("echo mine"), 1);
        assert_succeeded_soon(victim, &next, "mine");
        next.wait().expect_code(0);
        assert!(backend.is_free());
    }
}

fn several_keys_are_all_released(backend: &Backend) {
    let victim =
        hold(backend.run_on(&["k", "j"]).args(if backend.is_this_host() { &[] } else { &["--ttl", "90s"] }));
    victim.signal(SIGKILL);
    victim.wait();
    wait_until("both are free", || ["k", "j"].iter().all(|key| backend.run_on(&[key]).try_acquire()));
}

fn a_minimum_hold_still_counts_from_the_grant(backend: &Backend) {
    let granted = Instant::now();
    let victim = hold(backend.run_for_long().args(&["--min-hold", "4s"]));
    let next = backend.waiter(backend.run().sh("echo mine"), 1);
    victim.signal(SIGKILL);
    victim.wait();
    next.wait_for_line("mine");
    let waited = granted.elapsed();
    assert!(waited >= Duration::from_secs(4) && waited < Duration::from_secs(4) + 2 * SOON, "{waited:?}");
    next.wait().expect_code(0);
}

/// The command has exited, and redlock is about to release.
fn a_daemon_of_the_command_survives(backend: &Backend) {
    let script = "setsid sleep 60 >/dev/null 2>&1 & echo daemon $!; read x";
    let mut victim = backend.run_for_long().stdin_pipe().sh(script).spawn();
    let daemon = pid_in(&victim.wait_for_line("daemon"));
    victim.stop();
    drop(victim.take_stdin());
    wait_until("the command has exited", || children(guardian_of(victim.pid())) == [daemon]);
    victim.signal(SIGKILL);
    victim.wait();
    assert!(alive(daemon) && backend.is_free());
    send(daemon, SIGKILL);
}

fn a_run_under_an_outer_lock_releases_nothing(backend: &Backend) {
    let inner = backend.run().arg("--reentrant").sh("echo inner; exec sleep 60").shell_line();
    let outer =
        backend.run_for_long().stdin_pipe().sh(&format!("{inner} & echo pid $!; wait; read x; true")).spawn();
    let pid = pid_in(&outer.wait_for_line("pid"));
    outer.wait_for_line("inner");
    let guardian = guardian_of(pid);
    send(pid, SIGKILL);
    wait_until("its guardian has exited", || !alive(guardian));
    assert!(!backend.is_free(), "the outer run's lock was released");
    outer.wait().expect_code(0);
}

/// As if redlock was killed just after it released the lock.
fn a_lock_that_another_run_holds_by_now_is_left_alone(backend: &Backend) {
    let victim = hold(backend.run_for_long());
    victim.stop();
    match &backend.locks {
        Locks::OneServer(redis) => drop(redis.cmd(&["DEL", "lock:k"])),
        Locks::ThreeServers(nodes) => nodes.iter().for_each(|redis| drop(redis.cmd(&["DEL", "lock:k"]))),
        Locks::ThisHost(_) => unreachable!("there is nothing to delete"),
    }
    let next = hold(backend.run_for_long());
    victim.signal(SIGKILL);
    victim.wait();
    assert!(!backend.is_free());
    next.wait().expect_code(0);
}

fn a_run_killed_with_its_guardian_leaves_a_lease_that_expires(backend: &Backend) {
    let victim = hold(backend.run().args(&["--ttl", "6s"]));
    let next = backend.waiter(backend.run().sh("echo mine"), 1);
    let killed = Instant::now();
    victim.kill_with_guardian();
    next.wait_for_line("mine");
    let waited = killed.elapsed();
    assert!(waited > Duration::from_secs(1) && waited < Duration::from_secs(15), "{waited:?}");
    next.wait().expect_code(0);
}

#[cfg(debug_assertions)] // release builds do not have the switch
#[test]
fn a_panic_while_the_command_runs_frees_the_lock_at_once() {
    let backend = Backend::one_server();
    // Long enough for the tree to start.
    let run =
        backend.run().args(&["--ttl", "9s", "--node-timeout", "1s"]).env("REDLOCK_TEST_PANIC", "keeper");
    let victim = run.sh(TREE).spawn();
    let tree = tree_of(&victim);
    let done = victim.wait().expect_code(125);
    assert!(done.stderr.contains("; the command is stopped. Please report this"), "{done:?}");
    assert!(!tree.iter().any(|pid| alive(*pid)));
    assert!(backend.is_free());
}

#[track_caller]
fn assert_frees(run: &dyn Fn() -> Run) {
    let victim = hold(run());
    victim.signal(SIGKILL);
    victim.wait();
    assert!(run().try_acquire());
}

#[test]
fn the_lock_is_released_on_a_server_with_a_password() {
    let redis = Redis::start_with(&["--requirepass", "secret"]);
    assert_frees(&|| Run::key(&redis, "k").env("REDLOCK_PASSWORD", "secret"));
}

#[test]
fn the_lock_is_released_on_a_server_with_tls() {
    let backend = Backend::tls_server();
    assert_frees(&|| backend.run());
}

#[test]
fn the_lock_is_released_on_a_server_found_by_name() {
    let redis = Redis::start();
    let url = redis.url().replace("127.0.0.1", "localhost");
    assert_frees(&|| Run::at(&url, "k"));
}

#[test]
fn the_lock_is_released_on_the_master_that_sentinels_name() {
    let sentinels = Sentinels::start();
    assert_frees(&|| sentinels.run("k"));
}

#[test]
fn the_lock_is_released_on_the_owner_of_the_slot_in_a_cluster() {
    let cluster = Cluster::start(3);
    assert_frees(&|| cluster.run("k").args(&["--quarantine", "off"]));
}
