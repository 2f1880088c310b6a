//! This host, and the settings.

use std::fs;

use super::{diagnosis, expect, results, text};
use crate::support::{Host, OtherUsers, Redis, Run, UNPRIVILEGED, config_file};

fn here(directory: &str) -> Run {
    Run::bare().args(&["doctor", "--local-dir", directory])
}

#[test]
fn doctor_tries_a_lock_on_this_host_and_leaves_nothing() {
    let host = Host::new();
    let found = diagnosis(here(host.path().to_str().unwrap()), 0);
    expect(&found, "lock_directory", "ok", "locks work");
    for check in ["subreaper", "proc", "pidfd"] {
        expect(&found, check, "ok", check);
    }
    assert!(found["servers"].is_null() && found["quorum"].is_null(), "{found:#}");
    assert_eq!((&found["warnings"], fs::read_dir(host.path()).unwrap().count()), (&0.into(), 0));
}

#[test]
fn a_directory_that_cannot_be_used_is_a_problem() {
    let found = diagnosis(here("/nonexistent"), 1);
    expect(&found, "lock_directory", "problem", "no such directory");
    assert!(text(&found["summary"]).contains("do not work"), "{found:#}");
    let host = Host::with_mode(0o777);
    expect(&diagnosis(here(host.path().to_str().unwrap()), 1), "lock_directory", "problem", "sticky bit");
    // With servers the locks are elsewhere.
    let redis = Redis::start();
    let run = Run::bare().args(&["doctor", "--redis", &redis.url()]).env("REDLOCK_LOCAL_DIR", "/nonexistent");
    expect(&diagnosis(run, 0), "lock_directory", "warning", "no such directory");
}

#[test]
fn an_unwritable_directory_is_a_problem() {
    let Some(users) = OtherUsers::new() else { skip!("only root can start runs of other users") };
    let host = Host::with_mode(0o755);
    let run = users.run(UNPRIVILEGED, here(host.path().to_str().unwrap()), "022");
    expect(&diagnosis(run, 1), "lock_directory", "problem", "no permission");
}

#[test]
fn a_read_only_directory_is_a_problem() {
    let Some(_root) = OtherUsers::new() else { skip!("only root can mount") };
    let host = Host::new();
    let path = host.path().to_str().unwrap();
    let script = format!("mount --make-rprivate / && mount -t tmpfs -o ro none '{path}' && exec \"$@\"");
    let run = here(path).through(&["unshare", "-m", "sh", "-c", &script, "sh"]);
    expect(&diagnosis(run, 1), "lock_directory", "problem", "read-only");
}

#[test]
fn a_proc_of_another_namespace_is_a_problem() {
    let Some(_root) = OtherUsers::new() else { skip!("only root can make a PID namespace") };
    let host = Host::new();
    let found = diagnosis(here(host.path().to_str().unwrap()).through(&["unshare", "-pf"]), 1);
    expect(&found, "proc", "problem", "/proc");
}

#[test]
fn a_missing_server_causes_a_warning_unless_intended() {
    let found = diagnosis(Run::bare().arg("doctor"), 0);
    expect(&found, "settings", "warning", "no server is configured");
    assert_eq!(
        results(&diagnosis(Run::bare().args(&["doctor", "--local"]), 0), "settings"),
        Vec::<String>::new()
    );
}

#[test]
fn the_sources_of_settings_are_reported() {
    let redis = Redis::start();
    let (_directory, path) = config_file(&format!("redis = \"{}\"\nttl = \"20s\"\n", redis.url()));
    let run = Run::bare().args(&["doctor", "--quarantine", "40s"]).env("REDLOCK_CONFIG", &path);
    let run = run.env("REDLOCK_NODE_TIMEOUT", "3s").env("REDLOCK_PASSWORD", "").env("REDLOCK_TTLL", "5s");
    let done = run.clone().done().expect_code(0);
    let path = path.to_str().unwrap();
    for message in [
        format!("config {path}"),
        format!("redis from {path}:1"),
        format!("ttl from {path}:2"),
        "node-timeout from REDLOCK_NODE_TIMEOUT".into(),
        "quarantine from command line".into(),
        "variables REDLOCK_CONFIG".into(),
        format!("on {}; ttl 20s, node-timeout 3s, quarantine 40s", redis.url()),
    ] {
        assert!(done.stdout.contains(&message), "{message}: {done:?}");
    }
    let found = diagnosis(run, 0);
    expect(&found, "settings", "warning", "REDLOCK_TTLL is not a redlock setting");
    let settings = &found["settings"];
    assert_eq!(
        (&settings["backend"], &settings["ttl_ms"]),
        (&"servers".into(), &20_000.into()),
        "{settings}"
    );
    assert_eq!(settings["config_files"][0], path, "{settings}");
    assert_eq!(settings["sources"]["redis"], format!("{path}:1"), "{settings}");
}

#[test]
fn settings_that_cannot_work_are_not_examined() {
    let (_directory, path) = config_file("redis = \"localhost\"\n");
    Run::bare()
        .arg("doctor")
        .env("REDLOCK_CONFIG", &path)
        .done()
        .expect_code(78)
        .expect_stderr(&["config.toml:1"]);
    Run::bare().args(&["doctor", "--redis", "localhost"]).done().expect_code(64);
    Run::bare().args(&["doctor", "--require-server"]).done().expect_code(78);
}

#[test]
fn a_user_is_told_how_to_call_sudo() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let doctor = || host.subcommand("doctor").arg("--local");
    let done = users.run(UNPRIVILEGED, doctor(), "022").done().expect_code(0);
    assert!(done.stdout.contains("use sudo redlock run ..., not redlock run ... sudo"), "{done:?}");
    assert!(!doctor().done().expect_code(0).stdout.contains("sudo"));
}
