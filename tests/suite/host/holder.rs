//! When a holder on this host ends: at once, and never before its command's whole tree is gone.

use std::fs;

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGTERM};

use crate::support::processes::{self, guardian_of, pid_in, send, wait_until_a_signal_counts_again};
use crate::support::{
    Host, Job, REPORT_SURVIVORS, Run, STUBBORN_TREE, TREE, alive, hold, tree_of, wait_until,
};

/// The first in the queue, which checks whether the tree is gone.
fn onlooker(host: &Host, tree: &[i32]) -> Job {
    let pids: Vec<String> = tree.iter().map(i32::to_string).collect();
    host.waiter(host.run().env("TREE", pids.join(" ")).sh(REPORT_SURVIVORS), 1)
}

/// A daemon in a session of its own that outlives the command and holds none of its streams.
const LEAVE_DAEMON: &str = "setsid sh -c 'echo $$ > daemon; exec sleep 300' </dev/null >/dev/null 2>&1 &
    while [ ! -s daemon ]; do sleep 0.01; done; exit 3";

fn daemon_of(host: &Host) -> i32 {
    wait_until("the daemon writes its pid", || {
        fs::read_to_string(host.beside("daemon")).is_ok_and(|text| text.ends_with('\n'))
    });
    pid_in(&fs::read_to_string(host.beside("daemon")).unwrap())
}

#[test]
fn a_killed_holder_frees_the_lock_at_once_but_not_before_its_tree_is_gone() {
    let host = Host::new();
    for script in [TREE, STUBBORN_TREE, TREE, STUBBORN_TREE] {
        let job = host.run().sh(script).spawn();
        let tree = tree_of(&job);
        let next = onlooker(&host, &tree);
        job.signal(SIGKILL);
        assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
        assert!(tree.iter().all(|pid| !alive(*pid)), "{tree:?}");
        assert!(host.is_free());
    }
}

#[test]
fn a_killed_guardian_ends_the_run_with_125_and_frees_the_lock_after_the_tree() {
    let host = Host::new();
    for script in [TREE, STUBBORN_TREE] {
        let job = host.run().sh(script).spawn();
        let tree = tree_of(&job);
        let next = onlooker(&host, &tree);
        send(guardian_of(job.pid()), SIGKILL);
        let done = job.wait().expect_code(125);
        assert!(done.stderr.starts_with("redlock: "), "{done:?}");
        assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
    }
}

#[test]
fn a_forced_stop_frees_the_lock_only_after_the_tree_is_gone() {
    let host = Host::new();
    let job = host.run().sh(STUBBORN_TREE).spawn();
    let tree = tree_of(&job);
    let next = onlooker(&host, &tree);
    job.signal(SIGTERM);
    wait_until_a_signal_counts_again();
    wait_until("two signals end the run", || {
        if alive(tree[0]) {
            // the first may have been read late, so that both count as one request
            job.signal(SIGTERM);
        }
        !alive(tree[0])
    });
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
    job.wait();
}

#[test]
fn a_signal_is_forwarded_and_the_lock_kept_until_the_command_has_exited() {
    let host = Host::new();
    let script = "trap 'echo asked' TERM; echo main $$; read x; while read x; do :; done; exit 6";
    let mut job = host.run().stdin_pipe().sh(script).spawn();
    let main = pid_in(&job.wait_for_line("main"));
    job.signal(SIGTERM);
    job.wait_for_line("asked");
    assert!(alive(main) && !host.is_free());
    drop(job.take_stdin());
    job.wait().expect_code(6);
    assert!(host.is_free());
}

#[test]
fn a_stopped_holder_keeps_the_lock() {
    let host = Host::new();
    let job = hold(host.run());
    job.stop();
    assert!(!host.is_free());
    job.signal(SIGCONT);
    job.wait().expect_code(0);
    assert!(host.is_free());
}

#[test]
fn a_command_that_cannot_be_started_leaves_the_lock_free() {
    let host = Host::new();
    let first = hold(host.run());
    let waiter = host.waiter(host.run().cmd(&["/no/such/command"]), 1);
    let behind = host.noting_waiter("behind", 2);
    first.wait().expect_code(0);
    waiter.wait().expect_code(127);
    behind.wait().expect_code(0);
}

#[test]
fn a_daemon_left_behind_does_not_keep_the_lock() {
    let host = Host::new();
    host.run().dir(host.path()).sh(LEAVE_DAEMON).done().expect_code(3);
    let daemon = daemon_of(&host);
    assert!(alive(daemon) && host.is_free());
    send(daemon, SIGKILL);
}

#[test]
fn a_daemon_left_behind_keeps_the_lock_with_wait_tree() {
    let host = Host::new();
    let mut job = host.run().dir(host.path()).arg("--wait-tree").sh(LEAVE_DAEMON).spawn();
    let daemon = daemon_of(&host);
    let command_has_ended = || {
        let of_ours = |pid: &i32| processes::status_field(*pid, "Name") == "sh";
        processes::children(guardian_of(job.pid())).iter().filter(|pid| of_ours(pid)).count() == 0
    };
    wait_until("the command has exited", command_has_ended);
    assert!(alive(daemon) && job.is_running() && !host.is_free());
    send(daemon, SIGKILL);
    job.wait().expect_code(3);
    assert!(host.is_free());
}

#[test]
fn a_killed_redlock_with_wait_tree_takes_the_daemon_along() {
    let host = Host::new();
    let job = host.run().dir(host.path()).arg("--wait-tree").sh(LEAVE_DAEMON).spawn();
    let daemon = daemon_of(&host);
    let next = onlooker(&host, &[daemon]);
    job.signal(SIGKILL);
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
}

/// The command's descriptors that lead into the lock directory.
fn into_directory(host: &Host, run: Run) -> usize {
    let script = "for fd in /proc/$$/fd/*; do readlink $fd; done; exit 0";
    let done = run.sh(script).done().expect_code(0);
    assert!(done.stdout.contains("pipe:"), "the command lists descriptors: {done:?}");
    let directory = host.path().to_str().unwrap();
    done.stdout.lines().filter(|line| line.starts_with(directory)).count()
}

#[test]
fn the_command_inherits_no_descriptor_of_the_lock_except_with_wait_tree() {
    let host = Host::new();
    assert_eq!(into_directory(&host, host.run()), 0);
    // The file and the directory.
    assert_eq!(into_directory(&host, host.run().arg("--wait-tree")), 2);
    // The same after a wait.
    let first = hold(host.run());
    let listing = "for fd in /proc/$$/fd/*; do readlink $fd; done; exit 0";
    let waiter = host.waiter(host.run().sh(listing), 1);
    first.wait().expect_code(0);
    let done = waiter.wait().expect_code(0);
    assert!(!done.stdout.contains("redlock-"), "{done:?}");
}
