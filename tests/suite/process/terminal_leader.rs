//! redlock in the session leader's process group, with no shell that controls jobs: `ssh -t HOST
//! redlock run`, a window of tmux, `docker run -it`.

use std::fs;

use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use nix::unistd::geteuid;

use super::{CTRL_C, CTRL_Z};
use crate::support::processes::{self, Watched, send, wait_until_a_signal_counts_again};
use crate::support::{Job, Pty, Redis, Run, alive, wait_until};

/// It reports interrupts and that it was continued, until USR1 ends it.
const REPL: &str = "trap 'echo interrupted' INT; trap 'echo continued' CONT; trap 'exit 9' USR1
    echo main $$ up; while :; do sleep 0.05; done";

fn holder(redis: &Redis) -> Job {
    let job = Run::key(redis, "k").sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    job
}

#[test]
fn a_terminal_that_goes_away_ends_the_command_and_frees_the_key() {
    let redis = Redis::start();
    let mut pty = Pty::run(Run::key(&redis, "k").sh("echo main $$ up; exec sleep 60"));
    let main = pty.number_after("main ");
    pty.hang_up();
    let done = pty.wait();
    assert_eq!((done.code, done.signal), (None, Some(SIGHUP as i32)));
    assert!(!alive(main) && !redis.held("k"));
}

#[test]
fn the_command_learns_once_that_the_terminal_went_away() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let hangups = dir.path().join("hangups");
    let script = "trap 'echo hangup >>\"$HANGUPS\"' HUP; trap 'exit 9' USR1
        echo main $$ up; while :; do sleep 0.05; done";
    let mut pty = Pty::run(Run::key(&redis, "k").env("HANGUPS", &hangups).sh(script));
    let main = pty.number_after("main ");
    pty.hang_up();
    wait_until("the command learns of it", || hangups.exists());
    wait_until_a_signal_counts_again();
    assert!(alive(main) && redis.held("k"), "a command that survives it keeps the lock");
    send(main, SIGUSR1);
    assert_eq!(pty.wait().code, Some(9));
    assert_eq!(fs::read_to_string(&hangups).unwrap(), "hangup\n");
}

#[test]
fn a_waiting_acquire_leaves_the_queue_when_the_terminal_goes_away() {
    let redis = Redis::start();
    let _holder = holder(&redis);
    let watched = Watched::start();
    let url = redis.url();
    let mut pty = Pty::run(
        Run::bare()
            .args(&["acquire", "--redis", &url, "--key", "k"])
            .args(&["--watch-pid", &watched.pid().to_string()]),
    );
    wait_until("it waits", || redis.queue_len("k") == 1);
    pty.hang_up();
    assert_eq!(pty.wait().signal, Some(SIGHUP as i32));
    wait_until("the queue is empty", || redis.queue_len("k") == 0);
}

#[test]
fn ctrl_z_does_not_stop_a_waiter_that_no_shell_can_continue() {
    let redis = Redis::start();
    let holder = holder(&redis);
    let pty = Pty::run(Run::key(&redis, "k").sh("echo got in"));
    pty.wait_for("waited");
    pty.type_in(CTRL_Z);
    let shown = pty.screen().matches("waited").count();
    pty.wait_for_times("waited", shown + 3);
    holder.signal(SIGTERM);
    pty.wait_for("got in");
    assert_eq!(pty.wait().code, Some(0));
}

#[test]
fn ctrl_z_does_not_stop_a_view_that_no_shell_can_continue() {
    let redis = Redis::start();
    let pty = Pty::run(Run::bare().args(&["status", "--redis", &redis.url(), "--watch", "k"]));
    pty.wait_for_times("free", 1);
    pty.type_in(CTRL_Z);
    pty.wait_for_times("free", 3);
    pty.type_in(CTRL_C);
    assert_eq!(pty.wait().signal, Some(SIGINT as i32));
}

#[test]
fn ctrl_z_does_not_stop_a_command_that_no_shell_can_continue() {
    let redis = Redis::start();
    let pty = Pty::run(Run::key(&redis, "k").sh(REPL));
    let main = pty.number_after("main ");
    for round in 1..=2 {
        pty.type_in(CTRL_Z);
        pty.wait_for_times("continued", round);
        pty.type_in(CTRL_C);
        pty.wait_for_times("interrupted", round);
    }
    assert!(redis.held("k"));
    send(main, SIGUSR1);
    assert_eq!(pty.wait().code, Some(9));
}

#[test]
fn a_command_that_stops_itself_continues_where_no_shell_can_do_that() {
    let redis = Redis::start();
    let pty = Pty::run(Run::key(&redis, "k").sh("kill -TSTP $$; exit 6"));
    assert_eq!(pty.wait().code, Some(6));
}

#[test]
fn ctrl_z_stops_no_script_that_runs_redlock_as_its_session_leader() {
    let redis = Redis::start();
    let pty = Pty::script(Run::key(&redis, "k").sh(REPL));
    let main = pty.number_after("main ");
    pty.type_in(CTRL_Z);
    pty.wait_for("continued");
    send(main, SIGUSR1);
    pty.wait_for("status=9");
    assert_eq!(pty.wait().code, Some(0));
}

#[test]
fn ctrl_c_reaches_a_command_that_has_left_the_process_group() {
    let redis = Redis::start();
    let script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let pty = Pty::run(Run::key(&redis, "k").cmd(&["timeout", "60", "sh", "-c", script]));
    pty.wait_for("ready");
    pty.type_in(CTRL_C);
    pty.wait_for("interrupted");
    assert_eq!(pty.wait().code, Some(9));
}

#[test]
fn ctrl_c_reaches_a_command_in_a_pid_namespace_of_the_job() {
    if !geteuid().is_root() || !processes::is_installed("unshare") {
        skip!("only root can make a PID namespace");
    }
    let redis = Redis::start();
    let run = Run::key(&redis, "k").via("exec unshare --pid --fork --mount-proc \"$@\"");
    let pty =
        Pty::run(run.sh("trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done"));
    pty.wait_for("ready");
    pty.type_in(CTRL_C);
    pty.wait_for("interrupted");
    assert_eq!(pty.wait().code, Some(9));
}
