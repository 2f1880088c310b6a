//! An interrupted acquire leaves nothing: a caller gets a token and exit code 0, or neither.

use std::time::Duration;

use nix::sys::signal::Signal::SIGTERM;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::{Watched, acquire, release, wait_until_free, wait_until_no_keeper};
use crate::support::processes::is_installed;
use crate::support::{Backend, Done};

on_backends!(one_server, three_servers, this_host:
    a_signal_at_any_moment_leaves_a_token_or_nothing,
    too_few_descriptors_leave_a_token_or_nothing,
);

/// Returns whether there was a token. If so, it must be valid, and is released.
#[track_caller]
fn assert_all_or_nothing(backend: &Backend, done: &Done) -> bool {
    let token = done.stdout.trim();
    assert_eq!(done.code == Some(0), !token.is_empty(), "{done:?}");
    if !token.is_empty() {
        release(backend, token).done().expect_code(0);
    }
    wait_until_free(backend);
    wait_until_no_keeper(backend);
    !token.is_empty()
}

fn a_signal_at_any_moment_leaves_a_token_or_nothing(backend: &Backend) {
    let watched = Watched::start();
    for round in 0..16 {
        let run = acquire(backend).arg("-q");
        let watching = run.clone().args(&["--watch-pid", &watched.pid().to_string()]);
        let job = if round % 2 == 0 { run } else { watching }.spawn();
        std::thread::sleep(Duration::from_millis(round * 2)); // at another moment each time
        let _ = kill(Pid::from_raw(job.pid()), SIGTERM); // it may have exited
        assert_all_or_nothing(backend, &job.wait());
    }
}

fn too_few_descriptors_leave_a_token_or_nothing(backend: &Backend) {
    if !is_installed("prlimit") {
        skip!("prlimit is missing");
    }
    let watched = Watched::start();
    let outcomes: Vec<bool> = (4..24)
        .map(|limit| {
            let run = acquire(backend).args(&["--watch-pid", &watched.pid().to_string()]);
            let done = run.through(&["prlimit", &format!("--nofile={limit}")]).done();
            assert!(done.code == Some(0) || done.stderr.starts_with("redlock: "), "{limit}: {done:?}");
            assert_all_or_nothing(backend, &done)
        })
        .collect();
    assert!(outcomes.contains(&true) && outcomes.contains(&false), "{outcomes:?}");
}
