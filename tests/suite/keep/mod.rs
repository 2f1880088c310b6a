//! `redlock acquire`, `extend` and `release`: a lock that outlives one command, and the keeper that
//! renews it.

mod changed_password;
mod choice;
mod descriptors;
mod elsewhere;
mod extend;
mod input;
mod interrupted;
mod keeper;
mod look;
mod lost;
mod order;
mod release;
mod restart;
mod several_keys;
mod shell;
mod token_of_a_run;
mod watched;

use crate::support::processes::{Watched, status_field};
use crate::support::{Backend, Done, Run, all_pids, wait_until};

/// `redlock acquire --key k` with a lease longer than the test.
fn acquire(backend: &Backend) -> Run {
    acquire_for(backend, "60s")
}

/// The same with another lease.
fn acquire_for(backend: &Backend, ttl: &str) -> Run {
    backend.command(&["acquire", "--key", "k", "--ttl", ttl])
}

/// The same with a lease that ends within the test, and a node timeout that a busy machine does not
/// exceed.
fn acquire_briefly(backend: &Backend) -> Run {
    acquire_for(backend, "3s").args(&["--node-timeout", "1s"])
}

/// The token of a grant, which must be the only output.
#[track_caller]
fn token(acquire: Run) -> String {
    token_in(&acquire.done().expect_code(0))
}

#[track_caller]
fn token_in(done: &Done) -> String {
    let token = done.stdout.strip_suffix('\n').unwrap_or_else(|| panic!("not a line: {done:?}"));
    let is_token = !token.is_empty() && token.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
    assert!(is_token && done.stderr.is_empty(), "{done:?}");
    token.to_owned()
}

fn release(backend: &Backend, token: &str) -> Run {
    backend.command(&["release", "--key", "k", "--token", token])
}

fn extend(backend: &Backend, token: &str, ttl: &str) -> Run {
    backend.command(&["extend", "--key", "k", "--token", token, "--ttl", ttl])
}

/// Whether this grant holds "k" now.
#[track_caller]
fn is_ours(backend: &Backend, token: &str) -> bool {
    let done = backend.command(&["status", "k", "--check", "owned", "--token", token]).done();
    assert!(matches!(done.code, Some(0 | 1)), "{done:?}");
    done.code == Some(0)
}

/// Waits until the lock of an acquire is free.
#[track_caller]
fn wait_until_free(backend: &Backend) {
    wait_until("the lock is free", || backend.is_free());
}

/// The keepers of these locks: every process of ours that has a keeper's name in `ps` and the
/// environment of the test's backend.
fn keepers(backend: &Backend) -> Vec<i32> {
    let (_, place) = backend.variables().pop().expect("a variable");
    let (_, server) = backend.variables().remove(0);
    let place = if backend.is_this_host() { place } else { server };
    let is_ours = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&place)
    };
    let is_keeper = |pid: &i32| status_field(*pid, "Name").contains("keeper") && crate::support::alive(*pid);
    all_pids().into_iter().filter(is_keeper).filter(is_ours).collect()
}

/// Waits for the only keeper.
#[track_caller]
fn keeper(backend: &Backend) -> i32 {
    wait_until("there is one keeper", || keepers(backend).len() == 1);
    keepers(backend)[0]
}

/// Waits until every keeper has exited.
#[track_caller]
fn wait_until_no_keeper(backend: &Backend) {
    wait_until("no keeper is left", || keepers(backend).is_empty());
}
