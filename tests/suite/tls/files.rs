//! TLS settings: their files, where they come from, and that no key is shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::tls::{Authority, Valid};
use crate::support::{Redis, config_file, refused};

#[test]
fn a_useless_file_is_named() {
    let authority = Authority::new();
    let (client, other) = (authority.issue(&["c"], Valid::Now), authority.issue(&["d"], Valid::Now));
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let missing = directory.path().join("missing");
    let empty = file("empty", "");
    let encrypted = file(
        "encrypted",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let nonsense = file("nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let run = || crate::support::Run::at("rediss://127.0.0.1:1", "k");
    for (path, message) in [
        (&missing, "No such file"),
        (&empty, "no usable certificate"),
        (&nonsense, "no usable certificate"),
        (&client.key, "no usable certificate"),
    ] {
        let done = refused(run().arg("--tls-ca").arg(path), 78, &[message]);
        assert!(
            done.stderr.contains("--tls-ca: ") && done.stderr.contains(path.to_str().unwrap()),
            "{done:?}"
        );
    }
    for (certificate, key, message) in [
        (&missing, &client.key, "--tls-cert: "),
        (&empty, &client.key, "contains no certificate"),
        (&client.certificate, &missing, "--tls-key: "),
        (&client.certificate, &client.certificate, "contains no private key"),
        (&client.certificate, &encrypted, "the key is encrypted"),
        (&client.certificate, &other.key, "the key does not belong to the certificate"),
    ] {
        let run = run().arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        refused(run.arg("--tls-ca").arg(authority.file()), 78, &[message]);
    }
    refused(run().arg("--tls-cert").arg(&client.certificate), 64, &["--tls-cert also needs --tls-key"]);
    refused(run().arg("--tls-key").arg(&client.key), 64, &["--tls-key also needs --tls-cert"]);
    refused(run().args(&["--tls-server-name", "no name"]), 64, &["--tls-server-name: not a host name"]);
}

#[test]
fn tls_settings_come_from_the_environment_and_the_config_file() {
    let authority = Authority::new();
    let server = authority.serve_with(&["r.test"], Valid::Now, &["--tls-auth-clients", "yes"]);
    let client = authority.issue(&["c"], Valid::Now);
    let names = ["tls-ca", "tls-cert", "tls-key", "tls-server-name"];
    let file = authority.file();
    let values = [file.to_str(), client.certificate.to_str(), client.key.to_str(), Some("r.test")];
    let run = || crate::support::Run::at(&server.url(), "k");
    let mut by_variables = run();
    let mut text = String::new();
    for (name, value) in names.iter().zip(values.map(Option::unwrap)) {
        by_variables = by_variables.env(&format!("REDLOCK_{}", name.to_uppercase().replace('-', "_")), value);
        text.push_str(&format!("{name} = \"{value}\"\n"));
    }
    by_variables.cmd(&["true"]).done().expect_code(0);
    let (_directory, config) = config_file(&text);
    run().env("REDLOCK_CONFIG", config).cmd(&["true"]).done().expect_code(0);
}

/// A user who types them believes that the connection is protected.
#[test]
fn typed_tls_settings_are_refused_without_tls() {
    let authority = Authority::new();
    let plain = Redis::start();
    refused(authority.run(&plain.url(), "k"), 64, &["--tls-ca needs a server with TLS (rediss://)"]);
    let run = crate::support::Run::key(&plain, "k").env("REDLOCK_TLS_CA", authority.file());
    run.cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_key_that_all_users_can_read_causes_a_warning() {
    let authority = Authority::new();
    let server = authority.serve();
    let client = authority.issue(&["c"], Valid::Now);
    let run = || {
        let run = authority.run(&server.url(), "k").arg("--tls-cert").arg(&client.certificate);
        run.arg("--tls-key").arg(&client.key).cmd(&["true"])
    };
    assert_eq!(run().done().expect_code(0).stderr, "");
    fs::set_permissions(&client.key, fs::Permissions::from_mode(0o644)).unwrap();
    let done = run().done().expect_code(0);
    let path = client.key.to_str().unwrap();
    assert_eq!(
        done.stderr,
        format!(
            "redlock: warning: {path} holds a private key and is readable by all users of this host: chmod o-r {path}\n"
        )
    );
}

#[test]
fn a_key_is_neither_shown_nor_passed_on() {
    let authority = Authority::new();
    let server = authority.serve_with(&["127.0.0.1"], Valid::Now, &["--tls-auth-clients", "yes"]);
    let client = authority.issue(&["c"], Valid::Now);
    let secret = fs::read_to_string(&client.key).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    let run = authority.run(&server.url(), "k").arg("--tls-cert").arg(&client.certificate);
    let run = run.arg("--tls-key").arg(&client.key).args(&["-v", "--events", "-"]);
    let done = run.sh("env; tr '\\0' '\\n' </proc/$PPID/environ").done().expect_code(0);
    for text in [&done.stdout, &done.stderr, &server.plain.cmd(&["KEYS", "*"])] {
        assert!(!text.contains(secret), "{text}");
    }
}
