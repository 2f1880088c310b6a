//! The jobs of docs/ci.md run, and release the lock however they are cancelled.
//!
//! The tests imitate the CI systems: who starts which shell, with which variables, and which
//! processes get a cancelled job's signals. How long a system waits between two signals does not
//! matter, so the imitations do not wait.

mod action;
mod buildkite;
mod github;
mod gitlab;
mod jenkins;
mod shell;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ChildStdin;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::sandbox::Sandbox;
use crate::support::processes::{mark, marked, wait_until_none_marked};
use crate::support::{Job, Run, descendants, executable, hold, wait_until};

const CI: &str = "docs/ci.md";

/// A sandbox with the steps of the document, which run under the lock or fail; and the processes of
/// its jobs.
struct Bench {
    sandbox: Sandbox,
    key: &'static str,
    mark: String,
}

impl Bench {
    fn new(key: &'static str) -> Bench {
        let bench = Bench { sandbox: Sandbox::new(), key, mark: mark() };
        for name in ["build.sh", "deploy.sh"] {
            let step = format!(
                "#!/bin/sh\nredlock status {key} --check held || exit 99\necho ./{name} >>ran\n\
                 if [ -e block-{name} ]; then echo blocked >>ran; exec sleep 300; fi\n"
            );
            bench.script(name, &step);
        }
        bench
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.sandbox.path(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        executable(&path, text);
        path
    }

    /// Makes deploy.sh block.
    fn make_deploy_block(&self) {
        fs::write(self.sandbox.path("block-deploy.sh"), "").expect("a file");
    }

    /// Waits until deploy.sh runs.
    #[track_caller]
    fn wait_for_deploy(&self) {
        wait_until("deploy.sh runs", || self.sandbox.ran().last().is_some_and(|line| line == "blocked"));
        assert!(self.sandbox.redis.held(self.key));
    }

    /// Any program in the sandbox's directory, with these variables and those of every job.
    fn job(&self, argv: &[&str], variables: &[(&str, &str)]) -> Run {
        let search = format!("{}:/usr/bin:/bin", self.sandbox.bin().display());
        let run = Run::bare().program(argv[0].into()).args(&argv[1..]).dir(self.sandbox.path(""));
        let run = run.env("PATH", search).env("TEST_MARK", &self.mark);
        variables.iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// Both steps ran, in order, and the lock is free.
    #[track_caller]
    fn assert_ran_and_released(&self) {
        assert_eq!(self.sandbox.ran(), ["./build.sh", "./deploy.sh"]);
        self.assert_released();
    }

    /// The lock is free long before a lease could expire, and no process is left.
    #[track_caller]
    fn assert_released(&self) {
        wait_until("the lock is free", || !self.sandbox.redis.held(self.key));
        wait_until_none_marked(&self.mark);
    }

    /// The same while the job's worker lives: nothing else is left.
    #[track_caller]
    fn assert_released_beside(&self, worker: &Worker) {
        wait_until("the lock is free", || !self.sandbox.redis.held(self.key));
        wait_until("only the worker is left", || marked(&self.mark) == [worker.job.pid()]);
    }

    /// While another run holds the lock a job of this kind fails, and none of its steps runs.
    #[track_caller]
    fn assert_fails_while_held(&self, job: impl FnOnce() -> bool) {
        let holder = hold(Run::key(&self.sandbox.redis, self.key));
        assert!(!job(), "the job continued without the lock");
        assert_eq!(self.sandbox.ran(), Vec::<String>::new());
        holder.wait().expect_code(0);
        self.assert_released();
    }
}

/// Replaces the waits of the document, which are too long for a test.
fn without_waiting(text: &str) -> String {
    let text = text.replace("-w 10m", "-n").replace("-w 20m", "-n").replace("-w 30m", "-n");
    assert!(!text.contains("acquire") || text.contains(" -n "), "{text}");
    text
}

/// A process that starts the steps of a job one after another, each in a shell, with the variables
/// that earlier steps have left in the file "env".
struct Worker {
    job: Job,
    stdin: ChildStdin,
    steps: usize,
}

const WORKER: &str = r#"n=0; : >env
    while read -r step; do
        n=$((n + 1)); (set -a; . ./env; eval "exec $step" </dev/null); echo "end of step $n: $?."
    done"#;

impl Worker {
    fn start(bench: &Bench, variables: &[(&str, &str)]) -> Worker {
        let mut job = bench.job(&["/bin/bash", "-c", WORKER], variables).stdin_pipe().spawn();
        Worker { stdin: job.take_stdin(), job, steps: 0 }
    }

    /// Runs a step to its end; returns its status.
    #[track_caller]
    fn step(&mut self, step: &str) -> i32 {
        self.begin(step);
        self.end()
    }

    fn begin(&mut self, step: &str) {
        self.steps += 1;
        writeln!(self.stdin, "{step}").expect("the worker reads");
    }

    /// The status of the step that was started.
    #[track_caller]
    fn end(&self) -> i32 {
        let line = self.job.wait_for_line(&format!("end of step {}: ", self.steps));
        let status = line.rsplit(' ').next().expect("a status").trim_end_matches('.');
        status.parse().expect("a status")
    }

    /// The processes of the running step.
    fn tree(&self) -> Vec<i32> {
        descendants(self.job.pid())
    }
}

/// Sends a signal to a process that may already have exited.
fn signal_if_alive(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}
