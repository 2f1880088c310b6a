//! On a terminal break asks for confirmation; elsewhere it needs --yes. Exit codes for scripts.

use super::{break_at, break_in, break_on};
use crate::support::{Backend, Pty, Redis, Run, hold, holder};

on_backends!(
    one_server, three_servers, this_host:
        a_break_without_yes_shows_the_holder_and_changes_nothing,
        a_free_lock_exits_0,
);

fn a_break_without_yes_shows_the_holder_and_changes_nothing(backend: &Backend) {
    let job = hold(backend.run().args(&["--label", "nightly"]));
    let done = break_in(backend).done().expect_code(75);
    assert!(
        done.stdout.starts_with("\"k\" is held by ") && done.stdout.contains("(nightly, sh)"),
        "{done:?}"
    );
    assert!(done.stdout.contains(&format!("pid {}", job.pid())), "{done:?}");
    assert!(done.stderr.contains("pass --yes"), "{done:?}");
    assert!(!backend.is_free());
    job.wait().expect_code(0);
}

fn a_free_lock_exits_0(backend: &Backend) {
    for args in [&[][..], &["--yes"], &["--yes", "--now"]] {
        assert_eq!(break_in(backend).args(args).done().expect_code(0).stdout, "\"k\" is free\n");
    }
}

#[test]
fn no_on_a_terminal_breaks_nothing() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "30s"]);
    for answer in ["n\n", "\n", "yep\n", "\x04"] {
        let terminal = Pty::run(break_on(&redis));
        terminal.wait_for("[y/N]");
        assert!(terminal.screen().contains(&format!("pid {}", job.pid())), "{}", terminal.screen());
        assert!(terminal.screen().contains("Its command will be stopped"), "{}", terminal.screen());
        terminal.type_in(answer);
        let done = terminal.wait().expect_code(75);
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert!(lines.iter().any(|line| line.starts_with("redlock: ")), "a line of its own: {done:?}");
        assert!(done.stdout.contains("was not broken"), "{done:?}");
    }
    let terminal = Pty::run(break_on(&redis));
    terminal.wait_for("[y/N]");
    terminal.type_in("\x03");
    assert_eq!(terminal.wait().signal, Some(2));
    assert!(redis.held("k"));
    job.wait().expect_code(0);
}

#[test]
fn yes_on_a_terminal_breaks_the_lock_that_was_shown() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "30s"]);
    let terminal = Pty::run(break_on(&redis));
    terminal.wait_for("[y/N]");
    terminal.type_in("y\n");
    let done = terminal.wait().expect_code(0);
    assert!(done.stdout.contains("its command was stopped"), "{done:?}");
    job.wait().expect_code(79);
}

/// A holder that got the lock while the question was on the screen is left alone.
#[test]
fn only_the_lock_that_was_shown_is_broken() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &[]);
    let terminal = Pty::run(break_on(&redis));
    terminal.wait_for("[y/N]");
    first.wait().expect_code(0);
    let second = holder(&redis, "k", &[]);
    terminal.type_in("yes\n");
    let done = terminal.wait().expect_code(0);
    assert!(done.stdout.contains("nothing was broken") && !done.stdout.contains("stopped,"), "{done:?}");
    second.wait().expect_code(0);
}

#[test]
fn servers_come_from_the_environment_or_the_config_file() {
    let redis = Redis::start();
    let (_directory, path) = crate::support::config_file(&format!("redis = \"{}\"\nttl = 7\n", redis.url()));
    let bare = || Run::bare().args(&["break", "k"]);
    bare().env("REDLOCK_REDIS", redis.url()).done().expect_code(0);
    bare().env("REDLOCK_CONFIG", path).done().expect_code(0);
    bare().env("REDLOCK_REDIS", "redis://127.0.0.1:1").done().expect_code(69);
}

/// Inside a run the environment has its own token and waiting time: break ignores them.
#[test]
fn the_environment_of_a_run_is_ignored() {
    let redis = Redis::start();
    let job = holder(&redis, "k", &["--ttl", "30s"]);
    let other = "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1";
    break_on(&redis).arg("--yes").env("REDLOCK_TOKEN", other).env("REDLOCK_WAIT", "0").done().expect_code(0);
    job.wait().expect_code(79);
}

#[test]
fn an_unreachable_server_exits_69() {
    let done = break_at("redis://127.0.0.1:1").arg("--yes").done().expect_code(69);
    assert!(done.stderr.contains("cannot break \"k\""), "{done:?}");
}
