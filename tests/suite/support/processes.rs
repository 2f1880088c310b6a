//! Reads redlock's own processes and its command from /proc.

use std::fs;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{alive, all_pids, parent, process_state, wait_until};

/// The living children of a process.
pub fn children(of: i32) -> Vec<i32> {
    all_pids().into_iter().filter(|pid| parent(*pid) == Some(of) && alive(*pid)).collect()
}

/// The guardian that a holding redlock keeps beside itself.
pub fn guardian_of(redlock: i32) -> i32 {
    let mut found = None;
    wait_until("redlock has a guardian", || {
        found = children(redlock).into_iter().find(|pid| status_field(*pid, "Name") == "lock-guardian");
        found.is_some()
    });
    found.expect("wait_until returned")
}

/// Whether PATH has a program of this name.
pub fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// The number at the end of a line such as `main 123`.
#[track_caller]
pub fn pid_in(line: &str) -> i32 {
    let last = line.split_whitespace().last();
    last.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no pid in {line:?}"))
}

/// A word that no other test uses, for TEST_MARK; `marked` finds the processes that have it.
pub fn mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Living processes with TEST_MARK=mark in their environment: redlock, guardian, command.
pub fn marked(mark: &str) -> Vec<i32> {
    let entry = format!("TEST_MARK={mark}");
    let carries = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|env| env.split(|b| *b == 0).any(|e| e == entry.as_bytes()))
    };
    all_pids().into_iter().filter(carries).collect()
}

/// Waits until no process with this mark is left.
#[track_caller]
pub fn wait_until_none_marked(mark: &str) {
    wait_until("no process is left", || marked(mark).is_empty());
}

pub fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("signal a process");
}

/// SIGSTOP, and the process has stopped.
#[track_caller]
pub fn stop(pid: i32) {
    send(pid, Signal::SIGSTOP);
    wait_until("the process is stopped", || process_state(pid) == Some('T'));
}

/// Waits until the next signal counts as a second request to stop.
pub fn wait_until_a_signal_counts_again() {
    std::thread::sleep(Duration::from_millis(300)); // no fact to wait for: only the time counts
}

/// A process that does nothing, and that SIGCONT does not wake; only SIGKILL affects it. This
/// thread traces it.
pub struct Frozen(Pid);

impl Frozen {
    pub fn new(pid: i32) -> Frozen {
        let pid = Pid::from_raw(pid);
        ptrace::seize(pid, ptrace::Options::empty()).expect("a process of ours can be traced");
        ptrace::interrupt(pid).expect("the process is traced");
        assert!(
            matches!(waitpid(pid, Some(WaitPidFlag::__WALL)), Ok(WaitStatus::PtraceEvent(..))),
            "the process stops"
        );
        Frozen(pid)
    }

    /// Lets the process continue.
    pub fn thaw(self) {
        ptrace::detach(self.0, None).expect("the process is traced");
    }

    /// Waits until the process is killed. Its parent learns of that afterwards.
    pub fn wait_until_killed(self) {
        let ended = waitpid(self.0, Some(WaitPidFlag::__WALL));
        assert!(matches!(ended, Ok(WaitStatus::Signaled(_, Signal::SIGKILL, _))), "{ended:?}");
    }
}

/// One line of /proc/PID/status, such as `SigIgn`.
pub fn status_field(pid: i32, name: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        .unwrap_or_default()
        .to_owned()
}

/// Waits until a process has not used the processor for a tenth of a second: it sleeps, and is not
/// just about to.
#[track_caller]
pub fn wait_until_asleep(pid: i32) {
    let woken = || status_field(pid, "voluntary_ctxt_switches");
    wait_until("the process sleeps", || {
        let before = woken();
        std::thread::sleep(Duration::from_millis(100));
        process_state(pid) == Some('S') && woken() == before
    });
}

/// Whether a living process ignores a signal.
#[track_caller]
pub fn ignores(pid: i32, signal: Signal) -> bool {
    let set = u64::from_str_radix(&status_field(pid, "SigIgn"), 16).expect("a living process");
    set & (1 << (signal as i32 - 1)) != 0
}

/// A process to be watched, which is no ancestor of any run; killed and reaped when dropped.
pub struct Watched(Child);

impl Watched {
    pub fn start() -> Watched {
        Watched(Command::new("sleep").arg("300").spawn().expect("sleep"))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Kills and reaps the process.
    pub fn end(mut self) {
        self.reap();
    }

    fn reap(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.reap();
    }
}
