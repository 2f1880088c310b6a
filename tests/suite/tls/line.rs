//! Slow lines, and servers that stop during a handshake.

use std::time::Duration;

use crate::support::tls::{Authority, url};
use crate::support::{assert_stays_free, assert_takes_less_than, refused};

/// Each step of the handshake has the whole timeout, like every step of a connection.
#[test]
fn a_handshake_on_a_slow_line_has_enough_time() {
    let authority = Authority::new();
    let server = authority.serve();
    authority.run(&server.url(), "k").cmd(&["true"]).done().expect_code(0);
    let proxy = server.proxy();
    proxy.each_way(Duration::from_millis(800));
    let run = authority.run(&url(proxy.port()), "k");
    run.args(&["--node-timeout", "3s"]).cmd(&["true"]).done().expect_code(0);
    assert_stays_free(&server.plain);
}

#[test]
fn a_server_stopped_before_or_during_the_handshake_is_unavailable() {
    let authority = Authority::new();
    let server = authority.serve();
    server.plain.stop();
    let run = || authority.run(&server.url(), "k").args(&["--node-timeout", "400ms"]);
    assert_takes_less_than(Duration::from_secs(3), || {
        let start = std::time::Instant::now();
        refused(run(), 69, &["no reply to the TLS handshake"]);
        start.elapsed()
    });
    server.plain.cont();
    // The server's part of the handshake arrives, our next one is lost.
    let proxy = server.proxy();
    proxy.to_client(Duration::from_secs(2));
    let job = authority.run(&url(proxy.port()), "k").args(&["--node-timeout", "5s"]).cmd(&["true"]).spawn();
    crate::support::wait_until("the handshake has begun", || proxy.requests() > 0);
    proxy.strand();
    job.wait().expect_code(69).expect_stderr(&["timed out"]);
    assert_stays_free(&server.plain);
}
