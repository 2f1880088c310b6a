//! Readers together, a writer alone, in order of arrival: `--shared`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Backend, Job, expect_success, hold};

on_backends!(one_server, three_servers, this_host:
    readers_hold_the_lock_together,
    a_writer_holds_the_lock_alone,
    the_command_line_overrides_the_inherited_mode,
    a_reader_behind_a_waiting_writer_waits_for_it,
    neighbouring_readers_enter_together_after_the_writer,
    a_crowd_of_readers_enters_together,
    a_writer_waits_for_the_last_reader,
    a_writer_that_gives_up_lets_the_readers_behind_it_in,
    a_killed_writer_in_the_queue_lets_the_readers_behind_it_in,
    a_writers_attempt_keeps_no_reader_out,
);

fn readers_hold_the_lock_together(backend: &Backend) {
    let mut readers: Vec<Job> = (0..5).map(|_| hold(backend.reader())).collect();
    backend.reader().arg("-n").sh("exit 4").done().expect_code(4);
    assert!(!backend.run().try_acquire());
    assert!(!backend.run().arg("-x").try_acquire());
    // In another order than they came.
    for position in [2, 0, 2, 0] {
        readers.remove(position).wait().expect_code(0);
        assert!(!backend.run().try_acquire(), "{} readers are still inside", readers.len());
    }
    readers.remove(0).wait().expect_code(0);
    assert!(backend.run().try_acquire());
    backend.all_free(&["k"]);
}

fn a_writer_holds_the_lock_alone(backend: &Backend) {
    let writer = hold(backend.run().arg("--exclusive"));
    let refused = backend.reader().arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(refused.stdout, "");
    assert!(!backend.run().try_acquire());
    writer.wait().expect_code(0);
    assert!(backend.reader().try_acquire());
}

fn the_command_line_overrides_the_inherited_mode(backend: &Backend) {
    let reader = hold(backend.run().env("REDLOCK_SHARED", "1"));
    assert!(backend.reader().try_acquire());
    assert!(backend.run().env("REDLOCK_SHARED", "true").try_acquire());
    assert!(!backend.run().env("REDLOCK_SHARED", "").try_acquire(), "empty means not set");
    assert!(!backend.run().arg("-x").env("REDLOCK_SHARED", "1").try_acquire());
    assert!(backend.run().arg("-s").env("REDLOCK_EXCLUSIVE", "1").try_acquire());
    reader.wait().expect_code(0);
    let both = backend.run().args(&["--shared", "--exclusive"]).sh("echo ran").done().expect_code(64);
    assert_eq!(both.stdout, "");
}

fn a_reader_behind_a_waiting_writer_waits_for_it(backend: &Backend) {
    let first = hold(backend.reader());
    let writer = backend.noting_waiter(backend.run(), "writer", 1);
    let late = backend.noting_waiter(backend.reader(), "reader", 2);
    assert!(!backend.reader().try_acquire());
    backend.queued(2);
    assert_eq!(backend.order(), Vec::<String>::new(), "the reader did not overtake");
    first.wait().expect_code(0);
    writer.wait().expect_code(0);
    late.wait().expect_code(0);
    assert_eq!(backend.order(), ["writer", "reader"]);
}

fn neighbouring_readers_enter_together_after_the_writer(backend: &Backend) {
    let first = hold(backend.run());
    let readers: Vec<Job> =
        (1..=4).map(|position| backend.holding_waiter(backend.reader(), position)).collect();
    let writer = backend.noting_waiter(backend.run(), "writer", 5);
    let behind = backend.noting_waiter(backend.reader(), "reader", 6);
    first.wait().expect_code(0);
    for reader in &readers {
        reader.wait_for_line("ready"); // all four while none of them has left
    }
    assert_eq!(backend.order(), Vec::<String>::new());
    for reader in readers {
        reader.wait().expect_code(0);
    }
    writer.wait().expect_code(0);
    behind.wait().expect_code(0);
    assert_eq!(backend.order(), ["writer", "reader"]);
}

fn a_crowd_of_readers_enters_together(backend: &Backend) {
    let first = hold(backend.run());
    let crowd: Vec<Job> =
        (1..=40).map(|position| backend.holding_waiter(backend.reader().arg("-q"), position)).collect();
    first.wait().expect_code(0);
    let start = Instant::now();
    for reader in &crowd {
        reader.wait_for_line("ready"); // all of them while none has left
    }
    // One by one with their own renewals, every two seconds, they would take four times as long.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(!backend.run().try_acquire());
    for reader in crowd {
        reader.wait().expect_code(0);
    }
    backend.all_free(&["k"]);
}

fn a_writer_waits_for_the_last_reader(backend: &Backend) {
    let readers: Vec<Job> = (0..3).map(|_| hold(backend.reader())).collect();
    let writer = backend.noting_waiter(backend.run(), "writer", 1);
    for reader in readers {
        assert_eq!(backend.order(), Vec::<String>::new());
        reader.wait().expect_code(0);
    }
    writer.wait().expect_code(0);
}

fn a_writer_that_gives_up_lets_the_readers_behind_it_in(backend: &Backend) {
    let first = hold(backend.reader());
    let writer = backend.waiter(backend.run().sh("echo ran"), 1);
    let readers: Vec<Job> =
        (2..=3).map(|position| backend.holding_waiter(backend.reader(), position)).collect();
    writer.signal(Signal::SIGTERM);
    assert_eq!(writer.wait().stdout, "");
    for reader in &readers {
        reader.wait_for_line("ready"); // while the first one is still inside
    }
    for job in readers {
        job.wait().expect_code(0);
    }
    first.wait().expect_code(0);
}

fn a_killed_writer_in_the_queue_lets_the_readers_behind_it_in(backend: &Backend) {
    for prefer in ["fair", "writers"] {
        let first = hold(backend.reader());
        let writer = backend.waiter(backend.run_for_long().args(&["--prefer", prefer]).sh("echo ran"), 1);
        let reader = backend.holding_waiter(backend.reader(), 2);
        writer.signal(Signal::SIGKILL);
        writer.wait();
        // while the first one is still inside, and long before the writer's lease ends
        reader.wait_for_line("ready");
        expect_success([reader, first]);
    }
}

fn a_writers_attempt_keeps_no_reader_out(backend: &Backend) {
    let first = hold(backend.reader());
    std::thread::scope(|scope| {
        let writers = scope.spawn(|| (0..15).for_each(|_| assert!(!backend.run().try_acquire())));
        while !writers.is_finished() {
            // Only readers hold it, and none waits.
            assert!(backend.reader().try_acquire());
        }
    });
    first.wait().expect_code(0);
}
