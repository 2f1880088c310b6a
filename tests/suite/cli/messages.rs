//! What redlock prints, where, and when it prints nothing at all.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Job, Redis, Run, assert_takes_less_than, wait_until};

/// A holder whose command has an argument that no other user may see.
fn hold(redis: &Redis, options: &[&str]) -> Job {
    let run = Run::key(redis, "deploy").args(options);
    let job = run.cmd(&["sh", "-c", "echo ready; exec sleep 60", "hidden-argument"]).spawn();
    job.wait_for_line("ready");
    job
}

fn waiter(redis: &Redis, options: &[&str], position: usize) -> Job {
    let job = Run::key(redis, "deploy").args(options).sh("echo in").spawn();
    wait_until("the run waits", || redis.queue_len("deploy") == position);
    job
}

#[test]
fn nothing_is_printed_when_all_is_well() {
    let redis = Redis::start();
    let done = Run::key(&redis, "deploy").sh("echo out; echo err >&2").done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
    let done = Run::key(&redis, "deploy").sh("exit 3").done().expect_code(3);
    assert_eq!(
        (done.stdout.as_str(), done.stderr.as_str()),
        ("", ""),
        "redlock adds nothing to a failing command"
    );
}

#[test]
fn nothing_is_printed_after_a_short_wait() {
    let redis = Redis::start();
    // At least one of five waits is short, however busy the machine is.
    assert_takes_less_than(Duration::from_secs(2), || {
        let holder = hold(&redis, &[]);
        let began = Instant::now();
        let next = waiter(&redis, &[], 1);
        holder.signal(SIGTERM);
        let done = next.wait().expect_code(0);
        let took = began.elapsed();
        let message = if took < Duration::from_secs(2) { done.stderr.as_str() } else { "" };
        assert_eq!((done.stdout.as_str(), message), ("in\n", ""));
        took
    });
}

#[test]
fn the_server_has_the_holders_command_name_but_not_its_arguments() {
    let redis = Redis::start();
    let holder = hold(&redis, &["--label", "nightly"]);
    let info = redis.cmd(&["HGETALL", "lock-info:deploy"]);
    assert!(!info.contains("hidden-argument") && !info.contains("exec sleep"), "{info}");
    let pid = holder.pid().to_string();
    for (field, value) in [("label", "nightly"), ("command", "sh"), ("pid", &pid)] {
        assert_eq!(redis.recorded("deploy", field), value, "{info}");
    }
    holder.signal(SIGTERM);
    holder.wait();
    assert_eq!(redis.cmd(&["EXISTS", "lock-info:deploy"]), "0", "a former holder is not recorded");
}

#[test]
fn a_refusal_names_the_holder() {
    let redis = Redis::start();
    let holder = hold(&redis, &["--label", "nightly"]);
    for how in [&["-n"][..], &["-w", "0.3"]] {
        let done = Run::key(&redis, "deploy").args(how).sh("echo ran").done().expect_code(75);
        for part in ["\"deploy\"", "nightly", &holder.pid().to_string()] {
            assert!(done.stderr.contains(part), "{part:?} is missing in {:?}", done.stderr);
        }
        assert_eq!(done.stderr.lines().count(), 1, "{:?}", done.stderr);
    }
}

#[test]
fn a_quiet_wait_prints_nothing() {
    let redis = Redis::start();
    let holder = hold(&redis, &[]);
    let typed = waiter(&redis, &["-q"], 1);
    let inherited = Run::key(&redis, "deploy").env("REDLOCK_QUIET", "1").sh("echo in").spawn();
    wait_until("the run waits", || redis.queue_len("deploy") == 2);
    let other = waiter(&redis, &[], 3);
    other.wait_for_stderr("waiting"); // the quiet ones have waited for longer
    holder.signal(SIGTERM);
    assert_eq!(typed.wait().expect_code(0).stderr, "");
    assert_eq!(inherited.wait().expect_code(0).stderr, "");
    other.wait().expect_code(0);
}

#[test]
fn a_quiet_refusal_prints_nothing() {
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
    done.expect_stderr(&["deploy"]).expect_stderr(&["fence"]).expect_stderr(&["released"]);
}

#[test]
fn a_lost_lock_is_reported() {
    let redis = Redis::start();
    let holder = hold(&redis, &["--ttl", "5s", "--node-timeout", "1s"]);
    redis.cmd(&["DEL", "lock:deploy"]);
    let done = holder.wait().expect_code(79).expect_stderr(&["lost"]).expect_stderr(&["\"deploy\""]);
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
        assert_eq!(redis.recorded("deploy", "job_url"), expected, "{variables:?}");
        let done = Run::key(&redis, "deploy").arg("-n").sh("echo ran").done().expect_code(75);
        assert!(done.stderr.contains(expected), "the refused run prints the link: {}", done.stderr);
        job.signal(SIGTERM);
        job.wait();
    }
}

#[test]
fn incomplete_ci_variables_make_no_link() {
    let redis = Redis::start();
    let run = Run::key(&redis, "deploy").env("GITHUB_ACTIONS", "true").env("GITHUB_RUN_ID", "42");
    let job = run.sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    assert_eq!(redis.recorded("deploy", "job_url"), "");
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

#[test]
fn not_waiting_giving_up_and_retrying_have_different_messages() {
    let redis = Redis::start();
    let holder = hold(&redis, &[]);
    let who = format!("pid {} (sh) since ", holder.pid());
    let refused = |options: &[&str]| {
        let done = Run::key(&redis, "deploy").args(options).sh("echo ran").done().expect_code(75);
        assert!(done.stderr.contains(&who) && done.stderr.lines().count() == 1, "{options:?}: {done:?}");
        done.stderr
    };
    let message = refused(&["-n"]);
    assert!(
        message.contains("\"deploy\" is held by ") && message.ends_with("; not waiting (-n)\n"),
        "{message}"
    );
    let message = refused(&["-w", "0.2"]);
    assert!(
        message.starts_with("redlock: gave up on \"deploy\" after ") && message.contains(": held by "),
        "{message}"
    );
    let message = refused(&["--retries", "2", "--retry-interval", "10ms"]);
    assert!(message.starts_with("redlock: gave up on \"deploy\" after 3 attempts ("), "{message}");
}

#[test]
fn skipping_is_silent_unless_verbose() {
    let redis = Redis::start();
    let _holder = hold(&redis, &[]);
    let run = || Run::key(&redis, "deploy").args(&["-n", "-E", "0"]);
    assert_eq!(run().sh("echo ran").done().expect_code(0).stderr, "");
    let done = run().arg("-v").sh("echo ran").done().expect_code(0);
    assert!(done.stderr.contains("skipped: \"deploy\" is held by "), "{done:?}");
}

#[test]
fn a_grant_after_a_wait_line_is_reported() {
    let redis = Redis::start();
    let holder = hold(&redis, &[]);
    let next = waiter(&redis, &["-w", "1h"], 1);
    let message = next.wait_for_stderr("waiting for \"deploy\": waited ");
    assert!(
        message.contains("s, place 1 of 1, held by ") && message.contains(", gives up in 59m "),
        "{message}"
    );
    holder.signal(SIGTERM);
    let done = next.wait().expect_code(0);
    assert!(done.stderr.lines().last().unwrap().starts_with("redlock: got \"deploy\" after "), "{done:?}");
}

#[test]
fn a_cancelled_wait_is_reported_after_a_wait_line() {
    let redis = Redis::start();
    let _holder = hold(&redis, &[]);
    let next = waiter(&redis, &[], 1);
    next.wait_for_stderr("waiting");
    next.signal(SIGTERM);
    let done = next.wait();
    let last = done.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("redlock: stopped waiting for \"deploy\" after ") && last.ends_with("(SIGTERM)"),
        "{done:?}"
    );
}

#[test]
fn a_refusal_after_a_minimum_hold_reports_when_the_lock_becomes_free() {
    let redis = Redis::start();
    Run::key(&redis, "tick").args(&["--min-hold", "1h"]).cmd(&["true"]).done().expect_code(0);
    let done = Run::key(&redis, "tick").arg("-n").cmd(&["true"]).done().expect_code(75);
    assert!(
        done.stderr.contains("\"tick\" is free again in ") && done.stderr.contains("(--min-hold of "),
        "{done:?}"
    );
}

#[test]
fn a_refusal_by_a_foreign_lock_reports_when_it_expires() {
    let redis = Redis::start();
    let refused = || Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75).stderr;
    redis.cmd(&["SET", "lock:k", "x"]);
    assert!(refused().contains("held by another program, never expires"));
    redis.cmd(&["SET", "lock:k", "x", "PX", "100000"]);
    assert!(refused().contains("held by another program, expires in 1m 3"), "{}", refused());
}

#[test]
fn a_script_is_shown_by_its_own_name() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("deploy.sh");
    std::fs::write(&script, "echo ready; exec sleep 60").unwrap();
    let job =
        Run::key(&redis, "deploy").arg("--").args(&["sh", "-e"]).arg(&script).arg("hidden-argument").spawn();
    job.wait_for_line("ready");
    let done = Run::key(&redis, "deploy").arg("-n").cmd(&["true"]).done().expect_code(75);
    assert!(done.stderr.contains(&format!("pid {} (deploy.sh) since", job.pid())), "{done:?}");
    assert!(!redis.cmd(&["HGETALL", "lock-info:deploy"]).contains("hidden-argument"));
}

#[test]
fn a_delayed_start_is_reported_when_verbose() {
    let redis = Redis::start();
    let done = Run::key(&redis, "k").args(&["-v", "--jitter", "10ms"]).cmd(&["true"]).done().expect_code(0);
    assert!(
        done.stderr.contains("redlock: starting in ") && done.stderr.contains("(--jitter 10ms)"),
        "{done:?}"
    );
}

#[test]
fn a_command_that_cannot_be_started_is_reported_with_the_reason() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    for (command, code, sentence) in [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("./no-such-script", 127, "./no-such-script: no such file"),
        ("echo hi", 127, "\"echo hi\": command not found (for a shell line use -c)"),
        ("/", 126, "/: cannot execute: is a directory"),
        (plain.to_str().unwrap(), 126, "cannot execute: permission denied"),
    ] {
        let done = Run::key(&redis, "k").cmd(&[command]).done().expect_code(code);
        assert!(done.stderr.contains(sentence), "{done:?}");
    }
}

#[test]
fn the_end_of_max_hold_is_reported() {
    let redis = Redis::start();
    let run = Run::key(&redis, "feed").args(&["--max-hold", "300ms"]);
    let done = run.sh("exec sleep 60").done().expect_code(124);
    assert_eq!(done.stderr, "redlock: \"feed\": --max-hold 300ms has passed; stopping the command\n");
}
