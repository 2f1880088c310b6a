//! Bad certificates of servers and clients are refused, each for its own reason, and redlock never
//! continues without TLS.

use std::net::{Ipv4Addr, TcpListener};

use crate::support::tls::{Authority, TlsRedis, Valid, url};
use crate::support::{Redis, Run, assert_no_keys_left, refused};

#[test]
fn a_certificate_for_the_name_or_the_address_is_accepted() {
    let authority = Authority::new();
    let server = authority.serve();
    for host in ["127.0.0.1", "localhost", "LOCALHOST"] {
        let url = format!("rediss://{host}:{}", server.port());
        let done = authority.run(&url, "k").cmd(&["echo", "ran"]).done().expect_code(0);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("ran\n", ""), "{url}");
    }
    let wildcard = authority.serve_with(&["*.redis.test"], Valid::Now, &[]);
    let run = authority.run(&wildcard.url(), "k").args(&["--tls-server-name", "a.redis.test"]);
    run.cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_bad_certificate_is_reported_with_its_reason() {
    let authority = Authority::new();
    let here = ["127.0.0.1"];
    let check = |server: &TlsRedis, message: &[&str]| {
        let done = refused(authority.run(&server.url(), "k").args(&["--on-unavailable", "run"]), 78, message);
        assert!(done.stderr.contains(&server.url()), "{done:?}");
        assert_no_keys_left(&server.plain);
    };
    check(&authority.serve_with(&here, Valid::Before, &[]), &["has expired (on 2001-02-03 00:00:00 UTC)"]);
    check(&authority.serve_with(&here, Valid::Later, &[]), &["not valid before 2121-02-03"]);
    let of_others = authority.serve_with(&["*.redis.test", "127.0.0.9"], Valid::Now, &[]);
    check(&of_others, &["is for *.redis.test, 127.0.0.9, not for 127.0.0.1"]);
    check(&authority.serve_with(&[], Valid::Now, &[]), &["subjectAltName"]);
    check(&Authority::new().serve(), &["was not issued by an authority in the --tls-ca file"]);
}

#[test]
fn the_systems_authorities_are_trusted_by_default() {
    let authority = Authority::new();
    let server = authority.serve();
    let run = || Run::at(&server.url(), "k");
    refused(run(), 78, &["authority that this host does not trust: pass", "install ca-certificates"]);
    run().env("SSL_CERT_FILE", authority.file()).cmd(&["true"]).done().expect_code(0);
    let directory = tempfile::tempdir().unwrap();
    refused(run().env("SSL_CERT_DIR", directory.path()), 78, &["install ca-certificates"]);
    std::fs::copy(authority.file(), directory.path().join("any-name")).unwrap();
    run().env("SSL_CERT_DIR", directory.path()).cmd(&["true"]).done().expect_code(0);
    // Authorities that are named replace them.
    let other = Authority::new();
    let run = run().env("SSL_CERT_FILE", authority.file()).arg("--tls-ca").arg(other.file());
    refused(run, 78, &["--tls-ca"]);
}

#[test]
fn a_missing_client_certificate_is_reported() {
    let authority = Authority::new();
    let server = authority.serve_with(
        &["127.0.0.1"],
        Valid::Now,
        &["--tls-auth-clients", "yes", "--requirepass", "s3cret"],
    );
    let run = || authority.run(&server.url(), "k").env("REDLOCK_PASSWORD", "s3cret");
    // Tried several times: the server's alert may be lost, as it closes the connection at once.
    for _ in 0..5 {
        refused(run(), 77, &["requires a client certificate: pass --tls-cert FILE and --tls-key FILE"]);
    }
    let with = |authority: &Authority, valid| {
        let identity = authority.issue(&["client"], valid);
        run().arg("--tls-cert").arg(identity.certificate).arg("--tls-key").arg(identity.key)
    };
    with(&authority, Valid::Now).cmd(&["true"]).done().expect_code(0);
    refused(with(&Authority::new(), Valid::Now), 77, &["--tls-cert file"]);
    refused(with(&authority, Valid::Before), 77, &["--tls-cert file"]);
}

#[test]
fn older_protocols_work_but_not_obsolete_ones() {
    let authority = Authority::new();
    let speaks = |protocols: &str| {
        let server = authority.serve_with(&["127.0.0.1"], Valid::Now, &["--tls-protocols", protocols]);
        authority.run(&server.url(), "k").cmd(&["true"]).done().expect_code(0);
        let required = authority.serve_with(
            &["127.0.0.1"],
            Valid::Now,
            &["--tls-protocols", protocols, "--tls-auth-clients", "yes"],
        );
        refused(authority.run(&required.url(), "k"), 77, &["requires a client certificate"]);
    };
    speaks("TLSv1.2");
    speaks("TLSv1.3");
}

#[test]
fn a_port_without_tls_is_detected() {
    let authority = Authority::new();
    let plain = Redis::start();
    let run = |port: u16| authority.run(&url(port), "k");
    // A real server waits for the end of what it takes for a line.
    refused(
        run(plain.port()).args(&["--node-timeout", "500ms"]),
        69,
        &["if this port has no TLS, use redis://"],
    );
    assert_no_keys_left(&plain);
    for answer in ["-ERR unknown command\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let impostor = crate::support::impostor(answer);
        let port = impostor.rsplit(':').next().unwrap().parse().unwrap();
        refused(run(port), 78, &["this port does not speak TLS: use redis://"]);
    }
    let closes = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = closes.local_addr().unwrap().port();
    std::thread::spawn(move || while closes.accept().is_ok() {});
    refused(run(port), 69, &["closed the connection during the TLS handshake"]);
}

#[test]
fn a_plain_connection_to_a_tls_port_gets_a_hint() {
    let authority = Authority::new();
    let server = authority.serve();
    let run = Run::at(&format!("redis://127.0.0.1:{}", server.port()), "k");
    refused(run, 69, &["if it expects TLS, use rediss://"]);
    assert_no_keys_left(&server.plain);
}
