//! GitLab CI: before_script and script are one shell, after_script is another.

use std::collections::BTreeMap;

use nix::sys::signal::Signal::{SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::killpg;
use nix::unistd::Pid;
use yaml_rust2::{Yaml, YamlLoader};

use super::{Bench, CI, signal_if_alive, without_waiting};
use crate::documents::blocks::read;
use crate::documents::jobs::{ci_environment, yaml_with};
use crate::support::Job;
use crate::support::processes::{marked, wait_until_none_marked};

/// before_script and script as one shell, and after_script.
fn scripts(bench: &Bench) -> (Yaml, String, String) {
    let job = yaml_with(CI, ".gitlab-ci.yml")["deploy"].clone();
    let lines = |section: &str| -> Vec<String> {
        let lines = job[section].as_vec().unwrap_or_else(|| panic!("no {section}")).iter();
        lines.map(|line| without_waiting(line.as_str().expect("a line"))).collect()
    };
    let quoted = |text: String| format!("'{}'", text.replace('\'', r"'\''"));
    // Like the runner's generated script: the lines are evaluated in a subshell of a pipeline.
    let first = [lines("before_script"), lines("script")].concat().join("\n");
    let first = format!("set -eo pipefail\n: | eval {}\n", quoted(first));
    let after = format!("set -eo pipefail\n: | eval {}\n", quoted(lines("after_script").join("\n")));
    let path = |name: &str, text: &str| bench.script(name, text).to_str().unwrap().to_owned();
    let (first, after) = (path("script", &first), path("after", &after));
    (job, first, after)
}

fn run(bench: &Bench, after: bool, cancel: impl FnOnce(&Job)) -> bool {
    let (job, script, after_script) = scripts(bench);
    let url = bench.sandbox.redis.url();
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
    bench.assert_ran_and_released();
}

/// The shell executor: TERM to the group of the script, and later KILL.
fn cancel(bench: &Bench, job: &Job) {
    bench.wait_for_deploy();
    killpg(Pid::from_raw(job.pid()), SIGTERM).unwrap();
}

#[test]
fn a_cancelled_job_releases_the_lock() {
    let bench = Bench::new("deploy-staging");
    bench.make_deploy_block();
    assert!(!run(&bench, true, |job| cancel(&bench, job)));
    bench.assert_released();
}

/// As before GitLab 17.0.
#[test]
fn a_cancelled_job_releases_the_lock_without_its_after_script() {
    let bench = Bench::new("deploy-staging");
    bench.make_deploy_block();
    assert!(!run(&bench, false, |job| cancel(&bench, job)));
    bench.assert_released();
}

/// A container is killed with everything in it, including the keeper. Then after_script runs in
/// another one.
#[test]
fn a_killed_container_leaves_the_lock_to_its_after_script() {
    let bench = Bench::new("deploy-staging");
    bench.make_deploy_block();
    let killed = |_: &Job| {
        bench.wait_for_deploy();
        // All at once: stopped processes cannot see each other's exit.
        for signal in [SIGSTOP, SIGKILL] {
            marked(&bench.mark).into_iter().for_each(|pid| signal_if_alive(pid, signal));
        }
        wait_until_none_marked(&bench.mark);
        assert!(bench.sandbox.redis.held("deploy-staging"), "the lease continues");
    };
    assert!(!run(&bench, true, killed));
    bench.assert_released();
}

#[test]
fn no_step_runs_without_the_lock() {
    let bench = Bench::new("deploy-staging");
    bench.assert_fails_while_held(|| run(&bench, true, |_| ()));
}

/// packaging/gitlab/redlock.yml, with the defaults of its inputs.
#[test]
fn a_job_that_extends_the_template_runs_under_the_lock() {
    let bench = Bench::new("deploy");
    let documents = YamlLoader::load_from_str(&read("packaging/gitlab/redlock.yml")).unwrap();
    let [header, template] = &documents[..] else { panic!("{documents:?}") };
    let inputs = header["spec"]["inputs"].as_hash().expect("inputs");
    let with_inputs = |text: &str| {
        inputs.iter().fold(text.to_owned(), |text, (name, input)| {
            let place = format!("$[[ inputs.{} ]]", name.as_str().unwrap());
            text.replace(&place, input["default"].as_str().expect("a default"))
        })
    };
    let job = &template[".redlock"];
    let url = bench.sandbox.redis.url();
    let mut variables =
        vec![("REDLOCK_REDIS".to_owned(), url), ("CI_COMMIT_SHORT_SHA".into(), "4437f8c2".into())];
    for (name, value) in job["variables"].as_hash().expect("variables") {
        variables.push((name.as_str().unwrap().to_owned(), with_inputs(value.as_str().expect("a text"))));
    }
    assert!(variables.iter().all(|(_, value)| !value.contains("$[[")), "{variables:?}");
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let line = |section: &str| with_inputs(job[section][0].as_str().expect("a line"));
    let script =
        bench.script("script", &format!("set -e\n{}\n./build.sh\n./deploy.sh\n", line("before_script")));
    bench.job(&["/bin/bash", script.to_str().unwrap()], &variables).done().expect_code(0);
    let after = bench.script("after", &line("after_script"));
    bench.job(&["/bin/bash", after.to_str().unwrap()], &variables).done().expect_code(0);
    bench.assert_ran_and_released();
}
