//! Many on the locks of this host: nobody waits in vain, and everybody is known.

mod support;

use support::{Host, hold, nested};

#[test]
fn a_run_that_would_wait_for_its_ancestor_does_not_wait_for_others_first() {
    let host = Host::new();
    let other = hold(host.run_on("b"));
    assert_eq!(nested(host.run_on("z"), host.run_on("z").args(&["--key", "b"])), "inner=64\n");
    other.wait().expect_code(0);
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
