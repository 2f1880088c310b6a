//! Other users of this host: they can reach no process of ours, and what they do to a lock file
//! misleads none.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::SIGINT;
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use uuid::Uuid;

use super::file_tampering::foreign_lock;
use crate::support::host::{is_locked, tickets_waiting};
use crate::support::processes::{children, guardian_of, pid_in, wait_until_asleep};
use crate::support::{Host, OtherUsers, Run, UNPRIVILEGED, descendants, hold, stranger, wait_until};

/// A user without privileges beside [`UNPRIVILEGED`].
const OTHER: u32 = 65533;

/// The token of `redlock acquire`, and its keeper, which ends with this test's process at the
/// latest.
fn acquire(host: &Host, args: &[&str]) -> (String, i32) {
    let us = std::process::id().to_string();
    let run = host.subcommand("acquire").args(&["--local", "--key", "k", "--json"]).args(args);
    let run = if args.is_empty() { run.args(&["--watch-pid", &us]) } else { run };
    let granted = run.done().expect_code(0).json();
    let keeper = granted["keeper"].as_i64().unwrap_or_else(|| panic!("no keeper in {granted}"));
    (granted["token"].as_str().expect("a token").to_owned(), keeper as i32)
}

fn with_token(host: &Host, command: &str, token: &str) -> Run {
    host.subcommand(command).args(&["k", "--token", token])
}

/// The sockets of a process to which others can connect: those with a name.
fn named_sockets(pid: i32) -> Vec<String> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the descriptors").flatten();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    let inodes: Vec<String> = links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let all = fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
    let named = all.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, _, _, inode, name, ..] = words[..] else { return None };
        inodes.iter().any(|ours| ours == inode).then(|| name.to_owned())
    });
    named.collect()
}

#[test]
fn no_user_can_connect_to_a_run_or_a_keeper() {
    let host = Host::new();
    let job = hold(host.run_on("j"));
    let (token, keeper) = acquire(&host, &[]);
    let mut processes = descendants(job.pid());
    processes.extend([job.pid(), keeper]);
    for pid in processes {
        assert_eq!(named_sockets(pid), Vec::<String>::new(), "of process {pid}");
    }
    with_token(&host, "release", &token).done().expect_code(0);
    job.wait().expect_code(0);
}

#[test]
fn another_user_cannot_open_the_files_of_a_guardian_or_a_keeper() {
    let Some(_) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let job = hold(host.run_on("j"));
    let (token, keeper) = acquire(&host, &[]);
    let id = UNPRIVILEGED.to_string();
    for pid in [descendants(job.pid())[0], keeper] {
        let mut stranger = Command::new("setpriv");
        stranger.args(["--reuid", &id, "--regid", &id, "--clear-groups", "ls"]);
        let output = stranger.arg(format!("/proc/{pid}/fd")).output().expect("setpriv");
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    with_token(&host, "release", &token).done().expect_code(0);
    job.wait().expect_code(0);
}

/// Any user of the directory can write into the file.
fn forge(host: &Host, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let file = OpenOptions::new().read(true).write(true).open(host.file()).expect("the lock file");
    let mut bytes = vec![0; 128 * 1024];
    let read = file.read_at(&mut bytes, 0).expect("the lock file");
    let text = bytes[..read].windows(from.len()).position(|window| window == from.as_bytes());
    let at = text.unwrap_or_else(|| panic!("no {from:?} in the file"));
    file.write_all_at(to.as_bytes(), at as u64).expect("the lock file");
}

#[test]
fn a_forged_record_does_not_separate_a_token_from_its_keeper() {
    let host = Host::new();
    let (token, _) = acquire(&host, &["--ttl", "60s"]);
    let token = token.as_str();
    let other = format!("{}{}", if token.starts_with('0') { '1' } else { '0' }, &token[1..]);
    forge(&host, token, &other);
    forge(&host, "protocol\x001\0", "protocol\x003\0");
    with_token(&host, "extend", token).args(&["--ttl", "60s"]).done().expect_code(0);
    with_token(&host, "release", token).done().expect_code(0);
    wait_until("the lock is free", || host.is_free());
}

#[test]
fn a_forged_record_does_not_separate_a_token_from_its_run() {
    let host = Host::new();
    let job = host.run().sh("echo \"token $REDLOCK_TOKEN\"; exec sleep 60").spawn();
    let token = job.wait_for_line("token ").replace("token ", "");
    let other = format!("{}{}", if token.starts_with('0') { '1' } else { '0' }, &token[1..]);
    forge(&host, &token, &other);
    forge(&host, "protocol\x001\0", "protocol\x003\0");
    let is_owned = |token: &str| host.subcommand("status").args(&["k", "--check", "owned", "--token", token]);
    is_owned(&token).done().expect_code(0);
    is_owned(&other).done().expect_code(1);
    with_token(&host, "extend", &token).args(&["--ttl", "60s"]).done().expect_code(0);
    with_token(&host, "release", &other).done().expect_code(79);
    with_token(&host, "release", &token).done().expect_code(0);
    job.wait().expect_code(79);
    is_owned(&token).done().expect_code(1);
}

/// A user who may write to a file may also link it.
#[test]
fn a_link_that_another_user_makes_locks_no_run_out() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let job = hold(host.run());
    let id = UNPRIVILEGED.to_string();
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid", &id, "--regid", &id, "--clear-groups", "ln"]).arg(host.file());
    assert!(stranger.arg(host.beside("link")).status().expect("setpriv").success());
    for run in [host.run(), users.run(UNPRIVILEGED, host.run(), "022")] {
        run.arg("-n").sh("echo ran").done().expect_code(75);
    }
    job.wait().expect_code(0);
    for run in [host.run(), users.run(UNPRIVILEGED, host.run(), "022")] {
        assert_eq!(run.arg("-n").sh("echo ran").done().expect_code(0).stdout, "ran\n");
    }
}

#[test]
fn two_names_of_one_lock_file_are_not_two_locks() {
    let host = Host::with_mode(0o1777);
    assert!(host.is_free());
    fs::hard_link(host.file(), host.beside("redlock-lock%3Aj")).unwrap();
    let done = host.run().args(&["--key", "j"]).sh("echo ran").done().expect_code(77);
    assert!(done.stderr.contains("another name of a file"), "{done:?}");
}

/// The run takes longer to stop than the client waits.
#[test]
fn advice_names_the_process_that_holds_the_lock_whatever_its_record_says() {
    let host = Host::new();
    let script = "trap '' TERM; echo \"token $REDLOCK_TOKEN\"; while :; do sleep 0.05; done";
    let job = host.run().args(&["--kill-after", "60s"]).sh(script).spawn();
    let token = job.wait_for_line("token ").replace("token ", "");
    let pid = format!("pid\0{}\0", job.pid());
    forge(&host, &pid, &format!("pid\0{:0>1$}\0", 1, pid.len() - 5));
    let status = host.subcommand("status").args(&["k", "--json"]).done().expect_code(0);
    assert_eq!(status.json()["holders"][0]["pid"], 1, "the record is forged: {status:?}");
    let done = with_token(&host, "release", &token).done().expect_code(69);
    assert!(done.stderr.contains(&format!("kill -9 {} ends it", job.pid())), "{done:?}");
}

/// A guardian, and with --wait-tree the command, have the lock of their redlock, but read no requests.
#[test]
fn a_forged_pid_misdirects_no_request() {
    for options in [&[][..], &["--wait-tree"]] {
        let host = Host::new();
        let job = host.run().args(options).sh("echo main $$; exec sleep 60").spawn();
        let main = pid_in(&job.wait_for_line("main"));
        let wrong = if options.is_empty() { guardian_of(job.pid()) } else { main };
        let recorded = format!("pid\0{}\0user\0", job.pid());
        let forged = format!("pid\0{wrong}\0");
        // Another number of digits changes the length of the next name.
        let name = "x".repeat(recorded.len() - forged.len() - 1);
        forge(&host, &recorded, &format!("{forged}{name}\0"));
        host.subcommand("break").args(&["k", "--yes"]).done().expect_code(0);
        job.wait().expect_code(79);
    }
}

/// Becomes a program that is called like a keeper, and has the files of one that watches this process
/// for the holder of the lock file.
const FAKE_KEEPER: &str = "\
import os, struct, sys
program, lock_file, watched = sys.argv[1:]
about = os.stat(lock_file)
ticket = struct.unpack('<Q', open(lock_file, 'rb').read(8))[0] - 1
reader, writer = os.pipe()
for fd in (reader, writer, os.pidfd_open(int(watched))): os.set_inheritable(fd, True)
place = f'k{os.getpid()}:{reader}:{os.fstat(reader).st_ino}'
held = f'00000000-0000-4000-8000-000000000001.1@{about.st_dev}:{about.st_ino}:{ticket}:7:0=6b+{place} '
os.write(os.memfd_create('redlock-kept', 0), held.encode())
os.execv(program, [program, '60'])
";

/// A program with the setuid bit has the user that is attacked, but not its files.
#[test]
fn another_user_cannot_pose_as_a_keeper() {
    let programs = tempfile::tempdir().expect("a temporary directory");
    let (program, watched) = (programs.path().join("redlock-keeper"), std::process::id().to_string());
    for mode in ["755", "4755"] {
        let host = Host::with_mode(0o1777);
        let holder = hold(host.run());
        let script = "chmod 755 \"${1%/*}\"; install -m \"$2\" \"$(command -v sleep)\" \"$1\"";
        let mut install = Command::new("sh");
        install.args(["-c", script, "sh"]).arg(&program).arg(mode);
        assert!(install.status().expect("a shell").success());
        let Some(fake) = stranger(UNPRIVILEGED, FAKE_KEEPER, &[&program, &host.file(), Path::new(&watched)])
        else {
            skip!("only root can act as another user, and python3 is needed")
        };
        let name = format!("/proc/{}/comm", fake.pid());
        wait_until("it is called like a keeper", || fs::read_to_string(&name).unwrap() == "redlock-keeper\n");
        for options in [&["-n"][..], &["-n", "--reentrant"]] {
            let done = host.run().args(options).sh("echo ran").done().expect_code(75);
            assert_eq!(done.stdout, "", "{options:?} with mode {mode}");
        }
        holder.wait().expect_code(0);
    }
}

/// Has a file like the one through which a keeper of two locks is reached, perhaps with a lease on it.
const FAKE_CONTROL: &str = "\
import fcntl, os, signal, sys
lock_file, token, has_lease = sys.argv[1:]
about = os.stat(lock_file)
memory = os.memfd_create('redlock-keeper-' + token)
os.pwrite(memory, f'{about.st_dev}:{about.st_ino} 1:1 '.encode(), 24)
if has_lease == 'lease':
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    reader = os.open(f'/proc/self/fd/{memory}', os.O_RDONLY)
    fcntl.fcntl(reader, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print('ready', flush=True)
sys.stdin.read()
";

#[test]
fn another_users_file_in_memory_is_no_keepers() {
    for has_lease in ["no lease", "lease"] {
        let host = Host::with_mode(0o1777);
        let (token, _) = acquire(&host, &["--ttl", "60s"]);
        let args = [&host.file(), Path::new(&token), Path::new(has_lease)];
        let Some(stranger) = stranger(UNPRIVILEGED, FAKE_CONTROL, &args) else {
            skip!("only root can act as another user, and python3 is needed")
        };
        stranger.wait_for_line("ready");
        let begin = Instant::now();
        with_token(&host, "extend", &token).args(&["--ttl", "60s"]).done().expect_code(0);
        // The kernel breaks a lease after 45 seconds.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        with_token(&host, "release", &token).done().expect_code(0);
    }
}

/// The byte that the holder with this token locks.
fn token_byte(token: &str) -> i64 {
    let (digest, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, token.as_bytes()).as_u64_pair();
    ((5 << 60) + (digest & ((1 << 60) - 1))).cast_signed()
}

/// From a waiter's record everybody knows its token, and from that its byte.
#[test]
fn no_run_is_admitted_whose_token_another_program_has_locked() {
    let host = Host::new();
    let holder = hold(host.run());
    let waiter = host.waiter(host.run().sh("echo ran"), 1);
    let mut records = vec![0; 4096];
    let file = fs::File::open(host.file()).expect("the lock file");
    let read = file.read_at(&mut records, 46 * 4096).expect("the waiters' records");
    let text = String::from_utf8_lossy(&records[..read]);
    let mut fields = text.split('\0').skip_while(|field| !field.ends_with("claim"));
    let claim = fields.nth(1).expect("the waiter's claim");
    let theirs = foreign_lock(&host.file(), token_byte(claim), 1);
    holder.wait().expect_code(0);
    let done = waiter.wait().expect_code(69);
    assert!(done.stdout.is_empty() && done.stderr.contains("a program other than redlock"), "{done:?}");
    host.subcommand("status").args(&["k", "--check", "free"]).done().expect_code(0);
    drop(theirs);
    // A child that another test is starting has our descriptors until its exec.
    wait_until("nothing is locked", || !is_locked(&host.file()));
}

/// Locks one byte.
const LOCK_BYTE: &str = "\
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
lock = struct.pack('hhxxxxqqixxxx', fcntl.F_WRLCK, 0, int(sys.argv[2]), 1, 0)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
print('ready', flush=True)
sys.stdin.read()
";

#[test]
fn no_run_is_extended_whose_token_another_user_has_locked() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let token = host.run().sh("echo $REDLOCK_TOKEN").done().expect_code(0).stdout;
    let token = token.trim_end();
    let byte = token_byte(token).to_string();
    let Some(stranger) = stranger(UNPRIVILEGED, LOCK_BYTE, &[&host.file(), Path::new(&byte)]) else {
        skip!("there is no python3")
    };
    stranger.wait_for_line("ready");
    let extend = || with_token(&host, "extend", token).args(&["--ttl", "60s"]);
    // Root sees that process, which does not take requests.
    extend().done().expect_code(78);
    users.run(OTHER, extend(), "022").done().expect_code(77);
}

/// Locks what it may open.
const READ_LOCK: &str = "\
import fcntl, os, struct, sys
opened = []
for path in sys.argv[1:]:
    try: opened.append(os.open(path, os.O_RDONLY))
    except PermissionError: continue
    fcntl.fcntl(opened[-1], fcntl.F_OFD_SETLK, struct.pack('hhxxxxqqixxxx', fcntl.F_RDLCK, 0, 0, 0, 0))
print('ready', len(opened), flush=True)
sys.stdin.read()
";

#[test]
fn a_user_who_may_only_read_the_directory_delays_no_run_in_it() {
    for mode in [0o755, 0o700] {
        let host = Host::with_mode(mode);
        assert!(host.is_free());
        let Some(reader) =
            stranger(UNPRIVILEGED, READ_LOCK, &[host.path(), &host.file(), &host.beside(".redlock-names")])
        else {
            skip!("only root can act as another user, and python3 is needed")
        };
        let opened = if mode == 0o755 { "ready 1" } else { "ready 0" };
        reader.wait_for_line(opened);
        assert!(host.is_free() && host.run_on("new").try_acquire());
    }
}

/// There a hidden file stands for the directory. The keeper holds it, too.
#[test]
fn a_token_reaches_its_keeper_in_a_directory_that_others_may_read() {
    for keys in [&["k"][..], &["k", "--key", "j"]] {
        let host = Host::with_mode(0o755);
        let run = host.subcommand("acquire").args(&["--local", "--ttl", "60s", "--key"]).args(keys);
        let token = run.done().expect_code(0).stdout.trim_end().to_owned();
        assert!(host.beside(".redlock-names").exists());
        let with_token =
            |command: &str| host.subcommand(command).args(&["--token", &token, "--key"]).args(keys);
        with_token("extend").args(&["--ttl", "60s"]).done().expect_code(0);
        with_token("release").done().expect_code(0);
        wait_until("the lock is free", || host.is_free());
    }
}

/// In a directory of another user, who can put any file there.
fn directory_of_another_user() -> Host {
    let host = Host::with_mode(0o755);
    chown(host.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("only root can do that");
    host
}

#[test]
fn a_run_of_roots_gives_no_file_of_roots_to_the_owner_of_the_directory() {
    if !geteuid().is_root() {
        skip!("only root can have a file that others cannot");
    }
    let host = directory_of_another_user();
    let (precious, names) = (host.beside("precious"), host.beside(".redlock-names"));
    let (file, over) = (fs::File::create(&precious).expect("a file"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                fs::rename(&precious, &names).expect("it has one of these names");
                fs::rename(&names, &precious).expect("it has one of these names");
            }
        });
        for _ in 0..50 {
            let done = host.run().cmd(&["true"]).done();
            if done.code != Some(0) || file.metadata().is_ok_and(|about| about.uid() != 0) {
                break;
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    assert_eq!(file.metadata().expect("the file").uid(), 0);
}

#[test]
fn a_run_does_not_wait_for_the_other_end_of_a_fifo_in_place_of_the_names() {
    if !geteuid().is_root() {
        skip!("only root can use the directory of another user");
    }
    let host = directory_of_another_user();
    mkfifo(&host.beside(".redlock-names"), Mode::from_bits_truncate(0o600)).expect("a fifo");
    assert!(host.is_free());
}

/// Has a lease on a file of its own until its stdin is closed.
const LEASE: &str = "\
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDWR)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
try: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError: sys.exit(print('ready, no leases'))
print('ready', flush=True)
signal.sigwait([signal.SIGIO])
print('asked', flush=True)
sys.stdin.read()
";

#[test]
fn a_run_waits_for_the_lease_that_the_owner_of_the_file_has_on_it() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    users.run(UNPRIVILEGED, host.run(), "022").cmd(&["true"]).done().expect_code(0);
    let Some(mut owner) = stranger(UNPRIVILEGED, LEASE, &[&host.file()]) else {
        skip!("there is no python3")
    };
    if owner.wait_for_line("ready").contains("no leases") {
        skip!("this file system has no leases")
    }
    let mut job = host.run().arg("-n").sh("echo ran").spawn();
    owner.wait_for_line("asked");
    let cancelled = host.subcommand("acquire").args(&["--local", "--key", "k"]).spawn();
    wait_until("it has a worker", || !children(cancelled.pid()).is_empty());
    wait_until_asleep(cancelled.pid());
    cancelled.signal(SIGINT);
    assert_eq!(cancelled.wait().signal, Some(SIGINT as i32));
    assert!(job.is_running(), "a signal does not wait for the lease");
    drop(owner.take_stdin());
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
}

/// The inner run is younger than the other user's waiter, whose environment says that it holds "j".
#[test]
fn another_user_cannot_pretend_a_deadlock() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let inner = host.run_on("j").args(&["-w", "4"]).cmd(&["echo", "ran"]).shell_line();
    let mut outer = host.run().stdin_pipe().sh(&format!("echo ready; read x; {inner}")).spawn();
    outer.wait_for_line("ready");
    let holder = host.run_on("j").stdin_pipe().sh("echo \"held $REDLOCK_HELD\"; read x; exit 0").spawn();
    let held = holder.wait_for_line("held ").replace("held ", "");
    let liar = users.run(UNPRIVILEGED, host.run().env("REDLOCK_HELD", held), "022").cmd(&["true"]).spawn();
    wait_until("it waits", || tickets_waiting(&host.file_of("k")) == 1);
    drop(outer.take_stdin());
    let done = outer.wait().expect_code(75);
    assert!(done.stderr.contains("gave up on \"j\" after 4"), "{done:?}");
    holder.wait().expect_code(0);
    liar.wait().expect_code(0);
}

/// From the first ticket that is free on.
const LOCK_MANY: &str = "\
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
for number in range(6000, 0, -1):
    lock = struct.pack('hhxxxxqqixxxx', fcntl.F_WRLCK, 0, (1 << 49) + 2 * number, 1, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
print('ready', flush=True)
sys.stdin.read()
";

/// Each look is one walk of the kernel through all locks for each lock that is found.
#[test]
fn locks_on_many_bytes_are_not_all_looked_at() {
    let host = Host::with_mode(0o1777);
    assert!(host.is_free());
    let Some(stranger) = stranger(UNPRIVILEGED, LOCK_MANY, &[&host.file()]) else {
        skip!("only root can act as another user, and python3 is needed")
    };
    stranger.wait_for_line("ready");
    let status = host.subcommand("status").args(&["k", "--json"]).done().expect_code(0).json();
    assert_eq!(status["waiters"].as_array().map(Vec::len), Some(1024));
    host.run().arg("-n").sh("echo ran").done().expect_code(75);
}
