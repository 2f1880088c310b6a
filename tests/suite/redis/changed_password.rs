//! A password that is changed while it is in use: holders, waiters and guardians read its file
//! again at each login.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::SIGKILL;
use tempfile::TempDir;

use crate::support::nodes::{renewed, renewed_on_all};
use crate::support::{Job, Nodes, Redis, Run, hold, refused, wait_for_sleeping_clients, wait_until};

const OLD: &str = "the-old-one";
const NEW: &str = "the-new-one";

/// Servers with a password, and its file.
struct Site {
    nodes: Nodes,
    file: PathBuf,
    _directory: TempDir,
}

impl Site {
    fn start(servers: usize) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        fs::write(&file, OLD).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let redis = || Redis::start_with(&["--requirepass", OLD]);
        Site { nodes: Nodes::of((0..servers).map(|_| redis()).collect()), file, _directory: directory }
    }

    /// With a node timeout that a busy machine does not exceed.
    fn run(&self, ttl: &str) -> Run {
        let run = self.nodes.run("k").args(&["--ttl", ttl, "--node-timeout", "1s"]);
        run.arg("--password-file").arg(&self.file)
    }

    fn change_file(&self) {
        fs::write(&self.file, format!("{NEW}\n")).unwrap();
    }

    fn change_servers(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.nodes[at].change_password(NEW));
    }

    /// Waits until the lock has been renewed on every server.
    #[track_caller]
    fn renewed(&self) {
        renewed_on_all(&self.nodes, 0, "k");
    }

    fn failed_logins(&self) -> Vec<u64> {
        self.nodes.iter().map(Redis::failed_logins).collect()
    }

    /// Waits until every server has refused a login since then.
    #[track_caller]
    fn refused_since(&self, before: &[u64]) {
        wait_until("all servers have refused a login", || {
            self.failed_logins().iter().zip(before).all(|(now, before)| now > before)
        });
    }
}

fn on_one_and_on_three_servers(test: impl Fn(Site)) {
    for servers in [1, 3] {
        test(Site::start(servers));
    }
}

/// A run whose command ends with 7 when its stdin is closed.
fn hold_and_exit_7(run: Run) -> Job {
    let job = run.stdin_pipe().sh("echo ready; read x; exit 7").spawn();
    job.wait_for_line("ready");
    job
}

#[test]
fn a_run_survives_a_changed_password() {
    on_one_and_on_three_servers(|mut site| {
        let job = hold_and_exit_7(site.run("4s"));
        site.change_file();
        site.change_servers();
        (0..3).for_each(|_| site.renewed());
        let done = job.wait().expect_code(7);
        assert!(![OLD, NEW].iter().any(|password| done.stderr.contains(password)), "{done:?}");
        site.nodes.all_free();
    });
}

#[test]
fn a_run_survives_if_the_servers_are_changed_first() {
    on_one_and_on_three_servers(|mut site| {
        let job = hold_and_exit_7(site.run("9s"));
        let before = site.failed_logins();
        site.change_servers();
        site.refused_since(&before);
        site.change_file();
        site.renewed();
        job.wait().expect_code(7);
    });
}

#[test]
fn a_run_survives_if_it_must_log_in_between_file_and_servers() {
    on_one_and_on_three_servers(|mut site| {
        let job = hold_and_exit_7(site.run("9s"));
        let before = site.failed_logins();
        site.change_file();
        site.nodes.iter().for_each(|redis| drop(redis.cmd(&["CLIENT", "KILL", "TYPE", "normal"])));
        site.refused_since(&before);
        site.change_servers();
        site.renewed();
        job.wait().expect_code(7);
    });
}

/// Servers are changed one after the other, and a majority stays usable all the time.
#[test]
fn servers_may_be_changed_one_by_one() {
    let mut site = Site::start(3);
    let job = hold_and_exit_7(site.run("4s"));
    site.nodes[2].change_password(NEW);
    renewed(&site.nodes[0], "k", 3);
    site.change_file();
    site.nodes[0].change_password(NEW);
    site.nodes[1].change_password(NEW);
    site.renewed();
    job.wait().expect_code(7);
    site.nodes.all_free();
}

#[test]
fn a_file_that_cannot_be_read_leaves_the_last_password() {
    on_one_and_on_three_servers(|mut site| {
        let job = hold_and_exit_7(site.run("4s"));
        site.change_file();
        site.change_servers();
        site.renewed();
        fs::remove_file(&site.file).unwrap();
        site.change_servers();
        site.renewed();
        job.wait().expect_code(7);
    });
}

#[test]
fn a_waiter_survives_a_changed_password() {
    on_one_and_on_three_servers(|mut site| {
        // The holder is another user, so that all refusals are the waiter's.
        let user = ["ACL", "SETUSER", "other", "on", ">word", "~*", "&*", "+@all"];
        site.nodes.iter().for_each(|redis| assert_eq!(redis.cmd(&user), "OK"));
        let other = site.nodes.run("k").args(&["--username", "other"]).env("REDLOCK_PASSWORD", "word");
        let holder = hold(other);
        let waiter = site.run("9s").sh("exit 7").spawn();
        waiter.wait_for_stderr("waiting");
        let before = site.failed_logins();
        site.change_servers();
        site.refused_since(&before);
        site.change_file();
        holder.wait().expect_code(0);
        waiter.wait().expect_code(7);
        site.nodes.all_free();
    });
}

#[test]
fn a_waiter_whose_password_stays_wrong_is_refused_when_its_wait_ends() {
    on_one_and_on_three_servers(|mut site| {
        let _holder = hold(site.run("60s"));
        let (wait, started) = (Duration::from_secs(5), Instant::now());
        let waiter = site.run("9s").args(&["--wait", "5s", "--on-unavailable", "run"]).sh("echo ran").spawn();
        waiter.wait_for_stderr("waiting");
        site.change_servers();
        let done = waiter.wait().expect_code(77);
        assert!(done.stdout.is_empty() && started.elapsed() >= wait, "{:?}: {done:?}", started.elapsed());
    });
}

#[test]
fn a_wrong_password_at_the_start_is_refused_at_once() {
    on_one_and_on_three_servers(|site| {
        site.change_file();
        let run = site.run("9s").args(&["--on-unavailable", "wait"]);
        let done = refused(run, 77, &["wrong user or password"]);
        assert!(!done.stderr.contains("trying again"), "{done:?}");
    });
}

/// A password that is not from a file cannot change.
#[test]
fn a_waiter_with_a_password_from_a_variable_is_refused_before_its_wait_ends() {
    let mut redis = Redis::start_with(&["--requirepass", OLD]);
    let run = || Run::key(&redis, "k").env("REDLOCK_PASSWORD", OLD);
    let _holder = hold(run());
    let waiter = run().cmd(&["true"]).spawn();
    waiter.wait_for_stderr("waiting");
    redis.change_password(NEW);
    waiter.wait().expect_code(77);
}

/// The lease is longer than the test.
#[test]
fn the_guardian_of_a_killed_run_logs_in_with_the_new_password() {
    on_one_and_on_three_servers(|mut site| {
        let job = hold(site.run("120s"));
        site.change_file();
        site.change_servers();
        job.signal(SIGKILL);
        wait_until("the lock is released", || site.nodes.claims("k").iter().all(String::is_empty));
    });
}

/// Its subscription is renewed, too. The lease is long: nothing else logs in.
#[test]
fn a_holder_is_notified_of_a_break_after_its_password_was_changed() {
    let mut site = Site::start(1);
    let job = hold(site.run("120s"));
    wait_for_sleeping_clients(&site.nodes[0], 1);
    let before = site.failed_logins();
    site.change_servers();
    site.refused_since(&before);
    site.change_file();
    wait_for_sleeping_clients(&site.nodes[0], 1);
    let run = Run::bare().args(&["break", "--redis", &site.nodes[0].url(), "k", "--yes"]);
    run.arg("--password-file").arg(&site.file).done().expect_code(0);
    job.wait().expect_code(79);
}
