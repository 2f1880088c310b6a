//! Data that no redlock has written: every view shows it, or leaves it out, and none panics or obeys
//! it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::support::{Done, Host, Redis, Run, hold};

/// Where the lock file has its history, and the size of an entry.
const LOG: u64 = 25 * 4096;
const ENTRY: u64 = 320;

/// The beginning of a token: the rest is a number of twelve digits, and the attempt.
const TOKEN: &str = "3f2b8c1e-9a4d-4c57-8f10";

/// Around zero, the year 9999, and the ends of 53, 63 and 64 bits.
const NUMBERS: [u64; 8] =
    [0, 1, 253_402_300_799_999, 253_402_300_800_000, 1 << 53, (1 << 63) - 1, 1 << 63, u64::MAX];

/// All that can be printed about "k".
#[track_caller]
fn every_view(command: impl Fn(&str) -> Run) -> Vec<Done> {
    let views: [&[&str]; 9] = [
        &["history", "k"],
        &["history", "k", "--json"],
        &["history", "k", "--svg", "-"],
        &["history", "k", "--since", "1970-01-01T00:00:00Z"],
        &["status", "k"],
        &["status", "k", "--json"],
        &["list", "--json"],
        &["list"],
        &["history"],
    ];
    views.map(|view| command(view[0]).args(&view[1..]).done().expect_code(0)).into()
}

#[test]
fn no_time_or_number_in_a_lock_file_makes_a_view_fail() {
    let host = Host::new();
    assert!(host.is_free());
    let file = OpenOptions::new().write(true).open(host.file()).unwrap();
    let mut ticket = 1_u64;
    for ended in NUMBERS {
        for (waited, held) in NUMBERS.into_iter().zip(NUMBERS.into_iter().rev()) {
            let text = format!(
                "{ended}\0{waited}\0{held}\0{held}\0{waited}\0\0\0released\0{TOKEN}-{ticket:012}.1\0\0"
            );
            let entry =
                [&ticket.to_le_bytes(), format!("{text}host\0{held}\0user\0sh\0").as_bytes()].concat();
            file.write_all_at(&entry, LOG + ticket * ENTRY).unwrap();
            ticket += 1;
        }
    }
    let views = every_view(|command| host.subcommand(command));
    let entries = views[1].json_lines();
    assert!(entries.len() >= 64, "{} entries", entries.len());
    for number in NUMBERS {
        file.write_all_at(&[number; 4].map(u64::to_le_bytes).concat(), 0).unwrap();
        every_view(|command| host.subcommand(command));
        assert!(host.is_free() || number > 1, "a reservation that never ends may keep the lock");
    }
}

#[test]
fn no_time_or_number_on_a_server_makes_a_view_fail() {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    for number in NUMBERS.map(|number| number.to_string()) {
        let fields = ["ended", "waited", "held", "fence", "slot"].map(|name| [name, &number]).concat();
        let claim = format!("{TOKEN}-{:012}.1", number.len());
        let entry = [&["XADD", "lock-log:k", "*", "claim", &claim, "how", "released"][..], &fields].concat();
        redis.cmd(&entry);
        let job = hold(Run::key(&redis, "k").args(&["--ttl", "30s"]));
        let times = ["since", "stamp", "fence"].map(|name| format!("\"{name}\":\"{number}\""));
        let info = redis.cmd(&["HKEYS", "lock-info:k"]);
        redis.cmd(&["HSET", "lock-info:k", info.trim(), &format!("{{{}}}", times.join(","))]);
        every_view(|command| Run::bare().args(&[command, "--redis", &redis.url()]));
        job.wait();
    }
}

/// A client of another version may store any length. The width of a format is at most 65535.
#[test]
fn no_length_of_a_text_on_a_server_makes_a_view_fail() {
    let redis = Redis::start();
    let job = hold(Run::key(&redis, "k").args(&["--ttl", "30s"]));
    let text = "x".repeat(70_000);
    let who = ["user", "host", "pid", "label", "version"].map(|name| [name, &text]).concat();
    let claim = format!("{TOKEN}-{:012}.1", 1);
    let entry = ["XADD", "lock-log:k", "*", "claim", &claim, "how", "released", "ended", "1"];
    redis.cmd(&[&entry[..], &who].concat());
    let info = redis.cmd(&["HKEYS", "lock-info:k"]);
    let who = serde_json::json!({"host": text, "user": text, "pid": "1", "label": text, "version": text});
    redis.cmd(&["HSET", "lock-info:k", info.trim(), &who.to_string()]);
    every_view(|command| Run::bare().args(&[command, "--redis", &redis.url()]));
    job.wait();
}

/// A terminal obeys, hides or reverses these; U+FFFE is not allowed in XML.
const UNSAFE: &str = "a\u{1b}[31m\u{9b}31m\u{7f}\u{61c}\u{200b}\u{2028}\u{202e}\u{2066}\u{feff}\u{fffe}b";

#[track_caller]
fn assert_harmless(text: &str) {
    let is_unsafe = |c: char| c.is_control() && c != '\n' || UNSAFE.contains(c) && !c.is_ascii();
    assert!(!text.contains(is_unsafe), "{text:?}");
}

#[test]
fn no_output_has_characters_that_a_terminal_obeys_or_hides() {
    let host = Host::new();
    let labelled = || host.run().args(&["--label", UNSAFE, "--events", "-"]).env("BUILD_URL", UNSAFE);
    assert_harmless(&labelled().cmd(&["true"]).done().expect_code(0).stderr);
    let job = hold(labelled());
    let waiter = host.waiter(labelled().cmd(&["true"]), 1);
    assert_harmless(&labelled().arg("-n").cmd(&["true"]).done().expect_code(75).stderr);
    let views = every_view(|command| host.subcommand(command));
    views.iter().for_each(|done| assert_harmless(&format!("{}{}", done.stdout, done.stderr)));
    assert_eq!(views[5].json()["holders"][0]["label"], UNSAFE, "escaped, not lost");
    job.wait().expect_code(0);
    waiter.wait().expect_code(0);
}

#[test]
fn a_login_in_the_url_of_a_job_is_neither_stored_nor_shown() {
    let redis = Redis::start();
    let url = "https://robot:t0ken@ci.example/job/7";
    let job = hold(Run::key(&redis, "k").env("BUILD_URL", url).args(&["--ttl", "30s"]));
    let stored = redis.cmd(&["HGETALL", "lock-info:k"]);
    assert!(stored.contains("ci.example") && !stored.contains("t0ken"), "{stored}");
    // As another version may have stored it.
    redis.cmd(&[
        "XADD",
        "lock-log:k",
        "*",
        "claim",
        &format!("{TOKEN}-{:012}.1", 1),
        "how",
        "released",
        "job_url",
        url,
    ]);
    for done in every_view(|command| Run::bare().args(&[command, "--redis", &redis.url()])) {
        assert!(!done.stdout.contains("t0ken"), "{done:?}");
    }
    job.wait().expect_code(0);
}
