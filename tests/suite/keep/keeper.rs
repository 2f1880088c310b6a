//! The keeper: renews until the watched process has ended or the lock was released, and then gives it back.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal::{SIGCONT, SIGINT, SIGKILL, SIGTERM};
use serde_json::Value;

use super::{
    Watched, acquire_briefly, acquire_for, becomes_free, extend, is_ours, keeper, no_keeper, release, token,
};
use crate::support::processes::{send, status_field, stop};
use crate::support::{Backend, alive, hold};

on_backends!(one_server, three_servers, this_host:
    it_renews_until_the_watched_process_has_ended,
    a_release_ends_it,
    a_release_ends_it_at_once_even_if_a_minimum_hold_keeps_the_lock,
    a_release_in_the_middle_of_its_renewals_ends_both,
    asked_to_end_it_gives_the_lock_back,
    killed_it_leaves_a_lease_that_ends_by_itself,
    an_extend_beside_it_changes_nothing_for_the_worse,
    its_name_says_what_it_is_and_for_which_process,
    it_is_small,
    its_events_end_with_one_that_says_so,
    its_watched_process_may_be_stopped;
one_server, three_servers:
    stopped_past_its_lease_it_takes_nothing_back,
);

fn keep(backend: &Backend, watched: &Watched) -> String {
    token(acquire_briefly(backend).args(&["--watch-pid", &watched.pid().to_string()]))
}

/// Longer than the lease.
fn several_leases_later() {
    std::thread::sleep(Duration::from_millis(4500)); // not for a fact: that nothing happens is what counts
}

fn it_renews_until_the_watched_process_has_ended(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    several_leases_later();
    assert!(is_ours(backend, &token));
    watched.end();
    becomes_free(backend);
    no_keeper(backend);
    backend.all_free(&["k"]);
}

fn a_release_ends_it(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    keeper(backend);
    release(backend, &token).done().expect_code(0);
    backend.all_free(&["k"]);
    no_keeper(backend);
    assert!(alive(watched.pid()));
}

/// Its next renewal is later than the test waits.
fn a_release_ends_it_at_once_even_if_a_minimum_hold_keeps_the_lock(backend: &Backend) {
    let watched = Watched::start();
    let run = acquire_for(backend, "120s").args(&["--watch-pid", &watched.pid().to_string()]);
    let token = token(run.args(&["--min-hold", "120s"]));
    keeper(backend);
    release(backend, &token).done().expect_code(0);
    no_keeper(backend);
    assert!(!backend.is_free() && alive(watched.pid()));
}

fn a_release_in_the_middle_of_its_renewals_ends_both(backend: &Backend) {
    let watched = Watched::start();
    for round in 0..6 {
        let run = acquire_for(backend, "1500ms").args(&["--watch-pid", &watched.pid().to_string()]);
        let token = token(run);
        std::thread::sleep(Duration::from_millis(100 * round)); // at another moment of its renewals each time
        let done = release(backend, &token).done();
        assert!(matches!(done.code, Some(0 | 79)), "{done:?}"); // 79: a busy machine cost the lease
        let next = hold(backend.run_for_long());
        std::thread::sleep(Duration::from_millis(100)); // not for a fact: a late renewal would come now
        assert!(!backend.is_free(), "the next holder was robbed");
        next.wait().expect_code(0);
    }
    no_keeper(backend);
}

fn asked_to_end_it_gives_the_lock_back(backend: &Backend) {
    for signal in [SIGTERM, SIGINT] {
        let watched = Watched::start();
        let token = token(acquire_for(backend, "60s").args(&["--watch-pid", &watched.pid().to_string()]));
        send(keeper(backend), signal);
        becomes_free(backend);
        no_keeper(backend);
        assert!(alive(watched.pid()), "the watched process is not its business");
        release(backend, &token).done().expect_code(79);
    }
}

fn killed_it_leaves_a_lease_that_ends_by_itself(backend: &Backend) {
    let watched = Watched::start();
    let token = token(acquire_briefly(backend).args(&["--watch-pid", &watched.pid().to_string()]));
    send(keeper(backend), SIGKILL);
    becomes_free(backend);
    release(backend, &token).done().expect_code(79);
    assert!(alive(watched.pid()));
}

fn an_extend_beside_it_changes_nothing_for_the_worse(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    for ttl in ["60s", "300ms", "2s"] {
        extend(backend, &token, ttl).done().expect_code(0);
        several_leases_later();
        assert!(is_ours(backend, &token), "after an extend by {ttl}");
    }
    watched.end();
    becomes_free(backend);
    no_keeper(backend);
}

fn its_name_says_what_it_is_and_for_which_process(backend: &Backend) {
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

fn it_is_small(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    let (keeper, mut sizes) = (keeper(backend), Vec::new());
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100)); // not for a fact: several renewals are looked at
        let size = status_field(keeper, "VmRSS");
        sizes.push(size.trim_end_matches(" kB").trim().parse::<u64>().expect("a size"));
    }
    // Even of the tests' binary, which is not optimized; a renewal needs more, for some milliseconds.
    let large = sizes.iter().filter(|size| **size >= 3 * 1024).count();
    assert!(large < sizes.len() / 2, "in kB: {sizes:?}, {} anonymous", status_field(keeper, "RssAnon"));
    release(backend, &token).done().expect_code(0);
}

fn its_events_end_with_one_that_says_so(backend: &Backend) {
    let watched = Watched::start();
    let events = backend.notes().join("events");
    let run =
        acquire_briefly(backend).args(&["--watch-pid", &watched.pid().to_string(), "--events"]).arg(&events);
    token(run);
    several_leases_later();
    watched.end();
    no_keeper(backend);
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

fn its_watched_process_may_be_stopped(backend: &Backend) {
    let watched = Watched::start();
    let token = keep(backend, &watched);
    stop(watched.pid());
    several_leases_later();
    assert!(is_ours(backend, &token));
    send(watched.pid(), SIGCONT);
    watched.end();
    becomes_free(backend);
}

fn stopped_past_its_lease_it_takes_nothing_back(backend: &Backend) {
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
    no_keeper(backend);
    assert!(!backend.is_free() && !is_ours(backend, &token), "the next holder has it");
    assert!(alive(watched.pid()));
    next.wait().expect_code(0);
    becomes_free(backend);
}

#[test]
fn stopped_on_this_host_it_is_named_with_what_to_do_about_it() {
    let (backend, watched) = (Backend::this_host(), Watched::start());
    let token = keep(&backend, &watched);
    let keeper = keeper(&backend);
    stop(keeper);
    for asked in [release(&backend, &token), extend(&backend, &token, "60s")] {
        let done = asked.done().expect_code(69);
        let advice =
            format!("(pid {keeper}) does not answer: is it stopped? kill -CONT {keeper} lets it go on");
        assert!(done.stderr.contains(&advice), "{done:?}");
    }
    send(keeper, SIGCONT);
    no_keeper(&backend); // it finds the release
    becomes_free(&backend);
}
