//! The process tree below us, as /proc shows it.
//!
//! Both redlock and its guardian are child subreapers: a descendant whose parent has died becomes our
//! child, whatever group or session it has moved to. So the tree is gone when we have no child left.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};

use super::messages::ExitReason;

/// Between two rounds of SIGKILL, for processes forked meanwhile: at first, and at most.
const ROUND: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub pid: Pid,
    pub group: Pid,
    parent: Pid,
    state: u8,
}

impl Process {
    fn read(pid: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// "pid (name) state parent group ...", where the name may hold anything, brackets too.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(' ')?;
        let mut fields = rest.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        Some(Self { pid: Pid::from_raw(pid.parse().ok()?), parent: number()?, group: number()?, state })
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

pub(crate) fn is_stopped(pid: Pid) -> bool {
    Process::read(&pid.to_string()).is_some_and(|process| matches!(process.state, b'T' | b't'))
}

/// Everything alive below this process.
pub(super) fn descendants() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let all: Vec<Process> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .filter_map(|pid| Process::read(&pid))
        .collect();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            parents.push(process.pid);
            if !process.is_dead() {
                found.push(*process);
            }
        }
    }
    found
}

/// What has become of our children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    Ended(Pid, ExitReason),
    Paused(Pid),
    /// There are children, with nothing new about them.
    NothingNew,
    NoChildren,
}

/// Never blocks. nix's own waitpid cannot express a death by a real-time signal.
pub(super) fn reap() -> Reaped {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the call, which writes nothing else.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        return match pid {
            0 => Reaped::NothingNew,
            -1 if Errno::last() == Errno::EINTR => continue,
            -1 => Reaped::NoChildren,
            pid if libc::WIFSTOPPED(status) => Reaped::Paused(Pid::from_raw(pid)),
            pid if libc::WIFSIGNALED(status) => {
                Reaped::Ended(Pid::from_raw(pid), ExitReason::Signal(libc::WTERMSIG(status)))
            }
            pid => {
                let code =
                    u8::try_from(libc::WEXITSTATUS(status)).expect("wait statuses have eight bits for it");
                Reaped::Ended(Pid::from_raw(pid), ExitReason::Code(code))
            }
        };
    }
}

/// SIGKILL the whole tree and return when none of it is left. `ended` is called for each child that was reaped.
pub(super) fn kill_tree(mut ended: impl FnMut(Pid, ExitReason)) {
    let (mut pause, longest) = ROUND;
    loop {
        for process in descendants() {
            let _ = kill(process.pid, Signal::SIGKILL);
        }
        loop {
            match reap() {
                Reaped::Ended(pid, exit_reason) => ended(pid, exit_reason),
                Reaped::Paused(_) => {}
                Reaped::NothingNew => break,
                Reaped::NoChildren => return,
            }
        }
        sleep(pause);
        pause = (pause * 2).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let process = Process::parse("42 (a) R 1 (b)) S 7 8 9 0 -1").unwrap();
        assert_eq!(
            (process.pid, process.parent, process.group),
            (Pid::from_raw(42), Pid::from_raw(7), Pid::from_raw(8))
        );
        assert_eq!(process.state, b'S');
    }

    #[test]
    fn a_child_is_found_below_us() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        assert!(descendants().iter().any(|process| process.pid == pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants().iter().any(|process| process.pid == pid));
    }
}
