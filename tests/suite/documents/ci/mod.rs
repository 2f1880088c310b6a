//! The jobs of docs/ci.md run, and give the lock back however they are cancelled.
//!
//! The CI systems are imitated: who starts which shell, whose variables it has, and which processes a cancelled job's
//! signals go to. How long a system waits between two signals does not matter here, so the imitations do not wait.

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

use super::desk::Desk;
use crate::support::processes::{mark, wait_until_none_marked};
use crate::support::{Job, Run, descendants, executable, hold, wait_until};

const CI: &str = "docs/ci.md";

/// A desk with the steps of the document, which run under the lock or fail; and the processes of its jobs.
struct Bench {
    desk: Desk,
    key: &'static str,
    mark: String,
}

impl Bench {
    fn new(key: &'static str) -> Bench {
        let bench = Bench { desk: Desk::new(), key, mark: mark() };
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
        let path = self.desk.path(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        executable(&path, text);
        path
    }

    /// deploy.sh does not end by itself.
    fn deploy_blocks(&self) {
        fs::write(self.desk.path("block-deploy.sh"), "").expect("a file");
    }

    /// Waits until deploy.sh runs.
    #[track_caller]
    fn deploying(&self) {
        wait_until("deploy.sh runs", || self.desk.ran().last().is_some_and(|line| line == "blocked"));
        assert!(self.desk.redis.held(self.key));
    }

    /// Any program in the desk's directory, with these variables and what every job has.
    fn job(&self, argv: &[&str], variables: &[(&str, &str)]) -> Run {
        let search = format!("{}:/usr/bin:/bin", self.desk.bin().display());
        let run = Run::bare().program(argv[0].into()).args(&argv[1..]).dir(self.desk.path(""));
        let run = run.env("PATH", search).env("TEST_MARK", &self.mark);
        variables.iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// Both steps ran, in order, and the lock is free.
    #[track_caller]
    fn ran_and_released(&self) {
        assert_eq!(self.desk.ran(), ["./build.sh", "./deploy.sh"]);
        self.released();
    }

    /// The lock is free long before a lease could be over by itself, and no process is left.
    #[track_caller]
    fn released(&self) {
        wait_until("the lock is free", || !self.desk.redis.held(self.key));
        wait_until_none_marked(&self.mark);
    }

    /// While another run holds the lock a job of this kind fails, and none of its steps runs.
    #[track_caller]
    fn fails_while_it_is_held(&self, job: impl FnOnce() -> bool) {
        let holder = hold(Run::key(&self.desk.redis, self.key));
        assert!(!job(), "the job went on without the lock");
        assert_eq!(self.desk.ran(), Vec::<String>::new());
        holder.wait().expect_code(0);
        self.released();
    }
}

/// The wait of the document is too long for a test.
fn hasty(text: &str) -> String {
    let text = text.replace("-w 10m", "-n").replace("-w 20m", "-n").replace("-w 30m", "-n");
    assert!(!text.contains("acquire") || text.contains(" -n "), "{text}");
    text
}

/// A process that starts the steps of a job one after the other, as shells of its own, and gives each the variables that
/// the ones before it have left in the file "env".
struct Worker {
    job: Job,
    stdin: ChildStdin,
    steps: usize,
}

const WORKER: &str = r#"n=0; : >env
    while read -r step; do
        n=$((n + 1)); (set -a; . ./env; exec $step </dev/null); echo "end of step $n: $?."
    done"#;

impl Worker {
    fn start(bench: &Bench, variables: &[(&str, &str)]) -> Worker {
        let mut job = bench.job(&["/bin/bash", "-c", WORKER], variables).stdin_pipe().spawn();
        Worker { stdin: job.take_stdin(), job, steps: 0 }
    }

    /// A step to its end; its status.
    #[track_caller]
    fn step(&mut self, step: &str) -> i32 {
        self.begin(step);
        self.end()
    }

    fn begin(&mut self, step: &str) {
        self.steps += 1;
        writeln!(self.stdin, "{step}").expect("the worker reads");
    }

    /// The status of the step that was begun.
    #[track_caller]
    fn end(&self) -> i32 {
        let line = self.job.wait_for_line(&format!("end of step {}: ", self.steps));
        let status = line.rsplit(' ').next().expect("a status").trim_end_matches('.');
        status.parse().expect("a status")
    }

    /// The processes of the step that runs.
    fn tree(&self) -> Vec<i32> {
        descendants(self.job.pid())
    }
}

/// It may have ended meanwhile.
fn signal_if_there(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}
