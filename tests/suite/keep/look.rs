//! Locks without a command are shown like those of runs.

use serde_json::Value;

use super::{Watched, acquire, keeper, release, token, wait_until_free};
use crate::support::Backend;

on_backends!(one_server, three_servers, this_host:
    status_and_list_show_holder_label_and_end,
    status_shows_a_lock_that_a_keeper_keeps,
);

#[track_caller]
fn json(backend: &Backend, args: &[&str]) -> Value {
    backend.command(args).done().expect_code(0).json()
}

fn status_and_list_show_holder_label_and_end(backend: &Backend) {
    let token = token(acquire(backend).args(&["--label", "release freeze"]));
    let found = json(backend, &["status", "k", "--json"]);
    let holder = &found["holders"][0];
    assert_eq!((&found["state"], &holder["label"]), (&"held".into(), &"release freeze".into()), "{found}");
    assert_eq!(holder["token"], token.as_str(), "{found}");
    assert!(holder["expires_ms"].as_u64().is_some_and(|left| left > 0 && left <= 60_000), "{found}");
    assert!(holder["host"].is_string() && holder["user"].is_string(), "{found}");
    let listed = json(backend, &["list", "--json"]);
    assert_eq!((&listed["key"], &listed["state"]), (&"k".into(), &"held".into()), "{listed}");
    let text = backend.command(&["status", "k"]).done().expect_code(0).stdout;
    assert!(text.contains("release freeze"), "{text}");
    backend.command(&["status", "k", "--check", "held"]).done().expect_code(0);
    release(backend, &token).done().expect_code(0);
    wait_until_free(backend);
    assert_eq!(json(backend, &["status", "k", "--json"])["state"], "free");
    let history = backend.command(&["history", "k"]).done().expect_code(0).stdout;
    assert!(history.contains("released") && !history.contains("failed"), "{history}");
}

fn status_shows_a_lock_that_a_keeper_keeps(backend: &Backend) {
    let watched = Watched::start();
    let token = token(acquire(backend).args(&["--watch-pid", &watched.pid().to_string()]));
    let found = json(backend, &["status", "k", "--json"]);
    assert_eq!((&found["state"], &found["holders"][0]["token"]), (&"held".into(), &token.as_str().into()));
    let (pid, keeper) = (watched.pid(), keeper(backend));
    let holder = &found["holders"][0];
    assert_eq!((&holder["pid"], &holder["keeper"]), (&pid.into(), &keeper.into()), "{found}");
    let text = backend.command(&["status", "k"]).done().expect_code(0).stdout;
    assert!(text.contains(&format!("pid {pid} (sleep)")), "{text}");
    assert!(text.contains(&format!("kept by redlock-keeper pid {keeper}")), "{text}");
    release(backend, &token).done().expect_code(0);
}
