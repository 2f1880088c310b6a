//! Locks without a command use the same queue as runs.

use super::{acquire, release, token};
use crate::support::{Backend, expect_success, hold};

on_backends!(one_server, three_servers, this_host:
    a_release_lets_waiting_runs_in_by_order_of_arrival,
    an_acquire_waits_for_its_turn_among_runs,
);

fn a_release_lets_waiting_runs_in_by_order_of_arrival(backend: &Backend) {
    let token = token(acquire(backend));
    let waiters: Vec<_> = ["a", "b", "c"]
        .iter()
        .enumerate()
        .map(|(position, word)| backend.noting_waiter(backend.run(), word, position + 1))
        .collect();
    release(backend, &token).done().expect_code(0);
    // Long before the lease of 60 s ends; otherwise the rig fails the test.
    expect_success(waiters);
    assert_eq!(backend.order(), ["a", "b", "c"]);
}

fn an_acquire_waits_for_its_turn_among_runs(backend: &Backend) {
    let holder = hold(backend.run_for_long());
    let first = backend.noting_waiter(backend.run(), "a", 1);
    let acquiring = backend.waiter(acquire(backend), 2);
    let last = backend.noting_waiter(backend.run(), "b", 3);
    holder.wait().expect_code(0);
    let token = acquiring.wait().expect_code(0).stdout;
    first.wait().expect_code(0);
    assert_eq!(backend.order(), ["a"]);
    release(backend, token.trim()).done().expect_code(0);
    last.wait().expect_code(0);
    assert_eq!(backend.order(), ["a", "b"]);
}
