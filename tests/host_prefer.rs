//! Who goes first, and who goes together, on this host: `--prefer` and `--reader-group`.

mod support;

use nix::sys::signal::Signal;
use support::prefer::*;
use support::{Site, hold};

promises!(this_host:
    a_preferring_writer_goes_before_all_who_wait_without_that_preference,
    a_preferring_writer_keeps_new_readers_out,
    a_preferring_writer_that_is_cancelled_lets_the_readers_in,
    a_preferring_reader_joins_readers_past_a_waiting_writer,
    a_waiting_preferring_reader_enters_with_the_readers_that_begin,
    a_preferring_reader_waits_for_a_writer_whose_turn_it_is,
    a_preference_for_the_other_mode_has_no_effect,
    groups_of_readers_exclude_each_other,
    any_text_is_the_name_of_a_group,
    neighbours_of_one_group_enter_together_and_of_another_in_turn,
    a_preferring_reader_joins_its_own_group_only,
    a_waiting_preferring_reader_enters_with_its_own_group_only,
    the_environment_can_say_it_and_what_is_typed_beats_it,
    what_makes_no_sense_is_a_usage_error,
);

#[test]
fn a_preferring_writer_that_is_killed_lets_the_readers_in_at_once() {
    let site = Site::this_host();
    let first = hold(site.reader());
    let writer = site.waiter(site.run().args(&["--prefer", "writers"]).sh("echo ran"), 1);
    let reader = site.holding_waiter(site.reader(), 2);
    writer.signal(Signal::SIGKILL);
    writer.wait();
    reader.wait_for_line("ready"); // while the first one is still inside
    reader.wait().expect_code(0);
    first.wait().expect_code(0);
}

#[test]
fn a_killed_member_makes_room_for_another_group_at_once() {
    let site = Site::this_host();
    let first = hold(site.reader().args(&["--reader-group", "a"]));
    let second = hold(site.reader().args(&["--reader-group", "a"]));
    let other = site.holding_waiter(site.reader().args(&["--reader-group", "b"]), 1);
    first.signal(Signal::SIGKILL);
    first.wait();
    assert!(!site.lets_in(site.run()), "the second is still inside");
    assert_eq!(other.stdout_so_far(), "");
    second.signal(Signal::SIGKILL);
    second.wait();
    other.wait_for_line("ready");
    other.wait().expect_code(0);
}
