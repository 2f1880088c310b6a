//! Time limits on a host that is cut off while a run waits there.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{hold, queue};
use crate::support::{Journal, assert_takes_less_than, queued};

const HOLDER: u8 = 4;
const WAITER: u8 = 5;

#[track_caller]
fn assert_limits(hosts: &[u8]) {
    let network = network!(5);
    let (servers, journal) = (network.servers(hosts), Journal::new());
    let run = || servers.run("k", "30s");
    let holder = hold(network.host(HOLDER), run(), &journal, "holder");
    let wait = |args: &[&str]| {
        let waiter = queue(network.host(WAITER), run().args(args), &journal, "waiter");
        servers.0[0].ask(|gate| queued(gate, "k", 1));
        network.cut_off(WAITER);
        waiter
    };
    let mend = || {
        network.mend();
        // It could not leave the queue.
        servers.0[0].ask(|gate| queued(gate, "k", 0));
    };
    assert_takes_less_than(Duration::from_millis(4300), || {
        let started = Instant::now();
        wait(&["-w", "3s"]).wait().expect_code(69);
        let spent = started.elapsed();
        mend();
        spent
    });
    assert_takes_less_than(Duration::from_millis(1200), || {
        let waiter = wait(&[]);
        let signalled = Instant::now();
        waiter.signal(Signal::SIGTERM);
        assert_eq!(waiter.wait().signal, Some(Signal::SIGTERM as i32));
        let spent = signalled.elapsed();
        mend();
        spent
    });
    holder.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder"]);
}

#[test]
fn a_waiter_that_loses_one_server_keeps_its_limits() {
    assert_limits(&[1]);
}

#[test]
fn a_waiter_that_loses_three_servers_keeps_its_limits() {
    assert_limits(&[1, 2, 3]);
}
