//! GitLab CI: before_script and script are one shell, after_script is another.

use std::collections::BTreeMap;

use nix::sys::signal::Signal::{SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::killpg;
use nix::unistd::Pid;
use yaml_rust2::Yaml;

use super::{Bench, CI, hasty, signal_if_there};
use crate::documents::jobs::{ci_environment, yaml_with};
use crate::support::Job;
use crate::support::processes::{marked, wait_until_none_marked};

/// before_script and script as one shell, and after_script.
fn scripts(bench: &Bench) -> (Yaml, String, String) {
    let job = yaml_with(CI, ".gitlab-ci.yml")["deploy"].clone();
    let lines = |section: &str| -> Vec<String> {
        let lines = job[section].as_vec().unwrap_or_else(|| panic!("no {section}")).iter();
        lines.map(|line| hasty(line.as_str().expect("a line"))).collect()
    };
    let quoted = |text: String| format!("'{}'", text.replace('\'', r"'\''"));
    // As the runner's generated script does: the lines are evaluated in a subshell of a pipeline.
    let first = [lines("before_script"), lines("script")].concat().join("\n");
    let first = format!("set -eo pipefail\n: | eval {}\n", quoted(first));
    let after = format!("set -eo pipefail\n: | eval {}\n", quoted(lines("after_script").join("\n")));
    let path = |name: &str, text: &str| bench.script(name, text).to_str().unwrap().to_owned();
    let (first, after) = (path("script", &first), path("after", &after));
    (job, first, after)
}

fn run(bench: &Bench, after: bool, cancel: impl FnOnce(&Job)) -> bool {
    let (job, script, after_script) = scripts(bench);
    let url = bench.desk.redis.url();
    let declared = ci_environment(&job["variables"], "$LOCK_REDIS_URL", &url);
    let mut variables: BTreeMap<&str, String> =
        declared.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    let key = variables["REDLOCK_KEY"].replace("$CI_ENVIRONMENT_NAME", "staging");
    variables.insert("REDLOCK_KEY", key);
    variables.insert("CI_COMMIT_SHORT_SHA", "4437f8c2".to_owned());
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let job = bench.job(&["/bin/bash", &script], &variables).spawn();
    cancel(&job);
    let well = job.wait().code == Some(0);
    if after {
        bench.job(&["/bin/bash", &after_script], &variables).done();
    }
    well
}

#[test]
fn the_job_runs_under_the_lock() {
    let bench = Bench::new("deploy-staging");
    assert!(run(&bench, true, |_| ()));
    bench.ran_and_released();
}

/// The shell executor: TERM to the group of the script, and later KILL.
fn cancel(bench: &Bench, job: &Job) {
    bench.deploying();
    killpg(Pid::from_raw(job.pid()), SIGTERM).unwrap();
}

#[test]
fn a_cancelled_job_gives_the_lock_back() {
    let bench = Bench::new("deploy-staging");
    bench.deploy_blocks();
    assert!(!run(&bench, true, |job| cancel(&bench, job)));
    bench.released();
}

/// As before GitLab 17.0.
#[test]
fn a_cancelled_job_gives_the_lock_back_without_its_after_script() {
    let bench = Bench::new("deploy-staging");
    bench.deploy_blocks();
    assert!(!run(&bench, false, |job| cancel(&bench, job)));
    bench.released();
}

/// A container is killed with everything in it, the keeper too. Then after_script runs in another one.
#[test]
fn a_killed_container_leaves_the_lock_to_its_after_script() {
    let bench = Bench::new("deploy-staging");
    bench.deploy_blocks();
    let killed = |_: &Job| {
        bench.deploying();
        // All at once: stopped, none of them can see the end of another.
        for signal in [SIGSTOP, SIGKILL] {
            marked(&bench.mark).into_iter().for_each(|pid| signal_if_there(pid, signal));
        }
        wait_until_none_marked(&bench.mark);
        assert!(bench.desk.redis.held("deploy-staging"), "the lease goes on");
    };
    assert!(!run(&bench, true, killed));
    bench.released();
}

#[test]
fn no_step_runs_without_the_lock() {
    let bench = Bench::new("deploy-staging");
    bench.fails_while_it_is_held(|| run(&bench, true, |_| ()));
}
