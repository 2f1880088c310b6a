//! Mistakes of people who do not know redlock: it works, or the message helps.

use crate::support::{Done, Redis, Run};

fn redlock(arguments: &[&str]) -> Done {
    Run::bare().args(arguments).done()
}

/// 64, nothing on stdout, and at most two lines: what is wrong, with these parts, and where to find
/// help.
#[track_caller]
fn assert_mistake(arguments: &[&str], parts: &[&str]) {
    let done = redlock(arguments).expect_code(64);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(matches!(lines.len(), 1 | 2) && done.stdout.is_empty(), "{arguments:?}: {done:?}");
    assert!(lines[0].starts_with("redlock: "), "{done:?}");
    assert!(lines.len() == 1 || lines[1].starts_with("Try 'redlock "), "{done:?}");
    for part in parts {
        assert!(lines[0].contains(part), "{arguments:?}: {part:?} is missing in {:?}", lines[0]);
    }
    for part in ["Usage:", "tip:", "<", "s3cret"] {
        assert!(!done.stderr.contains(part), "{arguments:?}: {done:?}");
    }
}

#[test]
fn a_mistake_gets_the_hint_that_helps() {
    let mistakes: &[(&[&str], &[&str])] = &[
        (&["run", "deploy", "--", "true"], &["--key deploy"]),
        (&["run", "ls", "--key", "a"], &["--key must come before the command"]),
        (&["run", "ls", "-la"], &["--key KEY is required"]),
        (&["run", "--", "true"], &["--key KEY is required"]),
        (&["run"], &["--key KEY is required"]),
        (&["run", "--key", "a"], &["the command is missing"]),
        (&["--key", "a", "--", "true"], &["redlock run --key"]),
        (&["-n", "true"], &["redlock run -n"]),
        (&["--bogus"], &["--bogus"]),
        (&["rnu"], &["redlock run"]),
        (&["exec", "a"], &["redlock run"]),
        (&["force-unlock", "a"], &["redlock break"]),
        (&["unlock", "a"], &["redlock release", "redlock break"]),
        (&["ls"], &["redlock list"]),
        (&["who", "a"], &["redlock status"]),
        (&["version"], &["redlock --version"]),
        (&["frobnicate"], &["the commands are run, ", "completions, help"]),
        (&["help", "rum"], &["redlock run"]),
        (&["run", "--waitt", "5", "true"], &["--waitt", "did you mean --wait?"]),
        (&["run", "--config-file", "x"], &["--config-file"]),
        (&["run", "--name", "x", "true"], &["--key"]),
        (&["run", "--url", "x", "true"], &["--redis"]),
        (&["run", "-u", "-k", "a", "true"], &["-u", "when the command ends"]),
        (&["run", "-o", "-k", "a", "true"], &["-o", "--wait-tree"]),
        (&["run", "--no-fork", "-k", "a", "true"], &["--no-fork"]),
        (&["run", "--password=s3cret", "true"], &["REDLOCK_PASSWORD", "--password-file"]),
        (&["run", "-k", "a", "--wait"], &["--wait needs a value", "DURATION"]),
        (&["run", "-k", "a", "--prefer", "cry", "true"], &["fair, writers or readers", "\"cry\""]),
        (&["run", "-k", "a", "--local=yes", "true"], &["--local takes no value"]),
        (&["completions"], &["SHELL is required", "bash|zsh|fish"]),
        (&["completions", "tcsh"], &["bash, zsh, fish, elvish or powershell"]),
        (&["status"], &["--key KEY is required"]),
        (&["status", "a", "--check", "mine"], &["held, free or owned", "\"mine\""]),
        (&["status", "a", "--check", "owned"], &["--token TOKEN is required", "REDLOCK_TOKEN"]),
        (&["status", "a", "--token", "x"], &["--check owned"]),
        (&["break"], &["--key KEY is required"]),
        (&["break", "a", "b"], &["\"b\""]),
        (&["break", "a", "--key", "b"], &["one key"]),
        (&["break", "--key", "a", "--key", "b"], &["one key"]),
        (&["status", "--key", "a", "--key", "b"], &["one key"]),
        (&["history", "--key", "a", "--key", "b"], &["one key"]),
        (&["run", "-k", "a", "redis://:s3cret@h"], &["--redis"]),
        (&["run", "-k", "a", "-r", "localhost:7711", "true"], &["did you mean redis://localhost:7711?"]),
        (&["run", "-k", "a", "-r", "/run/redis.sock", "true"], &["did you mean unix:///run/redis.sock?"]),
        (&["run", "-k", "a", "-r", "redis://a redis://b", "true"], &["commas"]),
        (&["run", "-k", "a", "-r", "http://h", "true"], &["redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]"]),
    ];
    for (arguments, parts) in mistakes {
        assert_mistake(arguments, parts);
    }
}

#[test]
fn only_existing_options_are_suggested() {
    for word in ["--json", "--frobnicate", "-z", "--w", "--1"] {
        let done = redlock(&["run", "-k", "a", word, "true"]).expect_code(64);
        if let Some((_, meant)) = done.stderr.split_once("did you mean ") {
            let meant = meant.split('?').next().unwrap();
            let help = redlock(&["run", "--help"]).stdout;
            assert!(help.contains(meant), "{word}: {meant} does not exist");
        }
    }
}

#[test]
fn redlock_without_arguments_prints_the_help_once_and_exits_64() {
    let done = redlock(&[]).expect_code(64);
    let help = redlock(&["-h"]).expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", help.stdout.as_str()));
    assert!(!done.stderr.contains("redlock: "), "no prefix before lines of help");
}

#[test]
fn help_is_printed_in_every_usual_way() {
    let long = redlock(&["run", "--help"]).expect_code(0).stdout;
    assert_eq!(redlock(&["help", "run"]).expect_code(0).stdout, long);
    assert_eq!(redlock(&["run", "-k", "a", "--help", "--", "true"]).expect_code(0).stdout, long);
    assert_eq!(redlock(&["help"]).expect_code(0).stdout, redlock(&["--help"]).expect_code(0).stdout);
    let short = redlock(&["run", "-h"]).expect_code(0).stdout;
    assert!(short.lines().count() < 60 && short.lines().all(|line| line.chars().count() <= 80), "{short}");
    assert!(!format!("{long}{short}").contains("[env"), "{long}");
    for word in ["DURATION", "URL"] {
        assert!(long.contains(&format!("\n  {word}  ")), "{word} is not defined in {long}");
    }
    for arguments in [&["--version"][..], &["-V"], &["run", "--version"]] {
        let version = format!("redlock {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(redlock(arguments).expect_code(0).stdout, version);
    }
    // The command's own help.
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["sh", "-c", "echo \"$@\"", "sh", "-h", "--help"]);
    assert_eq!(run.done().expect_code(0).stdout, "-h --help\n");
}

#[test]
fn options_of_flock_are_accepted() {
    let redis = Redis::start();
    let holder = crate::support::holder(&redis, "k", &[]);
    for options in [&["--nb"][..], &["--no-wait"], &["--timeout", "0"], &["-w0.05"], &["-n", "--nb"]] {
        Run::key(&redis, "k").args(options).cmd(&["true"]).done().expect_code(75);
    }
    holder.wait().expect_code(0);
    let reader = crate::support::holder(&redis, "k", &["-s"]);
    Run::key(&redis, "k").args(&["-e", "-n"]).cmd(&["true"]).done().expect_code(75);
    reader.wait().expect_code(0);
}

#[test]
fn a_key_to_break_is_an_argument_or_an_option() {
    let redis = Redis::start();
    for arguments in [&["break", "k", "--yes"][..], &["break", "--key", "k", "-y"], &["break", "-f", "k"]] {
        redis.cmd(&["SET", "lock:k", "someone else"]);
        let run = Run::bare().args(arguments).arg("--now").env("REDLOCK_REDIS", redis.url());
        run.done().expect_code(0);
        assert_eq!(redis.cmd(&["EXISTS", "lock:k"]), "0", "{arguments:?}");
    }
}

#[test]
fn the_last_of_a_repeated_option_counts() {
    let redis = Redis::start();
    let show = format!("redis-cli -p {} PTTL lock:k", redis.port());
    let run = Run::key(&redis, "k").args(&["--ttl", "1h", "--ttl", "5s", "-v", "-v"]).sh(&show);
    let left: i64 = run.done().expect_code(0).stdout.trim().parse().unwrap();
    assert!((1..=5000).contains(&left), "{left}");
}
