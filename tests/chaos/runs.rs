//! The current runs, and signals that reach only their processes.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use nix::libc;
use nix::sys::signal::Signal;

use crate::plan::Fault;
use crate::section::{DIRECTORY, RUN, pids_file};
use crate::support::processes::{children, status_field};
use crate::support::{all_pids, proc_stat};
use crate::turn::{Tree, Turn};

pub struct Running {
    pub turn: Turn,
    pub pid: i32,
    pub since: Instant,
    pub blows: Vec<Fault>,
}

/// A run is listed for as long as its process has not been waited for, so its pid cannot be reused.
pub struct Runs {
    directory: PathBuf,
    running: Mutex<BTreeMap<u64, Running>>,
}

impl Runs {
    pub fn new(directory: &Path) -> Runs {
        Runs { directory: directory.to_owned(), running: Mutex::default() }
    }

    pub fn add(&self, turn: Turn, pid: i32) {
        let running = Running { turn, pid, since: Instant::now(), blows: Vec::new() };
        self.running.lock().expect("the runs").insert(running.turn.id, running);
    }

    /// Must be called before the run is waited for.
    pub fn remove(&self, run: u64) -> Running {
        self.running.lock().expect("the runs").remove(&run).expect("a run that was added")
    }

    pub fn each(&self, look: impl FnMut(&Running)) {
        self.running.lock().expect("the runs").values().for_each(look);
    }

    /// Applies this to one of the runs, chosen by the number; returns the victim, if there was any,
    /// and what will undo it.
    pub fn strike(&self, fault: Fault, number: u64) -> Option<(u64, Option<Pidfd>)> {
        let mut running = self.running.lock().expect("the runs");
        let command = |run: &Running| pids_of(&self.directory, run.turn.id).first().copied();
        let is_fit = |run: &&Running| {
            let is_running = || command(run).is_some();
            // One blow for each run, and none that leaves a child behind that no process stops: see
            // plan.rs.
            let is_spared = !run.blows.is_empty()
                || (run.turn.tree == Tree::Child
                    && matches!(fault, Fault::KillCommand | Fault::TerminateRedlock));
            let is_any = matches!(fault, Fault::KillRedlock | Fault::StopRedlock | Fault::TerminateRedlock)
                && number.is_multiple_of(3);
            !is_spared && (is_any || is_running())
        };
        let fitting: Vec<u64> = running.values().filter(is_fit).map(|run| run.turn.id).collect();
        let chosen = *fitting.get(number as usize % fitting.len().max(1))?;
        let run = running.get_mut(&chosen)?;
        let id = run.turn.id;
        let (pid, signal) = match fault {
            Fault::KillRedlock => (run.pid, Signal::SIGKILL),
            Fault::TerminateRedlock => (run.pid, Signal::SIGTERM),
            Fault::StopRedlock => (run.pid, Signal::SIGSTOP),
            Fault::KillGuardian => (guardian_of(run.pid)?, Signal::SIGKILL),
            Fault::KillCommand => (command(run)?, Signal::SIGKILL),
            Fault::StopCommand => (command(run)?, Signal::SIGSTOP),
            _ => return None,
        };
        let pidfd = Pidfd::open(pid, id)?;
        // Noted first, as the run may end at once.
        run.blows.push(fault);
        pidfd.send(signal);
        Some((id, matches!(signal, Signal::SIGSTOP).then_some(pidfd)))
    }

    /// Sends SIGKILL to every current redlock: their guardians do the rest.
    pub fn kill_all(&self) {
        for run in self.running.lock().expect("the runs").values_mut() {
            run.blows.push(Fault::KillRedlock);
            if let Some(pidfd) = Pidfd::open(run.pid, run.turn.id) {
                pidfd.send(Signal::SIGKILL);
                pidfd.send(Signal::SIGCONT);
            }
        }
    }
}

/// Does not wait for it, unlike the function in the support code.
fn guardian_of(redlock: i32) -> Option<i32> {
    children(redlock).into_iter().find(|pid| status_field(*pid, "Name") == "lock-guardian")
}

/// The processes that the command of a run has logged, the command itself first.
pub fn pids_of(directory: &Path, run: u64) -> Vec<i32> {
    let text = fs::read_to_string(pids_file(directory, run)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn carries(pid: i32, variable: &str, value: &str) -> bool {
    let entry = format!("{variable}={value}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|env| env.split(|byte| *byte == 0).any(|e| e == entry.as_bytes()))
}

/// Whether the process exists and belongs to this run: not a zombie, not another one with its pid.
pub fn lives(pid: i32, run: u64) -> bool {
    carries(pid, RUN, &run.to_string())
}

/// Every living process that a run of this directory has started.
pub fn all_living(directory: &Path) -> Vec<i32> {
    let directory = directory.display().to_string();
    all_pids().into_iter().filter(|pid| carries(*pid, DIRECTORY, &directory)).collect()
}

/// Kills a process of ours that should not exist.
pub fn end(pid: i32, directory: &Path) {
    let fd = Pidfd::of(pid);
    if let Some(pidfd) = fd.filter(|_| carries(pid, DIRECTORY, &directory.display().to_string())) {
        pidfd.send(Signal::SIGKILL);
    }
}

/// Its name and command line, for a report.
pub fn describe(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let state = proc_stat::fields(pid).and_then(|fields| fields.first().cloned()).unwrap_or_default();
    format!("{pid} {} [{state}] {}", status_field(pid, "Name"), line.chars().take(120).collect::<String>())
}

/// A process, even if its pid is reused.
pub struct Pidfd(OwnedFd);

impl Pidfd {
    fn of(pid: i32) -> Option<Pidfd> {
        // SAFETY: numbers go in, a new descriptor or -1 comes out.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        // SAFETY: the descriptor is new, and owned by nothing else.
        (fd >= 0).then(|| Pidfd(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// None unless it is a living process of this run.
    fn open(pid: i32, run: u64) -> Option<Pidfd> {
        let pidfd = Pidfd::of(pid)?;
        lives(pid, run).then_some(pidfd)
    }

    pub fn send(&self, signal: Signal) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: an open descriptor, and no siginfo. A process that is gone is an error that does
        // not matter.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as i32, none, 0) };
    }
}
