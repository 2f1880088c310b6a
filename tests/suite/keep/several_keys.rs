//! A token of several keys of which one was broken. On servers the others stay held, since the client
//! that has the token may be at work; a keeper, and every holder on this host, releases them.

use super::{token, wait_until_no_keeper};
use crate::support::processes::Watched;
use crate::support::{Backend, Done, alive, wait_until};

on_backends!(one_server, three_servers:
    a_release_of_all_keys_names_the_broken_one_and_releases_the_others,
    a_key_that_is_left_can_be_released_alone,
    an_extension_names_the_broken_key_and_what_is_left;
one_server, three_servers, this_host:
    a_token_that_lost_a_key_cannot_be_extended,
    a_keeper_that_loses_a_key_stops_its_process_and_releases_the_others,
);

fn acquire(backend: &Backend, options: &[&str]) -> String {
    token(backend.command(&["acquire", "--key", "a", "--key", "b", "--ttl", "60s"]).args(options))
}

fn break_one(backend: &Backend, how: &[&str]) {
    backend.command(&["break", "a", "--yes"]).args(how).done().expect_code(0);
}

fn with_token(backend: &Backend, command: &str, keys: &[&str], token: &str) -> Done {
    let run = backend.command(&[command, "--token", token]);
    keys.iter().fold(run, |run, key| run.args(&["--key", key])).done()
}

fn a_release_of_all_keys_names_the_broken_one_and_releases_the_others(backend: &Backend) {
    for how in [&[][..], &["--now"]] {
        let token = acquire(backend, &[]);
        break_one(backend, how);
        let done = with_token(backend, "release", &["b", "a"], &token).expect_code(79);
        assert!(done.stderr.contains("no longer holds \"a\": broken by "), "{done:?}");
        assert!(done.stderr.ends_with("; released \"b\"\n"), "{done:?}");
        backend.all_free(&["a", "b"]);
        let again = with_token(backend, "release", &["a", "b"], &token).expect_code(79);
        assert!(again.stderr.contains("no longer holds \"a\", \"b\": "), "{again:?}");
    }
}

fn a_key_that_is_left_can_be_released_alone(backend: &Backend) {
    let token = acquire(backend, &[]);
    let whole = with_token(backend, "release", &["b"], &token).expect_code(64);
    assert!(whole.stderr.contains("covers 2 locks"), "{whole:?}");
    break_one(backend, &[]);
    let done = with_token(backend, "release", &["b"], &token).expect_code(0);
    assert_eq!(done.stderr, "");
    backend.all_free(&["a", "b"]);
}

fn an_extension_names_the_broken_key_and_what_is_left(backend: &Backend) {
    let token = acquire(backend, &[]);
    break_one(backend, &["--now"]);
    let done = with_token(backend, "extend", &["a", "b"], &token).expect_code(79);
    assert!(done.stderr.contains("no longer holds \"a\": broken by "), "{done:?}");
    assert!(done.stderr.contains("; it still holds \"b\""), "{done:?}");
    with_token(backend, "release", &["a", "b"], &token).expect_code(79);
}

fn a_token_that_lost_a_key_cannot_be_extended(backend: &Backend) {
    let token = acquire(backend, &[]);
    break_one(backend, &[]);
    for keys in [&["a", "b"][..], &["b"], &["a"]] {
        let done = with_token(backend, "extend", keys, &token).expect_code(79);
        assert!(done.stderr.contains("broken by "), "{keys:?}: {done:?}");
    }
    with_token(backend, "release", &["a", "b"], &token).expect_code(79);
    backend.all_free(&["a", "b"]);
}

fn a_keeper_that_loses_a_key_stops_its_process_and_releases_the_others(backend: &Backend) {
    for how in [&[][..], &["--now"]] {
        let watched = Watched::start();
        acquire(backend, &["--watch-pid", &watched.pid().to_string(), "--on-lost", "stop"]);
        break_one(backend, how);
        wait_until("the process was stopped", || !alive(watched.pid()));
        wait_until_no_keeper(backend);
        backend.all_free(&["a", "b"]);
    }
}
