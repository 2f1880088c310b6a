//! Versions of redlock that share a lock: what docs/wire.md promises.

mod contract;
mod pretender;
mod released;

use serde_json::Value;

use crate::support::{Job, Nodes, Run, hold, wait_until};

/// `redlock COMMAND` on these servers, none of which is quarantined.
fn at(urls: &str, command: &[&str]) -> Run {
    Run::bare().args(command).args(&["--redis", urls]).env("REDLOCK_QUARANTINE", "off")
}

fn run_at(urls: &str) -> Run {
    at(urls, &["run", "--key", "k"])
}

fn status(urls: &str) -> Value {
    Run::bare().args(&["status", "k", "--json", "--redis", urls]).done().expect_code(0).json()
}

/// The other client waits for the lock.
#[track_caller]
fn queued(servers: &Nodes, run: Run) -> Job {
    let job = run.sh("echo got it").spawn();
    wait_until("it waits", || {
        status(&servers.urls().join(","))["waiters"].as_array().map(Vec::len) == Some(1)
    });
    job
}

/// One client holds the lock; the other one waits, and gets it next. Then the first one extends and
/// releases a lock by the token of the other one.
#[track_caller]
fn share_a_lock(servers: &Nodes, one: impl Fn(&[&str]) -> Run, other: impl Fn(&[&str]) -> Run) {
    // The lease is short, so that the holder renews it while the other one waits.
    let holder = hold(one(&["run", "--key", "k", "--ttl", "1s"]));
    other(&["run", "--key", "k"]).arg("-n").cmd(&["true"]).done().expect_code(75);
    let waiter = queued(servers, other(&["run", "--key", "k"]));
    crate::support::nodes::renewed(&servers[0], "k", 2);
    assert_eq!(waiter.stdout_so_far(), "", "the lock is held");
    holder.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "got it\n");

    let token = other(&["acquire", "--key", "k", "--ttl", "30s"]).done().expect_code(0).stdout;
    let token = token.trim();
    one(&["extend", "--key", "k", "--ttl", "20s", "--token", token]).done().expect_code(0);
    one(&["run", "--key", "k"]).arg("-n").cmd(&["true"]).done().expect_code(75);
    one(&["release", "--key", "k", "--token", token]).done().expect_code(0);

    let broken = hold(other(&["run", "--key", "k"]));
    one(&["break", "--key", "k", "--yes"]).done().expect_code(0);
    broken.wait().expect_code(79);
    let sharer = hold(one(&["run", "--key", "k", "--shared"]));
    hold(other(&["run", "--key", "k", "--shared"])).wait().expect_code(0);
    sharer.wait().expect_code(0);
    servers.all_free();
}
