//! Release: our own lock, an expired one, another holder's, twice.

use super::{
    acquire, acquire_briefly, extend, is_ours, release, token, wait_until_free, wait_until_no_keeper,
};
use crate::support::nodes::pttl;
use crate::support::{Backend, Nodes, Run, hold, wait_until};

on_backends!(one_server, three_servers, this_host:
    our_own_lock_is_free_afterwards,
    a_second_release_exits_79_and_disturbs_no_later_holder,
    an_expired_lock_and_another_holders_lock_are_distinguished,
    the_token_of_an_earlier_grant_releases_nothing,
    key_and_token_come_from_options_arguments_or_the_environment,
    a_minimum_hold_outlives_the_release,
    a_foreign_token_does_not_release_a_run,
);

fn our_own_lock_is_free_afterwards(backend: &Backend) {
    let token = token(acquire(backend));
    assert!(is_ours(backend, &token));
    assert!(!backend.is_free());
    let done = release(backend, &token).done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    backend.all_free(&["k"]);
    wait_until_no_keeper(backend);
}

fn a_second_release_exits_79_and_disturbs_no_later_holder(backend: &Backend) {
    let first = token(acquire(backend));
    release(backend, &first).done().expect_code(0);
    let on_free = release(backend, &first).done().expect_code(79);
    assert!(on_free.stderr.starts_with("redlock: "), "{on_free:?}");
    let second = token(acquire(backend));
    release(backend, &first).done().expect_code(79);
    assert!(is_ours(backend, &second));
    release(backend, &second).done().expect_code(0);
    wait_until_free(backend);
}

fn an_expired_lock_and_another_holders_lock_are_distinguished(backend: &Backend) {
    let expired = token(acquire_briefly(backend));
    wait_until_free(backend);
    let gone = release(backend, &expired).done().expect_code(79);
    assert!(!gone.stderr.contains("on the server"), "nobody knows: {gone:?}");
    let other = hold(backend.run_for_long().args(&["--label", "another run"]));
    let foreign = release(backend, &expired).done().expect_code(79);
    assert!(gone.stderr.contains("expired") && gone.stderr.contains("\"k\""), "{gone:?}");
    assert!(foreign.stderr.contains("another run") && foreign.stderr.contains("held by"), "{foreign:?}");
    assert!(!backend.is_free());
    other.wait().expect_code(0);
}

fn the_token_of_an_earlier_grant_releases_nothing(backend: &Backend) {
    let tokens: Vec<String> = (0..3)
        .map(|_| {
            let token = token(acquire(backend));
            release(backend, &token).done().expect_code(0);
            token
        })
        .collect();
    let last = token(acquire(backend));
    for earlier in &tokens {
        assert_ne!(*earlier, last);
        release(backend, earlier).done().expect_code(79);
        extend(backend, earlier, "1s").done().expect_code(79);
    }
    assert!(is_ours(backend, &last));
    release(backend, &last).done().expect_code(0);
}

fn key_and_token_come_from_options_arguments_or_the_environment(backend: &Backend) {
    for by_argument in [true, false] {
        let first = token(acquire(backend));
        let key: &[&str] = if by_argument { &["k"] } else { &[] };
        let with_key = |command: &str| backend.command(&[command]).args(key).env("REDLOCK_TOKEN", &first);
        let with_key = |command: &str| {
            if by_argument { with_key(command) } else { with_key(command).env("REDLOCK_KEY", "k") }
        };
        with_key("extend").args(&["--ttl", "60s"]).done().expect_code(0);
        // The command line overrides inherited values.
        let typed = with_key("release").env("REDLOCK_KEY", "k").args(&["--token", &first.replace('.', ".9")]);
        typed.done().expect_code(79);
        with_key("release").done().expect_code(0);
        wait_until_free(backend);
    }
}

/// The minimum hold is a promise about the key, so a release cannot shorten it.
fn a_minimum_hold_outlives_the_release(backend: &Backend) {
    let token = token(acquire(backend).args(&["--min-hold", "9s"]));
    release(backend, &token).done().expect_code(0);
    assert!(!backend.is_free(), "the minimum hold has not ended");
    for (state, code) in [("held", 0), ("free", 1), ("owned", 1)] {
        let check = backend.command(&["status", "k", "--check", state]).env("REDLOCK_TOKEN", &token);
        check.done().expect_code(code);
    }
    wait_until_no_keeper(backend);
    wait_until("the minimum hold has ended", || backend.is_free());
}

fn a_foreign_token_does_not_release_a_run(backend: &Backend) {
    let held = hold(backend.run_for_long());
    let token = token(backend.command(&["acquire", "--key", "other", "--ttl", "60s"]));
    release(backend, &token).done().expect_code(79);
    assert!(!backend.is_free());
    held.wait().expect_code(0);
    backend.command(&["release", "other", "--token", &token]).done().expect_code(0);
}

/// `redlock COMMAND` on these servers.
fn on(nodes: &Nodes, command: &[&str]) -> Run {
    let servers = nodes.urls().join(",");
    let run = Run::bare().args(command).args(&["--redis", &servers]);
    if command[0] == "release" { run } else { run.args(&["--quarantine", "off"]) }
}

/// A server that has lost the claim is healed by `extend`, but not after the release.
#[test]
fn an_extension_under_way_does_not_undo_a_release() {
    let nodes = Nodes::start(3);
    let token = token(on(&nodes, &["acquire", "--key", "k", "--ttl", "60s"]));
    wait_until("all have the claim", || nodes.claims("k").iter().all(|claim| *claim == token));
    nodes[0].cmd(&["DEL", "lock:k", "lock-info:k"]);
    nodes[0].stop();
    let with_token = |command: &str| on(&nodes, &[command, "k", "--token", &token, "--node-timeout", "9s"]);
    let extend = with_token("extend").args(&["--ttl", "90s"]).spawn();
    wait_until("the others are extended", || (1..3).all(|at| pttl(&nodes[at], "k") > 60_000));
    let release = with_token("release").spawn();
    wait_until("the others are free", || (1..3).all(|at| !nodes[at].held("k")));
    nodes[0].cont();
    extend.wait().expect_code(0);
    release.wait().expect_code(0);
    nodes.all_free();
}

/// The server executes a request of an earlier attempt after another attempt was granted.
#[test]
fn a_claim_of_an_earlier_attempt_is_released_with_the_token() {
    let nodes = Nodes::start(3);
    nodes.warm_up();
    nodes[0].stop();
    let token = token(on(&nodes, &["acquire", "--key", "k", "--ttl", "60s"]));
    nodes[0].cont();
    wait_until("the first request is executed", || nodes[0].held("k"));
    assert_ne!(nodes.claims("k")[0], token);
    on(&nodes, &["release", "k", "--token", &token]).done().expect_code(0);
    nodes.all_free();
}
