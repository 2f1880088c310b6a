//! The keeper: renews until the watched process has exited or the lock is released, and then
//! releases it.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal::{SIGCONT, SIGINT, SIGKILL, SIGTERM};
use serde_json::Value;

use super::{
    Watched, acquire_briefly, acquire_for, extend, is_ours, keeper, release, token, wait_until_free,
    wait_until_no_keeper,
};
use crate::support::processes::{send, status_field, stop};
use crate::support::{Backend, alive, hold};

on_backends!(one_server, three_servers, this_host:
    the_keeper_renews_until_the_watched_process_has_exited,
    a_release_ends_the_keeper,
    a_release_ends_the_keeper_at_once_even_if_a_minimum_hold_keeps_the_lock,
    a_release_between_renewals_ends_keeper_and_lock,
    a_terminated_keeper_releases_the_lock,
    a_killed_keeper_leaves_a_lease_that_expires,
    an_extend_beside_a_keeper_does_no_harm,
    the_keepers_process_name_has_its_role_and_the_watched_process,
    the_keeper_is_small,
    the_keepers_last_event_reports_its_end,
    the_watched_process_may_be_stopped;
one_server, three_servers:
    a_keeper_stopped_past_its_lease_reacquires_nothing,
);

fn keep(backend: &Backend, watched: &Watched) -> String {
    token(acquire_briefly(backend).args(&["--watch-pid", &watched.pid().to_string()]))
}

/// Waits for longer than the lease.
fn wait_for_several_leases() {
    std::thread::sleep(Duration::from_millis(4500)); // no fact to wait for: nothing must happen
}

fn the_keeper_renews_until_the_watched_process_has_exited(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    wait_for_several_leases();
    assert!(is_ours(backend, &token));
    watched.end();
    wait_until_free(backend);
    wait_until_no_keeper(backend);
    backend.all_free(&["k"]);
}

fn a_release_ends_the_keeper(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    keeper(backend);
    release(backend, &token).done().expect_code(0);
    backend.all_free(&["k"]);
    wait_until_no_keeper(backend);
    assert!(alive(watched.pid()));
}

/// Its next renewal is later than the test waits.
fn a_release_ends_the_keeper_at_once_even_if_a_minimum_hold_keeps_the_lock(backend: &Backend) {
    let watched = Watched::start();
    let run = acquire_for(backend, "120s").args(&["--watch-pid", &watched.pid().to_string()]);
    let token = token(run.args(&["--min-hold", "120s"]));
    keeper(backend);
    release(backend, &token).done().expect_code(0);
    wait_until_no_keeper(backend);
    assert!(!backend.is_free() && alive(watched.pid()));
}

fn a_release_between_renewals_ends_keeper_and_lock(backend: &Backend) {
    let watched = Watched::start();
    for round in 0..6 {
        let run = acquire_for(backend, "1500ms").args(&["--watch-pid", &watched.pid().to_string()]);
        let token = token(run);
        // at another moment between its renewals each time
        std::thread::sleep(Duration::from_millis(100 * round));
        let done = release(backend, &token).done();
        // 79: on a busy machine the lease may end
        assert!(matches!(done.code, Some(0 | 79)), "{done:?}");
        let next = hold(backend.run_for_long());
        // no fact to wait for: a late renewal would arrive now
        std::thread::sleep(Duration::from_millis(100));
        assert!(!backend.is_free(), "the next holder lost its lock");
        next.wait().expect_code(0);
    }
    wait_until_no_keeper(backend);
}

fn a_terminated_keeper_releases_the_lock(backend: &Backend) {
    for signal in [SIGTERM, SIGINT] {
        let watched = Watched::start();
        let token = token(acquire_for(backend, "60s").args(&["--watch-pid", &watched.pid().to_string()]));
        send(keeper(backend), signal);
        wait_until_free(backend);
        wait_until_no_keeper(backend);
        assert!(alive(watched.pid()), "the watched process is left alone");
        release(backend, &token).done().expect_code(79);
    }
}

fn a_killed_keeper_leaves_a_lease_that_expires(backend: &Backend) {
    let watched = Watched::start();
    let token = token(acquire_briefly(backend).args(&["--watch-pid", &watched.pid().to_string()]));
    send(keeper(backend), SIGKILL);
    wait_until_free(backend);
    release(backend, &token).done().expect_code(79);
    assert!(alive(watched.pid()));
}

fn an_extend_beside_a_keeper_does_no_harm(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    for ttl in ["60s", "300ms", "2s"] {
        extend(backend, &token, ttl).done().expect_code(0);
        wait_for_several_leases();
        assert!(is_ours(backend, &token), "after an extend by {ttl}");
    }
    watched.end();
    wait_until_free(backend);
    wait_until_no_keeper(backend);
}

fn the_keepers_process_name_has_its_role_and_the_watched_process(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    let line = fs::read(format!("/proc/{}/cmdline", keeper(backend))).unwrap();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    for word in ["redlock", "keeper", &watched.pid().to_string()] {
        assert!(line.contains(word), "no {word} in {line:?}");
    }
    assert!(!line.contains(&token), "{line:?}");
    release(backend, &token).done().expect_code(0);
}

fn the_keeper_is_small(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    let (keeper, mut sizes) = (keeper(backend), Vec::new());
    for _ in 0..50 {
        // no fact to wait for: memory is measured over several renewals
        std::thread::sleep(Duration::from_millis(100));
        let size = status_field(keeper, "VmRSS");
        sizes.push(size.trim_end_matches(" kB").trim().parse::<u64>().expect("a size"));
    }
    // Even with the tests' binary, which is not optimized. A renewal needs more for some milliseconds;
    // on a busy machine it may load code again after it was given back, and keep it until the next one.
    let small = sizes.iter().filter(|size| **size < 3500).count();
    assert!(small > sizes.len() / 4, "in kB: {sizes:?}, {} anonymous", status_field(keeper, "RssAnon"));
    release(backend, &token).done().expect_code(0);
}

fn the_keepers_last_event_reports_its_end(backend: &Backend) {
    let watched = Watched::start();
    let events = backend.notes().join("events");
    let run =
        acquire_briefly(backend).args(&["--watch-pid", &watched.pid().to_string(), "--events"]).arg(&events);
    token(run);
    wait_for_several_leases();
    watched.end();
    wait_until_no_keeper(backend);
    let lines = backend.noted("events");
    let events: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().expect("a name")).collect();
    assert!(names.contains(&"acquired"), "{names:?}");
    assert_eq!(names.iter().filter(|name| **name == "ended").count(), 1, "{names:?}");
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["released"]), (&"ended".into(), &true.into()), "{last}");
    if !backend.is_this_host() {
        assert!(names.contains(&"refreshed"), "{names:?}");
    }
}

fn the_watched_process_may_be_stopped(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    stop(watched.pid());
    wait_for_several_leases();
    assert!(is_ours(backend, &token));
    send(watched.pid(), SIGCONT);
    watched.end();
    wait_until_free(backend);
}

fn a_keeper_stopped_past_its_lease_reacquires_nothing(backend: &Backend) {
    let watched = Watched::start();
    let token = token(
        acquire_briefly(backend)
            .args(&["--watch-pid", &watched.pid().to_string()])
            .args(&["--on-lost", "warn"]),
    );
    let kept = keeper(backend);
    stop(kept);
    let next = hold(backend.run_for_long());
    send(kept, SIGCONT);
    wait_until_no_keeper(backend);
    assert!(!backend.is_free() && !is_ours(backend, &token), "the next holder has the lock");
    assert!(alive(watched.pid()));
    next.wait().expect_code(0);
    wait_until_free(backend);
}

/// As a stopped run is for a break.
#[test]
fn a_stopped_keeper_on_this_host_is_continued_by_a_request() {
    let (backend, watched) = (Backend::this_host(), Watched::start());
    let token = keep(&backend, &watched);
    let keeper = keeper(&backend);
    for request in [extend(&backend, &token, "60s"), release(&backend, &token)] {
        stop(keeper);
        request.done().expect_code(0);
    }
    wait_until_no_keeper(&backend);
    wait_until_free(&backend);
}
