//! Buildkite: hooks around the command, started by the bootstrap.

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};

use super::{Bench, CI, Worker, signal_if_alive, without_waiting};
use crate::documents::blocks::{Block, blocks_in};

/// The hook of this name, as the bootstrap runs it: sourced, with its exports kept for the next.
fn hook(bench: &Bench, name: &str) -> String {
    let blocks = blocks_in(CI, "sh");
    let is_hook = |block: &&Block| block.text.lines().nth(1) == Some(&format!("# .buildkite/hooks/{name}"));
    let block = blocks.iter().find(is_hook).unwrap_or_else(|| panic!("no hook {name}"));
    let hook = bench.script(&format!("hooks/{name}"), &without_waiting(&block.text));
    let text = format!(". '{}'; status=$?; export -p >env; exit $status\n", hook.display());
    format!("bash {}", bench.script(&format!("run-{name}"), &text).display())
}

fn start(bench: &Bench) -> Worker {
    let url = bench.sandbox.redis.url();
    Worker::start(bench, &[("REDLOCK_REDIS", &url), ("BUILDKITE_COMMIT", "4437f8c2")])
}

fn run(bench: &Bench, cancel: impl FnOnce(&Worker)) -> bool {
    let mut worker = start(bench);
    let mut well = worker.step(&hook(bench, "pre-command")) == 0;
    if well {
        let command = bench.script("command", "./build.sh && ./deploy.sh\n");
        worker.begin(&format!("bash -e {}", command.display()));
        cancel(&worker);
        well = worker.end() == 0;
    }
    worker.step(&hook(bench, "pre-exit"));
    well
}

#[test]
fn the_hooks_hold_the_lock_around_the_command() {
    let bench = Bench::new("deploy");
    assert!(run(&bench, |_| ()));
    bench.assert_ran_and_released();
}

/// Sends TERM to the command; then the hook runs that always runs.
#[test]
fn a_cancelled_job_releases_the_lock() {
    let bench = Bench::new("deploy");
    bench.make_deploy_block();
    let cancel = |worker: &Worker| {
        bench.wait_for_deploy();
        worker.tree().into_iter().for_each(|pid| signal_if_alive(pid, SIGTERM));
    };
    assert!(!run(&bench, cancel));
    bench.assert_released();
}

#[test]
fn a_killed_agent_releases_the_lock() {
    let bench = Bench::new("deploy");
    let mut worker = start(&bench);
    assert_eq!(worker.step(&hook(&bench, "pre-command")), 0);
    assert!(bench.sandbox.redis.held("deploy"));
    worker.job.signal(SIGKILL);
    bench.assert_released();
}

#[test]
fn the_command_does_not_run_without_the_lock() {
    let bench = Bench::new("deploy");
    bench.assert_fails_while_held(|| run(&bench, |_| ()));
}
