//! Keys and arguments are bytes: they reach the server and the command unchanged, or they are
//! refused.

use std::ffi::OsStr;

use nix::sys::signal::Signal::SIGTERM;

use crate::support::run::os;
use crate::support::{Job, Redis, Run};

fn run_bytes(redis: &Redis, key: &[u8]) -> Run {
    Run::bare().args(&["run", "--redis", &redis.url(), "--key"]).arg(os(key))
}

/// Whether exactly this key is on the server; the bytes are sent as escapes of a Lua string.
fn exists(redis: &Redis, key: &[u8]) -> bool {
    let escaped: String = key.iter().map(|byte| format!("\\{byte:03}")).collect();
    redis.cmd(&["EVAL", &format!("return redis.call('EXISTS', \"{escaped}\")"), "0"]) == "1"
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const HEX_OF_KEY: &str =
    "printf %s \"$REDLOCK_KEY\" | od -An -v -tx1 | tr -d ' \\n'; echo; echo ready; exec sleep 60";

const STRANGE: [&[u8]; 16] = [
    b"with space",
    b" ",
    b"line\nbreak",
    b"trailing\n",
    b"\x1b[31mred\x1b[0m",
    b"bell\x07tab\tdel\x7f",
    b"it's \"quoted\" `here`",
    b"]] return 1 --[[",
    b"]==] .. redis.call('FLUSHALL') .. [==[",
    b"\\0 \\x00 %00 %s $HOME",
    b"{braces} }{ *?[a-z]",
    b"not utf-8: \xff\xfe\x80",
    b"\xc3\x28",
    "gr\u{fc}\u{df} \u{1f512} \u{202e}".as_bytes(),
    b"-starts-with-dash",
    b":::",
];

#[test]
fn every_key_reaches_the_server_and_the_command_byte_for_byte() {
    let redis = Redis::start();
    for key in STRANGE {
        let url = redis.url();
        let mut joined = b"--key=".to_vec();
        joined.extend(key);
        let job = Run::bare().args(&["run", "--redis", &url]).arg(os(&joined)).sh(HEX_OF_KEY).spawn();
        job.wait_for_line("ready");
        let lock = [b"lock:".as_slice(), key].concat();
        assert!(exists(&redis, &lock), "{:?}", OsStr::to_string_lossy(&os(key)));
        job.signal(SIGTERM);
        let done = job.wait();
        assert_eq!(done.stdout, format!("{}\nready\n", hex(key)));
        assert_eq!(done.stderr, "");
        assert!(!exists(&redis, &lock));
    }
}

#[test]
fn control_characters_of_a_key_are_escaped_in_every_message() {
    let redis = Redis::start();
    for key in STRANGE {
        if key.starts_with(b"-") {
            continue; // looks like an option when it stands alone
        }
        let holder: Job = run_bytes(&redis, key).sh("echo ready; exec sleep 60").spawn();
        holder.wait_for_line("ready");
        for verbose in [&[][..], &["-v"]] {
            let done = run_bytes(&redis, key).arg("-n").args(verbose).sh("echo ran").done().expect_code(75);
            let raw = done.stderr.trim_end_matches('\n');
            assert!(raw.lines().all(|line| line.starts_with("redlock: ")), "a line is broken: {raw:?}");
            assert!(!raw.chars().any(|c| c.is_control() && c != '\n'), "{raw:?}");
            assert!(!raw.contains('\u{202e}'), "text direction is reversed: {raw:?}");
        }
    }
}

#[test]
fn a_key_in_lua_brackets_affects_no_other_key() {
    let redis = Redis::start();
    redis.cmd(&["SET", "precious", "1"]);
    for key in STRANGE {
        let mut joined = b"--key=".to_vec();
        joined.extend(key);
        let run = Run::bare().args(&["run", "--redis", &redis.url()]).arg(os(&joined));
        run.cmd(&["true"]).done().expect_code(0);
    }
    assert_eq!(redis.cmd(&["GET", "precious"]), "1");
}

#[test]
fn an_empty_or_oversize_key_is_refused() {
    let redis = Redis::start();
    for bad in [0, 1025, 100_000] {
        let done =
            run_bytes(&redis, &vec![b'k'; bad]).sh("echo ran").done().expect_code(64).expect_stderr(&["key"]);
        assert_eq!(done.stdout, "");
        assert!(done.stderr.len() < 4096, "the message repeats the whole key");
    }
    assert_eq!(redis.keys(), Vec::<String>::new());
    run_bytes(&redis, &[b'k'; 1024]).cmd(&["true"]).done().expect_code(0);
}

#[test]
fn an_empty_prefix_gives_the_bare_key_and_another_prefix_another_lock() {
    let redis = Redis::start();
    for (prefix, lock) in [("", "k"), ("team", "team:k")] {
        let job = Run::key(&redis, "k").args(&["--prefix", prefix]).sh("echo ready; exec sleep 60").spawn();
        job.wait_for_line("ready");
        assert_eq!(redis.cmd(&["EXISTS", lock]), "1", "{lock}");
        assert!(!redis.held("k"));
        Run::key(&redis, "k").args(&["--prefix", prefix, "-n"]).cmd(&["true"]).done().expect_code(75);
        Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(0);
        job.signal(SIGTERM);
        job.wait();
        assert_eq!(redis.cmd(&["EXISTS", lock]), "0", "{lock}");
    }
}

#[test]
fn arguments_reach_the_command_byte_for_byte() {
    let redis = Redis::start();
    let arguments: [&[u8]; 14] = [
        b"",
        b" ",
        b"two  spaces",
        b"it's",
        b"\"double\"",
        b"$HOME `id` $(id)",
        b"*",
        b"back\\slash",
        b"new\nline",
        b"--",
        b"--key",
        b"-n",
        b"\xff\xfe not utf-8",
        b"",
    ];
    let script = "for a; do printf %s \"$a\" | od -An -v -tx1 | tr -d ' \\n'; echo .; done";
    let mut run = Run::key(&redis, "k").cmd(&["sh", "-c", script, "sh"]);
    for argument in arguments {
        run = run.arg(os(argument));
    }
    let expected: String = arguments.iter().map(|a| format!("{}.\n", hex(a))).collect();
    assert_eq!(run.done().expect_code(0).stdout, expected);
}

/// Like timeout, nice and sudo: arguments after the command belong to the command.
#[test]
fn a_command_needs_no_dashes() {
    let redis = Redis::start();
    let script = "printf '%s|' \"$0\" \"$@\"";
    for words in [
        &["sh", "-c", script, "a", "-n", "--key", "x", "--", "-v"][..],
        &["-n", "sh", "-c", script, "a", "-n", "--key", "x", "--", "-v"],
        &["-n", "--", "sh", "-c", script, "a", "-n", "--key", "x", "--", "-v"],
    ] {
        let done = Run::key(&redis, "k").args(words).done().expect_code(0);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("a|-n|--key|x|--|-v|", ""));
    }
}

#[test]
fn an_empty_command_name_is_not_found() {
    let redis = Redis::start();
    let done = Run::key(&redis, "k").args(&["--", ""]).done();
    assert!(matches!(done.code, Some(64 | 127)), "{done:?}");
    assert!(!redis.held("k"));
}

#[test]
fn a_key_of_another_type_is_left_alone() {
    let redis = Redis::start();
    let foreign: [&[&str]; 5] = [
        &["RPUSH", "lock:list", "a"],
        &["HSET", "lock:hash", "a", "b"],
        &["XADD", "lock:stream", "1-1", "a", "b"],
        &["SADD", "lock:set", "a"],
        &["ZADD", "lock:zset", "1", "a"],
    ];
    for make in foreign {
        redis.cmd(make);
        let before = redis.cmd(&["DUMP", make[1]]);
        let key = make[1].strip_prefix("lock:").unwrap();
        let done = Run::key(&redis, key).sh("echo ran").done().expect_code(78);
        assert_eq!(done.stdout, "");
        assert!(done.stderr.starts_with("redlock: ") && done.stderr.contains(key), "{}", done.stderr);
        assert_eq!(redis.cmd(&["DUMP", make[1]]), before, "{key} was changed");
        redis.cmd(&["DEL", make[1]]);
        assert_eq!(redis.keys(), Vec::<String>::new(), "{key} leaves something behind");
    }
}

#[test]
fn a_foreign_string_is_a_held_lock() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock:k", "someone else's"]);
    for how in [&["-n"][..], &["-w", "1.5"]] {
        let done = Run::key(&redis, "k").args(how).sh("echo ran").done().expect_code(75);
        assert_eq!(done.stdout, "");
    }
    assert_eq!(redis.cmd(&["GET", "lock:k"]), "someone else's");
    assert_eq!(redis.cmd(&["PTTL", "lock:k"]), "-1");
    redis.cmd(&["DEL", "lock:k"]);
    assert_eq!(redis.keys(), Vec::<String>::new());
}

#[test]
fn bytes_that_are_not_text_are_refused_with_their_source() {
    let redis = Redis::start();
    for name in ["REDLOCK_LABEL", "REDLOCK_TTL", "REDLOCK_PASSWORD", "REDLOCK_PREFIX"] {
        let done = Run::key(&redis, "k").env(name, os(b"a\xff")).sh("echo ran").done().expect_code(64);
        assert!(
            done.stdout.is_empty() && done.stderr.contains(&format!("{name} is not valid UTF-8")),
            "{done:?}"
        );
    }
    Run::key(&redis, "k")
        .arg("-s")
        .env("REDLOCK_READER_GROUP", os(b"a\xff"))
        .cmd(&["true"])
        .done()
        .expect_code(0);
    let typed = Run::key(&redis, "k").arg("--label").arg(os(b"a\xff")).sh("echo ran").done().expect_code(64);
    assert!(typed.stderr.contains("UTF-8"), "{typed:?}");
}
