//! Readers together, a writer alone, nobody overtakes; and runs inside runs.

use crate::support::{Host, Job, Run, hold, nested, wait_until};

fn shared(host: &Host) -> Run {
    host.run().arg("--shared")
}

#[test]
fn readers_hold_it_together() {
    let host = Host::new();
    let mut readers: Vec<Job> = (0..5).map(|_| hold(shared(&host))).collect();
    shared(&host).arg("-n").sh("exit 4").done().expect_code(4);
    host.run().arg("-n").cmd(&["true"]).done().expect_code(75);
    host.run().args(&["-n", "-x"]).cmd(&["true"]).done().expect_code(75);
    // In another order than they came.
    for place in [2, 0, 2, 0] {
        readers.remove(place).wait().expect_code(0);
        assert!(!host.is_free(), "{} readers are still inside", readers.len());
    }
    readers.remove(0).wait().expect_code(0);
    assert!(host.is_free());
}

#[test]
fn a_writer_is_alone() {
    let host = Host::new();
    let writer = hold(host.run().arg("--exclusive"));
    shared(&host).arg("-n").sh("echo ran").done().expect_code(75);
    host.run().arg("-n").sh("echo ran").done().expect_code(75);
    writer.wait().expect_code(0);
    shared(&host).arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_reader_behind_a_waiting_writer_waits_for_it() {
    let host = Host::new();
    let first = hold(shared(&host));
    let writer = host.noting_waiter("writer", 1);
    let late = host.waiter(shared(&host).dir(host.path()).sh("echo reader >> order"), 2);
    shared(&host).arg("-n").sh("echo ran").done().expect_code(75);
    host.queued(2);
    assert_eq!(host.order(), Vec::<String>::new(), "nobody overtook");
    first.wait().expect_code(0);
    writer.wait().expect_code(0);
    late.wait().expect_code(0);
    assert_eq!(host.order(), ["writer", "reader"]);
}

#[test]
fn neighbouring_readers_come_in_together_when_the_writer_has_gone() {
    let host = Host::new();
    let writer = hold(host.run());
    let script = "echo ready; read x; exit 0";
    let readers: Vec<Job> =
        (1..=4).map(|place| host.waiter(shared(&host).stdin_pipe().sh(script), place)).collect();
    let last = host.noting_waiter("last", 5);
    writer.wait().expect_code(0);
    for reader in &readers {
        reader.wait_for_line("ready"); // all four while none of them has left
    }
    assert_eq!(host.order(), Vec::<String>::new());
    for reader in readers {
        reader.wait().expect_code(0);
    }
    last.wait().expect_code(0);
}

#[test]
fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    let host = Host::new();
    let first = hold(shared(&host));
    let writer = host.waiter(host.run().args(&["-w", "1"]).sh("echo ran"), 1);
    let reader = shared(&host).stdin_pipe().sh("echo ready; read x").spawn();
    assert_eq!(writer.wait().expect_code(75).stdout, "");
    reader.wait_for_line("ready");
    drop(reader);
    first.wait().expect_code(0);
}

#[test]
fn an_attempt_of_a_writer_keeps_no_reader_out() {
    let host = Host::new();
    let first = hold(shared(&host));
    std::thread::scope(|scope| {
        let writers = scope.spawn(|| {
            for _ in 0..60 {
                host.run().arg("-n").cmd(&["true"]).done().expect_code(75);
            }
        });
        while !writers.is_finished() {
            // Only readers hold it, and nobody waits.
            shared(&host).arg("-n").cmd(&["true"]).done().expect_code(0);
        }
    });
    first.wait().expect_code(0);
}

#[test]
fn a_run_inside_a_run_of_the_same_key_fails_at_once_instead_of_waiting_for_itself() {
    let (host, other) = (Host::new(), Host::new());
    assert_eq!(nested(host.run(), host.run()), "inner=64\n");
    assert_eq!(nested(host.run(), host.run().args(&["-w", "50"])), "inner=64\n");
    assert_eq!(nested(host.run(), shared(&host)), "inner=64\n");
    assert_eq!(nested(shared(&host), host.run()), "inner=64\n");
    // Two levels down it is still the ancestor's.
    let deep = host.run_on("j").sh(&host.run().cmd(&["true"]).shell_line());
    let done = host.run().sh(&format!("{}; echo inner=$?", deep.shell_line())).done();
    assert_eq!(done.stdout, "inner=64\n", "{done:?}");
    // Another key, or the same in another folder, is another lock.
    assert_eq!(nested(host.run(), host.run_on("j")), "ran\ninner=0\n");
    assert_eq!(nested(host.run(), other.run()), "ran\ninner=0\n");
    assert!(host.is_free());
}

#[test]
fn a_reader_inside_a_reader_works() {
    let host = Host::new();
    assert_eq!(nested(shared(&host), shared(&host)), "ran\ninner=0\n");
    assert!(host.is_free());
}

#[test]
fn a_reader_inside_a_reader_does_not_wait_for_a_writer_that_waits_for_the_outer_one() {
    let host = Host::new();
    let inner = shared(&host).cmd(&["echo", "ran"]).shell_line();
    let script = format!("echo ready; read x; {inner}; echo inner=$?");
    let mut outer = shared(&host).stdin_pipe().sh(&script).spawn();
    outer.wait_for_line("ready");
    let writer = host.waiter(host.run().cmd(&["true"]), 1);
    drop(outer.take_stdin());
    // Either way out is fine, but not a wait that never ends.
    let ended = outer.wait_for_line("inner=");
    assert!(["inner=0", "inner=64"].contains(&ended.as_str()), "{ended}");
    outer.wait().expect_code(0);
    writer.wait().expect_code(0);
}

#[test]
fn a_writer_inside_a_reader_is_found_out_among_other_readers() {
    let host = Host::new();
    let before = hold(shared(&host));
    let inner = host.run().cmd(&["echo", "ran"]).shell_line();
    let script = format!("echo ready; read x; {inner}; echo inner=$?");
    let mut outer = shared(&host).stdin_pipe().sh(&script).spawn();
    outer.wait_for_line("ready");
    let after: Vec<Job> = (0..3).map(|_| hold(shared(&host))).collect();
    drop(outer.take_stdin());
    assert_eq!(outer.wait_for_line("inner="), "inner=64");
    outer.wait().expect_code(0);
    drop((before, after));
}

#[test]
fn a_writer_inside_a_long_reader_is_found_out_after_many_other_readers() {
    let host = Host::new();
    let inner = host.run().cmd(&["echo", "ran"]).shell_line();
    let script = format!("echo ready; read x; {inner}; echo inner=$?");
    let mut outer = shared(&host).stdin_pipe().sh(&script).spawn();
    outer.wait_for_line("ready");
    for _ in 0..130 {
        shared(&host).cmd(&["true"]).done().expect_code(0);
    }
    drop(outer.take_stdin());
    assert_eq!(outer.wait_for_line("inner="), "inner=64");
    outer.wait().expect_code(0);
}

#[test]
fn a_wait_for_readers_names_one_that_is_still_there() {
    let host = Host::new();
    let first = hold(shared(&host).args(&["--label", "first"]));
    let second = hold(shared(&host).args(&["--label", "second"]));
    let tried = || host.run().arg("-n").cmd(&["true"]).done().expect_code(75).stderr;
    assert!(tried().contains("first") || tried().contains("second"), "{}", tried());
    first.wait().expect_code(0);
    wait_until("only the second is named", || !tried().contains("first") && tried().contains("second"));
    second.wait().expect_code(0);
    assert!(host.is_free());
}

#[test]
fn a_long_reader_is_still_known_after_many_short_ones() {
    let host = Host::new();
    let long = hold(host.run().args(&["-s", "--label", "the-long-one"]));
    for _ in 0..70 {
        host.run().arg("-s").cmd(&["true"]).done().expect_code(0);
    }
    let done = host.run().arg("-n").cmd(&["true"]).done().expect_code(75);
    assert!(done.stderr.contains("the-long-one"), "{done:?}");
    long.wait().expect_code(0);
}
