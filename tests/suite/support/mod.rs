//! The rig: real redis-servers on free ports, the real binary, real children, real signals.
//!
//! Tests wait for facts (`wait_until`, a printed line), never for time.

/// `skip!("only root can ...")` ends the test and prints why. With REDLOCK_TEST_REQUIRE_ALL=1 the
/// test fails instead.
macro_rules! skip {
    ($reason:expr) => {{
        $crate::support::skipped($reason);
        return;
    }};
}

#[macro_use]
pub mod backend;
pub mod client;
pub mod cluster;
pub mod crowd;
pub mod expect;
pub mod host;
pub mod journal;
mod lines;
pub mod links;
pub mod network;
pub mod nodes;
pub mod overlap_check;
pub mod plain_redlock;
pub mod preload;
pub mod proc_stat;
pub mod processes;
pub mod proxy;
pub mod pty;
pub mod reader_writer_log;
pub mod redis;
pub mod run;
pub mod script_calls;
pub mod sentinel;
pub mod server_clock;
pub mod tls;
pub mod users;
pub mod wire;

pub use backend::{Backend, Locks};
pub use client::Client;
pub use expect::*;
pub use host::Host;
pub use journal::Journal;
pub use links::Links;
pub use network::{Network, NetworkHost};
pub use nodes::{Blackhole, Nodes, Refused, pttl};
pub use overlap_check::OverlapCheck;
pub use plain_redlock::PlainRedlock;
pub use proxy::Proxy;
pub use pty::Pty;
pub use reader_writer_log::ReaderWriterLog;
pub use redis::Redis;
pub use run::{Done, Job, Run};
pub use server_clock::ServerClock;
pub use users::{OtherUsers, UNPRIVILEGED, stranger};

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub const MS: Duration = Duration::from_millis(1);

/// How long a fact may take to come true on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Reports a skipped test directly on stderr: the harness hides the output of tests that pass.
#[track_caller]
pub fn skipped(reason: &str) {
    let required = std::env::var_os("REDLOCK_TEST_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "skipped: {reason}, but REDLOCK_TEST_REQUIRE_ALL=1 is set");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {reason} ({test})");
}

/// Polls every 5 ms until `f` returns true; panics with `what` when PATIENCE runs out.
#[track_caller]
pub fn wait_until(what: &str, f: impl FnMut() -> bool) {
    wait_until_within(PATIENCE, what, f);
}

/// The same with a given patience, for promises about time. Returns how long it took.
#[track_caller]
pub fn wait_until_within(patience: Duration, what: &str, mut f: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < patience, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// Whether the process exists and is not a zombie.
pub fn alive(pid: i32) -> bool {
    !matches!(process_state(pid), None | Some('Z' | 'X'))
}

/// The state letter of /proc/PID/stat: R, S, T, Z...
pub fn process_state(pid: i32) -> Option<char> {
    proc_stat::fields(pid)?.first()?.chars().next()
}

/// The parent's pid.
pub fn parent(pid: i32) -> Option<i32> {
    proc_stat::fields(pid)?.get(1)?.parse().ok()
}

/// The session's id.
pub fn session(pid: i32) -> Option<i32> {
    proc_stat::fields(pid)?.get(3)?.parse().ok()
}

/// All pids on the machine.
pub fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The living descendants of a process (children, grandchildren...), without itself.
pub fn descendants(pid: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = all_pids().into_iter().filter_map(|p| Some((p, parent(p)?))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let of = found[next];
        found.extend(parents.iter().filter(|(_, up)| *up == of).map(|(p, _)| *p));
        next += 1;
    }
    found.remove(0);
    found.retain(|p| alive(*p));
    found
}

/// `redlock run` that holds the key until its stdin is closed (`Job::wait` closes it), and then
/// exits with 0.
pub fn holder(redis: &Redis, key: &str, args: &[&str]) -> Job {
    hold(Run::key(redis, key).args(args))
}

/// A command that prints "ready", and exits with 0 when its stdin is closed.
pub const HOLD: &str = "echo ready; read x; exit 0";

/// The same for any call of `redlock run`.
#[track_caller]
pub fn hold(run: Run) -> Job {
    let job = run.stdin_pipe().sh(HOLD).spawn();
    job.wait_for_line("ready");
    job
}

/// A command whose tree has three processes: the command, a child, and a grandchild in a session of
/// its own.
pub const TREE: &str = "sleep 300 & a=$!; setsid sleep 300 & echo pids $$ $a $!; wait";

/// The same tree, ignoring SIGTERM.
pub const STUBBORN_TREE: &str = "trap '' TERM; sleep 300 & a=$!; setsid sleep 300 & \
     echo pids $$ $a $!; while :; do sleep 1; done";

/// A command that prints the processes in $TREE that still live when it starts.
pub const REPORT_SURVIVORS: &str = "for p in $TREE; do case \"$(cut -d' ' -f3 /proc/$p/stat 2>/dev/null)\" in
    ''|Z|X) ;; *) echo overlap $p;; esac; done; echo looked";

/// The pids that a TREE printed.
#[track_caller]
pub fn tree_of(job: &Job) -> Vec<i32> {
    let line = job.wait_for_line("pids ");
    let pids = line.split(' ').skip(1).map(|p| p.parse().expect("a pid"));
    let pids: Vec<i32> = pids.collect();
    assert!(pids.iter().all(|p| alive(*p)), "the tree lives: {pids:?}");
    pids
}

/// Writes an executable file with this text. Another process writes it: a descriptor of ours,
/// inherited by a child of another thread, would make the file busy.
pub fn executable(path: &Path, text: &str) {
    let mut write = Command::new("sh");
    write.args(["-c", "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(path).arg(text);
    assert!(write.status().expect("a shell").success(), "{} can be written", path.display());
}

/// A config file with this text, for REDLOCK_CONFIG; deleted with its directory.
pub fn config_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("config.toml");
    fs::write(&path, text).expect("write the config file");
    (directory, path)
}

/// The lines of a file; none if it does not exist.
pub fn lines_of(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}
