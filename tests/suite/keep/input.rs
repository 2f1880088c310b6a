//! Bad keys and tokens: a clear error, and nothing is lost.

use super::{acquire, is_ours, release, token};
use crate::support::{Backend, Run};

on_backends!(one_server, three_servers, this_host:
    an_invalid_token_exits_64,
    a_key_and_a_token_are_required,
    the_token_of_another_key_exits_79,
);

fn an_invalid_token_exits_64(backend: &Backend) {
    let ours = token(acquire(backend));
    let long = "x".repeat(100_000);
    let bad = [
        "",
        " ",
        "x",
        "1",
        "-",
        "*",
        "../../etc/passwd",
        "\u{1b}[31m",
        "'; redis.call('flushall')",
        "ü",
        &long,
    ];
    for command in ["release", "extend"] {
        for token in bad {
            let done = backend.command(&[command, "--key", "k", "--token", token]).done().expect_code(64);
            assert!(done.stdout.is_empty() && done.stderr.starts_with("redlock: "), "{done:?}");
            assert!(done.stderr.contains("token") && !done.stderr.contains('\u{1b}'), "{token:?}: {done:?}");
            assert!(done.stderr.len() < 1000, "{token:?}");
        }
    }
    assert!(is_ours(backend, &ours));
    release(backend, &ours).done().expect_code(0);
}

fn a_key_and_a_token_are_required(backend: &Backend) {
    let ours = token(acquire(backend));
    let check = |run: Run, word: &str| {
        let done = run.done().expect_code(64);
        assert!(done.stderr.contains(word), "{done:?}");
    };
    for command in ["release", "extend"] {
        check(backend.command(&[command, "--key", "k"]), "token");
        check(backend.command(&[command, "--token", &ours]), "key");
        check(backend.command(&[command, "--key", "", "--token", &ours]), "key");
        check(backend.command(&[command]).env("REDLOCK_KEY", "").env("REDLOCK_TOKEN", &ours), "key");
        check(backend.command(&[command]).env("REDLOCK_KEY", "k").env("REDLOCK_TOKEN", ""), "token");
    }
    check(backend.command(&["extend", "k", "--token", &ours, "--ttl", "0"]), "ttl");
    check(backend.command(&["extend", "k", "--token", &ours, "--ttl", "soon"]), "ttl");
    check(backend.command(&["acquire", "--key", "k", "--ttl", "soon"]), "ttl");
    check(backend.command(&["acquire", "--ttl", "10s"]), "key");
    check(acquire(backend).args(&["--watch-pid", "0"]), "watch-pid");
    check(acquire(backend).args(&["--watch-pid", "-1"]), "watch-pid");
    check(acquire(backend).args(&["--watch-pid", "bash"]), "watch-pid");
    check(acquire(backend).args(&["--watch-pid", "1", "--for-shell"]), "for-shell");
    assert!(is_ours(backend, &ours));
    release(backend, &ours).done().expect_code(0);
}

fn the_token_of_another_key_exits_79(backend: &Backend) {
    let ours = token(acquire(backend));
    let other = token(backend.command(&["acquire", "--key", "j", "--ttl", "60s"]));
    release(backend, &other).done().expect_code(79);
    assert!(is_ours(backend, &ours));
    backend.command(&["release", "j", "--token", &other]).done().expect_code(0);
    release(backend, &ours).done().expect_code(0);
}
