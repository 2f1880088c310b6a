//! Groups, preferences and slots on this host, when a participant is killed or stopped.

use std::fs::{self, File};
use std::path::Path;

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGTERM};

use crate::support::host::is_locked;
use crate::support::{Host, Job, Run, expect_success, hold, wait_until};

/// A command that prints its slot, and stays.
const PRINT_SLOT: &str = "echo slot=$REDLOCK_SLOT; read x; exit 0";

fn slots(host: &Host, n: u32) -> Run {
    host.run().args(&["--slots", &n.to_string()])
}

fn holding_slot(host: &Host, n: u32) -> Job {
    let job = slots(host, n).stdin_pipe().sh(PRINT_SLOT).spawn();
    job.wait_for_line("slot=");
    job
}

fn group(host: &Host, name: &str) -> Run {
    host.run().args(&["--shared", "--reader-group", name])
}

/// Queued at this position, with a command that appends the word to the log.
fn noting(host: &Host, args: &[&str], word: &str, position: usize) -> Job {
    host.waiter(host.run().args(args).dir(host.path()).sh(&format!("echo {word} >> order")), position)
}

/// The threads that sleep until a holder exits.
fn sleepers(pid: i32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a living process");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name == "wait\n").count()
}

fn truncate(file: &Path) {
    File::options().write(true).open(file).unwrap().set_len(0).unwrap();
}

#[test]
fn the_slot_of_a_killed_holder_goes_to_the_first_waiter() {
    let host = Host::new();
    let mut holders: Vec<Job> = (0..3).map(|_| holding_slot(&host, 3)).collect();
    let first = host.waiter(slots(&host, 3).stdin_pipe().sh(PRINT_SLOT), 1);
    let second = host.waiter(slots(&host, 3).stdin_pipe().sh(PRINT_SLOT), 2);
    holders[1].signal(SIGKILL);
    assert_eq!(first.wait_for_line("slot="), "slot=1");
    assert_eq!(second.stdout_so_far(), "");
    host.queued(1);
    // A waiter's own death frees nothing.
    let dead = host.waiter(slots(&host, 3).sh("echo ran"), 2);
    dead.signal(SIGKILL);
    dead.wait();
    host.queued(1);
    slots(&host, 3).arg("-n").sh("echo ran").done().expect_code(75);
    holders.remove(2).wait().expect_code(0);
    assert_eq!(second.wait_for_line("slot="), "slot=2");
    expect_success(vec![first, second, holders.remove(0)]);
    assert!(!is_locked(&host.file()), "nothing is left in the kernel");
}

#[test]
fn no_waiter_overtakes_a_stopped_waiter_for_a_slot() {
    let host = Host::new();
    let holders: Vec<Job> = (0..2).map(|_| holding_slot(&host, 2)).collect();
    let sleeper = noting(&host, &["--slots", "2"], "sleeper", 1);
    let behind = noting(&host, &["--slots", "2"], "behind", 2);
    sleeper.stop();
    expect_success(holders);
    slots(&host, 2).arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(host.order(), Vec::<String>::new());
    sleeper.signal(SIGCONT);
    expect_success(vec![sleeper, behind]);
    assert_eq!(host.order().len(), 2);
}

#[test]
fn a_stopped_holder_keeps_its_slot_and_the_others_continue() {
    let host = Host::new();
    let (stopped, other) = (holding_slot(&host, 2), holding_slot(&host, 2));
    stopped.stop();
    let next = host.waiter(slots(&host, 2).sh("echo slot=$REDLOCK_SLOT"), 1);
    other.wait().expect_code(0);
    assert_eq!(next.wait().expect_code(0).stdout, "slot=1\n");
    stopped.signal(SIGCONT);
    stopped.wait().expect_code(0);
}

#[test]
fn threads_that_waited_for_other_slots_disturb_no_holder() {
    let host = Host::new();
    let mut holders: Vec<Job> = (0..8).map(|_| holding_slot(&host, 8)).collect();
    let waiter = host.waiter(slots(&host, 8).stdin_pipe().sh(PRINT_SLOT), 1);
    wait_until("a thread sleeps for each slot", || sleepers(waiter.pid()) == 8);
    let file = host.file();
    holders.remove(3).wait().expect_code(0);
    assert_eq!(waiter.wait_for_line("slot="), "slot=3");
    wait_until("the threads have exited", || sleepers(waiter.pid()) == 0);
    for number in [0, 1, 2, 4, 5, 6, 7] {
        holders.remove(0).wait().expect_code(0);
        let lowest = slots(&host, 8).arg("-n").sh("echo $REDLOCK_SLOT").done().expect_code(0).stdout;
        assert_eq!(lowest, "0\n", "after {number} has gone");
    }
    let full: Vec<Job> = (0..7).map(|_| holding_slot(&host, 8)).collect();
    slots(&host, 8).arg("-n").sh("echo ran").done().expect_code(75);
    expect_success(full);
    waiter.wait().expect_code(0);
    assert!(!is_locked(&file));
}

#[test]
fn many_slots_need_no_more_descriptors_than_few() {
    const SLOTS: u32 = 120;
    let host = Host::new();
    let holders: Vec<Job> = (0..SLOTS).map(|_| holding_slot(&host, SLOTS)).collect();
    let limited = slots(&host, SLOTS).via("ulimit -n 32; exec \"$@\"").sh("echo slot=$REDLOCK_SLOT");
    let waiter = host.waiter(limited, 1);
    wait_until("a thread sleeps for each slot", || sleepers(waiter.pid()) == SLOTS as usize);
    holders[77].signal(SIGKILL);
    assert_eq!(waiter.wait().expect_code(0).stdout, "slot=77\n");
}

#[test]
fn truncating_the_file_frees_no_slot_and_mixes_no_groups() {
    let host = Host::new();
    let holders: Vec<Job> = (0..2).map(|_| holding_slot(&host, 2)).collect();
    truncate(&host.file());
    slots(&host, 2).arg("-n").sh("echo ran").done().expect_code(75);
    host.run().arg("-n").sh("echo ran").done().expect_code(78).expect_stderr(&["--slots 2"]);
    expect_success(holders);
    let reader = hold(group(&host, "a"));
    truncate(&host.file());
    group(&host, "b").arg("-n").sh("echo ran").done().expect_code(75);
    host.run().args(&["--shared", "-n"]).sh("echo ran").done().expect_code(75);
    group(&host, "a").arg("-n").sh("exit 4").done().expect_code(4);
    slots(&host, 2).arg("-n").sh("echo ran").done().expect_code(78).expect_stderr(&["without --slots"]);
    reader.wait().expect_code(0);
}

#[test]
fn a_single_waiter_determines_how_the_key_is_used() {
    let host = Host::new();
    let holder = hold(host.run());
    let waiter = noting(&host, &["--shared"], "reader", 1);
    waiter.stop();
    holder.wait().expect_code(0);
    slots(&host, 3).sh("echo ran").done().expect_code(78).expect_stderr(&["--slots 1"]);
    waiter.signal(SIGCONT);
    waiter.wait().expect_code(0);
    slots(&host, 3).sh("exit 4").done().expect_code(4);
}

#[test]
fn the_other_group_enters_when_the_last_reader_of_this_one_is_killed() {
    let host = Host::new();
    let (one, two) = (hold(group(&host, "a")), hold(group(&host, "a")));
    let other = host.waiter(group(&host, "b").stdin_pipe().sh("echo in; read x; exit 0"), 1);
    one.signal(SIGKILL);
    one.wait();
    // Behind a waiter, being of the same group does not help.
    group(&host, "a").arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(other.stdout_so_far(), "");
    two.signal(SIGKILL);
    other.wait_for_line("in");
    group(&host, "b").arg("-n").sh("exit 4").done().expect_code(4);
    group(&host, "a").arg("-n").sh("echo ran").done().expect_code(75);
    other.wait().expect_code(0);
}

#[test]
fn neighbours_of_one_group_enter_together_and_groups_take_turns() {
    let host = Host::new();
    let writer = hold(host.run());
    let script = "echo in; read x; exit 0";
    let names = ["a", "a", "b", "b", "a"];
    let readers: Vec<Job> = (names.iter().enumerate())
        .map(|(i, name)| host.waiter(group(&host, name).stdin_pipe().sh(script), i + 1))
        .collect();
    writer.wait().expect_code(0);
    let mut readers = readers.into_iter();
    for together in [2, 2, 1] {
        let now: Vec<Job> = readers.by_ref().take(together).collect();
        now.iter().for_each(|reader| drop(reader.wait_for_line("in")));
        host.queued(readers.len());
        assert!(readers.as_slice().iter().all(|later| later.stdout_so_far().is_empty()));
        expect_success(now);
    }
}

#[test]
fn preferring_writers_go_first_in_their_order_even_if_one_dies() {
    let host = Host::new();
    let holder = hold(host.run().arg("--shared"));
    let writers = ["--prefer", "writers"];
    let mut jobs = vec![noting(&host, &[], "f1", 1), noting(&host, &["-s", "--prefer", "writers"], "f2", 2)];
    jobs.push(noting(&host, &writers, "p1", 3));
    let dead = noting(&host, &writers, "dead", 4);
    jobs.push(noting(&host, &writers, "p2", 5));
    jobs.push(noting(&host, &[], "f3", 6));
    dead.signal(SIGKILL);
    dead.wait();
    host.queued(5);
    truncate(&host.file());
    jobs.push(noting(&host, &writers, "p3", 6));
    holder.wait().expect_code(0);
    expect_success(jobs);
    assert_eq!(host.order(), ["p1", "p2", "p3", "f1", "f2", "f3"]);
}

#[test]
fn others_wait_for_a_stopped_preferred_writer_until_it_gives_up() {
    let host = Host::new();
    let holder = hold(host.run());
    let fair = noting(&host, &[], "fair", 1);
    let stopped = noting(&host, &["--prefer", "writers"], "stopped", 2);
    let later = noting(&host, &[], "later", 3);
    stopped.stop();
    holder.wait().expect_code(0);
    assert!(!host.is_free(), "the others do not overtake it");
    assert_eq!(host.order(), Vec::<String>::new());
    stopped.signal(SIGTERM);
    stopped.signal(SIGCONT);
    stopped.wait();
    expect_success(vec![fair, later]);
    assert_eq!(host.order(), ["fair", "later"]);
}

#[test]
fn readers_that_prefer_readers_join_when_readers_begin_to_hold() {
    let host = Host::new();
    let writer = hold(host.run());
    let script = "echo in; read x; exit 0";
    let first = host.waiter(host.run().arg("--shared").stdin_pipe().sh(script), 1);
    let between = noting(&host, &[], "between", 2);
    let prefers = ["--shared", "--prefer", "readers"];
    let joins = host.waiter(host.run().args(&prefers).stdin_pipe().sh(script), 3);
    let stays_out = noting(&host, &["--shared"], "reader", 4);
    let other = noting(&host, &["--shared", "--prefer", "readers", "--reader-group", "b"], "other", 5);
    writer.wait().expect_code(0);
    first.wait_for_line("in");
    joins.wait_for_line("in"); // overtaking the writer in between
    host.queued(3);
    host.run().args(&prefers).args(&["-n"]).sh("exit 4").done().expect_code(4);
    host.run().args(&prefers).args(&["-n", "--reader-group", "b"]).sh("echo ran").done().expect_code(75);
    // Only this reader still holds the lock.
    first.wait().expect_code(0);
    host.run().args(&prefers).args(&["-n"]).sh("exit 4").done().expect_code(4);
    assert_eq!(host.order(), Vec::<String>::new());
    joins.wait().expect_code(0);
    expect_success(vec![between, stays_out, other]);
    assert_eq!(host.order()[0], "between");
}

#[test]
fn a_killed_reader_that_joined_leaves_nothing() {
    let host = Host::new();
    let first = hold(host.run().arg("--shared"));
    let writer = noting(&host, &[], "writer", 1);
    let joined = hold(host.run().args(&["--shared", "--prefer", "readers"]));
    joined.signal(SIGKILL);
    joined.wait();
    first.wait().expect_code(0);
    writer.wait().expect_code(0);
    assert!(!is_locked(&host.file()));
}

#[test]
fn a_nested_run_is_detected_in_all_modes() {
    let host = Host::new();
    let nested = |outer: Run, inner: Run| {
        let script = format!("{}; echo inner=$?", inner.cmd(&["true"]).shell_line());
        outer.sh(&script).done().expect_code(0).stdout
    };
    assert_eq!(nested(group(&host, "a"), group(&host, "b")), "inner=64\n");
    assert_eq!(nested(group(&host, "a"), host.run().args(&["--prefer", "writers"])), "inner=64\n");
    assert_eq!(nested(host.run(), host.run().args(&["-s", "--prefer", "readers"])), "inner=64\n");
    assert_eq!(nested(slots(&host, 1), slots(&host, 1)), "inner=64\n");
    assert_eq!(nested(slots(&host, 2), slots(&host, 2)), "inner=0\n");
    let other = holding_slot(&host, 2);
    assert_eq!(nested(slots(&host, 2), slots(&host, 2).args(&["-w", "50"])), "inner=64\n");
    other.wait().expect_code(0);
}

#[test]
fn a_wait_for_a_slot_reports_position_and_number_of_holders() {
    let host = Host::new();
    let holders: Vec<Job> = (0..3).map(|_| holding_slot(&host, 3)).collect();
    let waiters: Vec<Job> =
        (1..3).map(|position| host.waiter(slots(&host, 3).cmd(&["true"]), position)).collect();
    let message = waiters[1].wait_for_stderr("waiting");
    let earliest = format!("pid {}", holders[0].pid());
    for part in ["place 2", &earliest, "and 2 others"] {
        assert!(message.contains(part), "{part:?} is missing in {message:?}");
    }
    expect_success(holders);
    expect_success(waiters);
}
