//! The config file: below what is typed and what the environment says.

use std::path::PathBuf;

use crate::support::config_file as file;
use crate::support::{Redis, Run};

fn run(path: &PathBuf) -> Run {
    Run::bare().args(&["run", "--key", "k"]).env("REDLOCK_CONFIG", path)
}

#[test]
fn servers_and_settings_come_from_the_file() {
    let redis = Redis::start();
    let (_directory, path) = file(&format!("redis = [\"{}\"]\nprefix = \"mine\"\nttl = 7\n", redis.url()));
    let pttl = run(&path).sh(&format!("redis-cli -p {} PTTL mine:k", redis.port())).output();
    let pttl: i64 = String::from_utf8_lossy(&pttl.stdout).trim().parse().unwrap();
    assert!((1..=7000).contains(&pttl), "{pttl}");
}

#[test]
fn typed_beats_the_environment_which_beats_the_file() {
    let redis = Redis::start();
    let (_directory, path) = file(&format!("redis = \"{}\"\nprefix = \"file\"\n", redis.url()));
    let key = |run: Run| {
        let done = run.sh(&format!("redis-cli -p {} KEYS '*:k'", redis.port())).output();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert!(key(run(&path)).contains("file:k"));
    assert!(key(run(&path).env("REDLOCK_PREFIX", "env")).contains("env:k"));
    assert!(key(run(&path).env("REDLOCK_PREFIX", "env").args(&["--prefix", "typed"])).contains("typed:k"));
}

#[test]
fn a_fleet_that_must_not_fall_back_says_so_in_the_file() {
    let (_directory, path) = file("require-server = true\n");
    let done = run(&path).cmd(&["true"]).output();
    assert_eq!(done.status.code(), Some(78));
    let (_directory, path) = file("local = true\n");
    let done = run(&path).cmd(&["true"]).output();
    assert_eq!((done.status.code(), done.stderr.len()), (Some(0), 0), "{done:?}");
}

#[test]
fn a_bad_file_is_refused_by_name_and_without_its_secrets() {
    for text in [
        "nonsense = 1\n",
        "key = \"k\"\n",
        "redis = \"redis://:s3cret@h",
        "ttl = { a = 1 }\n",
        "wait = \"5 parsecs\"\n",
    ] {
        let (_directory, path) = file(text);
        let done = run(&path).sh("echo ran").output();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(matches!(done.status.code(), Some(64 | 78)), "{text:?}: {done:?}");
        assert!(done.stdout.is_empty() && !said.contains("s3cret"), "{said}");
    }
    let done = run(&PathBuf::from("/no/such/config.toml")).cmd(&["true"]).output();
    assert_eq!(done.status.code(), Some(78));
    let help = Run::bare().arg("--help").env("REDLOCK_CONFIG", "/no/such/config.toml").output();
    assert_eq!(help.status.code(), Some(0));
}

#[test]
fn a_url_in_the_wrong_place_is_repeated_without_its_password() {
    for text in ["wait = \"redis://:hunter2@h\"\n", "\"redis://:hunter2@h\" = 1\n"] {
        let (_directory, path) = file(text);
        let done = run(&path).cmd(&["true"]).output();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(said.contains("redis://") && !said.contains("hunter2"), "{said}");
    }
}
