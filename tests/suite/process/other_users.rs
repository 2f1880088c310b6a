//! A command that becomes another user, as with sudo, cannot be signalled. That is reported, and its
//! lock is not released while it runs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use tempfile::TempDir;

use crate::support::processes::{pid_in, send};
use crate::support::{
    Backend, Host, Job, Locks, OtherUsers, Redis, Run, UNPRIVILEGED, alive, descendants, wait_until,
};

/// Another user without privileges.
const OTHER: &str = "65533";

/// A setpriv(1) that every user may use, like sudo.
struct Sudo(TempDir);

impl Sudo {
    /// `None` if that is impossible here.
    fn install() -> Option<Sudo> {
        let sudo = Sudo(tempfile::tempdir().expect("a temporary directory"));
        let script = "chmod 755 \"$1\" && install -m 4755 \"$(command -v setpriv)\" \"$1/sudo\"";
        let mut install = Command::new("sh");
        install.args(["-c", script, "sh"]).arg(sudo.0.path());
        assert!(install.status().expect("a shell").success());
        let id = UNPRIVILEGED.to_string();
        let mut trial = Command::new("setpriv");
        trial.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(sudo.path());
        let output = trial.args(["--reuid", OTHER, "id", "-u"]).output().ok()?;
        (output.stdout == format!("{OTHER}\n").as_bytes()).then_some(sudo)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("sudo")
    }

    /// The command prints "other PID" as the other user, and sleeps.
    fn sleep(&self, run: Run) -> (Job, i32) {
        let sudo = self.path();
        let sudo = sudo.to_str().expect("a path");
        let sleep = "echo other $$; exec sleep 60";
        let job = run.cmd(&[sudo, "--reuid", OTHER, "--regid", OTHER, "--clear-groups", "sh", "-c", sleep]);
        let job = job.spawn();
        let pid = pid_in(&job.wait_for_line("other"));
        (job, pid)
    }
}

fn is_guardian(pid: &i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "lock-guardian")
}

/// False on a hardened host (hidepid).
fn shows_other_users() -> bool {
    let id = UNPRIVILEGED.to_string();
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid", &id, "--regid", &id, "--clear-groups", "test", "-e", "/proc/1/stat"]);
    stranger.status().is_ok_and(|status| status.success())
}

/// The users, a sudo, and a lock directory for all of them.
fn stage() -> Option<(OtherUsers, Sudo, Host)> {
    Some((OtherUsers::new()?, Sudo::install()?, Host::with_mode(0o1777)))
}

#[test]
fn a_process_of_another_user_is_named_and_keeps_the_lock_when_it_cannot_be_stopped() {
    let Some((users, sudo, host)) = stage() else { skip!("only root can act as other users") };
    let run =
        users.run(UNPRIVILEGED, host.run().args(&["--max-hold", "200ms", "--kill-after", "200ms"]), "022");
    let (mut job, pid) = sudo.sleep(run);
    let line = job.wait_for_stderr("cannot be stopped");
    let user = if shows_other_users() { format!("uid {OTHER}") } else { "another user".into() };
    for part in [format!("process {pid}"), user, "not released".into(), "sudo redlock".into()] {
        assert!(line.contains(&part), "no {part:?} in {line:?}");
    }
    assert!(job.is_running() && alive(pid) && !host.is_free());
    send(pid, SIGKILL);
    let done = job.wait().expect_code(124);
    assert_eq!(done.stderr.matches("cannot be stopped").count(), 1, "{done:?}");
    assert!(host.is_free());
}

/// The guardian exits when the lease would have ended, and redlock finds the process as well.
#[test]
fn a_process_that_outlives_the_guardian_is_named_once() {
    let Some((users, sudo, _)) = stage() else { skip!("only root can act as other users") };
    let redis = Redis::start();
    let args = ["--ttl", "1s", "--max-hold", "200ms", "--kill-after", "100ms"];
    let run = users.run(UNPRIVILEGED, Run::key(&redis, "k").args(&args), "022");
    let (job, pid) = sudo.sleep(run);
    job.wait_for_stderr("cannot be stopped");
    wait_until("the guardian has exited", || !descendants(job.pid()).iter().any(is_guardian));
    assert!(redis.held("k"));
    send(pid, SIGKILL);
    let done = job.wait().expect_code(124);
    assert_eq!(done.stderr.matches("cannot be stopped").count(), 1, "{done:?}");
}

#[test]
fn a_forwarded_signal_that_is_not_permitted_is_reported() {
    let Some((users, sudo, host)) = stage() else { skip!("only root can act as other users") };
    let (job, pid) = sudo.sleep(users.run(UNPRIVILEGED, host.run(), "022"));
    job.signal(SIGTERM);
    job.wait_for_stderr(&format!("process {pid} of the command cannot be stopped"));
    assert!(!host.is_free());
    send(pid, SIGKILL);
    assert_eq!(job.wait().signal, Some(SIGKILL as i32));
}

#[test]
fn the_guardian_of_a_killed_run_keeps_the_lock_while_a_process_of_another_user_lives() {
    let Some((users, sudo, host)) = stage() else { skip!("only root can act as other users") };
    let (mut job, pid) = sudo.sleep(users.run(UNPRIVILEGED, host.run(), "022"));
    job.signal(SIGKILL);
    wait_until("redlock is gone", || !job.is_running());
    assert!(alive(pid) && !host.is_free());
    send(pid, SIGKILL);
    wait_until("the lock is free", || host.is_free());
}

#[test]
fn a_run_whose_guardian_was_killed_keeps_the_lock_while_a_process_of_another_user_lives() {
    let Some((users, sudo, _)) = stage() else { skip!("only root can act as other users") };
    let backend = Backend::one_server();
    let Locks::OneServer(redis) = &backend.locks else { unreachable!("it is one server") };
    let (job, pid) = sudo.sleep(users.run(UNPRIVILEGED, Run::key(redis, "k"), "022"));
    let guardian = descendants(job.pid()).into_iter().find(is_guardian).expect("the guardian");
    send(guardian, SIGKILL);
    // Only the guardian knows the pid of a process that /proc hides.
    if shows_other_users() {
        job.wait_for_stderr(&format!("process {pid} of the command cannot be stopped"));
    }
    assert!(alive(pid) && redis.held("k"));
    send(pid, SIGKILL);
    job.wait().expect_code(125);
    assert!(!redis.held("k"));
}
