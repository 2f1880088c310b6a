//! `redlock break`: a lock is taken away from its holder, and the next command never starts beside the old one.

mod at_once;
mod chosen;
mod leftovers;
mod listener;
mod question;
mod several_servers;
mod this_host;
mod told;

use crate::support::{Backend, Locks, Redis, Run};

/// `redlock break k` on this server.
fn break_on(redis: &Redis) -> Run {
    break_at(&redis.url())
}

/// The same on these servers.
fn break_at(urls: &str) -> Run {
    Run::bare().args(&["break", "--redis", urls, "k"])
}

/// The same wherever the locks of the test are.
fn break_in(backend: &Backend) -> Run {
    match &backend.locks {
        Locks::OneServer(redis) => break_on(redis),
        Locks::ThreeServers(nodes) => break_at(&nodes.urls().join(",")),
        Locks::ThisHost(host) => Run::bare().args(&["break", "--local-dir"]).arg(host.path()).arg("k"),
    }
}
