//! This version beside the last one that was released, whose binary REDLOCK_TEST_RELEASED names.

use std::path::{Path, PathBuf};

use super::{at, share_a_lock};
use crate::support::{Host, Nodes, hold};

fn released() -> Option<PathBuf> {
    std::env::var_os("REDLOCK_TEST_RELEASED").map(PathBuf::from)
}

#[track_caller]
fn shares_a_lock_with(released: &Path, servers: usize) {
    let servers = Nodes::start(servers);
    let urls = servers.urls().join(",");
    let new = |command: &[&str]| at(&urls, command);
    let old = |command: &[&str]| at(&urls, command).program(released.to_owned());
    share_a_lock(&servers, new, old);
    share_a_lock(&servers, old, new);
}

/// No failure with REDLOCK_TEST_REQUIRE_ALL=1: there is no release yet.
fn no_release() {
    eprintln!("skipped: REDLOCK_TEST_RELEASED names no released binary");
}

#[test]
fn the_last_release_shares_locks_on_servers() {
    let Some(released) = released() else {
        return no_release();
    };
    shares_a_lock_with(&released, 1);
    shares_a_lock_with(&released, 3);
}

#[test]
fn the_last_release_shares_locks_on_this_host() {
    let Some(released) = released() else {
        return no_release();
    };
    let host = Host::new();
    let (new, old) = (|| host.run(), || host.run().program(released.clone()));
    let pairs: [[&dyn Fn() -> crate::support::Run; 2]; 2] = [[&new, &old], [&old, &new]];
    for [one, other] in pairs {
        let holder = hold(one());
        other().arg("-n").cmd(&["true"]).done().expect_code(75);
        let waiter = other().sh("echo got it").spawn();
        crate::support::wait_until("it waits", || {
            let status = host.subcommand("status").args(&["k", "--json"]).done().json();
            status["waiters"].as_array().map(Vec::len) == Some(1)
        });
        holder.wait().expect_code(0);
        assert_eq!(waiter.wait().expect_code(0).stdout, "got it\n");
    }
}
