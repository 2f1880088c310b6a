//! --max-hold: when the time ends the whole tree is stopped, then the lock is released, exit 124.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGKILL, SIGSTOP};

use crate::support::nodes::renewed;
use crate::support::processes::{self, Frozen, guardian_of, pid_in};
use crate::support::{
    Backend, REPORT_SURVIVORS, Redis, Run, STUBBORN_TREE, TREE, alive, hold, process_state, tree_of,
    wait_until,
};

on_backends!(
    one_server, three_servers, this_host:
        the_tree_is_stopped_the_lock_released_and_one_line_printed,
        a_tree_that_ignores_sigterm_is_killed_after_the_grace,
        the_next_holder_starts_only_after_the_tree_is_gone,
        the_chosen_signal_is_sent_and_the_command_has_the_grace_to_clean_up,
        a_command_that_exits_earlier_keeps_its_exit_code,
        the_guardian_stops_the_tree_of_a_stopped_redlock,
        a_stopped_command_is_killed,
        the_time_starts_with_the_grant_and_not_with_the_wait,
        the_remaining_tree_is_stopped_with_wait_tree;
    one_server, three_servers, this_host:
        one_reader_or_slot_ends_and_the_others_continue,
);

fn gone(tree: &[i32]) -> bool {
    !tree.iter().any(|pid| alive(*pid))
}

fn the_tree_is_stopped_the_lock_released_and_one_line_printed(backend: &Backend) {
    let start = Instant::now();
    let job = backend.run_for_long().args(&["--max-hold", "3s"]).sh(TREE).spawn();
    let tree = tree_of(&job);
    let done = job.wait().expect_code(124);
    assert!(start.elapsed() >= Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(gone(&tree), "{tree:?}");
    assert!(done.stderr.starts_with("redlock: "), "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert!(backend.is_free());
}

fn a_tree_that_ignores_sigterm_is_killed_after_the_grace(backend: &Backend) {
    let run = backend.run_for_long().args(&["--max-hold", "3s", "--kill-after", "300ms"]);
    let job = run.sh(STUBBORN_TREE).spawn();
    let tree = tree_of(&job);
    job.wait().expect_code(124);
    assert!(gone(&tree), "{tree:?}");
    assert!(backend.is_free());
}

fn the_next_holder_starts_only_after_the_tree_is_gone(backend: &Backend) {
    let run = backend.run_for_long().args(&["--max-hold", "5s", "--kill-after", "300ms"]);
    let job = run.sh(STUBBORN_TREE).spawn();
    let tree: Vec<String> = tree_of(&job).iter().map(i32::to_string).collect();
    let next = backend.waiter(backend.run().env("TREE", tree.join(" ")).sh(REPORT_SURVIVORS), 1);
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
    job.wait().expect_code(124);
}

fn the_chosen_signal_is_sent_and_the_command_has_the_grace_to_clean_up(backend: &Backend) {
    let run = backend.run_for_long().args(&["--max-hold", "2s", "--signal", "USR1"]);
    let script = "trap 'echo asked; sleep 0.3; echo tidied; exit 5' USR1; while :; do sleep 0.02; done";
    let done = run.sh(script).done().expect_code(124);
    assert_eq!(done.stdout, "asked\ntidied\n");
    assert!(backend.is_free());
}

fn a_command_that_exits_earlier_keeps_its_exit_code(backend: &Backend) {
    for code in [0, 3, 124] {
        let done = backend.run().args(&["--max-hold", "40s"]).sh(&format!("exit {code}")).done();
        assert_eq!(done.expect_code(code).stderr, "");
    }
    let done = backend.run().args(&["--max-hold", "40s"]).sh("kill -KILL $$").done();
    assert_eq!((done.signal, done.stderr.as_str()), (Some(9), ""));
    backend.run().args(&["--max-hold", "40s"]).cmd(&["/no/such/command"]).done().expect_code(127);
    assert!(backend.is_free());
}

fn the_guardian_stops_the_tree_of_a_stopped_redlock(backend: &Backend) {
    let run = backend.run_for_long().args(&["--max-hold", "3s", "--kill-after", "300ms"]);
    let job = run.sh(STUBBORN_TREE).spawn();
    let tree = tree_of(&job);
    job.signal(SIGSTOP);
    wait_until("the tree is stopped by the guardian", || gone(&tree));
    // The guardian continues redlock, so that it releases the lock.
    let done = job.wait().expect_code(124);
    assert!(done.stderr.starts_with("redlock: "), "{done:?}");
    assert!(backend.is_free());
}

fn a_stopped_command_is_killed(backend: &Backend) {
    let run = backend.run_for_long().args(&["--max-hold", "3s", "--kill-after", "3s"]);
    let job = run.sh("trap 'echo asked; exit 1' TERM; echo main $$; kill -STOP $$; sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    wait_until("the command is stopped", || process_state(main) == Some('T'));
    let done = job.wait().expect_code(124);
    assert!(done.stdout.contains("asked"), "TERM and CONT come before KILL: {done:?}");
    assert!(!alive(main) && backend.is_free());
}

fn the_time_starts_with_the_grant_and_not_with_the_wait(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let next = backend.waiter(backend.run().args(&["--max-hold", "2s"]).sh("exit 5"), 1);
    next.wait_for_stderr("waiting"); // printed after two seconds
    first.wait().expect_code(0);
    next.wait().expect_code(5);
}

#[test]
fn the_lock_is_kept_over_many_leases_until_then() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "3s", "--max-hold", "12s"]);
    let job = run.sh("echo main $$; exec sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    renewed(&redis, "k", 6); // more than two leases
    assert!(alive(main), "{}", job.stderr_so_far());
    let done = job.wait().expect_code(124);
    assert!(!done.stderr.contains("lost"), "{done:?}");
    assert!(!redis.held("k"));
}

#[test]
fn a_lock_that_is_lost_earlier_exits_79() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "3s", "--max-hold", "40s"]);
    let job = run.sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    redis.cmd(&["DEL", "lock:k"]);
    job.wait().expect_code(79);
}

fn the_remaining_tree_is_stopped_with_wait_tree(backend: &Backend) {
    let run = backend.run_for_long().args(&["--max-hold", "2s", "--kill-after", "300ms", "--wait-tree"]);
    let job = run.sh("setsid sleep 300 </dev/null >/dev/null 2>&1 & echo left $!; exit 3").spawn();
    let left = pid_in(&job.wait_for_line("left"));
    let done = job.wait();
    // The command had exited, its tree had not: either may be reported.
    assert!(matches!(done.code, Some(124 | 3)), "{done:?}");
    assert!(!alive(left) && backend.is_free());
}

#[test]
fn a_daemon_of_the_command_is_left_alone_without_wait_tree() {
    let backend = Backend::this_host();
    let run = backend.run().args(&["--max-hold", "40s"]);
    let done = run.sh("setsid sleep 300 </dev/null >/dev/null 2>&1 & echo left $!; exit 3").done();
    let left = pid_in(&done.expect_code(3).stdout);
    assert!(alive(left) && backend.is_free());
    processes::send(left, SIGKILL);
}

fn one_reader_or_slot_ends_and_the_others_continue(backend: &Backend) {
    for mode in [&["-s"][..], &["--slots", "2"]] {
        let mut other = hold(backend.run_for_long().args(mode));
        let run = backend.run_for_long().args(mode).args(&["--max-hold", "500ms"]);
        run.sh("exec sleep 60").done().expect_code(124);
        assert!(other.is_running(), "{mode:?}");
        let again = backend.run().args(mode).arg("-n").cmd(&["true"]).done();
        again.expect_code(0); // the reader's entry is gone, the slot is free
        other.wait().expect_code(0);
    }
}

#[test]
fn a_command_that_exits_in_time_counts_as_not_stopped_however_late_its_guardian_notices() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; exit 7";
    // redlock kills a guardian that is later than this.
    let run = Run::key(&redis, "k").args(&["--max-hold", "5s", "--kill-after", "10s"]);
    let job = run.dir(&directory).sh(script).spawn();
    let guardian = guardian_of(job.pid());
    let pid = || std::fs::read_to_string(directory.path().join("pid")).ok()?.trim().parse::<i32>().ok();
    wait_until("the command runs", || pid().is_some());
    let frozen = Frozen::new(guardian);
    std::fs::write(directory.path().join("go"), "").unwrap();
    wait_until("the command has exited", || !alive(pid().unwrap()));
    // The time of --max-hold itself must pass.
    std::thread::sleep(std::time::Duration::from_millis(5100));
    frozen.thaw();
    job.wait().expect_code(7);
}
