//! Servers as services and proxies offer them: some commands are missing, idle connections are
//! closed, the address of a name changes, IPv6.

use std::net::TcpListener;

use nix::unistd::geteuid;

use crate::support::{Proxy, Redis, Run, assert_stays_free, hold, holder, queued, refused};

#[test]
fn one_server_without_info_and_config_is_enough() {
    let redis = Redis::without_info();
    let first = holder(&redis, "k", &[]);
    let waiter = Run::key(&redis, "k").sh("echo next").spawn();
    queued(&redis, "k", 1);
    Run::bare().args(&["status", "--redis", &redis.url(), "k"]).done().expect_code(0);
    first.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "next\n");
    assert_stays_free(&redis);
}

/// Votes are counted by the servers' run ids.
#[test]
fn several_servers_without_info_are_refused() {
    let servers = [Redis::without_info(), Redis::without_info(), Redis::without_info()];
    let urls = servers.each_ref().map(Redis::url).join(",");
    refused(
        Run::at(&urls, "k").args(&["--quarantine", "off"]),
        77,
        &["INFO server", "called from Lua script"],
    );
    for redis in servers {
        assert!(!redis.held("k"));
    }
}

#[test]
fn a_closed_idle_connection_is_reopened() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job = hold(Run::at(&proxy.url(), "k").args(&["--ttl", "1h"]));
    let connections = proxy.connections();
    proxy.cut();
    job.wait().expect_code(0);
    assert!(proxy.connections() > connections);
    assert_stays_free(&redis);
}

#[test]
fn a_server_on_ipv6_is_reached() {
    if TcpListener::bind("[::1]:0").is_err() {
        skip!("there is no IPv6 here");
    }
    let redis = Redis::start_with(&["--bind", "127.0.0.1", "::1"]);
    let url = format!("redis://[::1]:{}", redis.port());
    let done = Run::at(&url, "k").args(&["-v"]).cmd(&["true"]).done().expect_code(0);
    assert!(done.stderr.contains(&url), "{done:?}");
}

/// The name is resolved for each connection.
#[test]
fn redlock_follows_a_name_whose_address_changes() {
    if !geteuid().is_root() {
        skip!("only root can give a process its own /etc/hosts");
    }
    let name = "moving.redlock.test";
    let redis = Redis::start();
    let hosts = redis.dir().join("hosts");
    let points_to = |address: &str| std::fs::write(&hosts, format!("{address} {name}\n")).unwrap();
    points_to("127.0.0.9"); // no server there
    let script =
        format!("mount --make-rprivate / && mount --bind '{}' /etc/hosts && exec \"$@\"", hosts.display());
    let run = Run::at(&format!("redis://{name}:{}", redis.port()), "k").args(&["--on-unavailable", "wait"]);
    let job = run.sh("echo ran").through(&["unshare", "-m", "sh", "-c", &script, "sh"]).spawn();
    job.wait_for_stderr("connection refused");
    points_to("127.0.0.1");
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
}
