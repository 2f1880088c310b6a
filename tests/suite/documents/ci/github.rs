//! GitHub Actions: a worker that starts a shell for each step, and steps that always run.

use std::fs;

use nix::sys::signal::Signal::{SIGINT, SIGKILL, SIGTERM};
use yaml_rust2::Yaml;

use super::{Bench, CI, Worker, signal_if_alive, without_waiting};
use crate::documents::jobs::{ci_environment, yaml_with};
use crate::support::processes::{children, send};

struct Step {
    script: String,
    always: bool,
}

fn job() -> Yaml {
    yaml_with(CI, ".github/workflows")["jobs"]["deploy"].clone()
}

/// The `run` steps of the job.
fn steps(bench: &Bench, job: &Yaml) -> Vec<Step> {
    let steps = job["steps"].as_vec().expect("steps").iter();
    let steps: Vec<Step> = steps
        .filter_map(|step| Some((step["run"].as_str()?, &step["if"])))
        .enumerate()
        .map(|(n, (text, condition))| {
            let path = bench.script(&format!("step-{n}"), &without_waiting(text));
            let always = match condition.as_str() {
                None => false,
                Some(text) => {
                    assert_eq!(text, "always() && env.REDLOCK_TOKEN != ''");
                    true
                }
            };
            Step { script: format!("bash -e {}", path.display()), always }
        })
        .collect();
    assert_eq!(steps.len(), 4);
    steps
}

fn start(bench: &Bench, job: &Yaml) -> Worker {
    let url = bench.sandbox.redis.url();
    let mut variables = ci_environment(&job["env"], "${{ secrets.LOCK_REDIS_URL }}", &url);
    let env = bench.sandbox.path("env");
    variables.extend([("GITHUB_REF_NAME", "main"), ("GITHUB_ENV", env.to_str().unwrap())]);
    Worker::start(bench, &variables)
}

/// Runs the job as a runner does; `cancel` is called while deploy.sh runs.
fn run(bench: &Bench, cancel: impl Fn(&Worker)) -> bool {
    let job = job();
    let mut worker = start(bench, &job);
    let mut well = true;
    for step in steps(bench, &job) {
        let env = fs::read_to_string(bench.sandbox.path("env")).unwrap_or_default();
        if if step.always { env.contains("REDLOCK_TOKEN=") } else { well } {
            worker.begin(&step.script);
            if step.script.ends_with("step-2") {
                cancel(&worker);
            }
            well &= worker.end() == 0;
        }
    }
    well
}

#[test]
fn the_job_runs_under_the_lock() {
    let bench = Bench::new("deploy");
    assert!(run(&bench, |_| ()));
    bench.assert_ran_and_released();
}

/// INT to the step's shell, then TERM, then KILL to the rest of the step; then the steps that
/// always run.
#[test]
fn a_cancelled_job_releases_the_lock() {
    let bench = Bench::new("deploy");
    bench.make_deploy_block();
    let well = run(&bench, |worker| {
        bench.wait_for_deploy();
        let shell = children(worker.job.pid())[0];
        send(shell, SIGINT);
        signal_if_alive(shell, SIGTERM);
        worker.tree().into_iter().for_each(|pid| signal_if_alive(pid, SIGKILL));
    });
    assert!(!well);
    bench.assert_released();
}

#[test]
fn no_step_runs_without_the_lock() {
    let bench = Bench::new("deploy");
    bench.assert_fails_while_held(|| run(&bench, |_| ()));
}

/// No step that always runs: only the keeper is left.
#[test]
fn a_runner_that_dies_releases_the_lock() {
    let bench = Bench::new("deploy");
    bench.make_deploy_block();
    let job = job();
    let mut worker = start(&bench, &job);
    for step in &steps(&bench, &job)[..2] {
        assert_eq!(worker.step(&step.script), 0);
    }
    assert!(bench.sandbox.redis.held("deploy"));
    worker.job.signal(SIGKILL);
    bench.assert_released();
}
