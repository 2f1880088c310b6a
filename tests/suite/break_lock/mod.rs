//! `redlock break`: takes a lock away from its holder, and the next command never starts beside the
//! old one.

mod chosen;
mod leftovers;
mod listener;
mod notified;
mod now;
mod question;
mod several_servers;
mod this_host;

use crate::support::{Backend, Locks, Redis, Run};

/// Our name according to /etc/passwd, whatever USER says.
fn our_user() -> String {
    let uid = nix::unistd::getuid().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ours = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid));
    ours.and_then(|line| line.split(':').next()).map_or_else(|| format!("uid {uid}"), str::to_owned)
}

/// `redlock break k` on this server.
fn break_on(redis: &Redis) -> Run {
    break_at(&redis.url())
}

/// The same on these servers.
fn break_at(urls: &str) -> Run {
    Run::bare().args(&["break", "--redis", urls, "k"])
}

/// The same on the backend of the test.
fn break_in(backend: &Backend) -> Run {
    match &backend.locks {
        Locks::OneServer(redis) => break_on(redis),
        Locks::ThreeServers(nodes) => break_at(&nodes.urls().join(",")),
        Locks::ThisHost(host) => Run::bare().args(&["break", "--local-dir"]).arg(host.path()).arg("k"),
    }
}
