//! `redlock acquire` is an outer run for what runs below the watched process, and for what has its
//! variables.

use crate::support::processes::status_field;
use crate::support::{Backend, Done, Job, Run, all_pids, wait_until};

on_backends!(one_server, three_servers, this_host:
    a_run_below_the_watched_shell_fails_at_once,
    a_run_with_the_variables_of_a_token_fails_at_once,
    a_second_acquire_in_the_script_fails_at_once,
    a_reentrant_run_has_the_token_and_fence_of_the_acquire,
    a_run_without_the_variables_is_reentrant_below_the_watched_process,
    a_waiter_behind_others_is_told_at_once,
    an_unrelated_process_waits_as_usual,
    a_hint_is_given_only_if_it_helps,
    the_lock_stays_until_a_run_in_the_background_has_ended,
    a_run_stops_when_the_lock_is_released_under_it,
    a_run_stops_before_the_time_of_a_token_is_over,
    a_run_continues_when_its_token_is_extended,
    a_run_starts_under_a_lease_that_is_shorter_than_its_own_would_be,
);

/// A script with the backend in its environment, which calls "$redlock".
fn script(backend: &Backend, text: &str) -> Run {
    let binary = crate::support::run::binary();
    let run = backend.command(&[]).env("redlock", binary).program("/bin/sh".into());
    run.args(&["-c", text]).env("PATH", "/usr/bin:/bin")
}

#[track_caller]
fn done(backend: &Backend, text: &str) -> Done {
    let done = script(backend, text).done().expect_code(0);
    wait_until("the lock is free", || backend.is_free());
    done
}

/// Without the keeper's variables.
const FOR_SHELL: &str = "\"$redlock\" acquire --key k --ttl 60s --for-shell >/dev/null;";
const TOKEN: &str = "eval \"$(\"$redlock\" acquire --key k --ttl 60s --shell)\";";

fn a_run_below_the_watched_shell_fails_at_once(backend: &Backend) {
    for option in ["", "-w 50", "-n", "-n -E 0", "--retries 9", "--shared"] {
        let done = done(backend, &format!("{FOR_SHELL} \"$redlock\" run -k k {option} echo ran; echo $?"));
        assert_eq!(done.stdout, "64\n", "{option}: {done:?}");
        assert!(done.stderr.contains("--reentrant"), "{done:?}");
    }
    let deep = format!(
        "{FOR_SHELL} env -i \"$redlock\" run -k j -- sh -c '\"$0\" run -k k true; echo $?' \"$redlock\""
    );
    let deep = deep.replace("env -i", "env REDLOCK_HELD=");
    assert_eq!(done(backend, &deep).stdout, "64\n", "two levels down");
}

fn a_run_with_the_variables_of_a_token_fails_at_once(backend: &Backend) {
    let done =
        done(backend, &format!("{TOKEN} \"$redlock\" run -k k echo ran; echo $?; \"$redlock\" release"));
    assert_eq!(done.stdout, "64\n", "{done:?}");
    assert!(done.stderr.contains("--reentrant"), "{done:?}");
}

fn a_second_acquire_in_the_script_fails_at_once(backend: &Backend) {
    let again = "\"$redlock\" acquire --key k --ttl 60s --for-shell; echo $?";
    assert_eq!(done(backend, &format!("{FOR_SHELL} {again}")).stdout, "64\n");
    assert_eq!(done(backend, &format!("{TOKEN} {again}; \"$redlock\" release")).stdout, "64\n");
}

const SHOW: &str = "echo $REDLOCK_TOKEN/$REDLOCK_FENCE/$REDLOCK_KEY";

fn a_reentrant_run_has_the_token_and_fence_of_the_acquire(backend: &Backend) {
    for acquire in
        ["--ttl 60s", "--for-shell", "--watch-pid $$", "--for-shell --ttl 2s", "--ttl 60s --shared"]
    {
        let shared = if acquire.contains("shared") { "--shared" } else { "" };
        let text = format!(
            "eval \"$(\"$redlock\" acquire --key k {acquire} --shell)\"; {SHOW}; \
             \"$redlock\" run -k k --reentrant {shared} -- sh -c '{SHOW}; \
             \"$0\" run -k k --reentrant --shared -- sh -c \"{}\"' \"$redlock\"; echo $?; \"$redlock\" release",
            SHOW.replace('$', "\\$")
        );
        let done = done(backend, &text);
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert_eq!(lines.len(), 4, "{acquire}: {done:?}");
        assert!(lines[0] == lines[1] && lines[1] == lines[2] && lines[3] == "0", "{acquire}: {done:?}");
        assert_eq!(done.stderr, "", "{acquire}");
    }
}

fn a_run_without_the_variables_is_reentrant_below_the_watched_process(backend: &Backend) {
    let text = format!("{FOR_SHELL} \"$redlock\" run -k k --reentrant sh -c '{SHOW}'; echo $?");
    let done = done(backend, &text);
    assert!(done.stdout.ends_with("/k\n0\n") && done.stderr.is_empty(), "{done:?}");
}

fn a_waiter_behind_others_is_told_at_once(backend: &Backend) {
    let text = format!("{FOR_SHELL} echo held; read x; \"$redlock\" run -k k echo ran; echo code $?");
    let mut job = script(backend, &text).stdin_pipe().spawn();
    job.wait_for_line("held");
    let waiter = backend.waiter(backend.run().cmd(&["true"]), 1);
    drop(job.take_stdin());
    job.wait_for_line("code 64");
    job.wait().expect_code(0);
    waiter.wait().expect_code(0);
}

/// The keeper watches another process than an ancestor of the run.
fn an_unrelated_process_waits_as_usual(backend: &Backend) {
    let text = "sleep 300 & \"$redlock\" acquire -k k --ttl 60s --watch-pid $! >/dev/null; \
        \"$redlock\" run -k k -n true; echo $?; \"$redlock\" run -k k -n --reentrant true; echo $?; kill $!";
    assert_eq!(done(backend, text).stdout, "75\n75\n");
}

fn a_hint_is_given_only_if_it_helps(backend: &Backend) {
    let text = "eval \"$(\"$redlock\" acquire --key k --ttl 60s --shared --shell)\"; \
        for o in '' --reentrant; do \"$redlock\" run -k k $o true; echo $?; done; \"$redlock\" release";
    let done = done(backend, text);
    assert_eq!(done.stdout, "64\n64\n");
    assert_eq!(done.stderr.matches("it must hold all of the keys").count(), 2, "{done:?}");
}

fn is_keeper_left(backend: &Backend) -> bool {
    let (_, place) = backend.variables().pop().expect("a variable");
    let (_, server) = backend.variables().remove(0);
    let place = if backend.is_this_host() { place } else { server };
    all_pids().into_iter().any(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        status_field(pid, "Name").contains("keeper") && String::from_utf8_lossy(&environment).contains(&place)
    })
}

fn the_lock_stays_until_a_run_in_the_background_has_ended(backend: &Backend) {
    // In a session of its own, like a daemon.
    let inner = "setsid \"$redlock\" run -k k --reentrant sh -c \
        'echo > started; while ! test -e go; do sleep 0.01; done; echo done >> order' >/dev/null 2>&1 &";
    let text = format!("{FOR_SHELL}\n{inner}\nwhile ! test -e started; do sleep 0.01; done");
    script(backend, &text).done().expect_code(0);
    let next = backend.noting_waiter(backend.run(), "next", 1);
    assert!(is_keeper_left(backend), "it keeps the lock for the run");
    std::fs::write(backend.notes().join("go"), "").unwrap();
    next.wait().expect_code(0);
    assert_eq!(backend.order(), ["done", "next"]);
    wait_until("the keeper has exited", || !is_keeper_left(backend));
}

/// A run under the lock of a script. `command` is the run's own.
#[track_caller]
fn run_under(backend: &Backend, acquire: &str, command: &str) -> Job {
    let text = format!(
        "eval \"$(\"$redlock\" acquire --key k {acquire} --shell)\"; echo $REDLOCK_TOKEN > token; \
         \"$redlock\" run -k k --reentrant sh -c 'echo $$ > pid; echo started; {command}'; echo code $?"
    );
    let job = script(backend, &text).spawn();
    job.wait_for_line("started");
    job
}

fn a_run_stops_when_the_lock_is_released_under_it(backend: &Backend) {
    let job = run_under(backend, "--for-shell --ttl 60s", "exec sleep 300");
    let token = backend.noted("token").remove(0);
    backend.command(&["release", "--key", "k", "--token", &token]).done().expect_code(0);
    job.wait_for_line("code 79");
    job.wait().expect_code(0);
    wait_until("the lock is free", || backend.is_free());
}

fn a_run_stops_before_the_time_of_a_token_is_over(backend: &Backend) {
    // It ignores the first signal.
    let job = run_under(backend, "--ttl 4s", "trap \"\" TERM; while :; do sleep 0.1; done");
    let next = backend.run().sh("kill -0 $(cat pid) 2>/dev/null && echo alive; echo next").done();
    assert_eq!(next.expect_code(0).stdout, "next\n");
    job.wait_for_line("code 79");
    job.wait().expect_code(0);
}

fn a_run_continues_when_its_token_is_extended(backend: &Backend) {
    let job = run_under(backend, "--ttl 4s", "sleep 5; echo late");
    let token = backend.noted("token").remove(0);
    backend.command(&["extend", "--key", "k", "--token", &token, "--ttl", "60s"]).done().expect_code(0);
    job.wait_for_line("late");
    job.wait_for_line("code 0");
    job.wait().expect_code(0);
    assert!(!backend.is_free(), "the script has not released it");
    backend.command(&["release", "--key", "k", "--token", &token]).done().expect_code(0);
}

fn a_run_starts_under_a_lease_that_is_shorter_than_its_own_would_be(backend: &Backend) {
    let text = "eval \"$(\"$redlock\" acquire --key k --for-shell --ttl 1s --shell)\"; \
        \"$redlock\" run -k k --reentrant echo ran; echo $?";
    assert_eq!(done(backend, text).stdout, "ran\n0\n");
}
