//! Job control: an interactive bash on a real terminal stops, continues and pipes redlock.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal::{SIGCONT, SIGTERM, SIGUSR1};

use super::CTRL_Z;
use crate::support::nodes::renewed;
use crate::support::processes::{self, children, send};
use crate::support::{Pty, Redis, Run, alive, process_state, wait_until};

const ERASE: &str = "\x1b[K";

/// The command as a script file, so that its text is on the screen only when it prints it.
fn script(redis: &Redis, options: &[&str], dir: &Path, text: &str) -> String {
    let file = dir.join("job.sh");
    fs::write(&file, text).unwrap();
    Run::key(redis, "k").args(options).cmd(&["sh", file.to_str().unwrap()]).shell_line()
}

/// The shell's only job.
fn redlock_of(pty: &Pty) -> i32 {
    let jobs = children(pty.pid());
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs[0]
}

fn is_stopped(pid: i32) -> bool {
    process_state(pid) == Some('T')
}

const READ_A_LINE: &str = "echo main $$ up; read answer; echo got $answer; exit 6";

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let pty = Pty::shell();
    pty.type_in(&format!("{}\n", script(&redis, &["--ttl", "120s"], dir.path(), READ_A_LINE)));
    let (main, redlock) = (pty.number_after("main "), redlock_of(&pty));
    for round in 1..=3 {
        pty.type_in(CTRL_Z);
        pty.wait_for_times("Stopped", round);
        wait_until("the command and redlock are stopped", || is_stopped(main) && is_stopped(redlock));
        if round < 3 {
            pty.type_in("fg\n");
            wait_until("both continue", || !is_stopped(main) && !is_stopped(redlock));
        }
    }
    pty.type_in("fg; echo sta''tus=$?\n");
    wait_until("both continue", || !is_stopped(main) && !is_stopped(redlock));
    pty.type_in("hello\n");
    pty.wait_for("got hello");
    pty.wait_for("status=6");
    assert!(!redis.held("k"));
}

#[test]
fn ctrl_z_past_the_lease_ends_the_command_and_fg_reports_79() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let pty = Pty::shell();
    pty.type_in(&format!(
        "{}\n",
        script(&redis, &["--ttl", "4s", "--node-timeout", "1s"], dir.path(), READ_A_LINE)
    ));
    let main = pty.number_after("main ");
    pty.type_in(CTRL_Z);
    pty.wait_for("Stopped");
    wait_until("the lease has ended", || !redis.held("k"));
    assert!(!alive(main), "a stopped command is killed within the lease, too");
    pty.type_in("fg; echo sta''tus=$?\n");
    pty.wait_for("status=79");
}

#[test]
fn a_command_that_stops_itself_stops_the_job() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let pty = Pty::shell();
    let text = "echo main $$ up; kill -TSTP $$; echo on again; exit 3";
    pty.type_in(&format!("{}\n", script(&redis, &["--ttl", "120s"], dir.path(), text)));
    let main = pty.number_after("main ");
    pty.wait_for("Stopped");
    assert!(is_stopped(main));
    pty.type_in("fg; echo sta''tus=$?\n");
    pty.wait_for("on again");
    pty.wait_for("status=3");
}

#[test]
fn ctrl_z_stops_a_command_that_has_left_the_process_group() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.sh");
    fs::write(&file, "trap 'exit 7' USR1; echo main $$ up; while :; do sleep 0.05; done").unwrap();
    let run = Run::key(&redis, "k").args(&["--ttl", "120s"]);
    let pty = Pty::shell();
    pty.type_in(&format!("{}\n", run.cmd(&["timeout", "60", "sh", file.to_str().unwrap()]).shell_line()));
    let (main, redlock) = (pty.number_after("main "), redlock_of(&pty));
    pty.type_in(CTRL_Z);
    pty.wait_for("Stopped");
    assert!(is_stopped(main) && is_stopped(redlock));
    pty.type_in("fg; echo sta''tus=$?\n");
    wait_until("both continue", || !is_stopped(main) && !is_stopped(redlock));
    send(main, SIGUSR1);
    pty.wait_for("status=7");
}

#[test]
fn redlock_continues_with_a_command_that_was_stopped_alone() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let outer = dir.path().join("outer.sh");
    let text = "trap 'exit 7' USR1; echo main $$ up; while :; do sleep 0.05; done";
    let line = script(&redis, &["--ttl", "120s"], dir.path(), text);
    fs::write(&outer, format!("{line}; echo status=$?")).unwrap();
    let pty = Pty::shell();
    pty.type_in(&format!("sh '{}'\n", outer.display()));
    let main = pty.number_after("main ");
    let redlock = children(redlock_of(&pty))[0];
    for _ in 0..2 {
        processes::stop(main);
        wait_until("redlock stops with the command", || is_stopped(redlock));
        send(main, SIGCONT);
        wait_until("both continue", || !is_stopped(main) && !is_stopped(redlock));
    }
    send(main, SIGUSR1);
    pty.wait_for("status=7");
}

#[test]
fn a_waiter_in_the_background_erases_nothing_that_is_typed() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let holder = Run::key(&redis, "k").sh("echo ready; exec sleep 60").spawn();
    holder.wait_for_line("ready");
    let pty = Pty::shell();
    pty.type_in(&format!("{} &\n", script(&redis, &[], dir.path(), "exit 2")));
    pty.wait_for("waited");
    assert!(!pty.screen().contains(ERASE), "{:?}", pty.screen());
    pty.type_in("fg; echo sta''tus=$?\n");
    pty.wait_for(ERASE);
    holder.signal(SIGTERM);
    pty.wait_for("status=2");
}

#[test]
fn a_background_job_that_reads_the_terminal_stops_and_fg_lets_it_read() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let pty = Pty::shell();
    pty.type_in(&format!("{} &\n", script(&redis, &["--ttl", "120s"], dir.path(), READ_A_LINE)));
    let (main, redlock) = (pty.number_after("main "), redlock_of(&pty));
    wait_until("the command is stopped for reading", || is_stopped(main));
    wait_until("redlock stops with the command", || is_stopped(redlock));
    pty.type_in("fg; echo sta''tus=$?\n");
    wait_until("both continue", || !is_stopped(main) && !is_stopped(redlock));
    pty.type_in("hello\n");
    pty.wait_for("got hello");
    pty.wait_for("status=6");
}

#[test]
fn a_waiter_can_be_stopped_and_continued() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let holder = Run::key(&redis, "k").sh("echo ready; exec sleep 60").spawn();
    holder.wait_for_line("ready");
    let pty = Pty::shell();
    pty.type_in(&format!("{}\n", script(&redis, &[], dir.path(), "echo got in; exit 2")));
    wait_until("the job waits", || redis.queue_len("k") == 1);
    pty.type_in(CTRL_Z);
    pty.wait_for("Stopped");
    pty.type_in("fg; echo sta''tus=$?\n");
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    pty.wait_for("got in");
    pty.wait_for("status=2");
}

#[test]
fn the_reader_of_a_pipeline_has_the_terminal_while_the_command_runs() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let end = dir.path().join("end");
    let reader = dir.path().join("reader.sh");
    fs::write(
        &reader,
        "read first; echo saw $first; read key </dev/tty; echo read $key; >\"$1\"; cat; echo done reading",
    )
    .unwrap();
    let writer = format!("echo start; while [ ! -e '{}' ]; do sleep 0.02; done; echo last", end.display());
    let line = script(&redis, &[], dir.path(), &writer);
    let pty = Pty::shell();
    pty.type_in(&format!("{line} | sh '{}' '{}'\n", reader.display(), end.display()));
    pty.wait_for("saw start");
    pty.type_in("hello\n");
    pty.wait_for("read hello");
    pty.wait_for("done reading");
    wait_until("the key is free", || !redis.held("k"));
}

#[test]
fn less_at_the_end_of_a_pipeline_works() {
    if !processes::is_installed("less") {
        // the_reader_of_a_pipeline... tests the same with a plain shell
        skip!("less is not installed");
    }
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let line = script(&redis, &[], dir.path(), "seq -f 'row %.0f' 500");
    let pty = Pty::shell();
    pty.type_in(&format!("{line} | less\n"));
    pty.wait_for("row 20");
    pty.type_in("G");
    pty.wait_for("row 500");
    pty.type_in("q");
    wait_until("the pipeline has finished", || children(pty.pid()).is_empty());
    pty.type_in("echo back''again\n");
    pty.wait_for("backagain");
    assert!(!redis.held("k"));
}

#[test]
fn a_command_that_ignores_ctrl_z_keeps_its_lock() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let end = dir.path().join("end");
    let text =
        format!("trap '' TSTP; echo deaf; while [ ! -e '{}' ]; do sleep 0.05; done; exit 6", end.display());
    let line = script(&redis, &["--ttl", "4s"], dir.path(), &text);
    let pty = Pty::shell();
    pty.type_in(&format!("{line}; echo sta''tus=$?\n"));
    pty.wait_for("deaf");
    pty.type_in(CTRL_Z);
    renewed(&redis, "k", 6); // takes two leases
    assert!(redis.held("k"), "the lock was lost while the command continued");
    fs::write(&end, "").unwrap();
    pty.wait_for("status=");
    assert!(pty.screen().contains("status=6"), "{}", pty.screen());
    wait_until("the key is free", || !redis.held("k"));
}
