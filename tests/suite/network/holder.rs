//! The holder's host loses the servers.

use std::time::Duration;

use super::{hold, queue, stopped};
use crate::support::nodes::{pttl, renewed};
use crate::support::{Journal, Network, queued, wait_until};

/// Hosts 1 to 3 have a server each, or host 1 alone; the holder is on host 4, the next run on 5.
const HOLDER: u8 = 4;
const NEXT: u8 = 5;

/// The holder is stopped, and the next run starts after that.
#[track_caller]
fn assert_stopped(network: &Network, servers: &[u8], cut: impl FnOnce(&Network)) {
    let (servers, journal) = (network.servers(servers), Journal::new());
    let run = || servers.run("k", "4s");
    let holder = hold(network.host(HOLDER), run(), &journal, "holder");
    let next = queue(network.host(NEXT), run(), &journal, "next");
    servers.0[0].ask(|gate| queued(gate, "k", 1));
    cut(network);
    stopped(holder);
    next.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder", "next"]);
    assert!(!journal.has_ended("holder"), "it was stopped");
    network.mend();
    servers.wait_until_free("k");
}

#[test]
fn a_holder_that_is_cut_off_from_one_server_is_stopped_before_the_next_one_starts() {
    assert_stopped(&network!(5), &[1], |network| network.cut_off(HOLDER));
}

#[test]
fn a_holder_that_is_cut_off_from_three_servers_is_stopped_before_the_next_one_starts() {
    assert_stopped(&network!(5), &[1, 2, 3], |network| network.cut_off(HOLDER));
}

#[test]
fn a_holder_whose_requests_are_lost_is_stopped_before_the_next_one_starts() {
    assert_stopped(&network!(5), &[1, 2, 3], |network| {
        (1..=3).for_each(|server| network.cut_one_way(HOLDER, server));
    });
}

/// The servers execute its renewals, but it cannot know.
#[test]
fn a_holder_that_gets_no_replies_is_stopped_before_the_next_one_starts() {
    assert_stopped(&network!(5), &[1, 2, 3], |network| {
        (1..=3).for_each(|server| network.cut_one_way(server, HOLDER));
    });
}

#[test]
fn a_holder_on_a_flapping_line_keeps_its_lock() {
    let network = network!(5);
    let (servers, journal) = (network.servers(&[1, 2, 3]), Journal::new());
    let run = || servers.run("k", "5s");
    let holder = hold(network.host(HOLDER), run(), &journal, "holder");
    let next = queue(network.host(NEXT), run(), &journal, "next");
    servers.0[0].ask(|gate| queued(gate, "k", 1));
    for _ in 0..6 {
        network.cut_off(HOLDER);
        std::thread::sleep(Duration::from_millis(1000)); // the length of a cut
        network.join(HOLDER);
        std::thread::sleep(Duration::from_millis(800)); // the time between two
    }
    holder.wait().expect_code(0);
    next.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder", "next"]);
    assert!(journal.has_ended("holder"));
    servers.wait_until_free("k");
}

/// Its last renewal is unanswered when the command ends. It must not arrive later and hold the lock
/// for another lease.
#[test]
fn a_renewal_of_a_run_that_has_ended_holds_nothing() {
    let network = network!(4);
    let (servers, journal) = (network.servers(&[1, 2, 3]), Journal::new());
    let holder = hold(network.host(HOLDER), servers.run("k", "12s").arg("-v"), &journal, "holder");
    servers.0[0].ask(|redis| renewed(redis, "k", 1));
    network.cut_off(HOLDER);
    holder.wait_for_stderr("cannot renew");
    holder.wait().expect_code(0);
    let left = |at: usize| servers.0[at].ask(|redis| pttl(redis, "k"));
    let mut before: Vec<i64> = (0..3).map(left).collect();
    assert!(before.iter().all(|left| *left > 0), "the claims are left: {before:?}");
    network.mend();
    wait_until("the claims have expired", || {
        let now: Vec<i64> = (0..3).map(left).collect();
        assert!(now.iter().zip(&before).all(|(now, before)| now <= before), "{now:?} after {before:?}");
        before = now;
        before.iter().all(|left| *left < 0)
    });
}
