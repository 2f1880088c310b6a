//! A server that refuses us leads to 77 and a message that names the missing permission; the
//! password is never shown.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use nix::sys::signal::Signal::SIGTERM;

use crate::documents::blocks::acl_rules;
use crate::support::redis::is_before_7;
use crate::support::{
    Done, Job, Redis, Run, assert_no_keys_left, expect_refused_both_ways, expect_success, hold, holder,
    impostor, refused, wait_for_sleeping_clients, wait_until,
};

#[test]
fn a_missing_or_wrong_password_exits_77() {
    let redis = Redis::start_with(&["--requirepass", "the-right-one"]);
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}", redis.port());
    refused(Run::at(&at(""), "k"), 77, &["password", "authenticat"]);
    refused(Run::at(&at(""), "k").arg("-n"), 77, &["password", "authenticat"]);
    for login in [":not-this-word@", "default:not-this-word@", "nobody:not-this-word@"] {
        let done = refused(Run::at(&at(login), "k"), 77, &["password", "authenticat"]);
        assert!(!done.stderr.contains("not-this-word"), "{done:?}");
    }
    assert_no_keys_left(&redis);
    Run::at(&at(":the-right-one@"), "k").cmd(&["true"]).done().expect_code(0);
    Run::at(&at("default:the-right-one@"), "k").cmd(&["true"]).done().expect_code(0);
}

/// The URL for a user with these rules.
fn limited(redis: &Redis, rules: &[&str]) -> String {
    let mut acl = vec!["ACL", "SETUSER", "limited", "reset", "on", ">word", "~*", "&*", "+@all"];
    acl.extend(rules);
    assert_eq!(redis.cmd(&acl), "OK");
    format!("redis://limited:word@127.0.0.1:{}", redis.port())
}

#[test]
fn a_command_that_the_acl_forbids_is_named() {
    let redis = Redis::start();
    let url = limited(&redis, &["-evalsha", "-eval"]);
    refused(Run::at(&url, "k"), 77, &["eval"]);
    let url = limited(&redis, &["-@all", "+ping"]);
    refused(Run::at(&url, "k"), 77, &["eval"]);
    let url = limited(&redis, &["resetkeys", "~other:*"]);
    refused(Run::at(&url, "k"), 77, &["key", "acl", "permission"]);
    assert_no_keys_left(&redis);
    // Only waiting needs BLPOP.
    let first = holder(&redis, "k", &[]);
    let url = limited(&redis, &["-blpop"]);
    refused(Run::at(&url, "k"), 77, &["blpop"]);
    assert_eq!(redis.queue_len("k"), 0);
    first.wait().expect_code(0);
}

#[test]
fn a_renewal_that_is_refused_half_way_shortens_no_other_holders_lock() {
    let redis = Redis::start();
    let shared = ["--shared", "--ttl"];
    let first = holder(&redis, "k", &[shared[0], shared[1], "60s"]);
    let url = limited(&redis, &[]);
    let second = hold(Run::at(&url, "k").args(&[shared[0], shared[1], "3s"]));
    redis.cmd(&["ACL", "SETUSER", "limited", "-zadd"]);
    second.wait_for_stderr("zadd");
    let left: u64 = redis.cmd(&["PTTL", "lock:k"]).parse().expect("ms");
    assert!(left > 30_000, "{left}");
    drop(second);
    first.wait().expect_code(0);
}

/// The commands that the documented user may use.
fn documented_commands() -> BTreeSet<String> {
    acl_rules("locker").iter().filter_map(|rule| rule.strip_prefix('+').map(str::to_owned)).collect()
}

/// A request, and the holder that it meets: free, joined, waited for, refused.
const REQUESTS: [(Option<&str>, &[&str]); 5] = [
    (None, &["-x"]),
    (None, &["-s"]),
    (Some("-s"), &["-s"]),
    (Some("-x"), &["-x"]),
    (Some("-x"), &["-x", "-n"]),
];

/// The result of one of the requests, with a command that exits with 3.
fn ask(redis: &Redis, url: &str, holder_mode: Option<&str>, args: &[&str]) -> Done {
    let first = holder_mode.map(|mode| holder(redis, "k", &["--ttl", "60s", mode]));
    let mut job = Run::at(url, "k").args(&["--ttl", "60s"]).args(args).sh("exit 3").spawn();
    wait_until("the run waits or has exited", || redis.queue_len("k") == 1 || !job.is_running());
    first.map(|first| first.wait().expect_code(0));
    job.wait()
}

#[test]
fn a_command_that_the_acl_forbids_inside_a_script_leaves_nothing_half_done() {
    let redis = Redis::start();
    let all = limited(&redis, &[]);
    for (holder_mode, args) in REQUESTS {
        redis.cmd(&["FLUSHALL"]);
        let first = holder_mode.map(|mode| holder(&redis, "k", &["--ttl", "60s", mode]));
        // The holder also calls a script when it begins to listen for breaks; that one must not be
        // counted.
        wait_for_sleeping_clients(&redis, usize::from(first.is_some()));
        let (scripts, _) = redis.script_commands(|| {
            let run = Run::at(&all, "k").args(&["--ttl", "60s"]).args(args);
            // Only the first script matters: the run is cancelled as soon as it waits.
            let mut job = run.sh("exit 3").spawn();
            wait_until("the run waits or has exited", || redis.queue_len("k") == 1 || !job.is_running());
            if job.is_running() {
                job.signal(SIGTERM);
            }
            job.wait();
        });
        let to_acquire = scripts.into_iter().find(|commands| !commands.is_empty()).expect("a script");
        drop(first);
        for command in documented_commands() {
            redis.cmd(&["FLUSHALL"]);
            let done = ask(&redis, &limited(&redis, &[&format!("-{command}")]), holder_mode, args);
            let case = format!("-{command}, {args:?} with {holder_mode:?} inside: {done:?}");
            let granted = if args.contains(&"-n") { 75 } else { 3 };
            assert!(matches!(done.code, Some(code) if code == 77 || code == granted), "{case}");
            // A single server without INFO is used although its role is unknown.
            let is_needed = to_acquire.contains(&command) && command != "info";
            assert!(done.code == Some(77) || !is_needed, "not refused: {case}");
            assert_eq!(redis.keys_without_ttl(), Vec::<String>::new(), "{case}");
            // Allowed to acquire but not to release: then the TTL frees it.
            assert!(done.code != Some(77) || !redis.held("k"), "left behind: {case}");
        }
    }
}

#[test]
fn the_documented_permissions_are_necessary_and_sufficient() {
    let redis = Redis::start();
    let rules = acl_rules("locker");
    let mut acl = vec!["ACL", "SETUSER", "locker"];
    acl.extend(rules.iter().map(String::as_str));
    assert_eq!(redis.cmd(&acl), "OK");
    let url = format!("redis://locker:password@127.0.0.1:{}", redis.port());
    let (scripts, _) = redis.script_commands(|| everything_that_locks(&redis, &url));
    let mut used: BTreeSet<String> = scripts.into_iter().flatten().collect();
    // Commands that redlock sends outside scripts; SELECT only for another database.
    used.extend(["evalsha", "eval", "blpop", "select"].map(str::to_owned));
    assert_eq!(used, documented_commands());
}

/// Runs of every kind, with breaks, waits, expiry and healing.
fn everything_that_locks(redis: &Redis, url: &str) {
    for mode in [
        &[][..],
        &["--shared"],
        &["--shared", "--prefer", "readers", "--reader-group", "g"],
        &["--prefer", "writers"],
        &["--slots", "2"],
        &["--key", "other"],
        &["--min-hold", "1ms"],
        &["--shared", "--min-hold", "1ms"],
    ] {
        // Others are ahead, so that all commands for waiting are needed, too.
        let slots = if mode.contains(&"--slots") { mode } else { &[] };
        let holders = if slots.is_empty() { 1 } else { 2 };
        let first: Vec<Job> = (0..holders).map(|_| hold(Run::at(url, "k").args(slots))).collect();
        let next = Run::at(url, "k").args(&["--ttl", "3s"]).args(mode).sh("sleep 1.5").spawn();
        wait_until("the run waits", || redis.queue_len("k") == 1);
        expect_success(first);
        next.wait().expect_code(0);
        wait_until("nothing is held", || !redis.held("k"));
    }
    let reader = hold(Run::at(url, "k").arg("--shared"));
    let other = Run::at(url, "k").args(&["--shared", "--reader-group", "g", "--wait", "1ms"]);
    other.cmd(&["true"]).done().expect_code(75);
    reader.wait().expect_code(0);
    let elsewhere = hold(Run::at(url, "other"));
    let of_two = Run::at(url, "k").args(&["--key", "other", "--shared"]).cmd(&["true"]).spawn();
    wait_until("the run waits", || redis.queue_len("k") == 1);
    // joins one of the same mode
    Run::at(url, "k").arg("--shared").cmd(&["true"]).done().expect_code(0);
    expect_success([elsewhere, of_two]);
    for mode in [&["--ttl", "none"][..], &["--ttl", "none", "--shared"]] {
        Run::at(url, "k").args(mode).cmd(&["true"]).done().expect_code(0);
    }
    for (mode, how) in [(&[][..], "--yes"), (&["--shared"], "--yes"), (&["--slots", "2"], "--now")] {
        let job = hold(Run::at(url, "k").args(mode));
        Run::bare().args(&["break", "--redis", url, "k", "--yes", how]).done().expect_code(0);
        job.wait_for_stderr("broken by ");
        job.wait().expect_code(79);
    }
    // The first wait line says how long the lock is usually held.
    let first = hold(Run::at(url, "k"));
    let next = Run::at(url, "k").cmd(&["true"]).spawn();
    next.wait_for_stderr("waiting for \"k\"");
    expect_success([first, next]);
    // The next run logs that the lease of the one before has expired.
    let acquire = Run::bare().args(&["acquire", "--redis", url, "--key", "k", "--ttl", "100ms"]);
    acquire.done().expect_code(0);
    wait_until("the lease has expired", || !redis.held("k"));
    Run::at(url, "k").cmd(&["true"]).done().expect_code(0);
}

/// A refused break changes nothing that its holder, or the next run, would notice.
#[test]
fn a_break_that_the_acl_forbids_half_way_leaves_the_holder_alone() {
    let redis = Redis::start();
    for (mode, how) in [("-x", "--yes"), ("-s", "--yes"), ("-x", "--now")] {
        let mut job = holder(&redis, "k", &["--ttl", "60s", mode]);
        for command in documented_commands() {
            let claims =
                || (redis.cmd(&["GET", "lock:k"]), redis.cmd(&["ZRANGE", "lock-shared:k", "0", "-1"]));
            let before = claims();
            let url = limited(&redis, &[&format!("-{command}")]);
            let broken = Run::bare().args(&["break", "--redis", &url, "k", "--yes", how]).done();
            let case = format!("-{command}, {mode} {how}: {broken:?}");
            if broken.code == Some(77) {
                assert!(claims() == before && job.is_running(), "{case}");
                continue;
            }
            assert_eq!(broken.code, Some(0), "{case}");
            job.wait();
            job = holder(&redis, "k", &["--ttl", "60s", mode]);
        }
        job.wait().expect_code(0);
    }
}

#[test]
fn renamed_script_commands_are_named_in_the_error() {
    let redis = Redis::start_with(&["--rename-command", "EVAL", "", "--rename-command", "EVALSHA", ""]);
    expect_refused_both_ways(&redis, 77, &["eval"]);
    assert_no_keys_left(&redis);
}

/// A server that does not know a command repeats its arguments, and those of AUTH are a user and a
/// password.
#[test]
fn a_password_that_a_server_repeats_is_not_printed() {
    let redis = Redis::start_with(&["--rename-command", "AUTH", ""]);
    let url = redis.url().replace("://", "://hidden:hidden@");
    let shown = |run: Run, code: i32| {
        let done = run.done().expect_code(code);
        let text = format!("{}{}", done.stdout, done.stderr);
        // Redis 6 uses other quotes.
        assert!(
            text.contains("unknown command ") && text.contains("AUTH") && !text.contains("hidden"),
            "{text}"
        );
    };
    shown(Run::at(&url, "k").args(&["--events", "-", "-v"]).cmd(&["true"]), 77);
    shown(Run::bare().args(&["status", "k", "--redis", &url]), 77);
    shown(Run::bare().args(&["doctor", "--redis", &url]), 1);
    shown(Run::bare().args(&["doctor", "--json", "--redis", &url]), 1);
    // An old Sentinel has no AUTH.
    let sentinel = format!("redis+sentinel://127.0.0.1:{}/main", redis.port());
    shown(Run::at(&sentinel, "k").env("REDLOCK_SENTINEL_PASSWORD", "hidden").cmd(&["true"]), 78);
}

#[test]
fn protected_mode_is_named_in_the_error() {
    if is_before_7() {
        skip!("Redis 6 has no protected mode for an address that was named");
    }
    // It refuses only connections from other addresses than the loopback address.
    let own = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let redis = Redis::start_with(&["--bind", "0.0.0.0", "--protected-mode", "yes"]);
    let url = match own {
        Ok(address) if !address.ip().is_loopback() => {
            format!("redis://{}:{}", address.ip(), redis.port())
        }
        _ => impostor("-DENIED Redis is running in protected mode because ...\r\n"),
    };
    refused(Run::at(&url, "k"), 77, &["protected"]);
    assert_no_keys_left(&redis);
}

/// All data on the server, as text.
fn everything(redis: &Redis) -> String {
    let mut client = redis.connect();
    let mut text = client.cmd(&["CLIENT", "LIST"]);
    for key in redis.keys() {
        text.push_str(&key);
        for read in [
            &["GET", &key][..],
            &["HGETALL", &key],
            &["ZRANGE", &key, "0", "-1"],
            &["LRANGE", &key, "0", "-1"],
            &["SMEMBERS", &key],
        ] {
            text.push_str(&client.cmd(read));
        }
    }
    text
}

/// The command lines of a job and of all its descendants.
fn command_lines(job: &Job) -> String {
    let mut pids = crate::support::descendants(job.pid());
    pids.push(job.pid());
    let read = |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    pids.iter().map(|pid| String::from_utf8_lossy(&read(pid)).into_owned()).collect()
}

#[test]
fn the_password_is_shown_nowhere() {
    const SECRET: &str = "pa55-w0rd-of-ours";
    let redis = Redis::start_with(&["--requirepass", SECRET]);
    let url = format!("redis://:{SECRET}@127.0.0.1:{}", redis.port());
    let events = redis.dir().join("events");
    let job = Run::at(&url, "k")
        .args(&["-v", "--ttl", "60s", "--events"])
        .arg(&events)
        .stdin_pipe()
        .sh("env; echo ready; read x; exit 0")
        .spawn();
    job.wait_for_line("ready");
    let waiter = Run::at(&url, "k").arg("-v").cmd(&["env"]).spawn();
    waiter.wait_for_stderr("waiting");
    for (what, text) in [
        ("the holder's command line", command_lines(&job)),
        ("the waiter's command line", command_lines(&waiter)),
        ("the server's data", everything(&redis)),
    ] {
        assert!(text.len() > 10, "{what}: {text}");
        assert!(!text.contains(SECRET), "{what}: {text}");
    }
    for done in [job.wait().expect_code(0), waiter.wait().expect_code(0)] {
        assert!(!done.stdout.contains(SECRET), "in the environment: {}", done.stdout);
        assert!(!done.stderr.contains(SECRET), "{}", done.stderr);
    }
    assert!(!std::fs::read_to_string(events).unwrap().contains(SECRET));
    // In errors: no server, an invalid port, a server that refuses, a second server.
    for bad in [
        format!("redis://:{SECRET}@127.0.0.1:{}", crate::support::redis::free_port()),
        format!("redis://:{SECRET}@127.0.0.1:notaport"),
        format!("redis://user:{SECRET}@"),
        format!("redis:/:{SECRET}@127.0.0.1"),
        format!("gopher://:{SECRET}@127.0.0.1"),
        format!("redis://:{SECRET}x@127.0.0.1:{}", redis.port()),
        format!("{url},{url}"),
        format!("redis://:{SECRET}@127.0.0.1/not-a-db"),
    ] {
        let done = Run::at(&bad, "k").args(&["-v", "-n"]).cmd(&["true"]).done();
        assert!(!matches!(done.code, Some(0 | 75)), "{done:?}");
        assert!(!done.stderr.is_empty() && !done.stderr.contains(SECRET), "{bad}: {done:?}");
    }
}
