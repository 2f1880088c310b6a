//! Settings: what is refused, where they come from, and which one wins.

use std::fs;
use std::process::Stdio;

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Redis, Run, config_file, executable, holder, wait_until};

/// Refused with 64 and a reason that contains one of `words`; the command does not run, the server
/// is not touched.
#[track_caller]
fn assert_refused(redis: &Redis, run: Run, words: &[&str]) {
    let done = run.sh("echo ran").done().expect_code(64).expect_stderr(words);
    assert_eq!(done.stdout, "");
    assert_eq!(redis.keys(), Vec::<String>::new(), "something is left on the server");
}

#[test]
fn invalid_durations_are_refused() {
    let redis = Redis::start();
    for bad in
        ["", " ", "-1", "-5s", "1e30", "5 parsecs", "nan", "inf", "1s2", "s", "99999999999999999999s", "0x10"]
    {
        for option in ["--ttl", "--wait", "--kill-after"] {
            assert_refused(&redis, Run::key(&redis, "k").arg(format!("{option}={bad}")), &[option]);
        }
    }
}

#[test]
fn a_ttl_must_be_between_100ms_and_a_year() {
    let redis = Redis::start();
    for bad in ["0", "0s", "99ms", "0.05", "366d", "2y"] {
        assert_refused(&redis, Run::key(&redis, "k").args(&["--ttl", bad]), &["--ttl"]);
    }
    for good in ["100ms", "0.1", "1", "1.5", "90s", "5m", "1h 30m", "365d"] {
        // It is accepted; but on a busy machine the shortest may end before the command does.
        let run = || Run::key(&redis, "k").args(&["--ttl", good]).cmd(&["true"]).done();
        let done = (0..20).map(|_| run()).find(|done| done.code != Some(79)).expect("a lease that is kept");
        done.expect_code(0);
    }
}

#[test]
fn the_grace_before_sigkill_is_at_most_a_third_of_the_ttl() {
    let redis = Redis::start();
    assert_refused(
        &redis,
        Run::key(&redis, "k").args(&["--ttl", "30s", "--kill-after", "11s"]),
        &["--kill-after"],
    );
    assert_refused(&redis, Run::key(&redis, "k").args(&["--kill-after", "1h"]), &["--kill-after"]);
    Run::key(&redis, "k").args(&["--ttl", "30s", "--kill-after", "10s"]).cmd(&["true"]).done().expect_code(0);
    // The default of 5 s adapts to a short TTL.
    Run::key(&redis, "k").args(&["--ttl", "3s"]).cmd(&["true"]).done().expect_code(0);
}

#[test]
fn urls_that_do_not_parse_are_refused_without_showing_a_password() {
    let redis = Redis::start();
    for bad in [
        "localhost",
        "http://:s3cret@localhost:6379",
        "redis://",
        "redis://user:s3cret@host:notaport",
        "redis://:s3cret@host:99999",
        "redis://:s3cret@127.0.0.1:6379/notadb",
        "redis//:s3cret@host",
        "user:s3cret@host:6379",
        "unix://",
        "redis://:s3cret@ho st",
    ] {
        for run in [
            Run::bare().args(&["run", "--key", "k", "--redis", bad]),
            Run::bare().args(&["run", "--key", "k"]).env("REDLOCK_REDIS", bad),
        ] {
            let done = run.sh("echo ran").done().expect_code(64);
            assert!(!done.stderr.contains("s3cret"), "{bad}: {}", done.stderr);
            assert!(!done.stderr.trim().is_empty(), "{bad} is refused without a message");
            assert_eq!(done.stdout, "", "{bad}");
        }
    }
    assert_eq!(redis.keys(), Vec::<String>::new());
}

/// `--redis "$URL"` with URL unset is a mistake; to lock on this host instead would hide it.
#[test]
fn a_typed_empty_server_is_refused() {
    let done = Run::bare().args(&["run", "--key", "k", "--redis", ""]).sh("echo ran").done();
    assert_eq!(done.expect_code(64).stdout, "");
}

#[test]
fn a_password_is_shown_nowhere() {
    let redis = Redis::start_with(&["--requirepass", "s3cret"]);
    let url = format!("redis://:s3cret@127.0.0.1:{}", redis.port());
    let job = Run::at(&url, "k").arg("-v").sh("env; echo up; exec sleep 60").spawn();
    job.wait_for_line("up");
    let mut shown = redis.cmd(&["HGETALL", "lock-info:k"]) + &redis.cmd(&["GET", "lock:k"]);
    for pid in crate::support::descendants(job.pid()).into_iter().chain([job.pid()]) {
        shown += &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
    }
    assert!(shown.len() > 20, "no text was checked");
    job.signal(SIGTERM);
    let done = job.wait();
    shown += &(done.stdout + &done.stderr);
    assert!(!shown.contains("s3cret"), "{shown}");

    let wrong = format!("redis://:wr0ng@127.0.0.1:{}", redis.port());
    let done = Run::at(&wrong, "k").arg("-v").sh("echo ran").done().expect_code(77);
    assert!(!done.stderr.contains("wr0ng"), "{}", done.stderr);
    let done = Run::at("redis://:s3cret@127.0.0.1:1", "k").arg("-v").sh("echo ran").done().expect_code(69);
    assert!(!done.stderr.contains("s3cret"), "{}", done.stderr);
}

#[test]
fn a_unix_socket_works_as_a_server() {
    let redis = Redis::start();
    let url = format!("unix://{}", redis.socket().display());
    let job = Run::at(&url, "k").sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    assert!(redis.held("k"));
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    job.signal(SIGTERM);
    job.wait();
    assert!(!redis.held("k"));
}

#[test]
fn settings_come_from_the_environment() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("events");
    let job = Run::bare()
        .args(&["run", "--key", "k"])
        .env("REDLOCK_REDIS", redis.url())
        .env("REDLOCK_TTL", "1h")
        .env("REDLOCK_LABEL", "from the environment")
        .env("REDLOCK_EVENTS", &events)
        .sh("echo ready; exec sleep 60")
        .spawn();
    job.wait_for_line("ready");
    let left: i64 = redis.cmd(&["PTTL", "lock:k"]).parse().unwrap();
    assert!(left > 3_000_000, "REDLOCK_TTL is not used: {left} ms");
    assert!(redis.cmd(&["HGETALL", "lock-info:k"]).contains("from the environment"));
    assert!(fs::read_to_string(&events).unwrap().contains("\"acquired\""));

    let other = |name: &str, value: &str| Run::key(&redis, "k").env(name, value).sh("echo ran").done();
    other("REDLOCK_WAIT", "0").expect_code(75);
    other("REDLOCK_WAIT", "50ms").expect_code(75);
    other("REDLOCK_NONBLOCK", "1").expect_code(75);
    other("REDLOCK_NONBLOCK", "true").expect_code(75);
    let run = Run::key(&redis, "k").arg("-n").env("REDLOCK_CONFLICT_EXIT_CODE", "9");
    run.sh("echo ran").done().expect_code(9);
    let run = Run::key(&redis, "k").arg("-n").env("REDLOCK_PREFIX", "other");
    assert_eq!(run.sh("echo ran").done().expect_code(0).stdout, "ran\n");
}

#[test]
fn the_form_of_the_output_comes_from_the_environment_and_the_file_too() {
    let redis = Redis::start();
    for _ in 0..3 {
        Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    }
    let look = |args: &[&str]| Run::bare().args(args).env("REDLOCK_REDIS", redis.url());
    let json = |run: Run| run.env("REDLOCK_JSON", "1").done().expect_code(0);
    assert_eq!(json(look(&["status", "k"])).json()["key"], "k");
    assert_eq!(json(look(&["list"])).stdout, "");
    assert_eq!(json(look(&["history", "k"]).env("REDLOCK_LIMIT", "2")).json_lines().len(), 2);
    let (_directory, file) = config_file("json = true\nlimit = 1\n");
    let configured = look(&["history", "k"]).env("REDLOCK_CONFIG", file).done().expect_code(0);
    assert_eq!(configured.json_lines().len(), 1);
    // What is typed takes precedence, and a token that a script reads stays one.
    let _holder = holder(&redis, "k", &[]);
    assert_eq!(json(look(&["list", "--keys"])).stdout, "k\n");
    assert!(json(look(&["history", "k", "--svg", "-"])).stdout.starts_with("<svg"));
    let token = json(look(&["acquire", "--key", "other", "--ttl", "1s"])).stdout;
    assert!(token.trim().parse::<f64>().is_err() && !token.contains('{'), "{token}");
}

#[test]
fn a_bad_variable_is_named_in_the_error() {
    let redis = Redis::start();
    for (name, value) in [
        ("REDLOCK_TTL", "soon"),
        ("REDLOCK_WAIT", "-1"),
        ("REDLOCK_KILL_AFTER", "1h"),
        ("REDLOCK_CONFLICT_EXIT_CODE", "256"),
        ("REDLOCK_SIGNAL", "NOSUCH"),
        ("REDLOCK_ON_LOST", "cry"),
    ] {
        let option = name.trim_start_matches("REDLOCK_").replace('_', "-");
        assert_refused(&redis, Run::key(&redis, "k").env(name, value), &[name, &option]);
    }
}

#[test]
fn the_command_line_overrides_inherited_settings() {
    let redis = Redis::start();
    let holder = holder(&redis, "k", &[]);
    Run::key(&redis, "k").arg("-n").env("REDLOCK_WAIT", "1h").cmd(&["true"]).done().expect_code(75);
    Run::key(&redis, "k").args(&["-w", "0"]).env("REDLOCK_WAIT", "1h").cmd(&["true"]).done().expect_code(75);
    let run = Run::key(&redis, "k").args(&["-n", "-E", "3"]).env("REDLOCK_CONFLICT_EXIT_CODE", "9");
    run.cmd(&["true"]).done().expect_code(3);
    let url = "redis://127.0.0.1:1";
    Run::key(&redis, "k").arg("-n").env("REDLOCK_REDIS", url).cmd(&["true"]).done().expect_code(75);

    let patient =
        Run::key(&redis, "k").args(&["-w", "1h"]).env("REDLOCK_NONBLOCK", "1").sh("echo in").spawn();
    wait_until("-w typed beats REDLOCK_NONBLOCK", || redis.queue_len("k") == 1);
    holder.signal(SIGTERM);
    patient.wait_for_line("in");
    patient.wait().expect_code(0);
}

#[test]
fn an_empty_environment_is_enough() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").via("exec env -i \"$@\"");
    let done = run.cmd(&["/bin/sh", "-c", "echo $REDLOCK_KEY"]).done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("k\n", ""));
}

#[test]
fn dash_c_runs_the_callers_shell() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("shell");
    executable(&shell, "#!/bin/sh\necho \"shell: $1|$2|$#\"\n");
    let run = Run::key(&redis, "k").env("SHELL", &shell).args(&["-c", "echo a  'b'; exit 3"]);
    assert_eq!(run.done().expect_code(0).stdout, "shell: -c|echo a  'b'; exit 3|2\n");

    let run = Run::key(&redis, "k").args(&["-c", "echo $REDLOCK_KEY | cat; exit 3"]);
    assert_eq!(run.done().expect_code(3).stdout, "k\n", "without SHELL it is /bin/sh");
    let both = Run::key(&redis, "k").args(&["-c", "echo ran", "--", "echo", "ran"]).done();
    assert_eq!(both.expect_code(64).stdout, "");
}

#[test]
fn help_shows_an_example_and_version_the_version() {
    let help = Run::bare().arg("--help").done().expect_code(0);
    assert!(help.stdout.contains("redlock run") && help.stdout.contains("--key"), "{}", help.stdout);
    let help = Run::bare().args(&["run", "--help"]).done().expect_code(0);
    let example =
        help.stdout.lines().find(|l| l.trim_start().trim_start_matches("$ ").starts_with("redlock run --"));
    assert!(example.is_some(), "no line to paste in {}", help.stdout);
    for option in ["--ttl", "--wait", "--nonblock", "--kill-after", "--on-lost", "--wait-tree", "--events"] {
        assert!(help.stdout.contains(option), "{option}");
    }
    let version = Run::bare().arg("--version").done().expect_code(0);
    assert_eq!(version.stdout, format!("redlock {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_closed_pipe_under_the_help_is_not_a_failure() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Run::bare().args(args).command();
        let output = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn a_url_in_the_wrong_place_is_refused_without_showing_its_password() {
    for url in ["redis://:s3cret@h", "redis://me:s3cret@h:6379/2", "rediss://:s3cret@h"] {
        let done = Run::bare().args(&["run", "-k", "x", url]).cmd(&["true"]).done().expect_code(64);
        assert!(done.stderr.starts_with("redlock: "), "{done:?}");
        assert!(!format!("{done:?}").contains("s3cret"), "{done:?}");
    }
}

#[test]
fn an_empty_prefix_variable_counts_as_not_set() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").env("REDLOCK_PREFIX", "").stdin_pipe().sh("echo ready; read x").spawn();
    job.wait_for_line("ready");
    assert!(redis.held("k"), "not at the default place: {:?}", redis.keys());
    assert_eq!(redis.cmd(&["EXISTS", "k"]), "0");
    Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75).expect_stderr(&["held"]);
    job.wait();
}
