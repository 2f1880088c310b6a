//! Output never blocks: not on a reader that hangs, not on ^S, not on a full disk. Every run here
//! would hang, or lose its lock, if a write to stderr or to the events file could block.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::signal::Signal::SIGTERM;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use crate::support::nodes::renewed;
use crate::support::processes::{self, send};
use crate::support::{
    Job, OtherUsers, PATIENCE, Pty, Redis, Run, UNPRIVILEGED, hold, holder, wait_until, wait_until_within,
};

/// A full FIFO whose reader, this test, does not read until it is asked to.
struct Unread {
    directory: TempDir,
    reader: File,
}

/// Redirects stderr to the FIFO and fills it to the last byte, whatever its size is.
const FILL: &str = "exec 2>\"$FIFO\"; dd if=/dev/zero of=\"$FIFO\" bs=1 count=4096 oflag=nonblock 2>/dev/null
    dd if=/dev/zero of=\"$FIFO\" bs=4096 count=4096 oflag=nonblock 2>/dev/null
    dd if=/dev/zero of=\"$FIFO\" bs=1 count=4096 oflag=nonblock 2>/dev/null; exec \"$@\"";

impl Unread {
    fn new() -> Unread {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("fifo");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
        let reader =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).expect("its reader");
        Unread { directory, reader }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("fifo")
    }

    /// A run with this FIFO, full, as its stderr.
    fn as_stderr_of(&self, run: Run) -> Run {
        run.via(FILL).env("FIFO", self.path())
    }

    /// All bytes that can be read now, without the filling.
    fn read(&mut self) -> String {
        let mut all = Vec::new();
        match self.reader.read_to_end(&mut all) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            _ => {}
        }
        all.retain(|byte| *byte != 0);
        String::from_utf8(all).expect("text")
    }

    /// Reads until the text contains this.
    fn read_until(&mut self, what: &str) -> String {
        let mut all = String::new();
        wait_until(&format!("{what:?} can be read"), || {
            all += &self.read();
            all.contains(what)
        });
        all
    }
}

fn assert_exits(mut job: Job) {
    wait_until_within(PATIENCE, "redlock has exited", || !job.is_running());
}

#[test]
fn max_hold_releases_the_lock_while_stderr_is_not_read() {
    let (redis, stderr) = (Redis::start(), Unread::new());
    let run = Run::key(&redis, "k").args(&["-v", "--max-hold", "3s", "--ttl", "9s"]);
    let job = stderr.as_stderr_of(run).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    wait_until("the lock is free", || !redis.held("k"));
    assert_eq!(job.wait().code, Some(124));
}

#[test]
fn a_holder_handles_a_signal_while_stderr_is_not_read() {
    let (redis, stderr) = (Redis::start(), Unread::new());
    let run = Run::key(&redis, "k").args(&["-v", "--ttl", "4s"]);
    let job = stderr.as_stderr_of(run).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    renewed(&redis, "k", 3); // it has more to print
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
    assert!(!redis.held("k"));
}

#[test]
fn a_waiter_handles_a_signal_while_stderr_is_not_read() {
    let (redis, stderr) = (Redis::start(), Unread::new());
    let _first = holder(&redis, "k", &[]);
    let job = stderr.as_stderr_of(Run::key(&redis, "k").arg("-v")).sh("echo in").spawn();
    let other = Run::key(&redis, "k").sh("echo in").spawn();
    wait_until("both wait", || redis.queue_len("k") == 2);
    other.wait_for_stderr("waiting");
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
    wait_until("the waiter has left the queue", || redis.queue_len("k") == 1);
}

#[test]
fn a_reader_that_is_away_for_longer_than_the_ttl_misses_nothing_and_stops_no_command() {
    let (redis, mut stderr) = (Redis::start(), Unread::new());
    let run = Run::key(&redis, "k").args(&["-v", "--ttl", "4s", "--node-timeout", "1s"]);
    let mut job = stderr.as_stderr_of(run).stdin_pipe().sh("echo ready; read x; exit 7").spawn();
    job.wait_for_line("ready");
    renewed(&redis, "k", 4); // its lease would have ended
    assert!(job.is_running(), "a healthy command continues");
    let output = stderr.read_until("renewed");
    assert!(output.find("acquired") < output.find("renewed"), "in order: {output}");
    drop(job.take_stdin());
    assert_eq!(job.wait().code, Some(7));
    let output = output + &stderr.read();
    assert!(output.contains("released") && !output.contains("missing"), "{output}");
    assert!(output.lines().all(|line| line.starts_with("redlock: ")), "{output}");
}

#[test]
fn another_users_pipe_does_not_block_either() {
    let Some(users) = OtherUsers::new() else { skip!("only root can start processes of other users") };
    let (redis, mut stderr) = (Redis::start(), Unread::new());
    // Opened by root, as by cron, which then becomes the user.
    let run = Run::key(&redis, "k").args(&["-v", "--max-hold", "3s", "--ttl", "9s"]);
    let uid = UNPRIVILEGED.to_string();
    let wrapped = format!("setpriv --reuid {uid} --regid {uid} --clear-groups \"$@\"");
    let fill = FILL.replace("exec \"$@\"", &format!("exec {wrapped}"));
    let run = users.run(UNPRIVILEGED, run, "022").via(&fill).env("FIFO", stderr.path());
    let mut job = run.stdin_pipe().sh("echo ready; read x; exec sleep 60").spawn();
    job.wait_for_line("ready");
    drop(job.take_stdin());
    wait_until("the lock is free", || !redis.held("k"));
    stderr.read();
    assert_exits(job);
    // The lock was free before this was printed: its last message must not be the next run's.
    stderr.read();

    // With a reader everything is printed, whole and in order.
    let run = Run::key(&redis, "k").arg("-v");
    let open = format!("exec 2>\"$FIFO\"; exec {wrapped}");
    let run = users.run(UNPRIVILEGED, run, "022").via(&open).env("FIFO", stderr.path());
    run.sh("exit 3").done().expect_code(3);
    let output = stderr.read();
    assert!(
        output.find("acquired").expect("acquired") < output.find("released").expect("released"),
        "{output}"
    );
}

#[test]
fn a_terminal_stopped_with_ctrl_s_delays_no_signal_and_no_release() {
    let redis = Redis::start();
    let script = "echo main $$ up; exec sleep 60";
    let pty = Pty::run(Run::key(&redis, "k").args(&["-v", "--ttl", "4s", "--node-timeout", "1s"]).sh(script));
    pty.number_after("main ");
    pty.type_in("\x13");
    renewed(&redis, "k", 4); // it renews although it cannot report it
    assert!(redis.held("k"));
    send(pty.pid(), SIGTERM);
    wait_until("the lock is free", || !redis.held("k"));
    let done = pty.wait();
    assert_eq!(done.signal, Some(SIGTERM as i32), "{}", done.stdout);
}

#[test]
fn another_users_terminal_does_not_block_either() {
    let Some(users) = OtherUsers::new() else { skip!("only root can start processes of other users") };
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["-v", "--ttl", "4s", "--node-timeout", "1s"]);
    let pty = Pty::run(users.run(UNPRIVILEGED, run, "022").sh("echo main $$ up; exec sleep 60"));
    pty.wait_for("acquired");
    pty.number_after("main ");
    pty.type_in("\x13");
    renewed(&redis, "k", 4); // it renews although it cannot report it
    send(pty.pid(), SIGTERM);
    wait_until("the lock is free", || !redis.held("k"));
    assert_eq!(pty.wait().signal, Some(SIGTERM as i32));
}

#[test]
fn an_unread_socket_does_not_block_either() {
    let redis = Redis::start();
    let (_ours, mut theirs) = UnixStream::pair().expect("a socket");
    theirs.set_nonblocking(true).expect("a full socket");
    while theirs.write(&[b'x'; 4096]).is_ok() {}
    theirs.set_nonblocking(false).expect("a socket that blocks");
    let run = Run::key(&redis, "k").args(&["-v", "--max-hold", "300ms"]).cmd(&["sleep", "60"]);
    let mut child = run.command().stderr(OwnedFd::from(theirs)).spawn().expect("redlock");
    let mut code = None;
    wait_until("redlock has exited", || {
        code = child.try_wait().expect("its state").map(|status| status.code());
        code.is_some()
    });
    assert_eq!(code, Some(Some(124)));

    let (mut ours, theirs) = UnixStream::pair().expect("a socket");
    let run = Run::key(&redis, "k").arg("-v").cmd(&["true"]);
    run.command().stderr(OwnedFd::from(theirs)).status().expect("redlock");
    let mut output = String::new();
    ours.read_to_string(&mut output).expect("text");
    assert!(output.contains("acquired") && output.contains("released"), "{output}");
}

#[test]
fn a_waiter_on_a_terminal_stopped_with_ctrl_s_prints_the_rest_after_ctrl_q() {
    let redis = Redis::start();
    let first = hold(Run::key(&redis, "k"));
    let pty = Pty::run(Run::key(&redis, "k").arg("-v").sh("sleep 0.1; exec sleep 60"));
    pty.wait_for("waited");
    pty.type_in("\x13");
    let calls = redis.script_calls();
    wait_until("the waiter has tried to print more", || redis.script_calls() >= calls + 3);
    first.wait().expect_code(0);
    wait_until("its turn has come", || redis.held("k") && redis.queue_len("k") == 0);
    assert!(!pty.screen().contains("acquired"), "^S holds for this terminal: {}", pty.screen());
    pty.type_in("\x11");
    pty.wait_for("acquired");
}

fn fifo(directory: &Path) -> PathBuf {
    let path = directory.join("events");
    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    path
}

#[test]
fn events_to_a_fifo_without_a_reader_delay_nothing() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let path = fifo(directory.path());
    let done = Run::key(&redis, "k").arg("--events").arg(&path).sh("exit 3").done().expect_code(3);
    assert!(done.stderr.contains("events") && done.stderr.lines().count() == 1, "{}", done.stderr);
    assert!(!redis.held("k"));
}

#[test]
fn a_late_reader_gets_the_events_from_the_beginning() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let path = fifo(directory.path());
    let run = Run::key(&redis, "k").args(&["--ttl", "4s", "--node-timeout", "1s", "--events"]).arg(&path);
    let mut job = run.stdin_pipe().sh("echo ready; read x").spawn();
    job.wait_for_line("ready");
    let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let mut reader = Unread { directory, reader };
    let output = reader.read_until("refreshed");
    drop(job.take_stdin());
    job.wait();
    let output = output + &reader.read();
    let first = output.lines().next().unwrap_or_default();
    assert!(first.contains("\"acquired\"") && output.ends_with("}\n"), "{output}");
}

#[test]
fn one_reader_may_leave_and_another_take_over() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let path = fifo(directory.path());
    let open = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let mut reader = Unread { reader: open(), directory: tempfile::tempdir().unwrap() };
    let run = Run::key(&redis, "k").args(&["--ttl", "4s", "--node-timeout", "1s", "--events"]).arg(&path);
    let mut job = run.stdin_pipe().sh("echo ready; read x; exit 0").spawn();
    reader.read_until("acquired");
    drop(reader);
    renewed(&redis, "k", 2); // the first event has been created, and has no reader
    let mut reader = Unread { reader: open(), directory };
    drop(job.take_stdin());
    job.wait().expect_code(0);
    let output = reader.read();
    assert!(
        output.contains("refreshed") && output.contains("ended") && !output.contains("dropped"),
        "{output}"
    );
}

#[test]
fn lost_events_on_a_full_device_are_counted_and_do_not_disturb_the_run() {
    let redis = Redis::start();
    let done = Run::key(&redis, "k").args(&["--events", "/dev/full"]).sh("exit 3").done().expect_code(3);
    assert!(done.stderr.contains("/dev/full") && done.stderr.contains("No space left"), "{}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
}

#[test]
fn an_events_file_that_exceeds_the_limit_of_file_sizes_does_not_end_the_run() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let run = Run::key(&redis, "k").arg("--events").arg(directory.path().join("events"));
    let done = run.via("ulimit -f 0; exec \"$@\"").sh("exit 3").done().expect_code(3);
    assert!(done.stderr.contains("File too large"), "{}", done.stderr);
    assert!(!redis.held("k"));
}

/// A file system of this many bytes, mounted where only the script sees it.
fn on_small_disk(run: Run, at: &Path) -> Run {
    let script = format!("mount -t tmpfs -o size=64k none '{}' && exec \"$@\"", at.display());
    run.through(&["unshare", "--mount", "sh", "-c", &script, "sh"])
}

#[test]
fn every_line_is_whole_on_a_disk_that_was_full_for_a_while() {
    if !nix::unistd::geteuid().is_root() || !processes::is_installed("unshare") {
        skip!("only root can mount a file system");
    }
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    // With a long key a page of the disk holds few lines.
    let key = "k".repeat(900);
    let run = Run::key(&redis, &key).args(&["--ttl", "4s", "--node-timeout", "1s", "--events"]);
    let run = on_small_disk(run.arg(directory.path().join("events")), directory.path());
    let copy = tempfile::tempdir().unwrap();
    let script = "cd \"$AT\" && { cat /dev/zero > filling 2>/dev/null
        echo full; read x; rm filling; echo space; read x; cat events > \"$COPY/events\"; }";
    let mut job = run.env("AT", directory.path()).env("COPY", copy.path()).stdin_pipe().sh(script).spawn();
    job.wait_for_line("full");
    renewed(&redis, &key, 7); // events have been lost
    let mut stdin = job.take_stdin();
    stdin.write_all(b"\n").unwrap();
    job.wait_for_line("space");
    renewed(&redis, &key, 2); // events are being written again
    drop(stdin);
    job.wait().expect_code(0);
    let text = fs::read_to_string(copy.path().join("events")).unwrap();
    let whole = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    let lines: Vec<&str> = text.lines().filter(whole).collect();
    let torn = text.lines().count() - lines.len();
    assert!(torn <= 1, "only the line that filled the disk may be missing: {text}");
    assert!(lines.iter().any(|line| line.contains("\"dropped\":")), "lost events are counted: {text}");
}
