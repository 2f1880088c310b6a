//! What redlock says, to whom, and when it says nothing at all.

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Job, Redis, Run, wait_until};

/// A holder whose command has an argument that no other user may see.
fn hold(redis: &Redis, options: &[&str]) -> Job {
    let run = Run::key(redis, "deploy").args(options);
    let job = run.cmd(&["sh", "-c", "echo ready; exec sleep 60", "hidden-argument"]).spawn();
    job.wait_for_line("ready");
    job
}

fn waiter(redis: &Redis, options: &[&str], position: usize) -> Job {
    let job = Run::key(redis, "deploy").args(options).sh("echo in").spawn();
    wait_until("it waits", || redis.queue_len("deploy") == position);
    job
}

#[test]
fn nothing_is_said_when_all_is_well() {
    let redis = Redis::start();
    let done = Run::key(&redis, "deploy").sh("echo out; echo err >&2").done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
    let done = Run::key(&redis, "deploy").sh("exit 3").done().expect_code(3);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""), "a failing command speaks for itself");
}

#[test]
fn nothing_is_said_after_a_short_wait() {
    let redis = Redis::start();
    let holder = hold(&redis, &[]);
    let next = waiter(&redis, &[], 1);
    holder.signal(SIGTERM);
    let done = next.wait().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("in\n", ""));
}

#[test]
fn the_holders_arguments_are_not_on_the_server_but_its_name_is() {
    let redis = Redis::start();
    let holder = hold(&redis, &["--label", "nightly"]);
    let info = redis.cmd(&["HGETALL", "lock-info:deploy"]);
    assert!(!info.contains("hidden-argument") && !info.contains("exec sleep"), "{info}");
    let pid = holder.pid().to_string();
    for part in ["nightly", "sh", &pid] {
        assert!(info.lines().any(|line| line == part), "{part:?} is missing in {info}");
    }
    holder.signal(SIGTERM);
    holder.wait();
    assert_eq!(redis.cmd(&["EXISTS", "lock-info:deploy"]), "0", "who held it once is nobody's holder");
}

#[test]
fn a_refusal_names_the_holder() {
    let redis = Redis::start();
    let holder = hold(&redis, &["--label", "nightly"]);
    for how in [&["-n"][..], &["-w", "1.5"]] {
        let done = Run::key(&redis, "deploy").args(how).sh("echo ran").done().expect_code(75);
        for part in ["\"deploy\"", "nightly", &holder.pid().to_string()] {
            assert!(done.stderr.contains(part), "{part:?} is missing in {:?}", done.stderr);
        }
        assert_eq!(done.stderr.lines().count(), 1, "{:?}", done.stderr);
    }
}

#[test]
fn a_quiet_wait_is_silent() {
    let redis = Redis::start();
    let holder = hold(&redis, &[]);
    let typed = waiter(&redis, &["-q"], 1);
    let inherited = Run::key(&redis, "deploy").env("REDLOCK_QUIET", "1").sh("echo in").spawn();
    wait_until("it waits", || redis.queue_len("deploy") == 2);
    let other = waiter(&redis, &[], 3);
    other.wait_for_stderr("waiting"); // the quiet ones have waited longer than this
    holder.signal(SIGTERM);
    assert_eq!(typed.wait().expect_code(0).stderr, "");
    assert_eq!(inherited.wait().expect_code(0).stderr, "");
    other.wait().expect_code(0);
}

#[test]
fn a_quiet_refusal_is_silent() {
    let redis = Redis::start();
    let _holder = hold(&redis, &[]);
    let done = Run::key(&redis, "deploy").args(&["-q", "-n"]).sh("echo ran").done().expect_code(75);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
}

#[test]
fn verbose_reports_acquiring_and_releasing() {
    let redis = Redis::start();
    let done = Run::key(&redis, "deploy").arg("-v").sh("echo out; exit 3").done().expect_code(3);
    assert_eq!(done.stdout, "out\n", "stdout is the command's");
    assert!(done.stderr.lines().count() >= 2, "{:?}", done.stderr);
    assert!(done.stderr.lines().all(|line| line.starts_with("redlock: ")), "{:?}", done.stderr);
    done.expect_said(&["deploy"]).expect_said(&["fence"]).expect_said(&["released"]);
}

#[test]
fn a_lost_lock_is_reported_in_plain_words() {
    let redis = Redis::start();
    let holder = hold(&redis, &["--ttl", "2s", "--node-timeout", "600ms"]);
    redis.cmd(&["DEL", "lock:deploy"]);
    let done = holder.wait().expect_code(79).expect_said(&["lost"]).expect_said(&["\"deploy\""]);
    assert!(done.stderr.lines().all(|line| line.starts_with("redlock: ")), "{:?}", done.stderr);
}

#[test]
fn the_link_of_a_ci_job_is_kept_with_the_lock() {
    let redis = Redis::start();
    let link = "https://ci.example/job/17";
    let github: &[(&str, &str)] = &[
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_SERVER_URL", "https://github.com"),
        ("GITHUB_REPOSITORY", "team/app"),
        ("GITHUB_RUN_ID", "42"),
    ];
    let systems: [(&[(&str, &str)], &str); 5] = [
        (github, "https://github.com/team/app/actions/runs/42"),
        (&[("GITLAB_CI", "true"), ("CI_JOB_URL", link)], link),
        (&[("JENKINS_URL", "https://ci.example/"), ("BUILD_URL", link)], link),
        (&[("BUILDKITE", "true"), ("BUILDKITE_BUILD_URL", link)], link),
        (&[("CIRCLECI", "true"), ("CIRCLE_BUILD_URL", link)], link),
    ];
    for (variables, expected) in systems {
        let mut run = Run::key(&redis, "deploy");
        for (name, value) in variables {
            run = run.env(name, value);
        }
        let job = run.sh("echo ready; exec sleep 60").spawn();
        job.wait_for_line("ready");
        let info = redis.cmd(&["HGETALL", "lock-info:deploy"]);
        assert!(info.lines().any(|line| line == expected), "{variables:?}: {info}");
        let done = Run::key(&redis, "deploy").arg("-n").sh("echo ran").done().expect_code(75);
        assert!(done.stderr.contains(expected), "the refused one is shown the way: {}", done.stderr);
        job.signal(SIGTERM);
        job.wait();
    }
}

#[test]
fn half_of_a_ci_systems_variables_make_no_link() {
    let redis = Redis::start();
    let run = Run::key(&redis, "deploy").env("GITHUB_ACTIONS", "true").env("GITHUB_RUN_ID", "42");
    let job = run.sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    assert!(!redis.cmd(&["HGETALL", "lock-info:deploy"]).contains("actions/runs"));
}

#[test]
fn a_holders_label_cannot_forge_or_colour_a_line() {
    let redis = Redis::start();
    let holder = hold(&redis, &["--label", "x\nredlock: forged\x1b[31m\r"]);
    let done = Run::key(&redis, "deploy").arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(done.stderr.lines().count(), 1, "{:?}", done.stderr);
    assert!(!done.stderr.trim_end().contains(|c: char| c.is_control()), "{:?}", done.stderr);
    drop(holder);
}
