//! Extend: renews the lease, longer or shorter, but never a lock that does not exist.

use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal::SIGKILL;

use super::{
    Watched, acquire, acquire_briefly, acquire_for, extend, is_ours, keeper, release, token, wait_until_free,
};
use crate::support::nodes::renewed;
use crate::support::processes::send;
use crate::support::{Backend, Links, MS, Run, alive, hold, pttl, wait_until};

on_backends!(one_server, three_servers, this_host:
    a_longer_lease_takes_effect,
    a_shorter_lease_takes_effect,
    a_successful_extend_prints_nothing,
    an_expired_lock_is_not_recreated,
    a_lock_of_another_holder_is_left_alone,
    a_released_lock_is_not_recreated,
);

fn a_longer_lease_takes_effect(backend: &Backend) {
    let token = token(acquire_for(backend, "4s"));
    extend(backend, &token, "60s").done().expect_code(0);
    // no fact to wait for: the first lease must end
    std::thread::sleep(Duration::from_millis(4500));
    assert!(is_ours(backend, &token));
    release(backend, &token).done().expect_code(0);
}

fn a_shorter_lease_takes_effect(backend: &Backend) {
    let token = token(acquire_for(backend, "90s"));
    extend(backend, &token, "500ms").done().expect_code(0);
    wait_until_free(backend);
    release(backend, &token).done().expect_code(79);
}

fn a_successful_extend_prints_nothing(backend: &Backend) {
    let token = token(acquire(backend));
    let done = extend(backend, &token, "50s").done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    release(backend, &token).done().expect_code(0);
}

fn an_expired_lock_is_not_recreated(backend: &Backend) {
    let token = token(acquire_briefly(backend));
    wait_until_free(backend);
    let done = extend(backend, &token, "60s").done().expect_code(79);
    assert!(done.stderr.contains("expired"), "{done:?}");
    assert!(backend.is_free());
}

fn a_released_lock_is_not_recreated(backend: &Backend) {
    let token = token(acquire(backend));
    release(backend, &token).done().expect_code(0);
    extend(backend, &token, "60s").done().expect_code(79);
    assert!(backend.is_free());
}

fn a_lock_of_another_holder_is_left_alone(backend: &Backend) {
    let old = token(acquire_briefly(backend));
    wait_until_free(backend);
    let holder = hold(backend.run_for_long().args(&["--label", "another run"]));
    let done = extend(backend, &old, "300ms").done().expect_code(79);
    assert!(done.stderr.contains("held by") && done.stderr.contains("another run"), "{done:?}");
    assert!(!backend.is_free());
    holder.wait().expect_code(0);
}

/// Any process of this user can have a file with a keeper's name.
#[test]
fn a_process_that_holds_nothing_is_not_taken_for_the_keeper() {
    let backend = Backend::this_host();
    let token = token(acquire(&backend));
    send(keeper(&backend), SIGKILL);
    wait_until_free(&backend);
    let name = format!("redlock-keeper-{token}");
    let _impostor = memfd_create(name.as_str(), MFdFlags::MFD_CLOEXEC).expect("a file in memory");
    extend(&backend, &token, "60s").done().expect_code(79);
    release(&backend, &token).done().expect_code(79);
    assert!(backend.is_free());
}

/// Renewals of the keeper that were sent before and arrive after `extend` do not shorten the lease.
#[test]
fn a_late_renewal_does_not_undo_an_extension() {
    let links = Links::one_host(3);
    links.warm_up();
    let watched = Watched::start();
    let pid = watched.pid().to_string();
    let acquire = ["acquire", "--key", "k", "--ttl", "5s", "--watch-pid", &pid, "--quarantine", "off"];
    let run = Run::bare().args(&acquire).args(&["--redis", &links.urls(0).join(",")]);
    let token = token(run);
    [0, 1].into_iter().for_each(|at| links.line(0, at).to_server(900 * MS));
    // Those to the other two are on their way now.
    renewed(&links[2], "k", 1);
    let servers = links.nodes().urls().join(",");
    let extend =
        ["extend", "k", "--token", &token, "--ttl", "60s", "--quarantine", "off", "--redis", &servers];
    Run::bare().args(&extend).done().expect_code(0);
    let extended = Instant::now();
    let is_delivered =
        |at: usize| links.line(0, at).last_delivery().is_some_and(|last| last > extended + 800 * MS);
    wait_until("the renewals have arrived", || {
        for at in 0..3 {
            let left = pttl(&links[at], "k");
            assert!(left > 40_000, "server {at}: {left} ms, {:?} after the extension", extended.elapsed());
        }
        [0, 1].into_iter().all(is_delivered)
    });
    assert!(alive(watched.pid()), "the watched process keeps its lock");
}
