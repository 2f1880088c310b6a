//! Space, inotify instances and threads that run out: what can go on without them does, and a message
//! says what is missing.

use std::process::Command;

use crate::support::processes::wait_until_asleep;
use crate::support::{Host, OtherUsers, hold, stranger};

/// Users of their own, whose limits no other test meets.
const WATCHER: u32 = 65532;
const CROWDED: u32 = 65531;
const HOOKED: u32 = 65530;
const ALONE: u32 = 65529;

/// Uses all inotify instances of its user, until its stdin is closed.
const EXHAUST: &str = "\
import ctypes, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
libc = ctypes.CDLL(None)
count = 0
while libc.inotify_init1(0) >= 0: count += 1
print('ready', count, flush=True)
sys.stdin.read()
";

#[test]
fn a_user_without_inotify_instances_can_run_once_and_supersede() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap_or_default();
    if limit.trim().parse().is_ok_and(|limit: u32| limit > 5000) {
        skip!("the limit is too high to be reached");
    }
    let Some(watcher) = stranger(WATCHER, EXHAUST, &[]) else { skip!("python3 is needed") };
    assert_eq!(watcher.wait_for_line("ready"), format!("ready {}", limit.trim()));

    let host = Host::with_mode(0o1777);
    for (key, options) in
        [("a", &["--once", "1h"][..]), ("b", &["--supersede"]), ("c", &["--cancel-in-progress"])]
    {
        let done = users.run(WATCHER, host.run_on(key).args(options), "022").sh("echo ran").done();
        assert_eq!(done.expect_code(0).stdout, "ran\n");
    }
    let holder = hold(host.run());
    let newest = || users.run(WATCHER, host.run().arg("--supersede"), "022").sh("echo ran");
    let older = host.waiter(newest(), 1);
    let newer = newest().spawn();
    older.wait().expect_code(75);
    holder.wait().expect_code(0);
    newer.wait().expect_code(0);
}

/// It may have redlock and its guardian, so the wait can have no thread, and the command no process.
#[test]
fn a_waiter_that_can_start_no_thread_keeps_its_place() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let holder = hold(host.run());
    let crowded = users.run_through(CROWDED, host.run(), &["prlimit", "--nproc=2"]).sh("echo ran");
    let waiter = host.waiter(crowded, 1);
    holder.wait().expect_code(0);
    waiter.wait().expect_code(126);
}

/// Each of these waits for another process, in a thread.
#[test]
fn commands_that_can_start_no_thread_look_each_second() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let command = |name: &str, args: &[&str]| {
        let run = host.subcommand(name).arg("k").args(args);
        users.run_through(ALONE, run, &["prlimit", "--nproc=1"])
    };
    let acquire = host.subcommand("acquire").args(&["--local", "--key", "k", "--ttl", "60s"]);
    let acquired = users.run(ALONE, acquire, "022").done().expect_code(0);
    let token = ["--token", acquired.stdout.trim_end()];
    command("extend", &token).args(&["--ttl", "60s"]).done().expect_code(0);
    command("release", &token).done().expect_code(0);

    let hold_again = || hold(users.run(ALONE, host.run(), "022"));
    let broken = hold_again();
    command("break", &["--yes"]).done().expect_code(0);
    broken.wait().expect_code(79);

    let holder = hold_again();
    let waiter = command("status", &["--wait-free"]).spawn();
    wait_until_asleep(waiter.pid());
    holder.wait().expect_code(0);
    waiter.wait().expect_code(0);
}

/// It may have two processes, and the one that runs hooks is started through another.
#[test]
fn a_hook_that_has_no_process_is_reported() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let run = host.run().args(&["--hook", "true"]);
    let done = users.run_through(HOOKED, run, &["prlimit", "--nproc=2"]).cmd(&["true"]).done();
    assert!(done.stderr.contains("--hook failed: cannot start its process"), "{done:?}");
    assert!(host.is_free());
}

#[test]
fn a_full_file_system_is_reported_before_the_command_runs() {
    let host = Host::new();
    let at = host.path().to_str().expect("a path");
    let run = |key: &str, options: &[&str]| host.run_on(key).args(options).cmd(&["echo", "ran"]).shell_line();
    let (plain, once, new) = (run("k", &[]), run("k", &["--once", "1h"]), run("new", &[]));
    let newest = run("k", &["--supersede"]);
    let script = format!(
        "mount -t tmpfs -o size=64k none '{at}' || exit 99; {plain} && cat /dev/zero > '{at}/fill'; \
         {once}; echo once=$?; {newest}; echo newest=$?; {new}; echo new=$?; {plain}; echo plain=$?"
    );
    let unshared = Command::new("unshare").args(["-m", "sh", "-c", &script]).output();
    let Some(output) = unshared.ok().filter(|output| output.status.success()) else {
        skip!("only root can mount a file system");
    };
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(stdout, "ran\nonce=69\nnewest=69\nnew=69\nran\nplain=0\n", "{stderr}");
    for file in ["k", "new"] {
        let told = format!("{}: the file system of the directory is full", host.file_of(file).display());
        assert!(stderr.contains(&told), "no {told:?} in {stderr}");
    }
}

/// The file may have reservations, but no mark, which is behind them.
#[test]
fn a_run_that_cannot_leave_a_mark_reserves_nothing() {
    let host = Host::new();
    let run = host.run().args(&["--once", "1h", "--min-hold", "1h"]).cmd(&["echo", "ran"]);
    let done = run.via("ulimit -f 192; exec \"$@\"").done().expect_code(69);
    assert!(done.stdout.is_empty(), "{done:?}");
    assert!(host.is_free());
}

/// The file's space was reserved before the command started, but it may not be written any more.
#[test]
fn a_mark_that_cannot_be_written_is_reported_although_the_lock_is_free() {
    let host = Host::new();
    let job = hold(host.run().args(&["--once", "1h"]));
    let mut limit = Command::new("prlimit");
    let limited = limit.args(["--fsize=0", "--pid"]).arg(job.pid().to_string()).status();
    if !limited.is_ok_and(|status| status.success()) {
        skip!("there is no prlimit(1)");
    }
    let done = job.wait().expect_code(0);
    assert!(done.stderr.contains("released \"k\", but its mark (--once)"), "{done:?}");
    assert!(host.is_free());
}
