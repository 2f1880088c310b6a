//! Jenkins: each `sh` is a process of its own, and no process lives as long as the build.

use nix::sys::signal::Signal::SIGTERM;

use super::{Bench, CI, signal_if_alive, without_waiting};
use crate::documents::blocks::blocks_in;
use crate::support::processes::marked;
use crate::support::{Job, alive, wait_until};

/// A pipeline as the shell lines of its steps: one that prints the token, those in between, and the
/// one that always runs.
struct Pipeline {
    acquire: String,
    steps: Vec<String>,
    release: String,
}

fn pipelines() -> Vec<Pipeline> {
    blocks_in(CI, "groovy").iter().map(|block| pipeline(&block.text)).collect()
}

fn pipeline(text: &str) -> Pipeline {
    assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
    assert!(text.contains("always {") || text.contains("finally {"), "{text}");
    let quoted = |begin: &str| -> Vec<String> {
        let rest = text.split(begin).skip(1);
        rest.map(|rest| rest.split('\'').next().expect("its end").to_owned()).collect()
    };
    let [acquire] = &quoted("sh(script: '")[..] else { panic!("{text}") };
    let mut steps = quoted("sh '");
    let release = steps.pop().expect("a release");
    assert!(release.contains("redlock release"), "{release}");
    Pipeline { acquire: without_waiting(acquire), steps, release }
}

const VARIABLES: [(&str, &str); 3] =
    [("REDLOCK_REQUIRE_SERVER", "1"), ("REDLOCK_KEY", "deploy"), ("BUILD_TAG", "jenkins-deploy-7")];

/// `cancel` is called for each step while it runs.
fn run(bench: &Bench, pipeline: &Pipeline, cancel: impl Fn(&Job)) -> bool {
    let url = bench.sandbox.redis.url();
    let mut variables = VARIABLES.to_vec();
    variables.push(("REDLOCK_REDIS", &url));
    let step = |line: &str, variables: &[(&str, &str)]| bench.job(&["/bin/sh", "-xec", line], variables);
    let done = step(&pipeline.acquire, &variables).done();
    if done.code != Some(0) {
        // The declarative pipeline goes to its post section, where there is no token.
        if pipeline.release.contains("REDLOCK_TOKEN") {
            step(&pipeline.release, &variables).done().expect_code(0);
        }
        return false;
    }
    let token = done.stdout.trim().to_owned();
    variables.push(("REDLOCK_TOKEN", &token));
    let well = pipeline.steps.iter().all(|line| {
        let job = step(line, &variables).spawn();
        cancel(&job);
        job.wait().code == Some(0)
    });
    step(&pipeline.release, &variables).done().expect_code(0);
    well
}

#[test]
fn the_pipelines_run_under_the_lock() {
    for pipeline in pipelines() {
        let bench = Bench::new("deploy");
        assert!(run(&bench, &pipeline, |_| ()));
        bench.assert_ran_and_released();
    }
}

/// Sends TERM to every process of the build.
#[test]
fn an_aborted_build_releases_the_lock() {
    for pipeline in pipelines() {
        let bench = Bench::new("deploy");
        bench.make_deploy_block();
        let abort = |job: &Job| {
            wait_until("the step exits or blocks", || {
                !alive(job.pid()) || bench.sandbox.ran().last().is_some_and(|line| line == "blocked")
            });
            marked(&bench.mark).into_iter().for_each(|pid| signal_if_alive(pid, SIGTERM));
        };
        assert!(!run(&bench, &pipeline, abort));
        bench.assert_released();
    }
}

#[test]
fn no_step_runs_without_the_lock() {
    for pipeline in pipelines() {
        let bench = Bench::new("deploy");
        bench.assert_fails_while_held(|| run(&bench, &pipeline, |_| ()));
    }
}
