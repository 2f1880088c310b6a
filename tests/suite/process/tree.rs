//! Which processes redlock stops, which it leaves alone, and what that costs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use nix::unistd::geteuid;

use crate::support::processes::{self, guardian_of, is_installed, pid_in, send};
use crate::support::{
    Done, Host, Redis, Run, alive, assert_stays_free, descendants, parent, preload, process_state, wait_until,
};

/// A process unrelated to redlock; killed when dropped.
struct Bystander(Child);

impl Bystander {
    fn new() -> Bystander {
        Bystander(Command::new("sleep").arg("300").stdout(Stdio::null()).spawn().expect("sleep"))
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell with background jobs that becomes redlock: they are redlock's children. One of them
/// leaves an orphan later. They are in other sessions, so that they outlive the test's job.
const WITH_JOBS: &str = "setsid sleep 300 & echo job $! >&2
    setsid sh -c 'sleep 300 & echo orphan $! >&2; exec sleep 0.2' &
    exec \"$@\"";

#[test]
fn earlier_children_and_their_orphans_outlive_a_killed_guardian() {
    let redis = Redis::start();
    for on_host in [false, true] {
        let host = Host::new();
        let run = if on_host { host.run() } else { Run::key(&redis, "k") };
        let script = "setsid sh -c 'echo away $$; exec sleep 300' & echo main $$; wait";
        let job = run.via(WITH_JOBS).sh(script).spawn();
        let tree = ["main", "away"].map(|who| pid_in(&job.wait_for_line(who)));
        let unrelated = ["job", "orphan"].map(|who| pid_in(&job.wait_for_stderr(who)));
        wait_until("the orphan is redlock's", || parent(unrelated[1]) == Some(job.pid()));
        send(guardian_of(job.pid()), SIGKILL);
        let done = job.wait();
        assert_eq!(done.code, Some(125), "{done:?}");
        assert!(tree.iter().all(|pid| !alive(*pid)), "the command's tree is stopped");
        assert!(unrelated.iter().all(|pid| alive(*pid)), "unrelated processes live: {unrelated:?}");
        assert!(if on_host { host.is_free() } else { !redis.held("k") });
        unrelated.iter().for_each(|pid| send(*pid, SIGKILL));
    }
}

#[test]
fn earlier_children_and_their_orphans_outlive_a_lost_lock_and_a_forced_stop() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "5s", "--node-timeout", "1s"]);
    let job = run.via(WITH_JOBS).sh("echo main $$; exec sleep 300").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    let unrelated = ["job", "orphan"].map(|who| pid_in(&job.wait_for_stderr(who)));
    redis.cmd(&["DEL", "lock:k"]);
    assert_eq!(job.wait().code, Some(79));
    assert!(!alive(main) && unrelated.iter().all(|pid| alive(*pid)));
    unrelated.iter().for_each(|pid| send(*pid, SIGKILL));
}

/// A process whose main thread exits while another one runs.
const WITHOUT_MAIN_THREAD: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *run(void *nothing) { sleep(90); return nothing; }
int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL) != 0) return 1;
    printf("other %d\n", (int)getpid());
    fflush(stdout);
    pthread_exit(NULL);
}
"#;

fn compile(source: &str, directory: &Path) -> PathBuf {
    let (code, program) = (directory.join("program.c"), directory.join("program"));
    fs::write(&code, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-pthread", "-o"]).arg(&program).arg(&code);
    assert!(compiler.status().is_ok_and(|status| status.success()), "cc is what Rust links with");
    program
}

#[test]
fn a_process_whose_main_thread_has_exited_is_stopped_with_the_tree() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let program = compile(WITHOUT_MAIN_THREAD, directory.path());
    let run = Run::key(&redis, "k").args(&["--ttl", "5s", "--node-timeout", "1s"]);
    let job = run.env("PROGRAM", &program).sh("setsid \"$PROGRAM\" & wait").spawn();
    let other = pid_in(&job.wait_for_line("other"));
    wait_until("its main thread has exited", || process_state(other) == Some('Z'));
    redis.cmd(&["DEL", "lock:k"]);
    assert_eq!(job.wait().code, Some(79));
    assert_eq!(process_state(other), None, "it has exited, and was reaped");
}

/// Logs the path of every entry of /proc that is opened.
const OPENED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char *path) {
    const char *log = getenv("OPENED");
    int fd;
    if (!log || strncmp(path, "/proc", 5)) return;
    fd = openat(AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) { dprintf(fd, "%s\n", path); close(fd); }
}
int open64(const char *path, int flags, ...) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    note(path);
    return real(path, flags, mode);
}
DIR *opendir(const char *path) {
    DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
    note(path);
    return real(path);
}
"#;

#[test]
fn only_the_tree_is_inspected_not_the_whole_host() {
    let bystander = Bystander::new();
    let host = Host::new();
    let log = host.beside("opened");
    // Stopped by --max-hold; by the guardian's death; by a second signal.
    for (options, kills_guardian) in [(&["--max-hold", "3s"][..], false), (&[], true)] {
        let run = host.run().args(options).env("OPENED", &log);
        let run = run.env("LD_PRELOAD", preload::library("opened", OPENED));
        let job = run.sh("setsid sh -c 'echo away $$; exec sleep 300' & echo main $$; wait").spawn();
        let away = pid_in(&job.wait_for_line("away"));
        if kills_guardian {
            send(guardian_of(job.pid()), SIGKILL);
        }
        job.wait();
        assert!(!alive(away));
        let opened = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        assert!(opened.contains(&format!("/proc/{away}/")), "the tree was inspected: {opened}");
        let theirs = format!("/proc/{}/", bystander.pid());
        assert!(!opened.contains(&theirs) && !opened.lines().any(|line| line == "/proc"), "{opened}");
    }
}

fn namespaces_or_skip() -> bool {
    geteuid().is_root() && is_installed("unshare")
}

/// In a new PID namespace, after this change to /proc.
fn in_namespace(run: Run, proc: &str) -> Run {
    let script = format!("{proc} exec \"$@\"");
    run.through(&["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &script, "sh"])
}

const FOREIGN_PROC: [&str; 2] = ["", "umount --lazy /proc;"];

#[test]
fn a_foreign_proc_is_refused_before_any_request() {
    if !namespaces_or_skip() {
        skip!("only root can make PID namespaces");
    }
    let redis = Redis::start();
    for proc in FOREIGN_PROC {
        let Done { code, stdout, stderr, .. } =
            in_namespace(Run::key(&redis, "k"), proc).sh("echo ran").done();
        assert_eq!((code, stdout.as_str()), (Some(78), ""), "{stderr}");
        assert!(stderr.contains("/proc") && stderr.contains("--on-lost warn"), "{stderr}");
        assert_eq!(redis.keys(), Vec::<String>::new());
    }
    let own = in_namespace(Run::key(&redis, "k"), "mount -t proc proc /proc;").sh("echo ran").done();
    assert_eq!((own.code, own.stdout.as_str(), own.stderr.as_str()), (Some(0), "ran\n", ""));
}

/// Pids in a foreign /proc are other processes': none of them may be signalled.
#[test]
fn a_run_with_on_lost_warn_signals_no_process_by_a_foreign_pid() {
    if !namespaces_or_skip() {
        skip!("only root can make PID namespaces");
    }
    let redis = Redis::start();
    for proc in FOREIGN_PROC {
        let run = in_namespace(Run::key(&redis, "k").args(&["--on-lost", "warn"]), proc);
        let job = run.sh("echo ready; sleep 300 & wait").spawn();
        job.wait_for_line("ready");
        let message = job.wait_for_stderr("/proc");
        assert!(message.starts_with("redlock: warning: "), "{message}");
        // Outside the namespace it has another pid.
        let inside = descendants(job.pid());
        let guardian =
            inside.iter().copied().find(|pid| processes::status_field(*pid, "Name") == "lock-guardian");
        send(guardian.expect("a guardian"), SIGKILL);
        let done = job.wait();
        assert_eq!(done.code, Some(125), "{done:?}");
        assert!(!redis.held("k"));
        // A signal reaches the command's group anyway.
        let run = in_namespace(Run::key(&redis, "k").args(&["--on-lost", "warn"]), proc);
        let job = run.sh("echo ready; sleep 300 & wait").spawn();
        job.wait_for_line("ready");
        send(processes::children(job.pid())[0], SIGTERM);
        job.wait();
        assert!(inside.iter().all(|pid| !alive(*pid)));
        wait_until("the key is free", || !redis.held("k"));
    }
    assert_stays_free(&redis);
}

/// As the first process of a PID namespace redlock inherits every orphan in it.
#[test]
fn redlock_reaps_every_orphan_as_the_first_process() {
    if !namespaces_or_skip() || !is_installed("nsenter") {
        skip!("only root can make PID namespaces");
    }
    let redis = Redis::start();
    for waits in [false, true] {
        let key = if waits { "taken" } else { "free" };
        let _holder = waits.then(|| crate::support::holder(&redis, key, &[]));
        let run = in_namespace(Run::key(&redis, key), "mount -t proc proc /proc;");
        let job = run.sh("echo ready; exec sleep 300").spawn();
        if waits {
            wait_until("the run waits", || redis.queue_len(key) == 1);
        } else {
            job.wait_for_line("ready");
        }
        let first = processes::children(job.pid())[0];
        // Like `docker exec` with a process that it leaves behind.
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &first.to_string(), "--pid", "--mount"]);
        enter.args(["sh", "-c", "sleep 0.3 & sleep 300 & exit 0"]);
        assert!(enter.stdout(Stdio::null()).status().unwrap().success());
        let mut left = Vec::new();
        wait_until("the orphans are redlock's, and the one that exited was reaped", || {
            let all = crate::support::all_pids().into_iter().filter(|pid| parent(*pid) == Some(first));
            left = all.filter(|pid| processes::status_field(*pid, "Name") == "sleep").collect();
            left.len() == 1 && process_state(left[0]) == Some('S')
        });
    }
}
