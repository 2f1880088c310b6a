//! What `--prefer` and `--reader-group` promise, on whatever site.

use nix::sys::signal::Signal::SIGTERM;

use super::{Job, Run, Site, hold};

const WRITERS: [&str; 2] = ["--prefer", "writers"];
const READERS: [&str; 2] = ["--prefer", "readers"];

/// A reader of this group.
fn member(site: &Site, group: &str) -> Run {
    site.reader().args(&["--reader-group", group])
}

fn all_end_well(jobs: impl IntoIterator<Item = Job>) {
    jobs.into_iter().for_each(|job| drop(job.wait().expect_code(0)));
}

pub fn a_preferring_writer_goes_before_all_who_wait_without_that_preference(site: &Site) {
    let first = hold(site.run());
    let waiters = [
        site.noting_waiter(site.reader(), "reader", 1),
        site.noting_waiter(site.run(), "writer", 2),
        site.noting_waiter(site.run().args(&WRITERS), "preferring", 3),
        site.noting_waiter(site.run().args(&WRITERS), "another", 4),
    ];
    first.wait().expect_code(0);
    all_end_well(waiters);
    assert_eq!(site.order(), ["preferring", "another", "reader", "writer"]);
}

pub fn a_preferring_writer_keeps_new_readers_out(site: &Site) {
    let first = hold(site.reader());
    let writer = site.noting_waiter(site.run().args(&WRITERS), "writer", 1);
    assert!(!site.lets_in(site.reader()));
    let late = site.noting_waiter(site.reader(), "reader", 2);
    first.wait().expect_code(0);
    all_end_well([writer, late]);
    assert_eq!(site.order(), ["writer", "reader"]);
}

pub fn a_preferring_writer_that_is_cancelled_lets_the_readers_in(site: &Site) {
    let first = hold(site.reader());
    let writer = site.waiter(site.run().args(&WRITERS).sh("echo ran"), 1);
    let reader = site.holding_waiter(site.reader(), 2);
    writer.signal(SIGTERM);
    assert_eq!(writer.wait().stdout, "");
    reader.wait_for_line("ready"); // while the first one is still inside
    all_end_well([first, reader]);
}

pub fn a_preferring_reader_joins_readers_past_a_waiting_writer(site: &Site) {
    let first = hold(site.reader());
    let writer = site.noting_waiter(site.run(), "writer", 1);
    assert!(!site.lets_in(site.reader()), "without the preference nobody overtakes");
    let second = hold(site.reader().args(&READERS).arg("-n"));
    first.wait().expect_code(0);
    let third = hold(site.reader().args(&READERS).arg("-n"));
    assert!(!site.lets_in(site.reader()));
    second.wait().expect_code(0);
    assert_eq!(site.order(), Vec::<String>::new(), "the writer waits for the last of them");
    all_end_well([third, writer]);
}

pub fn a_waiting_preferring_reader_enters_with_the_readers_that_begin(site: &Site) {
    let first = hold(site.run());
    let reader = site.holding_waiter(site.reader(), 1);
    let writer = site.noting_waiter(site.run(), "writer", 2);
    let preferring = site.holding_waiter(site.reader().args(&READERS), 3);
    let last = site.noting_waiter(site.reader(), "reader", 4);
    first.wait().expect_code(0);
    reader.wait_for_line("ready");
    preferring.wait_for_line("ready");
    assert_eq!(site.order(), Vec::<String>::new());
    all_end_well([reader, preferring, writer, last]);
    assert_eq!(site.order(), ["writer", "reader"]);
}

pub fn a_preferring_reader_waits_for_a_writer_whose_turn_it_is(site: &Site) {
    // No readers hold and none begin: there is nobody to join.
    let first = hold(site.run());
    let writer = site.noting_waiter(site.run(), "writer", 1);
    let reader = site.noting_waiter(site.reader().args(&READERS), "reader", 2);
    first.wait().expect_code(0);
    all_end_well([writer, reader]);
    assert_eq!(site.order(), ["writer", "reader"]);
}

pub fn a_preference_for_the_other_mode_has_no_effect(site: &Site) {
    let first = hold(site.run());
    let waiters = [
        site.noting_waiter(site.run(), "1", 1),
        site.noting_waiter(site.reader().args(&WRITERS), "2", 2),
        site.noting_waiter(site.run().args(&READERS), "3", 3),
        site.noting_waiter(site.run().args(&["--prefer", "fair"]), "4", 4),
    ];
    first.wait().expect_code(0);
    all_end_well(waiters);
    assert_eq!(site.order(), ["1", "2", "3", "4"]);
    let reader = hold(site.reader());
    assert!(!site.lets_in(site.run().args(&READERS)), "a writer joins nobody");
    reader.wait().expect_code(0);
}

pub fn groups_of_readers_exclude_each_other(site: &Site) {
    let first = hold(member(site, "a"));
    let second = hold(member(site, "a").arg("-n"));
    assert!(!site.lets_in(member(site, "b")));
    assert!(!site.lets_in(site.reader()), "without a name it is another group");
    assert!(!site.lets_in(site.run()));
    all_end_well([first, second]);
    let unnamed = hold(site.reader());
    assert!(site.lets_in(site.reader()));
    assert!(!site.lets_in(member(site, "a")));
    unnamed.wait().expect_code(0);
    assert!(site.lets_in(member(site, "b")));
}

pub fn any_text_is_the_name_of_a_group(site: &Site) {
    // Such as one that looks like something of ours.
    for name in ["slots:2", "my slots:2", "shared", "exclusive", "a:b", "ä \" '", "{}", "-"] {
        let group = || site.reader().arg(format!("--reader-group={name}"));
        let writer = hold(site.run());
        assert!(!site.lets_in(group()), "{name:?}");
        writer.wait().expect_code(0);
        let first = hold(group());
        assert!(site.lets_in(group()), "{name:?}");
        assert!(!site.lets_in(site.reader()) && !site.lets_in(member(site, "b")), "{name:?}");
        first.wait().expect_code(0);
    }
}

pub fn neighbours_of_one_group_enter_together_and_of_another_in_turn(site: &Site) {
    let first = hold(site.run());
    let together = [site.holding_waiter(member(site, "a"), 1), site.holding_waiter(member(site, "a"), 2)];
    let other = site.noting_waiter(member(site, "b"), "b", 3);
    let again = site.noting_waiter(member(site, "a"), "a", 4);
    first.wait().expect_code(0);
    together.iter().for_each(|job| drop(job.wait_for_line("ready")));
    all_end_well(together);
    all_end_well([other, again]);
    // Had the last one entered with its own group, it would be the first here.
    assert_eq!(site.order(), ["b", "a"]);
}

pub fn a_preferring_reader_joins_its_own_group_only(site: &Site) {
    let first = hold(member(site, "a"));
    let other = site.noting_waiter(member(site, "b"), "b", 1);
    let writer = site.noting_waiter(site.run(), "writer", 2);
    assert!(!site.lets_in(member(site, "a")));
    assert!(!site.lets_in(member(site, "b").args(&READERS)));
    assert!(!site.lets_in(site.reader().args(&READERS)));
    assert!(site.lets_in(member(site, "a").args(&READERS)), "past all who wait");
    first.wait().expect_code(0);
    all_end_well([other, writer]);
    assert_eq!(site.order(), ["b", "writer"]);
}

pub fn a_waiting_preferring_reader_enters_with_its_own_group_only(site: &Site) {
    let first = hold(site.run());
    let reader = site.holding_waiter(member(site, "a"), 1);
    let writer = site.noting_waiter(site.run(), "writer", 2);
    let other = site.noting_waiter(member(site, "b").args(&READERS), "b", 3);
    let preferring = site.holding_waiter(member(site, "a").args(&READERS), 4);
    first.wait().expect_code(0);
    reader.wait_for_line("ready");
    preferring.wait_for_line("ready");
    all_end_well([reader, preferring, writer, other]);
    assert_eq!(site.order(), ["writer", "b"]);
}

pub fn the_environment_can_say_it_and_what_is_typed_beats_it(site: &Site) {
    let first = hold(site.reader().env("REDLOCK_READER_GROUP", "a"));
    let writer = site.noting_waiter(site.run(), "writer", 1);
    let inherits = |value: &str| site.reader().env("REDLOCK_READER_GROUP", "a").env("REDLOCK_PREFER", value);
    assert!(site.lets_in(inherits("readers")));
    assert!(!site.lets_in(inherits("")), "empty is not set");
    assert!(!site.lets_in(inherits("readers").args(&["--prefer", "fair"])));
    assert!(!site.lets_in(inherits("readers").args(&["--reader-group", "b"])));
    first.wait().expect_code(0);
    writer.wait().expect_code(0);
    // A group that is only inherited does not hinder a writer.
    assert!(site.lets_in(site.run().env("REDLOCK_READER_GROUP", "a")));
    assert!(site.lets_in(site.run().arg("-x").env("REDLOCK_READER_GROUP", "a").env("REDLOCK_SHARED", "1")));
}

pub fn what_makes_no_sense_is_a_usage_error(site: &Site) {
    let refused = |run: Run, word: &str| {
        let done = run.sh("echo ran").done().expect_code(64).expect_said(&[word]);
        assert_eq!(done.stdout, "");
    };
    refused(site.run().args(&["--prefer", "me"]), "prefer");
    refused(site.run().args(&["--prefer", ""]), "prefer");
    refused(site.run().env("REDLOCK_PREFER", "everybody"), "prefer");
    refused(site.run().args(&["--reader-group", "a"]), "group");
    refused(site.run().args(&["-x", "--reader-group", "a"]).env("REDLOCK_SHARED", "1"), "group");
    refused(site.run().args(&["-s", "-x"]), "exclusive");
}
