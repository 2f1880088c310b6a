//! Servers, callers and readers that do what one does not expect: each gets a clear end, nobody is locked out.

mod support;

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal::SIGKILL;
use support::{Redis, Run, holder, nothing_left, queued, refused, wait_until, wait_until_within};

#[test]
fn a_dead_waiter_of_whom_no_sign_of_life_is_known_does_not_block_the_queue() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &[]);
    let dead = Run::key(&redis, "k").sh("echo ran").spawn();
    queued(&redis, "k", 1);
    dead.signal(SIGKILL);
    assert_eq!(dead.wait().signal, Some(SIGKILL as i32));
    assert_eq!(redis.cmd(&["DEL", "lock-waiters:k"]), "1");
    let next = Run::key(&redis, "k").sh("echo got it").spawn();
    wait_until("the next one waits", || redis.cmd(&["ZCARD", "lock-waiters:k"]) != "0");
    assert_eq!(first.wait().code, Some(0));
    let within = Duration::from_secs(10);
    wait_until_within(within, "it gets the lock", || next.stdout_so_far() == "got it\n");
    assert_eq!(next.wait().code, Some(0));
}

#[test]
fn a_foreign_value_of_any_size_is_a_lock_that_somebody_holds() {
    let redis = Redis::start();
    let large = "x".repeat(2 << 20);
    redis.cmd(&["SET", "lock:k", &large]);
    refused(Run::key(&redis, "k").arg("-n"), 75, &["held"]);
    refused(Run::key(&redis, "k").args(&["-w", "300ms"]), 75, &["held"]);
    assert_eq!(redis.cmd(&["STRLEN", "lock:k"]), large.len().to_string(), "it is not touched");
}

#[test]
fn a_database_that_is_not_there_is_refused_and_no_other_is_used() {
    let redis = Redis::start();
    let url = format!("{}/99", redis.url());
    refused(Run::at(&url, "k"), 78, &["database", "index", "range"]);
    refused(Run::at(&url, "k").arg("-n"), 78, &["database", "index", "range"]);
    nothing_left(&redis);
    let databases = redis.cmd(&["INFO", "keyspace"]);
    assert!(!databases.contains("db"), "{databases}");
}

/// The one client that sleeps in BLPOP.
fn sleeper(redis: &Redis) -> Option<String> {
    let clients = redis.cmd(&["CLIENT", "LIST"]);
    let line = clients.lines().find(|line| line.contains(" cmd=blpop") && line.contains(" flags=b"))?;
    Some(line.strip_prefix("id=")?.split(' ').next()?.to_owned())
}

#[test]
fn a_waiter_whose_sleep_the_server_breaks_off_goes_on_waiting() {
    let redis = Redis::start();
    for how in ["ERROR", "TIMEOUT"] {
        let first = holder(&redis, "k", &[]);
        let mut waiter = Run::key(&redis, "k").sh("echo got it").spawn();
        for round in 0..3 {
            let mut unblocked = false;
            // It may wake by itself between the look and the word.
            wait_until("it is woken", || {
                let woken = sleeper(&redis).map(|id| redis.cmd(&["CLIENT", "UNBLOCK", &id, how]));
                unblocked = woken.as_deref() == Some("1");
                unblocked
            });
            wait_until("it sleeps again", || !waiter.is_running() || sleeper(&redis).is_some());
            assert!(waiter.is_running(), "{how}, round {round}: {:?}", waiter.stderr_so_far());
        }
        queued(&redis, "k", 1);
        assert_eq!(waiter.stdout_so_far(), "");
        assert_eq!(first.wait().code, Some(0));
        let done = waiter.wait().expect_code(0);
        assert_eq!(done.stdout, "got it\n", "{how}: {done:?}");
    }
}

#[test]
fn a_reader_who_has_had_enough_of_the_help_is_no_failure() {
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
fn an_address_in_the_wrong_place_is_refused_without_showing_its_password() {
    for url in ["redis://:s3cret@h", "redis://me:s3cret@h:6379/2", "rediss://:s3cret@h"] {
        let done = Run::bare().args(&["run", "-k", "x", url]).cmd(&["true"]).done().expect_code(64);
        assert!(done.stderr.starts_with("redlock: "), "{done:?}");
        assert!(!format!("{done:?}").contains("s3cret"), "{done:?}");
    }
}

#[test]
fn a_prefix_variable_that_is_set_but_empty_is_not_set() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").env("REDLOCK_PREFIX", "").stdin_pipe().sh("echo ready; read x").spawn();
    job.wait_for_line("ready");
    assert!(redis.held("k"), "not at the default place: {:?}", redis.keys());
    assert_eq!(redis.cmd(&["EXISTS", "k"]), "0");
    refused(Run::key(&redis, "k").arg("-n"), 75, &["held"]);
    job.wait();
}
