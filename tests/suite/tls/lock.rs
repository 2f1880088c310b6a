//! Locks over TLS: waiting, hand-over, renewal, votes, and the leftovers of a killed holder.

use crate::support::tls::{Authority, TlsRedis, Valid};
use crate::support::{
    assert_stays_free, expect_success, hold, queued, refused, wait_for_sleeping_waiter,
    wait_for_sleeping_waiters, wait_until,
};

#[test]
fn waiters_block_and_are_served_in_order() {
    let authority = Authority::new();
    let server = authority.serve();
    let log = server.plain.dir().join("log-of-turns");
    let turn = |name: &str| format!("echo {name} >>{}", log.display());
    let holder = hold(authority.run(&server.url(), "k"));
    let mut waiters = Vec::new();
    for n in 0..3 {
        waiters.push(authority.run(&server.url(), "k").sh(&turn(&n.to_string())).spawn());
        queued(&server.plain, "k", n + 1);
    }
    wait_for_sleeping_waiters(&server.plain, 3);
    holder.wait().expect_code(0);
    expect_success(waiters);
    assert_eq!(std::fs::read_to_string(log).unwrap(), "0\n1\n2\n");
    assert_stays_free(&server.plain);
}

#[test]
fn requests_and_replies_of_many_records_pass() {
    let authority = Authority::new();
    let server = authority.serve();
    let keys: Vec<String> = (0..64).map(|n| format!("{n:02}{}", "k".repeat(1_000))).collect();
    let run = authority.run(&server.url(), &keys[0]);
    let run = keys[1..].iter().fold(run, |run, key| run.args(&["--key", key]));
    let done = run.sh("echo $REDLOCK_FENCE").done().expect_code(0);
    assert_eq!(done.stdout.split_whitespace().count(), 64, "{done:?}");
    assert_stays_free(&server.plain);
}

#[test]
fn three_servers_are_a_quorum_and_one_may_die() {
    let authority = Authority::new();
    let mut servers: Vec<TlsRedis> = (0..3).map(|_| authority.serve()).collect();
    let urls: Vec<String> = servers.iter().map(TlsRedis::url).collect();
    let run = || authority.run(&urls.join(","), "k").args(&["--quarantine", "off"]);
    let holder = hold(run());
    wait_until("all have the claim", || servers.iter().all(|server| server.plain.held("k")));
    run().arg("-n").cmd(&["true"]).done().expect_code(75);
    servers[0].plain.kill();
    let waiter = run().args(&["-w", "20s"]).sh("echo next").spawn();
    wait_until("the run waits", || servers.iter().skip(1).any(|server| server.plain.queue_len("k") == 1));
    holder.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "next\n");
    servers[1..].iter().for_each(|server| assert_stays_free(&server.plain));
}

#[test]
fn one_server_with_tls_and_two_without_vote_together() {
    let authority = Authority::new();
    let (with, without) =
        (authority.serve(), [crate::support::Redis::start(), crate::support::Redis::start()]);
    let urls = [with.url(), without[0].url(), without[1].url()].join(",");
    let run = authority.run(&urls, "k").args(&["--quarantine", "off"]);
    let holder = hold(run);
    wait_until("all have the claim", || with.plain.held("k") && without.iter().all(|redis| redis.held("k")));
    holder.wait().expect_code(0);
}

#[test]
fn the_lock_of_a_holder_killed_with_its_guardian_expires() {
    let authority = Authority::new();
    let server = authority.serve();
    let holder = hold(authority.run(&server.url(), "k").args(&["--ttl", "2s"]));
    holder.kill_with_guardian();
    let done = authority.run(&server.url(), "k").args(&["-w", "20s"]).sh("echo next").done().expect_code(0);
    assert_eq!(done.stdout, "next\n");
    assert_stays_free(&server.plain);
}

#[test]
fn a_holder_and_a_waiter_reconnect() {
    let authority = Authority::new();
    let server = authority.serve();
    let proxy = server.proxy();
    let url = crate::support::tls::url(proxy.port());
    let holder = hold(authority.run(&url, "k").args(&["--ttl", "6s"]));
    let waiter = authority.run(&url, "k").sh("echo next").spawn();
    queued(&server.plain, "k", 1);
    wait_for_sleeping_waiter(&server.plain);
    let claim = server.plain.cmd(&["GET", "lock:k"]);
    let connections = proxy.connections();
    proxy.cut();
    wait_until("both reconnect", || proxy.connections() >= connections + 2);
    crate::support::nodes::renewed(&server.plain, "k", 2);
    assert_eq!(server.plain.cmd(&["GET", "lock:k"]), claim);
    holder.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "next\n");
    assert_stays_free(&server.plain);
}

/// A proxy that requests a certificate closes connections while its server is down, just as it does
/// after a certificate that it rejects. A waiter that was accepted before does not give up.
#[test]
fn a_connection_closed_after_the_handshake_is_not_a_refusal_if_an_earlier_one_was_served() {
    let authority = Authority::new();
    let mut server = authority.serve_with(&["127.0.0.1"], Valid::Now, &["--tls-auth-clients", "optional"]);
    let identity = authority.issue(&["client"], Valid::Now);
    let url = server.url();
    let run = |is_known: bool| {
        let run = authority.run(&url, "k").args(&["--ttl", "4s"]);
        if !is_known {
            return run;
        }
        run.arg("--tls-cert").arg(&identity.certificate).arg("--tls-key").arg(&identity.key)
    };
    let newcomers = [true, false].map(|is_known| run(is_known).arg("-n"));
    let holder = hold(run(true));
    let waiters =
        [true, false].map(|is_known| run(is_known).args(&["-v", "-w", "60s"]).sh("echo mine").spawn());
    wait_for_sleeping_waiters(&server.plain, 2);
    server.plain.kill();
    let closing = authority.closes_after_handshake(server.port());
    for newcomer in newcomers {
        refused(newcomer, 77, &["certificate"]);
    }
    holder.wait();
    let connections = closing.connections();
    wait_until("the waiters' connections were closed", || closing.connections() > connections + 6);
    drop(closing);
    server.plain.restart();
    for waiter in waiters {
        assert_eq!(waiter.wait().expect_code(0).stdout, "mine\n");
    }
}
