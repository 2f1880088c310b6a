//! Two sites lose each other: one has two of the three servers, the other one.

use super::{hold, queue, stopped};
use crate::support::{Journal, queued};

/// Hosts 1 to 3 have a server each; host 5 is at the site of host 1, host 4 at that of 2 and 3.
const LARGE: u8 = 4;
const SMALL: u8 = 5;
const SMALL_SITE: [u8; 2] = [1, SMALL];

#[test]
fn the_large_site_takes_over_the_lock_of_the_small_one() {
    let network = network!(5);
    let (servers, journal) = (network.servers(&[1, 2, 3]), Journal::new());
    let run = || servers.run("k", "4s");
    let holder = hold(network.host(SMALL), run(), &journal, "small");
    let next = queue(network.host(LARGE), run(), &journal, "large");
    servers.0[0].ask(|gate| queued(gate, "k", 1));
    network.split(&SMALL_SITE);
    stopped(holder);
    next.wait().expect_code(0);
    assert_eq!(journal.started(), ["small", "large"]);
    network.mend();
    servers.wait_until_free("k");
}

#[test]
fn the_large_site_keeps_its_lock_and_the_small_one_waits() {
    let network = network!(5);
    let (servers, journal) = (network.servers(&[1, 2, 3]), Journal::new());
    let run = || servers.run("k", "4s");
    let holder = hold(network.host(LARGE), run(), &journal, "large");
    let waiter = queue(network.host(SMALL), run(), &journal, "small");
    servers.0[0].ask(|gate| queued(gate, "k", 1));
    network.split(&SMALL_SITE);
    // The claim at the small site's server has expired.
    servers.0[1].ask(|redis| crate::support::nodes::renewed(redis, "k", 4));
    network.mend();
    holder.wait().expect_code(0);
    waiter.wait().expect_code(0);
    assert_eq!(journal.started(), ["large", "small"]);
    servers.wait_until_free("k");
}
