//! The lock is released whatever state the three streams are in, and whatever the command leaves
//! behind.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal::SIGTERM;

use crate::support::processes::{self, pid_in};
use crate::support::{Host, Job, Redis, Run, alive, wait_until};

/// A command that exits with 7 and leaves a daemon in another session, which keeps every stream
/// open.
const LEAVES_DAEMON: &str = "(setsid sh -c 'echo daemon $$; while [ ! -e \"$END\" ]; do sleep 0.02; done' &)
    echo main $$; exit 7";

fn daemon_run(redis: &Redis, dir: &tempfile::TempDir) -> (Run, std::path::PathBuf) {
    let end = dir.path().join("end");
    (Run::key(redis, "k").args(&["--ttl", "4s", "--node-timeout", "1s"]).env("END", &end), end)
}

#[test]
fn a_daemon_that_keeps_stdout_open_does_not_delay_redlock() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let mark = processes::mark();
    let (run, end) = daemon_run(&redis, &dir);
    let job = run.env("TEST_MARK", &mark).sh(LEAVES_DAEMON).spawn();
    let daemon = pid_in(&job.wait_for_line("daemon"));
    let done = job.wait();
    assert_eq!((done.code, done.stderr.as_str()), (Some(7), ""));
    assert!(!redis.held("k"), "the daemon does not keep the lock");
    wait_until("the guardian is gone", || {
        let ours = |pid: &i32| {
            ["redlock", "lock-guardian"].contains(&processes::status_field(*pid, "Name").as_str())
        };
        !processes::marked(&mark).iter().any(ours)
    });
    assert!(alive(daemon), "a command that exits by itself may leave a daemon");
    fs::write(&end, "").unwrap();
    wait_until("the daemon has exited", || !alive(daemon));
}

#[test]
fn wait_tree_keeps_the_lock_until_the_last_descendant_has_exited() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("events");
    let (run, end) = daemon_run(&redis, &dir);
    let mut job = run.args(&["--wait-tree", "--events"]).arg(&events).sh(LEAVES_DAEMON).spawn();
    let (daemon, main) = (pid_in(&job.wait_for_line("daemon")), pid_in(&job.wait_for_line("main")));
    wait_until("the command itself has exited", || !alive(main));
    let refreshed = || fs::read_to_string(&events).unwrap_or_default().matches("\"refreshed\"").count();
    let before = refreshed();
    // Four refreshes take longer than a whole lease.
    wait_until("the lock is refreshed for the daemon", || refreshed() >= before + 4);
    assert!(job.is_running() && redis.held("k") && alive(daemon));
    fs::write(&end, "").unwrap();
    let done = job.wait();
    assert_eq!((done.code, done.stderr.as_str()), (Some(7), ""));
    assert!(!alive(daemon) && !redis.held("k"));
}

#[test]
fn closed_streams_do_not_keep_the_lock_or_change_the_exit_code() {
    let redis = Redis::start();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        for extra in [&[][..], &["-v"]] {
            let run = Run::key(&redis, "k").args(extra).via(&format!("exec \"$@\" {closed}"));
            let done = run.sh("exit 7").done();
            assert_eq!((done.code, done.signal), (Some(7), None), "{closed} {extra:?}: {}", done.stderr);
            assert!(!redis.held("k"), "{closed} {extra:?}");
        }
    }
}

#[test]
fn closed_streams_never_give_the_command_a_descriptor_of_redlock() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let run = Run::key(&redis, "k").via("exec \"$@\" <&- >&- 2>&-").env("LIST", &list);
    // readlink prints nothing for a closed descriptor; a separate shell writes its output.
    let script = "listed=$(for f in 0 1 2; do readlink /proc/$$/fd/$f; done); echo \"$listed.\" >\"$LIST\"";
    run.sh(script).done().expect_code(0);
    let listed = fs::read_to_string(&list).unwrap();
    let strange: Vec<&str> = listed.trim_end_matches(".\n").lines().filter(|l| *l != "/dev/null").collect();
    assert_eq!(strange, Vec::<&str>::new());
}

#[test]
fn redlock_survives_a_full_disk_under_stderr() {
    let redis = Redis::start();
    for code in [0, 7] {
        let run = Run::key(&redis, "k").arg("-v").via("exec \"$@\" 2>/dev/full");
        assert_eq!(run.sh(&format!("exit {code}")).done().code, Some(code));
        assert!(!redis.held("k"));
    }
    let done = Run::key(&redis, "k").via("exec \"$@\" 2>/dev/full").cmd(&["/no/such/path"]).done();
    assert_eq!((done.code, redis.held("k")), (Some(127), false));
}

/// stderr is a pipe without a reader.
const BROKEN_STDERR: &str = "mkfifo \"$FIFO\"; exec 9<>\"$FIFO\"; exec 2>\"$FIFO\"; exec 9<&-; exec \"$@\"";

#[test]
fn redlock_survives_a_broken_pipe_under_stderr() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let run = Run::key(&redis, "k").arg("-v").via(BROKEN_STDERR).env("FIFO", dir.path().join("fifo"));
    let done = run.sh("exit 7").done();
    assert_eq!((done.code, done.signal), (Some(7), None));
    assert!(!redis.held("k"));
}

#[test]
fn a_waiter_that_cannot_report_its_wait_still_waits_and_runs() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let holder: Job = Run::key(&redis, "k").sh("echo ready; exec sleep 60").spawn();
    holder.wait_for_line("ready");
    let run = Run::key(&redis, "k").via(BROKEN_STDERR).env("FIFO", dir.path().join("fifo"));
    let mute = run.sh("echo in").spawn();
    wait_until("the silent one waits", || redis.queue_len("k") == 1);
    let other = Run::key(&redis, "k").sh("echo in").spawn();
    // so the silent one, which came earlier, has tried to print it as well
    other.wait_for_stderr("waiting");
    holder.signal(SIGTERM);
    let done = mute.wait();
    assert_eq!((done.code, done.signal, done.stdout.as_str()), (Some(0), None, "in\n"));
    assert_eq!(other.wait().code, Some(0));
}

#[test]
fn a_command_that_dies_of_sigpipe_frees_the_lock() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").via("exec 3>&1; { \"$@\"; echo code=$? >&3; } | head -n 1");
    let done = run.cmd(&["yes"]).done();
    wait_until("the pipeline has ended", || !redis.held("k"));
    assert!(done.stdout.contains("y\n") && done.stdout.contains("code=141"), "{done:?}");
}

/// 100 blocks of 512 bytes end before the part of a lock file that has the history.
#[test]
fn a_limit_of_file_sizes_costs_the_history_but_not_the_run() {
    let host = Host::new();
    let limited = |blocks: u32| host.run().via(&format!("ulimit -f {blocks}; exec \"$@\""));
    let done = limited(100).sh("exit 3").done().expect_code(3);
    assert_eq!(done.stderr, "");
    assert!(host.is_free());
    let done = limited(0).sh("echo ran").done().expect_code(69);
    assert!(done.stdout.is_empty() && done.stderr.contains("File too large"), "{done:?}");
    assert!(host.is_free());
}

/// As in a minimal container, with every standard stream closed.
#[test]
fn closed_streams_without_dev_null_do_not_keep_the_lock_or_change_the_exit_code() {
    let script = "mount -t tmpfs none /dev && exec \"$@\"";
    let unshared = Command::new("unshare").args(["--mount", "sh", "-c", script, "sh", "true"]).status();
    if !unshared.is_ok_and(|status| status.success()) {
        skip!("only root can hide /dev");
    }
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    for closed in ["", "2>&-", "<&- >&- 2>&-"] {
        let script = format!("mount -t tmpfs none /dev && exec \"$@\" {closed}");
        let without_dev = |run: Run| run.through(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
        let seen = directory.path().join("seen");
        let run = Run::key(&redis, "k").arg("-v").env("SEEN", &seen);
        let done = without_dev(run).sh("ls -l /proc/$$/fd > \"$SEEN\"; exit 7").done();
        assert_eq!((done.code, done.signal), (Some(7), None), "{closed}: {}", done.stderr);
        assert!(!redis.held("k"), "{closed}");
        let seen = fs::read_to_string(&seen).unwrap();
        assert!(!seen.contains("socket:"), "a descriptor of redlock: {seen}");
    }
    let host = Host::new();
    let script = script.to_owned();
    let acquire = host.subcommand("acquire").args(&["--local", "--key", "k", "--ttl", "60s"]);
    let acquire = acquire.through(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
    let token = acquire.done().expect_code(0).stdout;
    host.subcommand("release").args(&["k", "--token", token.trim()]).done().expect_code(0);
}
