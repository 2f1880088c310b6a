//! The exit code table: how the caller sees the command's exit, a refusal or a mistake.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Job, OtherUsers, Redis, Run, executable, holder, processes, wait_until};

#[test]
fn redlock_exits_with_every_exit_code_of_the_command() {
    let redis = Redis::start();
    for code in [
        0, 1, 2, 3, 63, 64, 65, 69, 75, 77, 78, 79, 100, 123, 124, 125, 126, 127, 128, 129, 130, 137, 143,
        254, 255,
    ] {
        let done = Run::key(&redis, "k").sh(&format!("exit {code}")).done();
        assert_eq!((done.code, done.signal), (Some(code), None), "exit {code}: {}", done.stderr);
        assert_eq!(done.stderr, "", "exit {code} is passed on");
        assert!(!redis.held("k"), "after exit {code}");
    }
}

#[test]
fn redlock_dies_by_the_same_signal_as_the_command() {
    let redis = Redis::start();
    let classic = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 26, 27, 29, 30, 31];
    let real_time = [34, 50, 64];
    for signal in classic.into_iter().chain(real_time) {
        let run = Run::key(&redis, "k").via("ulimit -c 0; exec \"$@\"").sh(&format!("kill -{signal} $$"));
        let done = run.done();
        assert_eq!((done.code, done.signal), (None, Some(signal)), "signal {signal}: {}", done.stderr);
        assert!(!redis.held("k"), "after signal {signal}");
    }
}

#[test]
fn a_shell_sees_128_plus_the_signal() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").via("\"$@\"; echo code=$?").sh("kill -TERM $$");
    assert_eq!(run.done().stdout, "code=143\n");
}

#[test]
fn a_missing_command_exits_127_and_frees_the_key_at_once() {
    let redis = Redis::start();
    for missing in ["no-such-command-anywhere", "/no/such/path", "./no-such-file"] {
        let done = Run::key(&redis, "k").cmd(&[missing]).done();
        assert_eq!(done.code, Some(127), "{missing}: {}", done.stderr);
        assert!(done.stderr.contains(missing), "{}", done.stderr);
        assert!(!redis.held("k"), "{missing}");
    }
}

#[test]
fn a_command_that_cannot_be_executed_exits_126_and_frees_the_key_at_once() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let orphan = dir.path().join("orphan");
    executable(&orphan, "#!/no/such/interpreter\n");

    for bad in [plain.as_path(), orphan.as_path(), dir.path()] {
        let done = Run::key(&redis, "k").cmd(&[bad.to_str().unwrap()]).done();
        assert_eq!(done.code, Some(126), "{}: {}", bad.display(), done.stderr);
        assert!(done.stderr.contains(bad.to_str().unwrap()), "{}", done.stderr);
        assert!(!redis.held("k"), "{}", bad.display());
    }
}

#[test]
fn a_failed_spawn_lets_the_next_waiter_in() {
    let redis = Redis::start();
    let holder = holder(&redis, "k", &[]);
    let broken = Run::key(&redis, "k").arg("--ttl").arg("60s").cmd(&["/no/such/path"]).spawn();
    wait_until("the broken run waits", || redis.queue_len("k") == 1);
    let next = Run::key(&redis, "k").sh("echo in").spawn();
    wait_until("the next run waits", || redis.queue_len("k") == 2);
    holder.signal(SIGTERM);
    next.wait_for_line("in");
    assert_eq!(next.wait().code, Some(0));
    assert_eq!(broken.wait().code, Some(127));
}

#[test]
fn a_wrong_command_line_exits_64_with_a_reason_and_contacts_no_server() {
    let redis = Redis::start();
    let url = redis.url();
    let lines: &[&[&str]] = &[
        &[],
        &["no-such-subcommand"],
        &["run"],
        &["run", "--redis", &url, "--", "true"],
        &["run", "--redis", &url, "--key", "k"],
        &["run", "--redis", &url, "--key", "k", "--"],
        &["run", "--redis", &url, "--key", "k", "--no-such-flag", "--", "true"],
        &["run", "--redis", &url, "--key", "k", "--ttl", "soon", "--", "true"],
        &["run", "--redis", &url, "--key", "k", "-w", "soon", "--", "true"],
        &["run", "--redis", &url, "--key", "k", "-E", "256", "--", "true"],
        &["run", "--redis", &url, "--key", "k", "-E", "-1", "--", "true"],
        &["run", "--redis", &url, "--key", "k", "-E", "many", "--", "true"],
        &["run", "--redis", &url, "--key", "k", "--signal", "SIGNOSUCH", "--", "true"],
        &["run", "--redis", &url, "--key", "k", "--on-lost", "cry", "--", "true"],
    ];
    for line in lines {
        let done = Run::bare().args(line).done();
        assert_eq!(done.code, Some(64), "{line:?}: {}", done.stderr);
        assert!(!done.stderr.trim().is_empty(), "{line:?} prints nothing");
        assert_eq!(done.stdout, "", "{line:?}");
    }
    assert_eq!(redis.keys(), Vec::<String>::new());
}

#[test]
fn the_conflict_exit_code_is_not_used_for_other_failures() {
    let redis = Redis::start();
    let done = Run::key(&redis, "k").args(&["-n", "-E", "0"]).cmd(&["/no/such/path"]).done();
    assert_eq!(done.code, Some(127));
    let done = Run::bare()
        .args(&["run", "-r", "redis://127.0.0.1:1", "--key", "k", "-n", "-E", "0"])
        .sh("echo ran")
        .done();
    assert_eq!((done.code, done.stdout.as_str()), (Some(69), ""));
}

#[test]
fn a_missing_server_exits_69_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}/none.sock", dir.path().display());
    // Nothing listens on port 1; a name under .invalid never resolves.
    for url in ["redis://127.0.0.1:1", "redis://no-such-host.invalid:6379", &socket] {
        let done = Run::bare().args(&["run", "--redis", url, "--key", "k"]).sh("echo ran").done();
        assert_eq!(done.code, Some(69), "{url}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{url}");
        assert!(done.stderr.starts_with("redlock: "), "{url}: {:?}", done.stderr);
    }
}

#[test]
fn the_command_runs_to_its_end_when_no_thread_can_be_started() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as a user without other processes") };
    let redis = Redis::start();
    // A user without other processes: the limit allows redlock, the guardian and the command, and
    // no more.
    let uid = 100_000 + std::process::id();
    // Only builtins, for longer than redlock waits before it needs a thread.
    let script = "echo ready; read x; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 7";
    let run = users.run_through(uid, Run::key(&redis, "k"), &["prlimit", "--nproc=3:3"]);
    let mut job = run.stdin_pipe().sh(script).spawn();
    job.wait_for_line("ready");
    let threads = |job: &Job| processes::status_field(job.pid(), "Threads").parse().unwrap_or(0);
    let mut most = threads(&job); // read now, since redlock may exit before the next look
    drop(job.take_stdin());
    while job.is_running() {
        most = most.max(threads(&job));
        std::thread::sleep(Duration::from_millis(2)); // only paces the loop
    }
    let done = job.wait();
    assert_eq!((done.code, done.signal), (Some(7), None), "{done:?}");
    assert_eq!(most, 1, "the limit prevents another thread");
    assert!(!redis.held("k"));
}
