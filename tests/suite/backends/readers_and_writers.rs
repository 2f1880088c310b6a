//! Many random readers and writers at once: a writer never runs beside another command, nor a group
//! beside another group.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::support::reader_writer_log::Role::{self, Reader, Writer};
use crate::support::{Backend, ReaderWriterLog};

on_backends!(one_server, three_servers, this_host:
    random_readers_and_writers_never_overlap,
    random_groups_and_preferences_never_overlap,
    killed_readers_and_writers_let_no_other_in_too_early,
);

/// The number of workers, and of consecutive runs of each.
const WORKERS: usize = 8;
const ROUNDS: usize = 6;

/// A role that appears more often is more likely.
const READERS_AND_WRITERS: &[Role] = &[Reader(""), Reader(""), Writer];
const GROUPS: &[Role] = &[Reader("a"), Reader("a"), Reader("b"), Reader(""), Writer];

/// Runs them all; every `kill_every`-th is killed as soon as it is inside.
fn play(
    backend: &Backend,
    roles: &[Role],
    preferences: &[&str],
    kill_every: Option<usize>,
) -> (usize, usize) {
    let history = ReaderWriterLog::new(backend.notes());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let history = &history;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let id = worker * ROUNDS + round;
                    let role = history.any(id, "role", roles);
                    let prefer = history.any(id, "prefer", preferences);
                    let inside = history.any(id, "inside", &[0.0, 0.02, 0.05, 0.1]);
                    let run = backend.run().args(&role.args()).args(&["--prefer", prefer, "-q"]);
                    if kill_every.is_some_and(|n| id.is_multiple_of(n)) {
                        let victim = run
                            .args(backend.short_ttl())
                            .sh(&ReaderWriterLog::script(id, role, 60.0))
                            .spawn();
                        victim.wait_for_line("inside");
                        history.log_kill(id, role);
                        victim.signal(Signal::SIGKILL);
                        victim.wait();
                    } else {
                        run.sh(&ReaderWriterLog::script(id, role, inside)).done().expect_code(0);
                    }
                }
            });
        }
    });
    let result = history.check();
    assert_eq!(result.1, WORKERS * ROUNDS, "every run entered");
    result
}

fn random_readers_and_writers_never_overlap(backend: &Backend) {
    let (most, _) = play(backend, READERS_AND_WRITERS, &["fair"], None);
    assert!(most > 1, "readers were never inside together");
    backend.all_free(&["k"]);
}

fn random_groups_and_preferences_never_overlap(backend: &Backend) {
    let (most, _) = play(backend, GROUPS, &["fair", "fair", "writers", "readers"], None);
    assert!(most > 1, "readers were never inside together");
    backend.all_free(&["k"]);
}

fn killed_readers_and_writers_let_no_other_in_too_early(backend: &Backend) {
    play(backend, GROUPS, &["fair", "fair", "writers", "readers"], Some(13));
}

/// Tests of the log itself: it detects what it must detect.
mod the_log {
    use super::*;

    /// The result of a log with these lines.
    fn verdict(lines: &str) -> Result<(usize, usize), ()> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("history"), lines.replace(", ", "\n") + "\n").unwrap();
        let history = ReaderWriterLog::new(dir.path());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.check())).map_err(drop)
    }

    #[test]
    fn it_accepts_readers_together_and_writers_alone() {
        assert_eq!(verdict("in 1 reader-a, in 2 reader-a, out 1 reader-a, out 2 reader-a"), Ok((2, 2)));
        assert_eq!(verdict("in 1 writer, out 1 writer, in 2 reader-, out 2 reader-"), Ok((1, 2)));
        assert_eq!(verdict("in 1 reader-, killed 1 reader-, in 2 writer, out 2 writer"), Ok((1, 2)));
    }

    #[test]
    fn it_detects_every_forbidden_overlap() {
        for met in [
            "in 1 writer, in 2 writer, out 1 writer, out 2 writer",
            "in 1 reader-, in 2 writer, out 1 reader-, out 2 writer",
            "in 1 writer, in 2 reader-, out 1 writer, out 2 reader-",
            "in 1 reader-a, in 2 reader-b, out 1 reader-a, out 2 reader-b",
            "in 1 reader-, in 2 reader-b, out 1 reader-, out 2 reader-b",
            "clash 1 writer, in 1 writer, out 1 writer",
            "in 1 reader-a",
        ] {
            assert_eq!(verdict(met), Err(()), "{met}");
        }
    }

    #[test]
    fn it_learns_from_the_kernel_that_a_command_still_lives() {
        let dir = tempfile::tempdir().unwrap();
        let command = |id, role, inside| {
            let mut command = Command::new("sh");
            command.args(["-c", &ReaderWriterLog::script(id, role, inside)]).current_dir(dir.path());
            command.stdout(Stdio::null()).process_group(0);
            command
        };
        let mut reader = command(1, Reader("a"), 60.0).spawn().unwrap();
        let history = dir.path().join("history");
        let noted = || std::fs::read_to_string(&history).unwrap_or_default();
        crate::support::wait_until("the reader is inside", || noted().contains("in 1 reader-a"));
        assert!(command(2, Reader("a"), 0.0).status().unwrap().success());
        assert!(!noted().contains("clash"), "{}", noted());
        assert!(command(3, Writer, 0.0).status().unwrap().success());
        assert!(noted().contains("clash 3 writer"), "{}", noted());
        killpg(Pid::from_raw(reader.id() as i32), Signal::SIGKILL).unwrap();
        reader.wait().unwrap();
    }
}
