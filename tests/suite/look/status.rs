//! `redlock status` on one server: states, holders, the queue, checks.

use std::os::unix::ffi::OsStrExt;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{look, status};
use crate::support::{Redis, Run, hold, holder, queued, wait_until};

#[test]
fn a_holder_is_shown_until_it_releases() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--label", "nightly", "--ttl", "60s"]);
    let done = look("status", &redis.url(), &["k"]).done().expect_code(0);
    assert!(done.stdout.starts_with("k: held\n"), "{done:?}");
    for part in ["nightly", &format!("pid {}", first.pid()), "since", "lease ends in", "fence", "token"] {
        assert!(done.stdout.contains(part), "{part}: {done:?}");
    }
    let found = status(&redis.url(), "k");
    assert_eq!((&found["key"], &found["state"]), (&"k".into(), &"held".into()));
    let described = &found["holders"][0];
    assert_eq!((&described["pid"], &described["label"]), (&first.pid().into(), &"nightly".into()));
    assert_eq!(described["token"].as_str().unwrap(), redis.cmd(&["GET", "lock:k"]));
    assert_eq!(described["fence"].to_string(), redis.cmd(&["GET", "lock-fence:k"]));
    assert!((30_000..=60_000).contains(&described["expires_ms"].as_u64().unwrap()), "{described}");
    assert!(described["since"].as_str().unwrap().ends_with('Z') && described["held_ms"].is_u64());
    assert_eq!((&described["slot"], &described["job_url"]), (&().into(), &().into()), "unknown is absent");
    first.wait().expect_code(0);
    assert_eq!(look("status", &redis.url(), &["k"]).done().expect_code(0).stdout, "k: free\n");
}

#[test]
fn every_state_has_its_name() {
    let redis = Redis::start();
    let state = |key: &str| status(&redis.url(), key)["state"].as_str().unwrap().to_owned();
    let _sharers: Vec<_> = (0..2).map(|_| holder(&redis, "s", &["-s"])).collect();
    let _slot = holder(&redis, "n", &["--slots", "3"]);
    Run::key(&redis, "m").args(&["--min-hold", "60s"]).cmd(&["true"]).done().expect_code(0);
    redis.cmd(&["SET", "lock:f", "another-program", "PX", "60000"]);
    for (key, wanted) in [("s", "shared"), ("n", "slots"), ("m", "kept"), ("f", "foreign"), ("x", "free")] {
        assert_eq!(state(key), wanted);
    }
    assert_eq!(status(&redis.url(), "s")["holders"].as_array().unwrap().len(), 2);
    let slots = status(&redis.url(), "n");
    assert_eq!((&slots["of"], &slots["holders"][0]["slot"]), (&3.into(), &0.into()));
    let kept = &status(&redis.url(), "m")["holders"][0];
    assert_eq!(kept["ended"], true);
    let text = |key: &str| look("status", &redis.url(), &[key]).done().expect_code(0).stdout;
    assert!(text("s").starts_with("s: shared by 2\n"));
    assert!(text("n").starts_with("n: 1 of 3 slots are taken\nholder   slot 0: "));
    assert!(text("m").starts_with("m: kept by --min-hold, free again in "));
    assert!(text("f").starts_with("f: held by another program, expires in "));
    assert!(!text("f").contains("another-program"), "a foreign value may be a secret");
}

/// The names of all fields, at any depth.
fn field_names(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| [vec![name.clone()], field_names(value)].concat())
            .collect(),
        Value::Array(items) => items.iter().flat_map(field_names).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_help_describes_every_field_of_the_json() {
    let redis = Redis::start();
    let run = || Run::key(&redis, "k").args(&["--label", "nightly"]);
    (0..5).for_each(|_| drop(run().args(&["--once", "1ms"]).cmd(&["true"]).done().expect_code(0)));
    let acquire = ["--key", "k", "--ttl", "60s", "--label", "nightly"];
    look("acquire", &redis.url(), &acquire).done().expect_code(0);
    let _waiter = run().arg("-s").cmd(&["true"]).spawn();
    queued(&redis, "k", 1);
    let names = field_names(&status(&redis.url(), "k"));
    for name in ["usual", "done", "renewed", "version", "position", "servers"] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    for command in ["status", "list"] {
        let help = Run::bare().args(&[command, "--help"]).done().expect_code(0).stdout;
        let (_, json) = help.split_once("\nJSON:").expect("the section");
        let (json, _) = json.split_once("\nExit status:").expect("the next one");
        let words: Vec<&str> = json.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let missing: Vec<&String> = names.iter().filter(|name| !words.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?}: {json}");
    }
}

#[test]
fn the_queue_is_shown_in_order_with_waiters_and_modes() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &[]);
    let waiter = |n: usize, args: &[&str]| {
        let job = hold_later(Run::key(&redis, "k").args(args));
        queued(&redis, "k", n);
        job
    };
    let waiters = [waiter(1, &["--label", "one"]), waiter(2, &["-s", "--label", "two"]), waiter(3, &[])];
    let found = status(&redis.url(), "k");
    let queue = found["waiters"].as_array().unwrap();
    let seen: Vec<_> =
        queue.iter().map(|w| (w["pid"].as_i64().unwrap(), w["mode"].as_str().unwrap())).collect();
    let expected = ["exclusive", "shared", "exclusive"];
    let expected: Vec<_> = waiters.iter().map(|job| i64::from(job.pid())).zip(expected).collect();
    assert_eq!(seen, expected);
    assert_eq!((&queue[1]["position"], &queue[1]["label"]), (&2.into(), &"two".into()));
    assert!(queue.iter().all(|waiter| waiter["waited_ms"].is_u64() && waiter["host"].is_string()), "{found}");
    let text = look("status", &redis.url(), &["k"]).done().stdout;
    assert!(text.contains("queue    1  ") && text.contains("(two, sh), waiting "), "{text}");
    // A waiter's record is deleted with it.
    waiters[0].signal(Signal::SIGTERM);
    wait_until("the waiter has left", || redis.cmd(&["HLEN", "lock-who:k"]) == "2");
    waiters[1].signal(Signal::SIGKILL);
    let names = |n| status(&redis.url(), "k")["waiters"].as_array().unwrap().len() == n;
    wait_until("the dead waiter is not shown", || names(1));
    first.wait().expect_code(0);
    wait_until("the last waiter has the lock", || status(&redis.url(), "k")["state"] == "held" && names(0));
    assert_eq!(redis.cmd(&["EXISTS", "lock-who:k"]), "0");
}

fn hold_later(run: Run) -> crate::support::Job {
    run.stdin_pipe().sh(crate::support::HOLD).spawn()
}

#[test]
fn a_check_sets_the_exit_code_and_prints_nothing() {
    let redis = Redis::start();
    let check = |args: &[&str]| look("status", &redis.url(), &[&["k", "--check"], args].concat());
    check(&["free"]).done().expect_code(0);
    check(&["held"]).done().expect_code(1);
    let token = "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1";
    check(&["owned", "--token", token]).done().expect_code(1);
    let first = holder(&redis, "k", &[]);
    let token = redis.cmd(&["GET", "lock:k"]);
    for (args, code) in [
        (&["held"][..], 0),
        (&["free"], 1),
        (&["owned", "--token", &token], 0),
        (&["owned", "--token", "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1"], 1),
    ] {
        let done = check(args).done().expect_code(code);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""), "{args:?}");
    }
    check(&["owned"]).env("REDLOCK_TOKEN", &token).done().expect_code(0);
    check(&["owned", "--token", "nonsense"]).done().expect_code(64);
    assert!(check(&["held", "-v"]).done().expect_code(0).stdout.starts_with("k: held"));
    assert!(check(&["free", "--json"]).done().expect_code(1).stdout.starts_with('{'));
    first.wait().expect_code(0);
    // Inside a run the token is in the environment.
    let run = Run::key(&redis, "k").env("REDLOCK_REDIS", redis.url());
    let run = run.env("REDLOCK", crate::support::run::binary());
    run.sh("\"$REDLOCK\" status k --check owned").done().expect_code(0);
}

#[test]
fn a_failed_look_is_distinguished_from_no() {
    let mut redis = Redis::start();
    redis.cmd(&["HSET", "lock:h", "a", "b"]);
    let check = |url: &str, key: &str| look("status", url, &[key, "--check", "free"]).done();
    check(&redis.url(), "h").expect_code(78);
    redis.cmd(&["CONFIG", "SET", "requirepass", "word"]);
    check(&redis.url(), "k").expect_code(77);
    redis.kill();
    let done = check(&redis.url(), "k").expect_code(69);
    assert!(done.stderr.contains("cannot look at \"k\"") && done.stderr.contains(&redis.url()), "{done:?}");
}

#[test]
fn text_from_a_server_is_escaped_for_the_terminal() {
    let redis = Redis::start();
    let _holder = hold(Run::key(&redis, "k\u{1b}[31m").args(&["--label", "a\u{1b}]0;owned\u{7}b"]));
    for done in [
        look("status", &redis.url(), &["k\u{1b}[31m"]).done().expect_code(0),
        look("list", &redis.url(), &[]).done().expect_code(0),
    ] {
        assert!(done.stdout.contains("\\u{1b}]0;owned\\u{7}b"), "{done:?}");
        assert!(!done.stdout.contains(['\u{1b}', '\u{7}']), "{done:?}");
    }
}

#[test]
fn a_key_of_any_bytes_is_shown_by_its_bytes() {
    let redis = Redis::start();
    let key = std::ffi::OsStr::from_bytes(b"k\xff\0"[..2].as_ref());
    let run = Run::bare().args(&["run", "-r", &redis.url(), "--key"]).arg(key);
    let _holder = hold(run);
    let listed = look("list", &redis.url(), &["--json"]).done().expect_code(0).json_lines();
    assert_eq!((&listed[0]["key"], &listed[0]["key_hex"]), (&"k\\xff".into(), &"6bff".into()));
    let done = look("status", &redis.url(), &["--json"]).arg(key).done().expect_code(0);
    assert_eq!(done.json_lines()[0]["state"], "held");
}
