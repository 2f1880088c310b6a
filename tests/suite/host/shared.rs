//! The lock file keeps track of its readers, however many come and go.

use crate::support::{Host, hold, wait_until};

#[test]
fn a_writer_inside_a_long_reader_is_detected_after_many_other_readers() {
    let host = Host::new();
    let inner = host.run().cmd(&["echo", "ran"]).shell_line();
    let script = format!("echo ready; read x; {inner}; echo inner=$?");
    let mut outer = host.run().arg("--shared").stdin_pipe().sh(&script).spawn();
    outer.wait_for_line("ready");
    for _ in 0..130 {
        host.run().arg("--shared").cmd(&["true"]).done().expect_code(0);
    }
    drop(outer.take_stdin());
    assert_eq!(outer.wait_for_line("inner="), "inner=64");
    outer.wait().expect_code(0);
}

#[test]
fn a_wait_for_readers_names_one_that_still_holds() {
    let host = Host::new();
    let first = hold(host.run().arg("--shared").args(&["--label", "first"]));
    let second = hold(host.run().arg("--shared").args(&["--label", "second"]));
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
