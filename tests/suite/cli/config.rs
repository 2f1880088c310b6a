//! The config file: overridden by the environment and the command line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::config_file as file;
use crate::support::{Host, Nodes, OtherUsers, Redis, Run, UNPRIVILEGED};

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
fn the_command_line_overrides_the_environment_and_that_the_file() {
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
fn the_file_can_forbid_the_fallback() {
    let (_directory, path) = file("require-server = true\n");
    let done = run(&path).cmd(&["true"]).output();
    assert_eq!(done.status.code(), Some(78));
    let (_directory, path) = file("local = true\n");
    let done = run(&path).cmd(&["true"]).output();
    assert_eq!((done.status.code(), done.stderr.len()), (Some(0), 0), "{done:?}");
}

/// Refused with 78 and a line with these parts, which shows no secret.
#[track_caller]
fn assert_unfit(text: &str, parts: &[&str]) {
    let (_directory, path) = file(text);
    let done = run(&path).sh("echo ran").done().expect_code(78);
    assert_eq!((done.stdout.as_str(), done.stderr.lines().count()), ("", 1), "{text:?}: {done:?}");
    for part in parts.iter().copied().chain([path.to_str().unwrap()]) {
        assert!(done.stderr.contains(part), "{part:?} is missing in {:?}", done.stderr);
    }
    assert!(!done.stderr.contains("s3cret"), "{}", done.stderr);
}

#[test]
fn a_bad_file_is_reported_with_line_and_key_and_without_secrets() {
    assert_unfit("local = true\ntll = 1\n", &[":2: ", "\"tll\" is not a redlock setting", "\"ttl\""]);
    assert_unfit("require_server = true\n", &[":1: ", "\"require-server\""]);
    assert_unfit("key = \"k\"\n", &[":1: ", "\"key\""]);
    assert_unfit("password = \"s3cret\"\n", &[":1: ", "password-file", "REDLOCK_PASSWORD"]);
    assert_unfit("\n\nredis = \"redis://:s3cret@h", &[":3: ", "redis: "]);
    assert_unfit("ttl = 20s\n", &[":1: ", "ttl: "]);
    assert_unfit("ttl = { a = 1 }\n", &[":1: ", "ttl: "]);
    assert_unfit("[run]\nttl = 1\n", &[":1: ", "run: ", "top level"]);
    assert_unfit("ttl = [\"1s\", \"2s\"]\n", &[":1: ", "ttl: ", "list"]);
}

#[test]
fn a_bad_value_in_a_file_is_reported_with_line_and_key() {
    let with_server = |text: &str, parts: &[&str]| {
        assert_unfit(&format!("redis = \"redis://127.0.0.1:1\"\n{text}\n"), parts);
    };
    for (text, part) in [
        ("ttl = \"abc\"", ":2: ttl: \"abc\" is not a duration"),
        ("ttl = \"1ms\"", ":2: ttl must be between"),
        ("wait = \"5 parsecs\"", ":2: wait: "),
        ("slots = 0", ":2: slots must be 1 to"),
        ("signal = \"FOO\"", ":2: signal must be"),
        ("prefer = \"cry\"", ":2: prefer must be fair, writers or readers"),
        ("nonblock = \"maybe\"", ":2: nonblock: \"maybe\" is neither true nor false"),
        ("max-hold = 0", ":2: max-hold must be more than 0"),
        ("kill-after = \"1h\"", ":2: kill-after must be at most"),
        ("quarantine = \"1s\"", ":2: quarantine must be at least --ttl (30s), not 1s"),
        ("ttl = \"2s\"\nquarantine = \"1s\"", ":2: ttl must be at most --quarantine (1s), not 2s"),
        ("quarantine = \"1s\"\nttl = \"none\"", ":3: ttl none is not possible with"),
        ("password-file = \"/no/such\"", ":2: password-file: /no/such"),
        ("shared = true\nexclusive = true", ":3: exclusive cannot be used together"),
        ("nonblock = true\nwait = \"5m\"", ":3: wait cannot be used together"),
    ] {
        with_server(text, &[part]);
    }
    assert_unfit("redis = [\"redis://h\", \"localhost:s3cret\"]\n", &[":1: redis, server 2: "]);
}

#[test]
fn a_named_file_must_exist() {
    let done = run(&PathBuf::from("/no/such/config.toml")).cmd(&["true"]).done().expect_code(78);
    assert!(done.stderr.contains("/no/such/config.toml: No such file or directory\n"), "{done:?}");
    for arguments in [&["--help"][..], &["run", "--help"], &["run", "-h"], &["break", "--version"]] {
        let help = Run::bare().args(arguments).env("REDLOCK_CONFIG", "/no/such/config.toml");
        help.done().expect_code(0);
    }
}

#[test]
fn a_url_in_the_wrong_place_is_printed_without_its_password() {
    for text in ["wait = \"redis://:hunter2@h\"\n", "\"redis://:hunter2@h\" = 1\n"] {
        let (_directory, path) = file(text);
        let done = run(&path).cmd(&["true"]).output();
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(message.contains("redis://") && !message.contains("hunter2"), "{message}");
    }
}

/// A home directory with this config file in `below`.
fn home(below: &str, text: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join(below).join("redlock");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("config.toml"), text).unwrap();
    home
}

fn run_at(home: &TempDir) -> Run {
    Run::bare().env("HOME", home.path()).env("XDG_CONFIG_HOME", "").args(&["run", "--key", "k"])
}

#[test]
fn the_users_file_is_in_the_home_directory_by_default() {
    let home = home(".config", "require-server = true\n");
    let refused =
        |run: Run, expected: i32| run.args(&["--key", "j"]).cmd(&["true"]).done().expect_code(expected);
    refused(run_at(&home), 78);
    refused(run_at(&home).env("XDG_CONFIG_HOME", "relative/path"), 78);
    let unset = run_at(&home).via("unset XDG_CONFIG_HOME; exec \"$@\"");
    refused(unset, 78);
    let elsewhere = tempfile::tempdir().unwrap();
    let other = run_at(&home).env("XDG_CONFIG_HOME", elsewhere.path());
    refused(other.arg("--local"), 0);
}

#[test]
fn a_named_file_is_the_only_one() {
    let home = home(".config", "require-server = true\n");
    let (_directory, path) = file("local = true\nlabel = \"named\"\n");
    let verbose = |run: Run| run.arg("-v").cmd(&["true"]).done().expect_code(0).stderr;
    let by_option = verbose(run_at(&home).arg("--config").arg(&path));
    assert!(
        by_option.contains(&format!("config {}; lock \"k\" on this host, /", path.display())),
        "{by_option}"
    );
    assert!(verbose(run_at(&home).env("REDLOCK_CONFIG", &path)).contains(path.to_str().unwrap()));
    // The command line overrides the variable, and /dev/null means none.
    verbose(run_at(&home).arg("--config").arg(&path).env("REDLOCK_CONFIG", "/no/such"));
    verbose(run_at(&home).args(&["--config", "/dev/null", "--local"]));
    // An option of the command is not one of ours.
    let command = run_at(&home).arg("--local").env("REDLOCK_REQUIRE_SERVER", "0");
    let done = command.args(&["echo", "--config", "/no/such"]).done().expect_code(0);
    assert_eq!(done.stdout, "--config /no/such\n");
}

/// The administrator's file and the user's, in a separate mount namespace.
#[test]
fn the_users_file_overrides_the_one_in_etc_setting_by_setting() {
    let unshared = std::process::Command::new("unshare").args(["-m", "true"]).status();
    if !unshared.is_ok_and(|status| status.success()) {
        skip!("only root can have a mount namespace");
    }
    let etc = tempfile::tempdir().unwrap();
    fs::create_dir(etc.path().join("redlock")).unwrap();
    let admins = "label = \"admin\"\nrequire-server = true\nshared = true\nredis = \"redis://127.0.0.1:1\"\n";
    fs::write(etc.path().join("redlock/config.toml"), admins).unwrap();
    let redis = Redis::start();
    let in_etc = |run: Run| {
        let script = format!("mount --bind {} /etc && exec \"$@\"", etc.path().display());
        run.through(&["unshare", "-m", "sh", "-c", &script, "sh"])
    };
    let home = home(".config", &format!("redis = \"{}\"\nexclusive = true\n", redis.url()));
    let show = "redis-cli -p PORT HVALS lock-info:k; redis-cli -p PORT GET lock:k";
    let run = in_etc(run_at(&home)).arg("-v").sh(&show.replace("PORT", &redis.port().to_string()));
    let done = run.done().expect_code(0);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0].contains(r#""label":"admin""#), "other settings are the administrator's");
    assert!(!lines[1].starts_with("shared"), "the user's mode wins: {lines:?}");
    let files =
        format!("config /etc/redlock/config.toml, {}/.config/redlock/config.toml; ", home.path().display());
    assert!(done.stderr.contains(&files), "{}", done.stderr);
    let nobody = tempfile::tempdir().unwrap();
    in_etc(run_at(&nobody)).cmd(&["true"]).done().expect_code(69);
    in_etc(run_at(&nobody)).env("REDLOCK_REDIS", redis.url()).cmd(&["true"]).done().expect_code(0);
}

#[test]
fn another_users_home_directory_is_not_read() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let home = home(".config", "nonsense\n");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let host = Host::with_mode(0o1777);
    let run = |home: &TempDir| host.run().env("HOME", home.path()).env("XDG_CONFIG_HOME", "");
    users.run(UNPRIVILEGED, run(&home), "022").cmd(&["true"]).done().expect_code(0);
    // A file that exists but cannot be read may contain a setting that matters.
    for directory in ["", ".config", ".config/redlock"] {
        fs::set_permissions(home.path().join(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = home.path().join(".config/redlock/config.toml");
    fs::set_permissions(config, fs::Permissions::from_mode(0o600)).unwrap();
    users.run(UNPRIVILEGED, run(&home), "022").cmd(&["true"]).done().expect_code(78);
}

#[test]
fn verbose_reports_where_the_lock_is() {
    let (redis, nodes) = (Redis::start(), Nodes::start(3));
    let verbose = |run: Run| run.arg("-v").cmd(&["true"]).done().expect_code(0).stderr;
    let one = verbose(Run::key(&redis, "k"));
    // The host that runs the tests may have a file for all users.
    let has_config = std::path::Path::new("/etc/redlock/config.toml").exists();
    let config = if has_config { "config /etc/redlock/config.toml" } else { "no config file" };
    assert!(one.contains(&format!("{config}; lock \"k\" on {}\n", redis.url())), "{one}");
    let three = verbose(nodes.run("k"));
    assert!(three.contains("lock \"k\" on 3 servers (redis://"), "{three}");
}

#[test]
fn a_file_that_another_user_can_change_is_refused() {
    let (_directory, path) = file("local = true\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
    let done = run(&path).sh("echo ran").done().expect_code(78);
    assert!(done.stdout.is_empty() && done.stderr.contains("every user: chmod o-w"), "{done:?}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    run(&path).cmd(&["true"]).done().expect_code(0);
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    std::os::unix::fs::chown(&path, Some(UNPRIVILEGED), None).unwrap();
    let done = run(&path).sh("echo ran").done().expect_code(78);
    let owner = format!("belongs to uid {UNPRIVILEGED}");
    assert!(done.stdout.is_empty() && done.stderr.contains(&owner), "{done:?}");
    fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    users.run(UNPRIVILEGED, run(&path), "022").cmd(&["true"]).done().expect_code(0);
}
