//! Tampering with a lock file lets no other run in: the lock is in the kernel, the file only
//! describes it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::Signal::SIGTERM;

use crate::support::host::{LAST_TICKET, MUTEX_BYTE, tickets_waiting};
use crate::support::reader_writer_log::Role;
use crate::support::{Host, ReaderWriterLog, hold, wait_until};

fn open(file: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(file).expect("the lock file")
}

/// What any user with write access can do to the file without replacing it.
const TAMPERINGS: [fn(&File); 6] = [
    |file| file.set_len(0).unwrap(),
    |file| file.write_all_at(&[0xff; 4096], 0).unwrap(),
    |file| file.write_all_at(&[0; 16], 0).unwrap(),
    |file| file.write_all_at(&[1, 0, 0, 0, 0, 0, 0, 0], 0).unwrap(),
    |file| file.write_all_at(&[0x80; 16], 0).unwrap(),
    |file| file.set_len(7).unwrap(),
];

#[test]
fn tampering_while_the_lock_is_held_lets_no_other_run_in() {
    let host = Host::new();
    for harm in TAMPERINGS {
        let first = hold(host.run());
        harm(&open(&host.file()));
        host.run().arg("-n").sh("echo ran").done().expect_code(75);
        host.run().args(&["-n", "--shared"]).sh("echo ran").done().expect_code(75);
        let waiter = host.waiter(host.run().sh("exit 4"), 1);
        harm(&open(&host.file()));
        host.run().arg("-n").sh("echo ran").done().expect_code(75);
        first.wait().expect_code(0);
        waiter.wait().expect_code(4);
        assert!(host.is_free());
    }
}

#[test]
fn tickets_in_use_survive_tampering() {
    let host = Host::new();
    for (round, harm) in TAMPERINGS.into_iter().enumerate() {
        let first = hold(host.run());
        let waiter = |i: usize, place: usize| host.noting_waiter(&format!("{round}-{i}"), place);
        let mut waiters = vec![waiter(0, 1), waiter(1, 2)];
        let quitter = host.noting_waiter("quitter", 3);
        waiters.push(waiter(2, 4));
        // A gap that a later waiter must not fill.
        quitter.signal(SIGTERM);
        quitter.wait();
        host.queued(3);
        harm(&open(&host.file()));
        waiters.extend((3..6).map(|i| waiter(i, i + 1)));
        first.wait().expect_code(0);
        for waiter in waiters {
            waiter.wait().expect_code(0);
        }
    }
    let expected: Vec<String> =
        (0..TAMPERINGS.len()).flat_map(|r| (0..6).map(move |i| format!("{r}-{i}"))).collect();
    assert_eq!(host.order(), expected);
}

#[test]
fn endless_tampering_makes_no_two_holders_overlap() {
    let host = Host::new();
    assert!(host.is_free());
    let (file, over) = (open(&host.file()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let harming = scope.spawn(|| {
            for harm in TAMPERINGS.iter().cycle() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                harm(&file);
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        let workers: Vec<_> = (0..6)
            .map(|worker| {
                let host = &host;
                scope.spawn(move || {
                    for round in 0..12 {
                        let role = if (worker + round) % 3 == 0 { Role::Reader("") } else { Role::Writer };
                        let script = ReaderWriterLog::script(worker * 12 + round, role, 0.005);
                        host.run().args(&role.args()).dir(host.path()).sh(&script).done().expect_code(0);
                    }
                })
            })
            .collect();
        let ended: Vec<bool> = workers.into_iter().map(|worker| worker.join().is_ok()).collect();
        over.store(true, Ordering::SeqCst);
        harming.join().unwrap();
        assert!(ended.iter().all(|well| *well), "each run has finished");
    });
    assert_eq!(ReaderWriterLog::new(host.path()).check().1, 6 * 12, "every run entered");
}

#[test]
fn a_nested_run_is_detected_after_tampering() {
    let host = Host::new();
    let inner = host.run().cmd(&["echo", "ran"]).shell_line();
    let script = format!("echo ready; read x; {inner}; echo inner=$?");
    let mut outer = host.run().stdin_pipe().sh(&script).spawn();
    outer.wait_for_line("ready");
    open(&host.file()).set_len(0).unwrap();
    drop(outer.take_stdin());
    assert_eq!(outer.wait_for_line("inner="), "inner=64");
    outer.wait().expect_code(0);
}

/// What the owner of the file can do to its name.
const REPLACEMENTS: [fn(&Path); 3] = [
    |file| fs::remove_file(file).unwrap(),
    |file| fs::rename(file, file.with_file_name("away")).unwrap(),
    |file| {
        fs::write(file.with_file_name("new"), "").unwrap();
        fs::rename(file.with_file_name("new"), file).unwrap();
    },
];

#[test]
fn holders_and_waiters_notice_that_their_file_was_replaced() {
    for replace in REPLACEMENTS {
        let host = Host::new();
        let first = hold(host.run());
        let waiter = host.waiter(host.run().sh("echo ran"), 1);
        replace(&host.file());
        let done = first.wait().expect_code(0);
        assert!(done.stderr.contains("deleted, renamed or replaced"), "{done:?}");
        // It may retry on a new file or report what happened, but must not run under a lock that no
        // other run sees.
        let done = waiter.wait();
        assert!(done.code == Some(0) || done.code == Some(69) && done.stdout.is_empty(), "{done:?}");
        assert!(host.is_free());
    }
}

/// The holder has locked the name in the directory as well.
#[test]
fn a_replaced_lock_file_hides_no_holder() {
    // 0o755: others could lock the directory.
    for (replace, mode) in REPLACEMENTS.into_iter().flat_map(|it| [0o700, 0o755].map(|mode| (it, mode))) {
        let host = Host::with_mode(mode);
        let (go, first) = (host.beside("go"), hold(host.run()));
        replace(&host.file_of("k"));
        for mode in [&["-n"][..], &["-n", "--shared"], &["-n", "--slots", "2"]] {
            let done = host.run().args(mode).sh("echo ran").done().expect_code(75);
            assert!(done.stderr.contains("its lock file was renamed or deleted"), "{done:?}");
        }
        assert!(host.run_on("j").try_acquire(), "another key");
        let _ = fs::remove_file(host.file_of("k"));
        host.subcommand("status").args(&["k", "--check", "free"]).done().expect_code(1);
        let done = host.subcommand("break").args(&["k", "--yes"]).done().expect_code(77);
        assert!(done.stderr.contains("stop it with kill(1)"), "{done:?}");
        let waiter = host.run().sh(&format!("test -e {}", go.display())).spawn();
        wait_until("it waits", || tickets_waiting(&host.file_of("k")) == 1);
        fs::write(go, "").unwrap();
        first.wait().expect_code(0);
        waiter.wait().expect_code(0);
    }
}

/// The command of one run never sees that of another, whatever the owner of the file does meanwhile.
#[test]
fn endless_replacement_makes_no_two_holders_overlap() {
    let host = Host::new();
    assert!(host.is_free());
    let (file, over) = (host.file(), AtomicBool::new(false));
    let entered = std::thread::scope(|scope| {
        let harming = scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let _ = fs::rename(&file, file.with_file_name("away"));
                std::thread::sleep(std::time::Duration::from_micros(700));
                let _ = fs::rename(file.with_file_name("away"), &file);
                std::thread::sleep(std::time::Duration::from_micros(700));
            }
        });
        let workers: Vec<_> = (0..6_usize)
            .map(|worker| {
                let host = &host;
                scope.spawn(move || {
                    let enter = |round: usize| {
                        let role =
                            if (worker + round).is_multiple_of(3) { Role::Reader("") } else { Role::Writer };
                        let script = ReaderWriterLog::script(worker * 12 + round, role, 0.005);
                        let run = host.run().args(&role.args()).dir(host.path()).sh(&script);
                        // A waiter whose file is replaced gives up.
                        let done = run.done();
                        assert!(matches!(done.code, Some(0 | 69)), "{done:?}");
                        done.code == Some(0)
                    };
                    (0..12).filter(|round| enter(*round)).count()
                })
            })
            .collect();
        let entered: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::SeqCst);
        harming.join().unwrap();
        entered.into_iter().map(|entered| entered.expect("each run has finished")).sum::<usize>()
    });
    assert!(entered > 0);
    assert_eq!(ReaderWriterLog::new(host.path()).check().1, entered, "as many as exited with 0");
}

/// Another program locks these bytes.
pub(super) fn foreign_lock(file: &Path, start: i64, len: i64) -> File {
    let file = open(file);
    let wanted = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&wanted)).expect("the foreign lock");
    file
}

/// -n and -w end in time and SIGTERM ends a wait, whatever bytes another program has locked.
fn assert_waits_end_in_time_if_locked(start: i64, len: i64) {
    let host = Host::new();
    assert!(host.is_free());
    let theirs = foreign_lock(&host.file(), start, len);
    let ends = |args: &[&str]| {
        let done = host.run().args(args).cmd(&["true"]).done();
        assert!(matches!(done.code, Some(0 | 69 | 75)), "locked {start}+{len}, {args:?}: {done:?}");
    };
    ends(&["-n"]);
    ends(&["-w", "0.2"]);
    let mut job = host.run().arg("-v").sh("exec sleep 60").spawn();
    wait_until("the run prints something or exits", || !job.stderr_so_far().is_empty() || !job.is_running());
    ends(&["-n"]);
    wait_until("SIGTERM ends the run", || job.is_running().then(|| job.signal(SIGTERM)).is_none());
    drop(theirs);
    wait_until("the lock is free", || host.is_free());
}

#[test]
fn waits_end_in_time_even_if_another_program_locks_some_bytes() {
    assert_waits_end_in_time_if_locked(0, 1);
    assert_waits_end_in_time_if_locked(5, 1);
}

#[test]
fn waits_end_in_time_even_if_another_program_locks_the_whole_file() {
    assert_waits_end_in_time_if_locked(0, 0);
}

#[test]
fn waits_end_in_time_even_if_another_program_locks_the_mutex() {
    assert_waits_end_in_time_if_locked(MUTEX_BYTE.cast_signed(), 1);
}

#[test]
fn waits_end_in_time_even_if_another_program_locks_the_last_ticket() {
    assert_waits_end_in_time_if_locked(LAST_TICKET.cast_signed(), 1);
}

#[test]
fn a_run_waits_for_a_file_that_another_program_has_locked_on_request() {
    let host = Host::new();
    assert!(host.is_free());
    let theirs = foreign_lock(&host.file(), MUTEX_BYTE.cast_signed(), 1);
    let waits = || host.run().args(&["--on-unavailable", "wait"]).sh("echo ran");
    let (job, cancelled) = (waits().spawn(), waits().spawn());
    job.wait_for_stderr("trying again");
    cancelled.wait_for_stderr("trying again");
    cancelled.signal(SIGTERM);
    assert_eq!(cancelled.wait().signal, Some(SIGTERM as i32));
    drop(theirs);
    assert_eq!(job.wait().expect_code(0).stdout, "ran\n");
    host.assert_nothing_is_locked();
}

/// Loaded before libc: the kernel refuses to wait for other processes' bytes, as it may on a
/// network file system.
const NO_LOCKS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int refuse(int fd, int cmd, void *arg) {
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, "fcntl");
    if (cmd == F_OFD_SETLKW && ((struct flock *)arg)->l_start != 1L << 62) { errno = ENOLCK; return -1; }
    return real(fd, cmd, arg);
}
#define FORWARD(name) int name(int fd, int cmd, ...) { \
    va_list list; va_start(list, cmd); void *arg = va_arg(list, void *); va_end(list); \
    return refuse(fd, cmd, arg); }
FORWARD(fcntl)
FORWARD(fcntl64)
"#;

#[test]
fn a_wait_that_the_kernel_aborts_is_not_a_grant() {
    let host = Host::new();
    let (source, library) = (host.beside("refuse.c"), host.beside("refuse.so"));
    fs::write(&source, NO_LOCKS).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
    assert!(compiler.status().is_ok_and(|status| status.success()), "cc is what Rust links with");
    let first = hold(host.run());
    let unlucky = host.run().env("LD_PRELOAD", &library).sh("echo ran").done();
    assert_eq!((unlucky.code, unlucky.stdout.as_str()), (Some(69), ""), "{unlucky:?}");
    first.wait().expect_code(0);
    assert!(host.is_free());
}
