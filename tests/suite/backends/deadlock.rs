//! Runs inside runs that wait for each other's locks: one of them gives up, and names the circle.

use crate::support::run::binary;
use crate::support::{Backend, Done, Job, wait_until};

on_backends!(one_server, three_servers, this_host:
    of_two_nested_runs_in_opposite_order_one_gives_up,
    a_deadlock_is_reported_whatever_its_exit_code,
    a_circle_of_three_is_found,
    runs_that_would_cancel_each_other_do_not,
    nested_runs_in_the_same_order_wait_as_usual,
    a_lock_that_ends_by_itself_is_in_no_circle,
);

/// Each run holds a key; inside it, one after the other, a run asks for the next one's.
#[track_caller]
fn in_a_circle(backend: &Backend, keys: &[&str], options: &[&str]) -> Vec<Done> {
    let job = |at: usize| -> Job {
        let inner = backend.run_on(&[keys[(at + 1) % keys.len()]]).args(options).cmd(&["true"]).shell_line();
        let script = format!("echo ready; read x; {inner}; echo code=$?");
        let job = backend
            .run_on(&[keys[at]])
            .args(&["--label", keys[at]])
            .args(options)
            .stdin_pipe()
            .sh(&script)
            .spawn();
        job.wait_for_line("ready");
        job
    };
    let mut jobs: Vec<Job> = (0..keys.len()).map(job).collect();
    for at in 0..keys.len() {
        drop(jobs[at].take_stdin());
        if at + 1 < keys.len() {
            let next = keys[(at + 1) % keys.len()];
            wait_until("the inner run waits", || {
                let status = backend.subcommand("status").args(&[next, "--json"]).done().json();
                status["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
            });
        }
    }
    jobs.into_iter().map(|job| job.wait().expect_code(0)).collect()
}

#[track_caller]
fn assert_the_last_gave_up(done: &[Done], circle: &[&str]) {
    let codes: Vec<&str> = done.iter().map(|done| done.stdout.lines().last().unwrap()).collect();
    let (last, others) = codes.split_last().unwrap();
    assert_eq!(*last, "code=75", "{done:#?}");
    assert!(others.iter().all(|code| *code == "code=0"), "{done:#?}");
    let stderr = &done.last().unwrap().stderr;
    assert!(stderr.contains("deadlock: this run waits for "), "{stderr}");
    // Key by key, each with the run that holds it.
    let mut rest = stderr.split_once("deadlock").unwrap().1;
    for key in circle {
        let (_, after) =
            rest.split_once(&format!("waits for \"{key}\", held by ")).unwrap_or_else(|| panic!("{stderr}"));
        rest = after;
        let is_ours = circle.last() == Some(key);
        assert!(rest.starts_with("this run") == is_ours && (is_ours || rest.contains('@')), "{stderr}");
    }
    for other in &done[..done.len() - 1] {
        assert!(!other.stderr.contains("deadlock"), "{other:#?}");
    }
}

fn of_two_nested_runs_in_opposite_order_one_gives_up(backend: &Backend) {
    let start = std::time::Instant::now();
    let done = in_a_circle(backend, &["x", "y"], &[]);
    assert_the_last_gave_up(&done, &["x", "y"]);
    assert!(start.elapsed().as_secs() < 15, "{:?}", start.elapsed());
    backend.all_free(&["x", "y"]);
}

/// -E 0 is for locks that are held.
fn a_deadlock_is_reported_whatever_its_exit_code(backend: &Backend) {
    let last = in_a_circle(backend, &["x", "y"], &["-E", "0"]).pop().unwrap();
    assert!(last.stdout.ends_with("code=0\n"), "{last:#?}");
    last.expect_stderr(&["deadlock: this run waits for "]);
}

fn a_circle_of_three_is_found(backend: &Backend) {
    let done = in_a_circle(backend, &["x", "y", "z"], &[]);
    assert_the_last_gave_up(&done, &["x", "y", "z"]);
    backend.all_free(&["x", "y", "z"]);
}

fn runs_that_would_cancel_each_other_do_not(backend: &Backend) {
    let done = in_a_circle(backend, &["x", "y"], &["--cancel-in-progress"]);
    assert_the_last_gave_up(&done, &["x", "y"]);
}

/// The second waits for longer than it takes to find a deadlock.
fn nested_runs_in_the_same_order_wait_as_usual(backend: &Backend) {
    let inner = |command: &str| backend.run_on(&["y"]).sh(command).shell_line();
    let first = backend.run_on(&["y"]).sh("echo ready; sleep 6").spawn();
    first.wait_for_line("ready");
    let nested = backend.run_on(&["x"]).sh(&inner("echo ran")).spawn();
    let second = backend.run_on(&["x"]).sh(&inner("echo ran")).spawn();
    first.wait().expect_code(0);
    for job in [nested, second] {
        let done = job.wait().expect_code(0);
        assert!(done.stdout == "ran\n" && !done.stderr.contains("deadlock"), "{done:?}");
    }
    backend.all_free(&["x", "y"]);
}

/// Nothing renews the token of the first script: the other run has its lock after five seconds.
fn a_lock_that_ends_by_itself_is_in_no_circle(backend: &Backend) {
    let inner = |key: &str| backend.run_on(&[key]).sh("echo ran").shell_line();
    let other = backend.run_on(&["y"]).stdin_pipe().sh(&format!("echo ready; read x; {}", inner("x")));
    let mut other = other.spawn();
    other.wait_for_line("ready");
    let text = format!("eval \"$(\"$redlock\" acquire --key x --ttl 5s --shell)\"; {}", inner("y"));
    let script = backend.command(&[]).env("redlock", binary()).program("/bin/sh".into());
    let script = script.args(&["-c", &text]).env("PATH", "/usr/bin:/bin").spawn();
    wait_until("the script waits for the other run's lock", || {
        let status = backend.subcommand("status").args(&["y", "--json"]).done().json();
        status["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
    });
    drop(other.take_stdin());
    for job in [other, script] {
        let done = job.wait().expect_code(0);
        assert!(done.stdout.contains("ran") && !done.stderr.contains("deadlock"), "{done:?}");
    }
}
