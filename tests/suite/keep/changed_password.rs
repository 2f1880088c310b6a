//! A keeper survives a changed password. It has another working directory than the command that
//! started it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{Watched, acquire_for, token, wait_until_no_keeper};
use crate::support::nodes::renewed_on_all;
use crate::support::{Backend, Locks, Nodes, Redis, wait_until};

#[test]
fn a_keeper_survives_a_changed_password() {
    for servers in [1, 3] {
        let redis = || Redis::start_with(&["--requirepass", "the-old-one"]);
        let nodes = Nodes::of((0..servers).map(|_| redis()).collect());
        let mut backend = Backend::of(Locks::ThreeServers(nodes));
        let file = backend.notes().join("password");
        fs::write(&file, "the-old-one").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let watched = Watched::start();
        let run = acquire_for(&backend, "4s").args(&["--node-timeout", "1s", "--password-file", "password"]);
        token(run.args(&["--watch-pid", &watched.pid().to_string()]));
        fs::write(&file, "the-new-one").unwrap();
        let Locks::ThreeServers(nodes) = &mut backend.locks else { unreachable!() };
        (0..servers).for_each(|at| nodes[at].change_password("the-new-one"));
        (0..3).for_each(|_| renewed_on_all(nodes, 0, "k"));
        watched.end();
        wait_until("the lock is released", || nodes.claims("k").iter().all(String::is_empty));
        wait_until_no_keeper(&backend);
    }
}
