//! Passwords outside the URL, which are never shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::{Redis, Run, config_file};

const PASSWORD: &str = "s3cret @#/?,%41";

fn with_password() -> Redis {
    Redis::start_with(&["--requirepass", PASSWORD])
}

fn run(redis: &Redis) -> Run {
    Run::bare().args(&["run", "--key", "k", "-v"]).env("REDLOCK_REDIS", url(redis))
}

fn url(redis: &Redis) -> String {
    format!("redis://127.0.0.1:{}", redis.port())
}

/// A file with this text and mode.
fn file(text: &str, mode: u32) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("password");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (directory, path)
}

/// The command runs, and sees the password only if it came from a variable.
#[track_caller]
fn assert_works(run: Run, is_inherited: bool) -> String {
    let done = run.sh("env; tr '\\0' ' ' < /proc/$PPID/cmdline").done().expect_code(0);
    assert_eq!(done.stdout.contains("s3cret"), is_inherited, "{}", done.stdout);
    assert!(!done.stderr.contains("s3cret"), "{}", done.stderr);
    done.stderr
}

#[test]
fn a_password_comes_from_a_variable_or_a_file() {
    let redis = with_password();
    run(&redis).sh("echo ran").done().expect_code(77);
    assert_works(run(&redis).env("REDLOCK_PASSWORD", PASSWORD), true);
    for text in [format!("{PASSWORD}\n"), PASSWORD.to_owned(), format!("{PASSWORD}\r\nmore\n")] {
        let (_directory, path) = file(&text, 0o600);
        assert_works(run(&redis).arg("--password-file").arg(&path), false);
        assert_works(run(&redis).env("REDLOCK_PASSWORD_FILE", &path), false);
        let (_directory, config) = config_file(&format!("password-file = {path:?}\n"));
        assert_works(run(&redis).env("REDLOCK_CONFIG", config), false);
    }
}

#[test]
fn the_closest_source_of_a_password_counts() {
    let redis = with_password();
    let (_right, right) = file(PASSWORD, 0o600);
    let (_wrong, wrong) = file("wrong", 0o600);
    assert_works(
        run(&redis).env("REDLOCK_PASSWORD", "wrong s3cret").arg("--password-file").arg(&right),
        true,
    );
    let (_directory, config) = config_file(&format!("password-file = {wrong:?}\n"));
    assert_works(run(&redis).env("REDLOCK_PASSWORD", PASSWORD).env("REDLOCK_CONFIG", &config), true);
    assert_works(run(&redis).env("REDLOCK_PASSWORD_FILE", &right).env("REDLOCK_CONFIG", &config), false);
    let both = run(&redis).env("REDLOCK_PASSWORD", PASSWORD).env("REDLOCK_PASSWORD_FILE", &right);
    both.sh("echo ran").done().expect_code(64).expect_stderr(&["REDLOCK_PASSWORD_FILE"]);
    // The password in the URL overrides all others.
    let encoded: String = PASSWORD.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let own = format!("redis://:{encoded}@127.0.0.1:{}", redis.port());
    assert_works(run(&redis).env("REDLOCK_REDIS", own).arg("--password-file").arg(&wrong), false);
}

#[test]
fn a_user_name_can_be_set_with_the_password() {
    let redis = Redis::start();
    redis.cmd(&["ACL", "SETUSER", "locker", "on", ">s3cret", "~*", "+@all"]);
    redis.cmd(&["ACL", "SETUSER", "default", "off"]);
    let login = |run: Run| run.env("REDLOCK_PASSWORD", "s3cret");
    run(&redis).cmd(&["true"]).done().expect_code(77);
    assert_works(login(run(&redis)).env("REDLOCK_USERNAME", "locker"), true);
    assert_works(login(run(&redis)).args(&["--username", "locker"]), true);
    let named = format!("redis://locker@127.0.0.1:{}", redis.port());
    assert_works(login(run(&redis)).env("REDLOCK_REDIS", &named).env("REDLOCK_USERNAME", "nobody"), true);
    let done = run(&redis).env("REDLOCK_REDIS", "redis://s3cret@h").sh("echo ran").done().expect_code(64);
    assert!(done.stderr.contains("redis://:PASSWORD@HOST") && !done.stderr.contains("s3cret"), "{done:?}");
    run(&redis)
        .env("REDLOCK_USERNAME", "locker")
        .sh("echo ran")
        .done()
        .expect_code(64)
        .expect_stderr(&["REDLOCK_USERNAME"]);
}

#[test]
fn a_useless_password_file_is_refused_by_its_name() {
    let redis = with_password();
    let (_directory, empty) = file("\n", 0o600);
    for path in [PathBuf::from("/no/such"), PathBuf::from("/tmp"), empty] {
        let done = run(&redis).arg("--password-file").arg(&path).sh("echo ran").done().expect_code(78);
        assert!(done.stdout.is_empty() && done.stderr.contains("--password-file: /"), "{done:?}");
    }
}

#[test]
fn a_password_that_all_users_can_read_causes_a_warning() {
    let redis = with_password();
    let (_directory, path) = file(PASSWORD, 0o644);
    let stderr = assert_works(run(&redis).arg("--password-file").arg(&path), false);
    assert!(stderr.contains(&format!("warning: {} holds a password", path.display())), "{stderr}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(!assert_works(run(&redis).arg("--password-file").arg(&path), false).contains("warning"));
    let encoded: String = PASSWORD.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let text = format!("redis = \"redis://:{encoded}@127.0.0.1:{}\"\n", redis.port());
    let (_directory, config) = config_file(&text);
    let read = || Run::bare().args(&["run", "--key", "k", "-v"]).env("REDLOCK_CONFIG", &config);
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(assert_works(read(), false).contains("holds a password"));
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!assert_works(read(), false).contains("holds a password"));
}

#[test]
fn a_password_that_must_be_encoded_gets_a_hint_and_is_not_shown() {
    for url in [
        "redis://:s3c@ret#w@127.0.0.1:7714",
        "redis://:s3c/ret@h",
        "redis://:s3c?ret@h",
        "redis://:s3c#ret@h",
        "redis://user@corp:s3c#ret@h",
        "redis://:s3c,ret@h",
        "redis://a,redis://:s3c,ret@h",
    ] {
        let typed = Run::bare().args(&["run", "--key", "k", "--redis", url]);
        let inherited = Run::bare().args(&["run", "--key", "k"]).env("REDLOCK_REDIS", url);
        let (_directory, path) = config_file(&format!("redis = \"{url}\"\n"));
        let in_file = Run::bare().args(&["run", "--key", "k"]).env("REDLOCK_CONFIG", path);
        for (run, code) in [(typed, 64), (inherited, 64), (in_file, 78)] {
            let done = run.arg("-v").sh("echo ran").done().expect_code(code);
            assert!(done.stderr.contains("percent-encoded"), "{url}: {done:?}");
            assert!(!done.stderr.contains("s3c") && !done.stderr.contains("ret"), "{url}: {done:?}");
        }
    }
}

/// A URL in the place of another value, or a command, is repeated without its password.
#[test]
fn a_misplaced_url_is_repeated_without_its_password() {
    for password in ["s3cret", "s3c,ret", "s3c'ret", "s3c\"ret", "s3c ret", "s3c://ret", "s3c\u{9b}ret"] {
        let url = format!("redis://:{password}@h");
        let option = |name: &str| Run::bare().args(&["run", "--local", "--key", "k", name, &url]);
        let misplaced = [
            option("--ttl"),
            option("--slots"),
            option("--on-lost"),
            option("--config"),
            option("--events"),
            option("--no-such"),
            Run::bare().arg(&url),
            Run::bare().args(&["status", "a", &url]),
            Run::bare().args(&["run", "--local", "--key", "k"]).env("REDLOCK_SLOTS", &url),
        ];
        for run in misplaced {
            let done = run.cmd(&["true"]).done();
            assert_ne!(done.code, Some(0), "{done:?}");
            assert!(!done.stderr.contains("s3c") && !done.stderr.contains("ret"), "{url}: {done:?}");
        }
    }
}
