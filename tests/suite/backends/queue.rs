//! Waiting: first come, first served; attempts without waiting; waiters that give up, are cancelled
//! or killed.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};

use crate::support::processes::{self, wait_until_none_marked};
use crate::support::{Backend, Job, OverlapCheck, Pty, expect_success, hold};

on_backends!(one_server, three_servers, this_host:
    waiters_are_served_in_order_of_arrival,
    no_update_of_25_simultaneous_processes_is_lost,
    a_nonblocking_run_exits_75_at_once_and_names_the_holder,
    a_waiter_gives_up_after_its_time_and_leaves_the_queue,
    the_conflict_exit_code_can_be_chosen_and_zero_skips_quietly,
    a_waiter_that_gives_up_disturbs_no_other,
    a_cancelled_waiter_leaves_at_once_and_dies_by_its_signal,
    a_killed_waiter_disturbs_no_other_and_leaves_no_process,
    a_waiter_that_gets_ctrl_c_leaves_the_queue,
    a_longer_wait_is_reported_with_holder_position_and_times,
);

fn waiters_are_served_in_order_of_arrival(backend: &Backend) {
    let first = hold(backend.run());
    let waiters: Vec<Job> =
        (0..8).map(|i| backend.noting_waiter(backend.run(), &i.to_string(), i + 1)).collect();
    first.wait().expect_code(0);
    expect_success(waiters);
    assert_eq!(backend.order(), ["0", "1", "2", "3", "4", "5", "6", "7"]);
    backend.queued(0);
    backend.all_free(&["k"]);
}

fn no_update_of_25_simultaneous_processes_is_lost(backend: &Backend) {
    let check = OverlapCheck::new();
    let run = |i: usize| backend.run().dir(check.dir()).sh(&OverlapCheck::script(&i.to_string())).spawn();
    expect_success((0..25).map(run).collect::<Vec<Job>>());
    check.assert_clean(25);
    backend.all_free(&["k"]);
}

fn a_nonblocking_run_exits_75_at_once_and_names_the_holder(backend: &Backend) {
    let first = hold(backend.run_for_long().args(&["--label", "nightly"]));
    for args in [&["-n"][..], &["--nonblock"], &["-w", "0"], &["--wait", "0s"]] {
        let tried = backend.run().args(args).sh("echo ran").done().expect_code(75);
        assert_eq!(tried.stdout, "");
        assert!(tried.stderr.starts_with("redlock: \"k\" is held"), "{tried:?}");
        assert_eq!(tried.stderr.lines().count(), 1, "{tried:?}");
        let pid = format!("pid {}", first.pid());
        assert!(tried.stderr.contains("nightly") && tried.stderr.contains(&pid), "{tried:?}");
        backend.queued(0);
    }
    first.wait().expect_code(0);
    backend.run().arg("-n").sh("exit 3").done().expect_code(3);
}

fn a_waiter_gives_up_after_its_time_and_leaves_the_queue(backend: &Backend) {
    let first = hold(backend.run_for_long());
    for wait in ["1.5", "1500ms"] {
        let start = Instant::now();
        let tried = backend.run().args(&["-w", wait]).sh("echo ran").done().expect_code(75);
        assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
        assert_eq!(tried.stdout, "");
        assert!(tried.stderr.starts_with("redlock: "), "{tried:?}");
        backend.queued(0);
    }
    let waiter = backend.waiter(backend.run().args(&["-w", "50s"]).sh("exit 4"), 1);
    first.wait().expect_code(0);
    waiter.wait().expect_code(4);
}

fn the_conflict_exit_code_can_be_chosen_and_zero_skips_quietly(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let tried = |args: &[&str]| backend.run().args(args).sh("echo ran").done();
    for (args, code) in [(["-n", "-E"], 9), (["-n", "--conflict-exit-code"], 255), (["-w1.5", "-E"], 200)] {
        let done = tried(&[&args[..], &[&code.to_string()]].concat()).expect_code(code);
        assert_eq!(done.stdout, "");
    }
    for how in ["-n", "-w1.5"] {
        let skipped = tried(&[how, "-E", "0"]).expect_code(0);
        assert_eq!((skipped.stdout.as_str(), skipped.stderr.as_str()), ("", ""), "{how}");
    }
    first.wait().expect_code(0);
    // The exit code of the command itself is never mapped.
    backend.run().args(&["-n", "-E", "9"]).sh("exit 75").done().expect_code(75);
}

fn a_waiter_that_gives_up_disturbs_no_other(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let ahead = backend.noting_waiter(backend.run(), "ahead", 1);
    let quitter = backend.waiter(backend.run().args(&["-w", "6"]).sh("echo ran"), 2);
    let behind = backend.noting_waiter(backend.run(), "behind", 3);
    assert_eq!(quitter.wait().expect_code(75).stdout, "");
    backend.queued(2);
    first.wait().expect_code(0);
    expect_success([ahead, behind]);
    assert_eq!(backend.order(), ["ahead", "behind"]);
}

fn a_cancelled_waiter_leaves_at_once_and_dies_by_its_signal(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let ahead = backend.noting_waiter(backend.run(), "ahead", 1);
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let mark = processes::mark();
        let run = backend.run().via("ulimit -c 0; exec \"$@\"").env("TEST_MARK", &mark);
        let cancelled = backend.waiter(run.sh("echo ran"), 2);
        cancelled.signal(signal);
        let done = cancelled.wait();
        assert_eq!((done.code, done.signal), (None, Some(signal as i32)), "{done:?}");
        assert_eq!(done.stdout, "");
        backend.queued(1);
        wait_until_none_marked(&mark);
    }
    let behind = backend.noting_waiter(backend.run(), "behind", 2);
    first.wait().expect_code(0);
    expect_success([ahead, behind]);
    assert_eq!(backend.order(), ["ahead", "behind"]);
}

fn a_killed_waiter_disturbs_no_other_and_leaves_no_process(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let ahead = backend.noting_waiter(backend.run(), "ahead", 1);
    let mark = processes::mark();
    let victim = backend.waiter(backend.run().env("TEST_MARK", &mark).sh("echo ran >> order"), 2);
    let behind = backend.noting_waiter(backend.run(), "behind", 3);
    victim.signal(SIGKILL);
    victim.wait();
    wait_until_none_marked(&mark);
    assert!(!backend.is_free(), "a waiter's death must not free the lock");
    first.wait().expect_code(0);
    expect_success([ahead, behind]);
    assert_eq!(backend.order(), ["ahead", "behind"]);
}

fn a_waiter_that_gets_ctrl_c_leaves_the_queue(backend: &Backend) {
    let first = hold(backend.run_for_long().args(&["--label", "nightly"]));
    let mark = processes::mark();
    let pty = Pty::run(backend.run().env("TEST_MARK", &mark).sh("echo ran"));
    pty.wait_for("nightly"); // the live line
    backend.queued(1);
    pty.type_in("\x03");
    let done = pty.wait();
    assert_eq!((done.code, done.signal), (None, Some(SIGINT as i32)), "{}", done.stdout);
    assert!(!done.stdout.contains("ran"));
    backend.queued(0);
    wait_until_none_marked(&mark);
    first.wait().expect_code(0);
    assert!(backend.is_free());
}

fn a_longer_wait_is_reported_with_holder_position_and_times(backend: &Backend) {
    // The command has an argument that no other user may see.
    let run = backend.run_for_long().args(&["--label", "nightly build"]).stdin_pipe();
    let holder = run.cmd(&["sh", "-c", "echo ready; read x; exit 0", "hidden-argument"]).spawn();
    holder.wait_for_line("ready");
    let first = backend.waiter(backend.run().sh("echo in"), 1);
    let second = backend.waiter(backend.run().sh("echo in"), 2);
    let message = first.wait_for_stderr("waiting");
    assert!(message.starts_with("redlock: waiting for \"k\""), "{message}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let pid = format!("pid {}", holder.pid());
    for part in ["place 1 of ", "held by", host.trim(), &pid, "nightly build", "sh", " since ", "waited "] {
        assert!(message.contains(part), "{part:?} is missing in {message:?}");
    }
    let behind = second.wait_for_stderr("waiting");
    assert!(behind.contains("place 2 of 2") && behind.contains(&pid), "{behind}");
    holder.wait().expect_code(0);
    for job in [first, second] {
        let done = job.wait().expect_code(0);
        assert_eq!(done.stdout, "in\n");
        assert!(done.stderr.lines().all(|line| line.starts_with("redlock: ")), "{:?}", done.stderr);
        assert!(!done.stderr.contains("hidden-argument") && !done.stderr.contains("read x"), "{done:?}");
        assert!(!done.stderr.contains(['\r', '\x1b']), "a log is not a terminal: {:?}", done.stderr);
    }
}
