//! The lease: renewed while possible, given up before it ends otherwise, released once.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::nodes::renewed;
use crate::support::proc_stat::cpu_ticks;
use crate::support::processes::{self, guardian_of};
use crate::support::{
    Proxy, Redis, Run, STUBBORN_TREE, TREE, Watch, alive, assert_stays_free, assert_takes_less_than, holder,
    tree_of, wait_until,
};

/// Records every value of lock:k from now on.
fn watch(redis: &Redis) -> Watch {
    Watch::start(redis, |client| client.cmd(&["GET", "lock:k"]))
}

#[test]
fn a_command_four_times_as_long_as_the_ttl_keeps_its_lock() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "3s"]);
    let job = run.sh("echo ready; sleep 12; exit 6").spawn();
    job.wait_for_line("ready");
    let claim = redis.cmd(&["GET", "lock:k"]);
    let watch = watch(&redis);
    let done = job.wait().expect_code(6);
    assert_eq!(done.stderr, "", "prints nothing when all is well");
    // One claim throughout, then (if the watcher was quick) nothing.
    let seen = watch.finish();
    assert!(seen == [claim.as_str()] || seen == [claim.as_str(), ""], "{seen:?}");
    assert_stays_free(&redis);
}

/// This command removes the lock: the tree is stopped, and the lock does not reappear.
fn assert_loss_stops(how: &[&str], tree: &str) {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "3s"]).sh(tree).spawn();
    let pids = tree_of(&job);
    redis.cmd(how);
    let watch = watch(&redis);
    let done = job.wait().expect_code(79);
    assert!(done.stderr.contains("redlock: "), "{done:?}");
    assert!(pids.iter().all(|p| !alive(*p)), "still alive of {pids:?}");
    assert_stays_free(&redis);
    assert_eq!(watch.finish(), [""], "the lock reappeared");
}

#[test]
fn a_renewal_that_fails_again_and_again_is_not_reported_each_time() {
    let mut redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "9s", "-v"]).sh("echo ready; sleep 60").spawn();
    job.wait_for_line("ready");
    redis.kill();
    let done = job.wait().expect_code(79);
    let times = done.stderr.matches("cannot renew").count();
    assert!((1..=2).contains(&times), "{times} times in six seconds: {done:?}");
}

#[test]
fn a_flushed_lock_stops_the_whole_tree_and_does_not_reappear() {
    assert_loss_stops(&["FLUSHALL"], TREE);
}

#[test]
fn a_deleted_lock_stops_a_tree_that_ignores_sigterm_and_does_not_reappear() {
    assert_loss_stops(&["DEL", "lock:k"], STUBBORN_TREE);
}

#[test]
fn a_foreign_takeover_stops_the_tree_and_is_left_untouched() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "3s"]).sh(TREE).spawn();
    let pids = tree_of(&job);
    redis.cmd(&["SET", "lock:k", "someone else", "PX", "60000"]);
    let expires = redis.cmd(&["PEXPIRETIME", "lock:k"]);
    job.wait().expect_code(79);
    assert!(pids.iter().all(|p| !alive(*p)), "still alive of {pids:?}");
    assert_eq!(redis.cmd(&["GET", "lock:k"]), "someone else");
    assert_eq!(redis.cmd(&["PEXPIRETIME", "lock:k"]), expires);
}

#[test]
fn a_lock_deleted_taken_and_freed_by_another_program_does_not_reappear() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "3s"]).sh(TREE).spawn();
    let pids = tree_of(&job);
    redis.cmd(&["DEL", "lock:k"]);
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(0);
    job.wait().expect_code(79);
    assert!(pids.iter().all(|p| !alive(*p)), "still alive of {pids:?}");
    assert_stays_free(&redis);
}

#[test]
fn a_server_that_lost_its_data_means_a_lost_lock() {
    let mut redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "3s"]).sh(TREE).spawn();
    let pids = tree_of(&job);
    redis.restart();
    job.wait().expect_code(79);
    assert!(pids.iter().all(|p| !alive(*p)), "still alive of {pids:?}");
    assert_stays_free(&redis);
}

/// The tree is gone by the time the server shows the key as expired.
fn assert_gone_before_the_servers_expiry(tree: &str) {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    // The margin of this lease, a twentieth, is longer than a short pause of a busy machine.
    let job = Run::at(&proxy.url(), "k").args(&["--ttl", "9s"]).sh(tree).spawn();
    let pids = tree_of(&job);
    proxy.pause();
    let mut client = redis.connect();
    wait_until("the key expires", || client.cmd(&["EXISTS", "lock:k"]) == "0");
    let left: Vec<&i32> = pids.iter().filter(|p| alive(**p)).collect();
    assert!(left.is_empty(), "the key expired while {left:?} of {pids:?} lived");
    job.wait().expect_code(79);
}

#[test]
fn the_tree_behind_a_blackhole_is_gone_before_the_servers_expiry() {
    assert_gone_before_the_servers_expiry(TREE);
}

#[test]
fn a_tree_that_ignores_sigterm_behind_a_blackhole_is_gone_before_the_servers_expiry() {
    assert_gone_before_the_servers_expiry(STUBBORN_TREE);
}

#[test]
fn a_dead_server_stops_the_tree_within_the_lease() {
    assert_takes_less_than(Duration::from_millis(3200), || {
        let mut redis = Redis::start();
        let job = Run::key(&redis, "k").args(&["--ttl", "3s"]).sh(TREE).spawn();
        let pids = tree_of(&job);
        let start = Instant::now();
        redis.kill();
        wait_until("the tree is gone", || pids.iter().all(|p| !alive(*p)));
        let spent = start.elapsed();
        job.wait().expect_code(79);
        spent
    });
}

#[test]
fn flushed_scripts_go_unnoticed() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "3s"]);
    let waiter = Run::key(&redis, "k").args(&["--ttl", "3s", "-q"]).sh("sleep 4; exit 8").spawn();
    wait_until("queued", || redis.queue_len("k") == 1);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        redis.cmd(&["SCRIPT", "FLUSH"]);
        std::thread::sleep(Duration::from_millis(20)); // only paces the loop
    }
    let done = first.wait().expect_code(0);
    assert_eq!(done.stderr, "");
    redis.cmd(&["SCRIPT", "FLUSH"]);
    let done = waiter.wait().expect_code(8);
    assert_eq!(done.stderr, "");
    assert!(!redis.held("k"));
}

#[test]
fn a_wait_longer_than_the_ttl_still_yields_a_whole_lease() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "30s"]);
    let run = Run::key(&redis, "k").args(&["--ttl", "3s"]);
    let waiter = run.sh("echo mine; sleep 5; exit 9").spawn();
    wait_until("queued", || redis.queue_len("k") == 1);
    // longer than the waiter's TTL: the promise is about time
    std::thread::sleep(Duration::from_secs(4));
    first.wait().expect_code(0);
    waiter.wait_for_line("mine");
    assert!(redis.held("k"));
    waiter.wait().expect_code(9);
    assert!(!redis.held("k"));
}

#[test]
fn on_lost_warn_only_warns() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "2s", "--on-lost", "warn"]).stdin_pipe();
    let job = run.sh("echo ready; read x; exit 11").spawn();
    job.wait_for_line("ready");
    redis.cmd(&["DEL", "lock:k"]);
    job.wait_for_stderr("redlock: ");
    assert_stays_free(&redis);
    let done = job.wait().expect_code(11);
    assert!(done.stderr.contains("lost"), "{done:?}");
    assert_stays_free(&redis);
}

#[test]
fn on_lost_warn_also_warns_of_a_lease_that_cannot_be_renewed() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let run = Run::at(&proxy.url(), "k").args(&["--ttl", "2s", "--on-lost", "warn"]).stdin_pipe();
    let job = run.sh("echo ready; read x; exit 12").spawn();
    job.wait_for_line("ready");
    proxy.pause();
    wait_until("the key has expired", || !redis.held("k"));
    job.wait_for_stderr("lost");
    job.wait().expect_code(12);
}

#[test]
fn a_lease_that_ends_before_the_command_starts_prevents_it() {
    // Simulates a pause of the machine between the grant and the start: freezes the guardian first,
    // then stops redlock.
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let theirs = redis.cmd(&["GET", "lock:k"]);
    // A start would show as its failure, 127.
    let late = Run::key(&redis, "k").args(&["--ttl", "3s"]).cmd(&["./no-such-command"]).spawn();
    wait_until("queued", || redis.queue_len("k") == 1);
    let guardian = crate::support::processes::guardian_of(late.pid());
    let frozen = processes::Frozen::new(guardian);
    first.wait().expect_code(0);
    wait_until("granted", || redis.held("k") && redis.cmd(&["GET", "lock:k"]) != theirs);
    renewed(&redis, "k", 1); // so the start message has been sent
    late.signal(Signal::SIGSTOP);
    wait_until("expired", || !redis.held("k"));
    let next = holder(&redis, "k", &["--ttl", "60s"]);
    frozen.thaw();
    late.signal(Signal::SIGCONT);
    late.wait().expect_code(79);
    next.wait().expect_code(0);
}

#[test]
fn losing_the_holder_information_costs_no_holder_its_lock() {
    let redis = Redis::start();
    for mode in [&["-x"][..], &["-s"], &["--slots", "2"]] {
        let job = holder(&redis, "k", &[mode, &["--ttl", "3s"]].concat());
        assert_eq!(redis.cmd(&["DEL", "lock-info:k"]), "1");
        renewed(&redis, "k", 3);
        let done = job.wait().expect_code(0);
        assert_eq!(done.stderr, "", "{mode:?}");
        assert!(!redis.held("k"), "{mode:?}");
    }
}

#[test]
fn redlock_sleeps_until_the_command_exits_after_a_loss_with_on_lost_warn() {
    let redis = Redis::start();
    for foreign in [false, true] {
        let mut job = Run::key(&redis, "k")
            .args(&["--ttl", "3s", "--on-lost", "warn"])
            .stdin_pipe()
            .sh("echo ready; read x; exit 5")
            .spawn();
        job.wait_for_line("ready");
        redis.cmd(&["DEL", "lock:k"]);
        if foreign {
            redis.cmd(&["SET", "lock:k", "foreign"]);
        }
        job.wait_for_stderr("lost");
        let used =
            |pids: &[i32]| pids.iter().map(|pid| cpu_ticks(*pid).expect("a living process")).sum::<u64>();
        let ours = [job.pid(), guardian_of(job.pid())];
        let before = used(&ours);
        // The time that is measured, in which the lease ends as well.
        std::thread::sleep(Duration::from_millis(3500));
        let ticks = used(&ours) - before;
        assert!(ticks < 18, "{ticks} ticks of 350 with nothing to do");
        drop(job.take_stdin());
        assert_eq!(job.wait().code, Some(5));
        redis.cmd(&["DEL", "lock:k"]);
    }
}
