//! Certificates and keys that are replaced while they are in use: each new connection reads them
//! again.

use std::fs;
use std::path::Path;

use crate::support::nodes::renewed;
use crate::support::redis::is_before_7;
use crate::support::tls::{Authority, Identity, TlsRedis, Valid};
use crate::support::{Job, Run, hold, refused};

/// A server that requires a client certificate of the authority that it trusts.
fn strict_server(authority: &Authority) -> TlsRedis {
    authority.serve_with(&["127.0.0.1"], Valid::Now, &["--tls-auth-clients", "yes"])
}

fn run(authority: &Authority, server: &TlsRedis, client: &Identity) -> Run {
    let run = authority.run(&server.url(), "k").args(&["--ttl", "9s"]);
    run.arg("--tls-cert").arg(&client.certificate).arg("--tls-key").arg(&client.key)
}

fn hold_and_exit_7(run: Run) -> Job {
    let job = run.stdin_pipe().sh("echo ready; read x; exit 7").spawn();
    job.wait_for_line("ready");
    job
}

/// Changes settings of the server together.
fn set(server: &TlsRedis, settings: &[(&str, &Path)]) {
    let mut command = vec!["CONFIG", "SET"];
    for (name, path) in settings {
        command.extend([*name, path.to_str().unwrap()]);
    }
    assert_eq!(server.plain.cmd(&command), "OK");
}

fn close_connections(server: &TlsRedis) {
    server.plain.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
}

#[test]
fn a_run_survives_a_changed_client_certificate() {
    let (authority, next) = (Authority::new(), Authority::new());
    let server = strict_server(&authority);
    let (client, new) = (authority.issue(&["c"], Valid::Now), next.issue(&["c"], Valid::Now));
    let job = hold_and_exit_7(run(&authority, &server, &client));
    // The key does not belong to the certificate yet: the last pair is used.
    fs::copy(&new.certificate, &client.certificate).unwrap();
    close_connections(&server);
    renewed(&server.plain, "k", 1);
    fs::copy(&new.key, &client.key).unwrap();
    set(&server, &[("tls-ca-cert-file", &next.file())]);
    close_connections(&server);
    renewed(&server.plain, "k", 2);
    job.wait().expect_code(7);
    assert!(!server.plain.held("k"));
}

#[test]
fn a_waiter_survives_a_changed_client_certificate() {
    let (authority, next) = (Authority::new(), Authority::new());
    let server = strict_server(&authority);
    let (client, new) = (authority.issue(&["c"], Valid::Now), next.issue(&["c"], Valid::Now));
    let holder = hold(Run::key(&server.plain, "k"));
    let waiter = run(&authority, &server, &client).arg("-v").sh("exit 7").spawn();
    waiter.wait_for_stderr("waiting");
    set(&server, &[("tls-ca-cert-file", &next.file())]);
    close_connections(&server);
    waiter.wait_for_stderr("--tls-cert file");
    fs::copy(&new.certificate, &client.certificate).unwrap();
    fs::copy(&new.key, &client.key).unwrap();
    holder.wait().expect_code(0);
    waiter.wait().expect_code(7);
}

#[test]
fn a_run_survives_a_changed_authority() {
    if is_before_7() {
        skip!("Redis 6 cannot change a certificate and its key together");
    }
    let (authority, next) = (Authority::new(), Authority::new());
    let server = authority.serve();
    let job = hold_and_exit_7(authority.run(&server.url(), "k").args(&["--ttl", "9s"]));
    let new = next.issue(&["127.0.0.1"], Valid::Now);
    fs::copy(next.file(), authority.file()).unwrap();
    set(&server, &[("tls-cert-file", &new.certificate), ("tls-key-file", &new.key)]);
    close_connections(&server);
    renewed(&server.plain, "k", 2);
    job.wait().expect_code(7);
    refused(Authority::new().run(&server.url(), "k"), 78, &["--tls-ca"]);
}
