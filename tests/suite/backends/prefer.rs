//! The order of service, and who enters together: `--prefer` and `--reader-group`.

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Backend, Run, expect_success, hold};

on_backends!(
    one_server, three_servers, this_host:
        a_preferring_writer_overtakes_every_waiter_without_that_preference,
        a_preferring_reader_joins_readers_past_a_waiting_writer,
        groups_of_readers_exclude_each_other,
        neighbours_of_one_group_enter_together_and_of_another_in_turn,
        a_waiting_preferring_reader_enters_with_its_own_group_only,
        preferring_writers_among_many_waiters_are_next_each_time;
    one_server, this_host:
        a_preferring_writer_keeps_new_readers_out,
        a_preferring_writer_that_is_cancelled_lets_the_readers_in,
        a_waiting_preferring_reader_enters_with_the_next_readers,
        a_preferring_reader_waits_for_a_writer_whose_turn_it_is,
        a_preference_for_the_other_mode_has_no_effect,
        any_text_is_the_name_of_a_group,
        a_preferring_reader_joins_its_own_group_only,
        the_environment_sets_the_preference_and_the_command_line_overrides_it,
        invalid_combinations_are_usage_errors,
);

const WRITERS: [&str; 2] = ["--prefer", "writers"];
const READERS: [&str; 2] = ["--prefer", "readers"];

/// A reader of this group.
fn member(backend: &Backend, group: &str) -> Run {
    backend.reader().args(&["--reader-group", group])
}

fn a_preferring_writer_overtakes_every_waiter_without_that_preference(backend: &Backend) {
    let first = hold(backend.run());
    let waiters = [
        backend.noting_waiter(backend.reader(), "reader", 1),
        backend.noting_waiter(backend.run(), "writer", 2),
        backend.noting_waiter(backend.run().args(&WRITERS), "preferring", 3),
        backend.noting_waiter(backend.run().args(&WRITERS), "another", 4),
    ];
    first.wait().expect_code(0);
    expect_success(waiters);
    assert_eq!(backend.order(), ["preferring", "another", "reader", "writer"]);
}

fn preferring_writers_among_many_waiters_are_next_each_time(backend: &Backend) {
    let first = hold(backend.run_for_long());
    let mut jobs = Vec::new();
    for i in 0..10 {
        // Every other writer prefers; the rest are readers and writers without a preference.
        let run = match i % 4 {
            0 => backend.reader(),
            2 => backend.run(),
            _ => backend.run().args(&WRITERS),
        };
        jobs.push(backend.noting_waiter(run, &i.to_string(), i + 1));
    }
    first.wait().expect_code(0);
    expect_success(jobs);
    assert_eq!(backend.order().concat(), "1357902468");
}

fn a_preferring_writer_keeps_new_readers_out(backend: &Backend) {
    let first = hold(backend.reader());
    let writer = backend.noting_waiter(backend.run().args(&WRITERS), "writer", 1);
    assert!(!backend.reader().try_acquire());
    let late = backend.noting_waiter(backend.reader(), "reader", 2);
    first.wait().expect_code(0);
    expect_success([writer, late]);
    assert_eq!(backend.order(), ["writer", "reader"]);
}

fn a_preferring_writer_that_is_cancelled_lets_the_readers_in(backend: &Backend) {
    let first = hold(backend.reader());
    let writer = backend.waiter(backend.run().args(&WRITERS).sh("echo ran"), 1);
    let reader = backend.holding_waiter(backend.reader(), 2);
    writer.signal(SIGTERM);
    assert_eq!(writer.wait().stdout, "");
    reader.wait_for_line("ready"); // while the first one is still inside
    expect_success([first, reader]);
}

fn a_preferring_reader_joins_readers_past_a_waiting_writer(backend: &Backend) {
    let first = hold(backend.reader());
    let writer = backend.noting_waiter(backend.run(), "writer", 1);
    assert!(!backend.reader().try_acquire(), "without the preference a reader does not overtake");
    let second = hold(backend.reader().args(&READERS).arg("-n"));
    first.wait().expect_code(0);
    let third = hold(backend.reader().args(&READERS).arg("-n"));
    assert!(!backend.reader().try_acquire());
    second.wait().expect_code(0);
    assert_eq!(backend.order(), Vec::<String>::new(), "the writer waits for the last reader");
    expect_success([third, writer]);
}

fn a_waiting_preferring_reader_enters_with_the_next_readers(backend: &Backend) {
    let first = hold(backend.run());
    let reader = backend.holding_waiter(backend.reader(), 1);
    let writer = backend.noting_waiter(backend.run(), "writer", 2);
    let preferring = backend.holding_waiter(backend.reader().args(&READERS), 3);
    let last = backend.noting_waiter(backend.reader(), "reader", 4);
    first.wait().expect_code(0);
    reader.wait_for_line("ready");
    preferring.wait_for_line("ready");
    assert_eq!(backend.order(), Vec::<String>::new());
    expect_success([reader, preferring, writer, last]);
    assert_eq!(backend.order(), ["writer", "reader"]);
}

fn a_preferring_reader_waits_for_a_writer_whose_turn_it_is(backend: &Backend) {
    // No readers hold it and none enter: there is no reader to join.
    let first = hold(backend.run());
    let writer = backend.noting_waiter(backend.run(), "writer", 1);
    let reader = backend.noting_waiter(backend.reader().args(&READERS), "reader", 2);
    first.wait().expect_code(0);
    expect_success([writer, reader]);
    assert_eq!(backend.order(), ["writer", "reader"]);
}

fn a_preference_for_the_other_mode_has_no_effect(backend: &Backend) {
    let first = hold(backend.run());
    let waiters = [
        backend.noting_waiter(backend.run(), "1", 1),
        backend.noting_waiter(backend.reader().args(&WRITERS), "2", 2),
        backend.noting_waiter(backend.run().args(&READERS), "3", 3),
        backend.noting_waiter(backend.run().args(&["--prefer", "fair"]), "4", 4),
    ];
    first.wait().expect_code(0);
    expect_success(waiters);
    assert_eq!(backend.order(), ["1", "2", "3", "4"]);
    let reader = hold(backend.reader());
    assert!(!backend.run().args(&READERS).try_acquire(), "a writer does not join");
    reader.wait().expect_code(0);
}

fn groups_of_readers_exclude_each_other(backend: &Backend) {
    let first = hold(member(backend, "a"));
    let second = hold(member(backend, "a").arg("-n"));
    assert!(!member(backend, "b").try_acquire());
    assert!(!backend.reader().try_acquire(), "the group without a name is another group");
    assert!(!backend.run().try_acquire());
    expect_success([first, second]);
    let unnamed = hold(backend.reader());
    assert!(backend.reader().try_acquire());
    assert!(!member(backend, "a").try_acquire());
    unnamed.wait().expect_code(0);
    assert!(member(backend, "b").try_acquire());
}

fn any_text_is_the_name_of_a_group(backend: &Backend) {
    // Including one that looks like a name of ours.
    for name in ["slots:2", "my slots:2", "shared", "exclusive", "a:b", "ä \" '", "{}", "-"] {
        let group = || backend.reader().arg(format!("--reader-group={name}"));
        let writer = hold(backend.run());
        assert!(!group().try_acquire(), "{name:?}");
        writer.wait().expect_code(0);
        let first = hold(group());
        assert!(group().try_acquire(), "{name:?}");
        assert!(!backend.reader().try_acquire() && !member(backend, "b").try_acquire(), "{name:?}");
        first.wait().expect_code(0);
    }
}

fn neighbours_of_one_group_enter_together_and_of_another_in_turn(backend: &Backend) {
    let first = hold(backend.run());
    let together =
        [backend.holding_waiter(member(backend, "a"), 1), backend.holding_waiter(member(backend, "a"), 2)];
    let other = backend.noting_waiter(member(backend, "b"), "b", 3);
    let again = backend.noting_waiter(member(backend, "a"), "a", 4);
    first.wait().expect_code(0);
    together.iter().for_each(|job| drop(job.wait_for_line("ready")));
    expect_success(together);
    expect_success([other, again]);
    // If the last one had entered with its own group, it would be the first here.
    assert_eq!(backend.order(), ["b", "a"]);
}

fn a_preferring_reader_joins_its_own_group_only(backend: &Backend) {
    let first = hold(member(backend, "a"));
    let other = backend.noting_waiter(member(backend, "b"), "b", 1);
    let writer = backend.noting_waiter(backend.run(), "writer", 2);
    assert!(!member(backend, "a").try_acquire());
    assert!(!member(backend, "b").args(&READERS).try_acquire());
    assert!(!backend.reader().args(&READERS).try_acquire());
    assert!(member(backend, "a").args(&READERS).try_acquire(), "it overtakes all waiters");
    first.wait().expect_code(0);
    expect_success([other, writer]);
    assert_eq!(backend.order(), ["b", "writer"]);
}

fn a_waiting_preferring_reader_enters_with_its_own_group_only(backend: &Backend) {
    let first = hold(backend.run());
    let reader = backend.holding_waiter(member(backend, "a"), 1);
    let writer = backend.noting_waiter(backend.run(), "writer", 2);
    let other = backend.noting_waiter(member(backend, "b").args(&READERS), "b", 3);
    let preferring = backend.holding_waiter(member(backend, "a").args(&READERS), 4);
    first.wait().expect_code(0);
    reader.wait_for_line("ready");
    preferring.wait_for_line("ready");
    expect_success([reader, preferring, writer, other]);
    assert_eq!(backend.order(), ["writer", "b"]);
}

fn the_environment_sets_the_preference_and_the_command_line_overrides_it(backend: &Backend) {
    let first = hold(backend.reader().env("REDLOCK_READER_GROUP", "a"));
    let writer = backend.noting_waiter(backend.run(), "writer", 1);
    let inherits =
        |value: &str| backend.reader().env("REDLOCK_READER_GROUP", "a").env("REDLOCK_PREFER", value);
    assert!(inherits("readers").try_acquire());
    assert!(!inherits("").try_acquire(), "empty means not set");
    assert!(!inherits("readers").args(&["--prefer", "fair"]).try_acquire());
    assert!(!inherits("readers").args(&["--reader-group", "b"]).try_acquire());
    first.wait().expect_code(0);
    writer.wait().expect_code(0);
    // A group that is only inherited does not affect a writer.
    assert!(backend.run().env("REDLOCK_READER_GROUP", "a").try_acquire());
    assert!(
        backend.run().arg("-x").env("REDLOCK_READER_GROUP", "a").env("REDLOCK_SHARED", "1").try_acquire()
    );
}

fn invalid_combinations_are_usage_errors(backend: &Backend) {
    let refused = |run: Run, word: &str| {
        let done = run.sh("echo ran").done().expect_code(64).expect_stderr(&[word]);
        assert_eq!(done.stdout, "");
    };
    refused(backend.run().args(&["--prefer", "me"]), "prefer");
    refused(backend.run().args(&["--prefer", ""]), "prefer");
    refused(backend.run().env("REDLOCK_PREFER", "everybody"), "prefer");
    refused(backend.run().args(&["--reader-group", "a"]), "group");
    refused(backend.run().args(&["-x", "--reader-group", "a"]).env("REDLOCK_SHARED", "1"), "group");
    refused(backend.run().args(&["-s", "-x"]), "exclusive");
}
