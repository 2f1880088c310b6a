//! Who goes first, and who goes together, on this host when a participant is killed: the kernel shows it at once.

use nix::sys::signal::Signal;

use crate::support::{Backend, hold};

#[test]
fn a_preferring_writer_that_is_killed_lets_the_readers_in_at_once() {
    let backend = Backend::this_host();
    let first = hold(backend.reader());
    let writer = backend.waiter(backend.run().args(&["--prefer", "writers"]).sh("echo ran"), 1);
    let reader = backend.holding_waiter(backend.reader(), 2);
    writer.signal(Signal::SIGKILL);
    writer.wait();
    reader.wait_for_line("ready"); // while the first one is still inside
    reader.wait().expect_code(0);
    first.wait().expect_code(0);
}

#[test]
fn a_killed_member_makes_room_for_another_group_at_once() {
    let backend = Backend::this_host();
    let first = hold(backend.reader().args(&["--reader-group", "a"]));
    let second = hold(backend.reader().args(&["--reader-group", "a"]));
    let other = backend.holding_waiter(backend.reader().args(&["--reader-group", "b"]), 1);
    first.signal(Signal::SIGKILL);
    first.wait();
    assert!(!backend.run().gets_in(), "the second is still inside");
    assert_eq!(other.stdout_so_far(), "");
    second.signal(Signal::SIGKILL);
    second.wait();
    other.wait_for_line("ready");
    other.wait().expect_code(0);
}
