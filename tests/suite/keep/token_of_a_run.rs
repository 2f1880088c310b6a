//! The command of a run has a token, too: extend and release with it never let another holder in
//! beside the command.

use std::time::Duration;

use super::{extend, is_ours, release};
use crate::support::{Backend, Job, alive, wait_until};

on_backends!(one_server, three_servers, this_host:
    a_shorter_lease_does_not_end_before_the_command,
    a_release_stops_the_command_before_the_next_holder_starts,
);

/// A run whose command prints its token and its pid, and does not exit by itself.
#[track_caller]
fn run(backend: &Backend) -> (Job, String, i32) {
    let job = backend.run_for_long().sh("echo token $REDLOCK_TOKEN $$; exec sleep 300").spawn();
    let line = job.wait_for_line("token ");
    let words: Vec<&str> = line.split(' ').collect();
    (job, words[1].to_owned(), words[2].parse().expect("a pid"))
}

fn a_shorter_lease_does_not_end_before_the_command(backend: &Backend) {
    let (job, token, command) = run(backend);
    extend(backend, &token, "300ms").done().expect_code(0);
    std::thread::sleep(Duration::from_secs(1)); // no fact to wait for: the shorter lease would end
    assert!(!backend.is_free() && is_ours(backend, &token) && alive(command));
    job.signal(nix::sys::signal::Signal::SIGTERM);
    job.wait();
}

fn a_release_stops_the_command_before_the_next_holder_starts(backend: &Backend) {
    let (job, token, command) = run(backend);
    let look = format!("kill -0 {command} 2>/dev/null && echo overlap || echo alone");
    let next = backend.waiter(backend.run().sh(&look), 1);
    let released = release(backend, &token).done();
    assert!(matches!(released.code, Some(0)), "{released:?}");
    job.wait().expect_code(79).expect_stderr(&["released by"]);
    wait_until("the command has exited", || !alive(command));
    assert_eq!(next.wait().expect_code(0).stdout, "alone\n");
}
