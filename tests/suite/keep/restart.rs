//! Servers that are away or empty between acquire and release.

use std::time::{Duration, Instant};

use super::{Watched, acquire, extend, is_ours, release, token};
use crate::support::{Backend, Locks, assert_takes_less_than, wait_until};

#[test]
fn a_restarted_server_has_nothing_to_release_or_extend() {
    let mut backend = Backend::one_server();
    let token = token(acquire(&backend));
    let Locks::OneServer(redis) = &mut backend.locks else { unreachable!("one server") };
    redis.restart();
    release(&backend, &token).done().expect_code(79).expect_stderr(&["expired"]);
    extend(&backend, &token, "60s").done().expect_code(79);
    assert!(backend.is_free());
}

#[test]
fn a_server_that_is_down_exits_69_and_the_lock_is_still_ours_when_it_returns() {
    let backend = Backend::one_server();
    let token = token(acquire(&backend));
    backend.server().stop();
    let asked = |command: &str| {
        let run = backend.command(&[command, "k", "--token", &token, "--node-timeout", "300ms"]);
        run.done().expect_code(69).expect_stderr(&["timed out"])
    };
    asked("release");
    asked("extend");
    backend.server().cont();
    // Requests sent to the stopped server may be executed now.
    let done = release(&backend, &token).done();
    assert!(matches!(done.code, Some(0 | 79)), "{done:?}");
    assert!(backend.is_free());
}

/// Three servers with a lock on all of them, after these have been restarted empty.
fn after_a_restart_of(restarted: &[usize]) -> (Backend, String) {
    let mut backend = Backend::three_servers();
    let token = token(acquire(&backend));
    let Locks::ThreeServers(nodes) = &mut backend.locks else { unreachable!("three servers") };
    wait_until("every server has the claim", || !nodes.claims("k").contains(&String::new()));
    restarted.iter().for_each(|node| nodes[*node].restart());
    (backend, token)
}

#[test]
fn a_restarted_minority_does_not_matter() {
    for node in 0..3 {
        let (backend, token) = after_a_restart_of(&[node]);
        extend(&backend, &token, "50s").done().expect_code(0);
        release(&backend, &token).done().expect_code(0);
        backend.all_free(&["k"]);
    }
}

/// The server has the request, and executes it when it continues.
#[test]
fn a_server_that_hangs_costs_one_timeout() {
    let backend = Backend::three_servers();
    let Locks::ThreeServers(nodes) = &backend.locks else { unreachable!("three servers") };
    assert_takes_less_than(Duration::from_millis(3500), || {
        let token = token(acquire(&backend));
        wait_until("every server has the claim", || !nodes.claims("k").contains(&String::new()));
        nodes[1].stop();
        let began = Instant::now();
        backend.command(&["release", "k", "--token", &token, "--node-timeout", "2s"]).done().expect_code(0);
        let took = began.elapsed();
        nodes[1].cont();
        backend.all_free(&["k"]);
        took
    });
}

/// So the servers may be restarted one by one, if the lock is extended in between.
#[test]
fn an_extend_heals_servers_that_have_lost_the_claim() {
    let backend = Backend::three_servers();
    let Locks::ThreeServers(nodes) = &backend.locks else { unreachable!("three servers") };
    for mode in ["--exclusive", "--shared"] {
        let token = token(acquire(&backend).args(&[mode, "--label", "release freeze"]));
        let held = |claim: &String| !claim.is_empty();
        wait_until("every server has the claim", || nodes.claims("k").iter().all(held));
        for node in [0, 1, 2] {
            nodes[node].cmd(&["FLUSHALL"]);
            extend(&backend, &token, "50s").done().expect_code(0);
            assert!(nodes.claims("k").iter().all(held), "{:?}", nodes.claims("k"));
            assert!(nodes[node].cmd(&["PTTL", "lock:k"]).parse::<u64>().is_ok_and(|left| left <= 50_000));
        }
        let status = backend.command(&["status", "k"]).done().expect_code(0).stdout;
        assert!(status.contains("release freeze") && status.matches("agrees").count() == 3, "{status}");
        release(&backend, &token).done().expect_code(0);
        backend.all_free(&["k"]);
    }
}

#[test]
fn a_claim_lost_by_a_majority_is_not_healed() {
    let backend = Backend::three_servers();
    let Locks::ThreeServers(nodes) = &backend.locks else { unreachable!("three servers") };
    let token = token(acquire(&backend));
    wait_until("every server has the claim", || !nodes.claims("k").contains(&String::new()));
    [0, 2].iter().for_each(|node| drop(nodes[*node].cmd(&["FLUSHALL"])));
    extend(&backend, &token, "50s").done().expect_code(79);
    assert_eq!(nodes.claims("k").iter().filter(|claim| !claim.is_empty()).count(), 1);
    release(&backend, &token).done().expect_code(79);
}

#[test]
fn a_restarted_majority_exits_79_and_the_rest_is_released() {
    let (backend, token) = after_a_restart_of(&[0, 1]);
    release(&backend, &token).done().expect_code(79);
    backend.all_free(&["k"]);
}

/// The keeper continues if its server returns in time, with its data.
#[test]
fn a_keeper_survives_a_short_absence_of_its_server() {
    let backend = Backend::one_server();
    let watched = Watched::start();
    let run = super::acquire_for(&backend, "10s").args(&["--watch-pid", &watched.pid().to_string()]);
    let token = token(run);
    backend.server().stop();
    // no fact to wait for: a renewal fails meanwhile
    std::thread::sleep(std::time::Duration::from_secs(5));
    backend.server().cont();
    // no fact to wait for: the first lease must end
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(is_ours(&backend, &token));
    watched.end();
    super::wait_until_free(&backend);
}
