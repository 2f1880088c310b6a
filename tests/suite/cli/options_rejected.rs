//! Modes, slots, retries, holds and pauses as settings: what is refused with 64, and what counts as
//! not set.

use crate::support::{Backend, Host, Redis, Run};

on_backends!(one_server, three_servers, this_host:
    invalid_values_are_refused,
    contradicting_options_are_refused,
    an_empty_variable_counts_as_not_set,
);

/// Refused with 64 and a line that names the option; no command ran.
#[track_caller]
fn assert_misused(run: Run, option: &str) {
    let done = run.sh("echo ran").done().expect_code(64).expect_stderr(&[option]);
    assert_eq!(done.stdout, "");
}

fn invalid_values_are_refused(backend: &Backend) {
    let bad: &[(&str, &[&str])] = &[
        ("--prefer", &["cry", "", "Fair "]),
        ("--slots", &["0", "1025", "-1", "1.5", "many", ""]),
        ("--retries", &["-1", "1.5", "many", ""]),
        ("--retry-interval", &["soon", "-1", ""]),
        ("--max-hold", &["0", "0s", "0ms", "-1", "soon", ""]),
        ("--min-hold", &["-1", "soon", ""]),
        ("--jitter", &["-1", "soon", ""]),
        ("--on-unavailable", &["cry", ""]),
        // The records of locks without a prefix have these names.
        ("--prefix", &["bare"]),
    ];
    for (option, values) in bad {
        for value in *values {
            let run = backend.run().arg(format!("{option}={value}"));
            let run = if *option == "--retry-interval" { run.args(&["--retries", "1"]) } else { run };
            assert_misused(run, option);
        }
    }
    assert!(backend.is_free());
}

fn contradicting_options_are_refused(backend: &Backend) {
    let bad: &[(&[&str], &str)] = &[
        (&["-s", "-x"], "--exclusive"),
        (&["--reader-group", "a"], "--reader-group"),
        (&["--reader-group", "a", "-x"], "--reader-group"),
        (&["--reader-group", "a", "--slots", "2"], "--reader-group"),
        (&["--slots", "2", "-s"], "--slots"),
        (&["-n", "--retries", "2"], "--retries"),
        (&["--retry-interval", "1s"], "--retry-interval"),
        (&["--retry-interval", "1s", "-n"], "--retry-interval"),
        (&["--key", "k"], "key"),
        (&["--key", "j", "--key", "j"], "key"),
    ];
    for (options, named) in bad {
        assert_misused(backend.run().args(options), named);
    }
    assert!(backend.is_free());
}

#[test]
fn a_label_has_at_most_1024_bytes() {
    let host = Host::new();
    let (longest, longer) = ("x".repeat(1024), "x".repeat(1025));
    assert_misused(host.run().args(&["--label", &longer]), "--label must have at most 1024 bytes");
    assert_misused(host.run().env("REDLOCK_LABEL", &longer), "REDLOCK_LABEL must have at most 1024 bytes");
    host.run().args(&["--label", &longest]).cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_refusal_contacts_no_server() {
    let redis = Redis::start();
    for options in [&["--slots", "0"][..], &["-s", "-x"], &["-n", "--retries", "2"], &["--max-hold", "0"]] {
        assert_misused(Run::key(&redis, "k").args(options), "--");
    }
    assert_eq!((redis.keys(), redis.calls("evalsha") + redis.calls("eval")), (vec![], 0));
}

#[test]
fn options_for_servers_are_accepted_on_this_host() {
    let host = Host::new();
    let typed: &[&[&str]] = &[&["--ttl", "none"], &["--quarantine", "off"], &["--password-file", "/no/such"]];
    for options in typed {
        assert_eq!(host.run().args(options).sh("exit 3").done().expect_code(3).stderr, "", "{options:?}");
        let done = host.run().arg("-v").args(options).cmd(&["true"]).done().expect_code(0);
        let line = done
            .stderr
            .lines()
            .find(|line| line.contains("ignored for a lock on this host"))
            .expect("the option is reported");
        assert!(line.contains(options[0]), "{line}");
    }
    let inherited = host.run().env("REDLOCK_ON_UNAVAILABLE", "run").env("REDLOCK_TTL", "none");
    assert_eq!(inherited.sh("exit 3").done().expect_code(3).stderr, "");
    // Typed values must still be valid.
    assert_misused(host.run().args(&["--ttl", "soon"]), "--ttl");
    assert_misused(host.run().args(&["--quarantine", "soon"]), "--quarantine");
}

#[test]
fn a_bad_variable_is_named_in_the_error() {
    let redis = Redis::start();
    for (name, value) in [
        ("REDLOCK_PREFER", "cry"),
        ("REDLOCK_SLOTS", "0"),
        ("REDLOCK_SLOTS", "1025"),
        ("REDLOCK_RETRIES", "many"),
        ("REDLOCK_RETRY_INTERVAL", "soon"),
        ("REDLOCK_MAX_HOLD", "0"),
        ("REDLOCK_MIN_HOLD", "soon"),
        ("REDLOCK_JITTER", "-1"),
        ("REDLOCK_ON_UNAVAILABLE", "cry"),
    ] {
        let option = name.trim_start_matches("REDLOCK_").replace('_', "-");
        let run = Run::key(&redis, "k").env("REDLOCK_RETRIES", "1").env(name, value).sh("echo ran");
        let done = run.done().expect_code(64).expect_stderr(&[name, &option]);
        assert_eq!(done.stdout, "");
    }
    assert_eq!(redis.keys(), Vec::<String>::new());
}

fn an_empty_variable_counts_as_not_set(backend: &Backend) {
    let names = "SHARED EXCLUSIVE PREFER READER_GROUP SLOTS RETRIES RETRY_INTERVAL MAX_HOLD MIN_HOLD \
        ON_UNAVAILABLE JITTER";
    let empty =
        |run: Run| names.split_whitespace().fold(run, |run, name| run.env(&format!("REDLOCK_{name}"), ""));
    let job = empty(backend.run()).stdin_pipe().sh("echo ${REDLOCK_SLOT-plain}; read x; exit 3").spawn();
    job.wait_for_line("plain");
    let done = empty(backend.run()).args(&["-n", "-s"]).cmd(&["true"]).done();
    done.expect_code(75); // held exclusively
    assert_eq!(job.wait().expect_code(3).stderr, "");
    assert!(backend.is_free());
}

#[test]
fn the_key_is_not_taken_from_the_environment() {
    let redis = Redis::start();
    let run = Run::bare().args(&["run", "--redis", &redis.url()]).env("REDLOCK_KEY", "k");
    assert_misused(run, "--key");
}

#[test]
fn a_boolean_variable_is_one_of_eight_words() {
    let redis = Redis::start();
    let holder = crate::support::holder(&redis, "k", &[]);
    let nonblock = |value: &str| Run::key(&redis, "k").args(&["--wait", "0.1"]).env("REDLOCK_VERBOSE", value);
    for (words, lines) in [(["1", "true", "yes", "on"], 2), (["0", "false", "no", "off"], 1)] {
        for word in words {
            let done = nonblock(word).cmd(&["true"]).done().expect_code(75);
            assert!(done.stderr.lines().count() >= lines, "{word}: {done:?}");
        }
    }
    for word in ["maybe", "flase", "2", " ", "y", "TRUE", "disabled"] {
        assert_misused(nonblock(word), "REDLOCK_VERBOSE");
    }
    holder.wait().expect_code(0);
}
