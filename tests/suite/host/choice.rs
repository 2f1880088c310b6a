//! When the lock is on this host, what redlock prints about it, and what the command gets.

use std::fs;
use std::path::Path;

use crate::support::host::lock_files;
use crate::support::run::os;
use crate::support::{Host, Redis, Run, hold, processes};

/// Nothing listens there.
const NO_SERVER: &str = "redis://127.0.0.1:1";

/// Directories for locks without --local-dir.
const DIRECTORIES: [&str; 3] = ["/run/lock", "/var/tmp", "/tmp"];

/// A key that no other test on this host uses; its file is deleted with it.
struct OwnKey(String);

impl OwnKey {
    fn new() -> OwnKey {
        OwnKey(format!("redlock-test-{}", processes::mark()))
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        let there = DIRECTORIES.into_iter().filter(|directory| Path::new(directory).is_dir());
        let all = there.flat_map(|directory| lock_files(Path::new(directory)));
        all.filter(|path| path.to_string_lossy().ends_with(&self.0)).collect()
    }
}

impl Drop for OwnKey {
    fn drop(&mut self) {
        for file in self.files() {
            let _ = fs::remove_file(file);
        }
    }
}

/// `redlock run --key KEY` without options for servers or this host.
fn run_without_backend(key: &OwnKey) -> Run {
    Run::bare().args(&["run", "--key", &key.0])
}

#[test]
fn a_run_works_without_configuration_and_environment() {
    let key = OwnKey::new();
    let run = Run::bare().through(&["env", "-i"]).args(&["run", "--key", &key.0]);
    let done = run.clone().cmd(&["/bin/sh", "-c", "echo $REDLOCK_KEY; exit 7"]).done().expect_code(7);
    assert_eq!(done.stdout, format!("{}\n", key.0));
    run.cmd(&["true"]).done().expect_code(0);
    assert_eq!(key.files().len(), 1, "one file in one directory shared by all users");
}

#[test]
fn the_default_directory_is_one_lock_for_every_run_without_options() {
    let key = OwnKey::new();
    let run = || Run::bare().args(&["run", "-q", "--key", &key.0]);
    let first = hold(run());
    run().arg("-n").cmd(&["true"]).done().expect_code(75);
    run().args(&["-n", "--local"]).cmd(&["true"]).done().expect_code(75);
    first.wait().expect_code(0);
    run().arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn one_line_warns_that_other_hosts_are_not_kept_out_and_what_to_set() {
    let key = OwnKey::new();
    let done = run_without_backend(&key).cmd(&["true"]).done().expect_code(0);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{done:?}");
    for part in
        [&key.0, "this host only", "other hosts are not kept out", "--redis", "REDLOCK_REDIS", "--local"]
    {
        assert!(lines[0].contains(part), "{part:?} is missing in {:?}", lines[0]);
    }
    let same = [
        run_without_backend(&key).env("REDLOCK_REDIS", ""), // an empty variable configures nothing
        run_without_backend(&key).arg("-q"),
        run_without_backend(&key).env("REDLOCK_QUIET", "1"),
        run_without_backend(&key).env("REDLOCK_LOCAL", "0"),
    ];
    for run in same {
        assert_eq!(run.cmd(&["true"]).done().expect_code(0).stderr, done.stderr);
    }
}

#[test]
fn only_an_explicit_option_for_this_host_silences_the_line() {
    let (key, host) = (OwnKey::new(), Host::new());
    let silent = [
        run_without_backend(&key).arg("--local"),
        run_without_backend(&key).env("REDLOCK_LOCAL", "yes"),
        run_without_backend(&key).arg("--local-dir").arg(host.path()),
        run_without_backend(&key).env("REDLOCK_LOCAL_DIR", host.path()),
    ];
    for run in silent {
        let done = run.sh("echo out; echo err >&2").done().expect_code(0);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
    }
}

#[test]
fn local_overrides_configured_servers() {
    let host = Host::new();
    let with_server = |run: Run| run.env("REDLOCK_REDIS", NO_SERVER).arg("-n").cmd(&["true"]).done();
    let first = hold(host.run().env("REDLOCK_REDIS", NO_SERVER));
    assert_eq!(with_server(host.run()).expect_code(75).stdout, "");
    let in_directory = || Run::bare().args(&["run", "--key", "k"]).env("REDLOCK_LOCAL_DIR", host.path());
    with_server(in_directory().env("REDLOCK_LOCAL", "1")).expect_code(75);
    // A typed directory selects this host; an inherited one only names the place.
    let typed = Run::bare().args(&["run", "--key", "k", "--local-dir"]).arg(host.path());
    with_server(typed).expect_code(75);
    with_server(in_directory()).expect_code(69);
    first.wait().expect_code(0);
}

#[test]
fn a_typed_server_overrides_an_inherited_local() {
    let (host, redis) = (Host::new(), Redis::start());
    let job = hold(Run::key(&redis, "k").env("REDLOCK_LOCAL", "1").env("REDLOCK_LOCAL_DIR", host.path()));
    assert!(redis.held("k"));
    assert_eq!(lock_files(host.path()).len(), 0, "no lock on this host");
    job.wait().expect_code(0);
    let both = Run::key(&redis, "k").arg("--local").sh("echo ran").done().expect_code(64);
    assert_eq!(both.stdout, "");
}

#[test]
fn require_server_forbids_the_fallback() {
    let (key, redis) = (OwnKey::new(), Redis::start());
    let forbidden = [
        run_without_backend(&key).arg("--require-server"),
        run_without_backend(&key).env("REDLOCK_REQUIRE_SERVER", "1"),
        run_without_backend(&key).env("REDLOCK_REQUIRE_SERVER", "1").env("REDLOCK_REDIS", ""),
        run_without_backend(&key).env("REDLOCK_REQUIRE_SERVER", "1").env("REDLOCK_LOCAL", "1"),
    ];
    for run in forbidden {
        let done = run.sh("echo ran").done().expect_code(78).expect_stderr(&["REDLOCK_REDIS"]);
        assert_eq!(done.stdout, "");
    }
    assert_eq!(key.files().len(), 0);
    Run::key(&redis, "k").env("REDLOCK_REQUIRE_SERVER", "1").sh("exit 5").done().expect_code(5);
    run_without_backend(&key).env("REDLOCK_REQUIRE_SERVER", "0").sh("exit 6").done().expect_code(6);
    run_without_backend(&key)
        .env("REDLOCK_REQUIRE_SERVER", "1")
        .arg("--local")
        .sh("exit 7")
        .done()
        .expect_code(7);
    let both = run_without_backend(&key)
        .args(&["--require-server", "--local"])
        .sh("echo ran")
        .done()
        .expect_code(64);
    assert_eq!(both.stdout, "");
}

#[test]
fn options_for_servers_are_ignored_when_inherited() {
    let host = Host::new();
    for (ttl, timeout) in [("30s", "1s"), ("1ms", "9h"), ("none", "no duration at all")] {
        let run = host.run().env("REDLOCK_TTL", ttl).env("REDLOCK_NODE_TIMEOUT", timeout);
        let done = run.sh("exit 3").done().expect_code(3);
        assert_eq!(done.stderr, "", "{ttl} {timeout}");
    }
}

#[test]
fn redlock_exits_with_the_commands_exit_code() {
    let host = Host::new();
    for code in [0, 1, 75, 255] {
        host.run().sh(&format!("exit {code}")).done().expect_code(code);
    }
    assert_eq!(host.run().sh("kill -KILL $$").done().signal, Some(9));
    host.run().cmd(&["/no/such/command"]).done().expect_code(127);
    host.run().cmd(&["/etc/passwd"]).done().expect_code(126);
    assert!(host.is_free());
}

#[test]
fn the_command_gets_key_token_fence_and_attempts() {
    let host = Host::new();
    let script = "printf '%s|' \"$REDLOCK_KEY\" \"$REDLOCK_TOKEN\" \"$REDLOCK_ATTEMPTS\" \"$REDLOCK_FENCE\"";
    let stale = host.run_on("odd key/..").env("REDLOCK_KEY", "x").env("REDLOCK_TOKEN", "x");
    let done = stale.env("REDLOCK_FENCE", "x").env("REDLOCK_ATTEMPTS", "x").sh(script).done().expect_code(0);
    let words: Vec<&str> = done.stdout.split('|').collect();
    assert_eq!((words[0], words[2]), ("odd key/..", "1"));
    assert!(words[1].len() >= 16, "a token: {words:?}");
    assert!(words[3].parse::<u64>().is_ok(), "a number: {words:?}");
    let raw = host.run_on(os(b"\xff\xfe")).sh("printf %s \"$REDLOCK_KEY\"").output();
    assert_eq!(raw.stdout, b"\xff\xfe");
}

#[test]
fn the_fence_grows_with_every_grant_including_shared_ones() {
    let host = Host::new();
    let mut fences: Vec<u64> = (0..3).map(|_| host.run().fence()).collect();
    let note = "echo $REDLOCK_FENCE >> order";
    let sharers: Vec<_> =
        (0..8).map(|_| host.run().dir(host.path()).arg("--shared").sh(note).spawn()).collect();
    for sharer in sharers {
        sharer.wait().expect_code(0);
    }
    fences.extend(host.order().iter().map(|line| line.parse::<u64>().expect("a number")));
    fences[3..].sort();
    fences.push(host.run().fence());
    assert!(fences.len() == 12 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn the_fence_grows_after_the_file_is_truncated_or_deleted() {
    let host = Host::new();
    let mut fences = vec![host.run().fence()];
    let harms: [fn(&Path) -> std::io::Result<()>; 3] =
        [|file| fs::write(file, ""), |file| fs::remove_file(file), |file| fs::write(file, "x")];
    for harm in harms {
        harm(&host.file()).unwrap();
        fences.push(host.run().fence());
        fences.push(host.run().fence());
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn the_fence_grows_after_the_file_is_filled_with_garbage() {
    let host = Host::new();
    let mut fences = vec![host.run().fence()];
    for byte in [0x00, 0x20, b'A', 0x80, 0xff] {
        fs::write(host.file(), [byte; 4096]).unwrap();
        fences.push(host.run().fence());
        fences.push(host.run().fence());
        // Garbage must not raise the fence so high that a new file could not continue from it.
        fs::remove_file(host.file()).unwrap();
        fences.push(host.run().fence());
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}
