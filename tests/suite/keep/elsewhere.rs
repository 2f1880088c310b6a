//! Another environment, another directory, another user: release and extend need only the key, the
//! token and the servers.

use super::{acquire, extend, is_ours, release, token, wait_until_free};
use crate::support::{Backend, Host, Locks, OtherUsers, Redis, UNPRIVILEGED};

on_backends!(one_server, three_servers, this_host:
    an_empty_environment_and_another_directory_suffice,
);

fn an_empty_environment_and_another_directory_suffice(backend: &Backend) {
    let token = token(acquire(backend));
    let place: Vec<String> = match &backend.locks {
        Locks::OneServer(redis) => vec!["--redis".into(), redis.url()],
        Locks::ThreeServers(nodes) => vec!["--redis".into(), nodes.urls().join(",")],
        Locks::ThisHost(host) => vec!["--local-dir".into(), host.path().to_str().unwrap().into()],
    };
    for command in [&["extend", "k", "--ttl", "20s", "--quarantine", "off"][..], &["release", "k"]] {
        let mut call = std::process::Command::new(crate::support::run::binary());
        call.args(command).args(&place).args(["--token", &token]).env_clear().current_dir("/");
        let output = call.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    wait_until_free(backend);
}

#[test]
fn another_user_with_the_token_releases_a_lock_on_a_server() {
    let Some(users) = OtherUsers::new() else { skip!("only root can be another user") };
    let backend = Backend::one_server();
    let first = token(acquire(&backend));
    users.run(UNPRIVILEGED, extend(&backend, &first, "50s"), "077").done().expect_code(0);
    users.run(UNPRIVILEGED, release(&backend, &first), "077").done().expect_code(0);
    wait_until_free(&backend);
    // And vice versa.
    let second = token(users.run(UNPRIVILEGED, acquire(&backend), "077"));
    release(&backend, &second).done().expect_code(0);
    wait_until_free(&backend);
}

/// On this host a process must be reached. If that is not permitted, it is reported, and nothing is
/// lost.
#[test]
fn another_user_with_the_token_is_refused_on_this_host() {
    let Some(users) = OtherUsers::new() else { skip!("only root can be another user") };
    let host = Host::with_mode(0o1777);
    let backend = Backend::of(Locks::ThisHost(host));
    let ours = token(acquire(&backend));
    let done = users.run(UNPRIVILEGED, release(&backend, &ours), "077").done();
    match done.code {
        Some(0) => wait_until_free(&backend),
        Some(77) => {
            assert!(done.stderr.starts_with("redlock: "), "{done:?}");
            assert!(is_ours(&backend, &ours));
            release(&backend, &ours).done().expect_code(0);
        }
        _ => panic!("{done:?}"),
    }
    // root reaches every process.
    let theirs = token(users.run(UNPRIVILEGED, acquire(&backend), "077"));
    release(&backend, &theirs).done().expect_code(0);
    wait_until_free(&backend);
}

/// With another address of the same server, as from another host.
#[test]
fn the_name_of_the_server_does_not_matter() {
    let redis = Redis::start();
    let backend = Backend::of(Locks::OneServer(redis));
    let token = token(acquire(&backend));
    let socket = format!("unix://{}", backend.server().socket().display());
    let release = crate::support::Run::bare().args(&["release", "k", "--redis", &socket, "--token", &token]);
    release.done().expect_code(0);
    wait_until_free(&backend);
}
