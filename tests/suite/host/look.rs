//! `redlock status` and `redlock list` on this host: they show what the kernel knows.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use nix::sys::signal::Signal::SIGKILL;
use serde_json::Value;

use super::file_tampering::foreign_lock;
use crate::support::host::{MUTEX_BYTE, lock_files};
use crate::support::run::os;
use crate::support::{
    Host, Job, OtherUsers, Run, STUBBORN_TREE, UNPRIVILEGED, alive, hold, tree_of, wait_until,
};

/// The output of `redlock status k --json`.
#[track_caller]
fn status(host: &Host) -> Value {
    host.subcommand("status").args(&["k", "--json"]).done().expect_code(0).json()
}

/// The output of `redlock list --json`, by key.
#[track_caller]
fn listed(host: &Host) -> Vec<Value> {
    let mut locks = host.subcommand("list").arg("--json").done().expect_code(0).json_lines();
    locks.sort_by_key(|lock| lock["key"].to_string());
    locks
}

fn texts<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().expect("a list").iter().map(|entry| entry[field].as_str().unwrap_or("?")).collect()
}

#[test]
fn a_holder_is_described_until_it_has_released() {
    let host = Host::new();
    assert_eq!(host.subcommand("status").arg("k").done().expect_code(0).stdout, "k: free\n");
    assert_eq!(lock_files(host.path()).len(), 0, "nothing appears");
    let first = hold(host.run().args(&["--label", "nightly"]));
    let done = host.subcommand("status").arg("k").done().expect_code(0);
    assert!(done.stdout.starts_with("k: held\n") && done.stderr.is_empty(), "{done:?}");
    for part in ["nightly", &format!("pid {}", first.pid()), "since", "fence", "token"] {
        assert!(done.stdout.contains(part), "{part}: {done:?}");
    }
    assert!(!done.stdout.contains("expires"), "the lock ends with its process: {done:?}");
    let found = status(&host);
    assert_eq!((&found["key"], &found["state"]), (&"k".into(), &"held".into()));
    let holder = &found["holders"][0];
    assert_eq!((&holder["pid"], &holder["command"]), (&first.pid().into(), &"sh".into()));
    assert!(holder["held_ms"].is_u64() && holder["fence"].is_u64() && holder["since"].is_string());
    first.wait().expect_code(0);
    assert_eq!(host.subcommand("status").arg("k").done().expect_code(0).stdout, "k: free\n");
    assert_eq!(listed(&host), Vec::<Value>::new());
}

#[test]
fn checks_set_the_exit_code() {
    let host = Host::new();
    let check = |what: &str| host.subcommand("status").args(&["k", "--check", what]);
    check("free").done().expect_code(0);
    check("held").done().expect_code(1);
    let first = host.run().stdin_pipe().sh("echo ready $REDLOCK_TOKEN; read x; exit 0").spawn();
    let token = first.wait_for_line("ready").split_once(' ').unwrap().1.to_owned();
    check("free").done().expect_code(1);
    check("held").done().expect_code(0);
    check("owned").args(&["--token", &token]).done().expect_code(0);
    check("owned").env("REDLOCK_TOKEN", &token).done().expect_code(0);
    check("owned").args(&["--token", "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1"]).done().expect_code(1);
    first.wait().expect_code(0);
    check("owned").args(&["--token", &token]).done().expect_code(1);
}

#[test]
fn fifty_waiters_are_shown_in_order_and_none_is_left_behind() {
    let host = Host::new();
    let first = hold(host.run());
    let mut waiters: Vec<Job> = Vec::new();
    for number in 0..50 {
        let label = format!("waiter {number}");
        let mode = if number % 5 == 0 { "--shared" } else { "--exclusive" };
        let run = host.run().args(&["--label", &label, mode]).cmd(&["true"]);
        waiters.push(host.waiter(run, number + 1));
    }
    wait_until("all have written their records", || {
        !texts(&status(&host)["waiters"], "label").contains(&"?")
    });
    let found = status(&host);
    let expected: Vec<String> = (0..50).map(|number| format!("waiter {number}")).collect();
    assert_eq!(texts(&found["waiters"], "label"), expected);
    let waiting = found["waiters"].as_array().unwrap();
    for (number, waiter) in waiting.iter().enumerate() {
        assert_eq!(waiter["position"].as_u64(), Some(number as u64 + 1));
        assert_eq!(waiter["pid"], waiters[number].pid());
        assert_eq!(waiter["mode"], if number % 5 == 0 { "shared" } else { "exclusive" });
        assert!(waiter["waited_ms"].is_u64());
    }
    // A waiter that gives up or is killed disappears at once.
    for gone in [30, 10] {
        let waiter = waiters.remove(gone);
        waiter.signal(SIGKILL);
        waiter.wait();
    }
    host.queued(48);
    assert_eq!(status(&host)["waiters"].as_array().unwrap().len(), 48);
    let longest = fs::metadata(host.file()).unwrap().len();
    first.wait().expect_code(0);
    for waiter in waiters {
        waiter.wait().expect_code(0);
    }
    assert!(host.is_free());
    assert!(fs::metadata(host.file()).unwrap().len() < longest, "the records of the queue are gone");
}

#[test]
fn sharers_slots_and_reservations_are_listed() {
    let host = Host::new();
    let shared = |label| hold(host.run_on("index").args(&["--shared", "--label", label]));
    let slot = |label| hold(host.run_on("gpu").args(&["--slots", "4", "--label", label]));
    let jobs = [shared("a"), shared("b"), slot("c"), slot("d"), slot("e")];
    host.run_on("tick").args(&["--min-hold", "60s", "--label", "f"]).cmd(&["true"]).done().expect_code(0);
    let locks = listed(&host);
    let states: Vec<String> = locks.iter().map(|lock| format!("{} {}", lock["key"], lock["state"])).collect();
    assert_eq!(states, [r#""gpu" "slots""#, r#""index" "shared""#, r#""tick" "kept""#]);
    let [gpu, index, tick] = &locks[..] else { panic!("{locks:?}") };
    assert_eq!(texts(&gpu["holders"], "label"), ["c", "d", "e"]);
    let slots: Vec<Option<u64>> =
        gpu["holders"].as_array().unwrap().iter().map(|holder| holder["slot"].as_u64()).collect();
    assert_eq!(slots, [Some(0), Some(1), Some(2)]);
    assert_eq!(texts(&index["holders"], "label"), ["a", "b"]);
    assert_eq!(texts(&tick["holders"], "label"), ["f"]);
    assert!((30_000..=60_000).contains(&tick["holders"][0]["expires_ms"].as_u64().unwrap()), "{tick}");
    let table = host.subcommand("list").done().expect_code(0).stdout;
    assert!(!table.contains("never"), "the locks end with their processes: {table}");
    for part in ["3/4 slots", "shared 2", "kept"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    for job in jobs {
        job.wait().expect_code(0);
    }
    assert_eq!(listed(&host).len(), 1, "the reservation");
}

#[test]
fn a_killed_holder_holds_until_its_tree_is_gone() {
    let host = Host::new();
    let job = host.run().args(&["--label", "killed"]).sh(STUBBORN_TREE).spawn();
    let tree = tree_of(&job);
    job.signal(SIGKILL);
    wait_until("the lock is free", || {
        let found = status(&host);
        let is_free = found["state"] == "free";
        assert!(is_free || texts(&found["holders"], "label") == ["killed"], "{found}");
        assert!(!is_free || tree.iter().all(|pid| !alive(*pid)), "{tree:?}");
        is_free
    });
    job.wait();
}

#[test]
fn every_key_is_listed_whatever_its_bytes_and_length() {
    let host = Host::new();
    let long = |last: &str| OsString::from(format!("{}{last}", "x".repeat(1023)));
    let mut keys: Vec<OsString> = ["a/b", "a%2Fb", "..", " ", "a\nb", "ä"].map(OsString::from).to_vec();
    keys.extend([os(b"\xff\xfe"), os(b"\x01"), long("y"), long("z"), OsString::from("/".repeat(1024))]);
    let holders: Vec<Job> = keys.iter().map(|key| hold(host.run_on(key))).collect();
    let pids = |locks: &[Value]| {
        let mut pids: Vec<i64> =
            locks.iter().map(|lock| lock["holders"][0]["pid"].as_i64().unwrap()).collect();
        pids.sort_unstable();
        pids
    };
    let mut expected: Vec<i64> = holders.iter().map(|holder| holder.pid().into()).collect();
    expected.sort_unstable();
    assert_eq!(pids(&listed(&host)), expected);
    for (key, holder) in keys.iter().zip(&holders) {
        let done = host.subcommand("status").arg("--json").arg("--key").arg(key).done().expect_code(0);
        assert_eq!(done.json()["holders"][0]["pid"], holder.pid(), "{key:?}");
    }
    let found = host.subcommand("list").args(&["--json", "x*z"]).done().expect_code(0).stdout;
    assert!(found.lines().count() == 1 && found.contains(&"x".repeat(1023)), "{found}");
    for holder in holders {
        holder.wait().expect_code(0);
    }
}

#[test]
fn another_prefix_is_another_list() {
    let host = Host::new();
    let holders = [hold(host.run()), hold(host.run().args(&["--prefix", "other"]))];
    let list = |prefix: &str| {
        let done = host.subcommand("list").args(&["--json", "--prefix", prefix]).done().expect_code(0);
        done.stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].to_string())
            .collect()
    };
    let (ours, others): (Vec<String>, Vec<String>) = (list("lock"), list("other"));
    assert_eq!((ours, others), (vec![r#""k""#.to_owned()], vec![r#""k""#.to_owned()]));
    for holder in holders {
        holder.wait().expect_code(0);
    }
}

#[test]
fn files_that_are_not_locks_are_skipped_and_untouched() {
    let host = Host::new();
    let first = hold(host.run());
    fs::write(host.beside("target"), "secret").unwrap();
    symlink(host.beside("target"), host.beside("redlock-lock%3Alink")).unwrap();
    fs::create_dir(host.beside("redlock-lock%3Adirectory")).unwrap();
    let pipe = host.beside("redlock-lock%3Apipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(host.beside("redlock-lock%3Agarbage"), [0xff; 5000]).unwrap();
    fs::write(host.beside("redlock-lock%3Atwice"), "").unwrap();
    fs::hard_link(host.beside("redlock-lock%3Atwice"), host.beside("redlock-other")).unwrap();
    let keys: Vec<String> = listed(&host).iter().map(|lock| lock["key"].to_string()).collect();
    assert_eq!(keys, [r#""k""#]);
    for key in ["link", "directory", "pipe", "twice"] {
        let done = host.subcommand("status").arg(key).done().expect_code(77);
        assert!(done.stdout.is_empty() && done.stderr.contains("redlock-lock%3A"), "{done:?}");
    }
    assert_eq!(host.subcommand("status").arg("garbage").done().expect_code(0).stdout, "garbage: free\n");
    first.wait().expect_code(0);
}

#[test]
fn a_lock_of_another_program_is_foreign() {
    let host = Host::new();
    assert!(host.is_free());
    let script = "import fcntl,sys; f=open(sys.argv[1],'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); \
                  print('ready', flush=True); sys.stdin.read()";
    let mut other = Command::new("python3");
    other.args(["-c", script]).arg(host.file()).stdin(std::process::Stdio::piped());
    let Ok(mut other) = other.stdout(std::process::Stdio::piped()).spawn() else {
        skip!("there is no python3");
    };
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(other.stdout.take().unwrap()), &mut line)
        .unwrap();
    let found = status(&host);
    assert_eq!((&found["state"], &found["holders"][0]["pid"]), (&"foreign".into(), &other.id().into()));
    let done = host.subcommand("status").arg("k").done().expect_code(0);
    assert_eq!(done.stdout, format!("k: held by another program, pid {}\n", other.id()));
    for args in [&["k", "--yes"][..], &["k", "--yes", "--now"]] {
        let done = host.subcommand("break").args(args).done().expect_code(75);
        assert!(done.stderr.contains(&format!("pid {}", other.id())), "{done:?}");
        assert!(done.stderr.contains("the lock is held until that program ends"), "{done:?}");
    }
    drop(other.stdin.take());
    other.wait().unwrap();
    assert_eq!(status(&host)["state"], "free");
}

#[test]
fn any_user_with_read_access_can_look() {
    let Some(users) = OtherUsers::new() else { skip!("only root can be other users") };
    for mode in [0o1777, 0o755] {
        let host = Host::with_mode(mode);
        let first = hold(host.run().args(&["--label", "root's"]));
        fs::set_permissions(host.file(), Permissions::from_mode(0o644)).unwrap();
        let before = fs::metadata(host.file()).unwrap();
        let look = |command: &str, args: &[&str]| {
            users.run(UNPRIVILEGED, host.subcommand(command).args(args), "077")
        };
        let done = look("status", &["k", "--json"]).done().expect_code(0);
        assert_eq!(texts(&done.json()["holders"], "label"), ["root's"]);
        assert!(look("list", &[]).done().expect_code(0).stdout.contains("root's"));
        let after = fs::metadata(host.file()).unwrap();
        assert_eq!(
            (before.mtime_nsec(), before.len()),
            (after.mtime_nsec(), after.len()),
            "nothing is written"
        );
        // A user without access gets a message, and the list continues without that lock.
        fs::set_permissions(host.file(), Permissions::from_mode(0o600)).unwrap();
        look("status", &["k"]).done().expect_code(77).expect_stderr(&["redlock-lock%3Ak"]);
        look("list", &[]).done().expect_code(0);
        first.wait().expect_code(0);
    }
}

#[test]
fn looking_delays_no_run() {
    let host = Host::new();
    let first = hold(host.run());
    let look = || host.subcommand("status").arg("k").done().expect_code(0);
    let waiter = host.noting_waiter("waiter", 1);
    std::thread::scope(|scope| {
        let looks: Vec<_> = (0..3).map(|_| scope.spawn(|| (0..10).for_each(|_| drop(look())))).collect();
        first.wait().expect_code(0);
        waiter.wait().expect_code(0);
        looks.into_iter().for_each(|look| look.join().unwrap());
    });
    assert!(host.is_free());
    host.assert_nothing_is_locked();
    // A stopped process that has the mutex does not delay a command that only looks.
    let theirs = foreign_lock(&host.file(), MUTEX_BYTE.cast_signed(), 1);
    assert_eq!(look().stdout, "k: free\n");
    drop(theirs);
}

#[test]
fn a_look_without_servers_reports_that_it_covers_this_host_only() {
    let look = |args: &[&str]| Run::bare().args(args).arg("a key of no test").done().expect_code(0);
    let done = look(&["status"]);
    assert_eq!(done.stdout, "a key of no test: free\n");
    assert!(done.stderr.contains("no server configured") && done.stderr.lines().count() == 1, "{done:?}");
    assert!(look(&["status", "--local"]).stderr.is_empty());
}
