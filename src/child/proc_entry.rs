//! Entries of /proc: a process, its children, its environment.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use nix::unistd::{Pid, geteuid, getpid};

use super::detach;
use super::guardian::NAME;
use super::hook;
use super::messages::Environment;

#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub pid: Pid,
    pub group: Pid,
    pub parent: Pid,
    /// Its name is that of a guardian.
    pub is_guardian: bool,
    /// Its name is that of a keeper.
    pub is_keeper: bool,
    /// Its name is that of a hook runner.
    is_hook_runner: bool,
    state: u8,
    threads: u64,
    /// When it was started, which tells it from a later process with the same ID.
    started: u64,
}

impl Process {
    pub(super) fn read(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// "pid (name) state parent group ...", where the name may contain any byte, even parentheses.
    fn parse(stat: &[u8]) -> Option<Self> {
        let (open, close) = (stat.iter().position(|&b| b == b'(')?, stat.iter().rposition(|&b| b == b')')?);
        let name = stat.get(open + 1..close)?;
        let pid = str::from_utf8(&stat[..open]).ok()?.trim_end();
        let mut fields = str::from_utf8(&stat[close + 1..]).ok()?.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        let (parent, group) = (number()?, number()?);
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?),
            group,
            parent,
            is_guardian: name == NAME.to_bytes(),
            is_keeper: name == detach::NAME.to_bytes(),
            is_hook_runner: name == hook::NAME.to_bytes(),
            state,
            // Fields 20 and 22 of the line; the last one read was field 5.
            threads: fields.nth(20 - 6)?.parse().ok()?,
            started: fields.nth(22 - 21)?.parse().ok()?,
        })
    }

    /// If the main thread has exited (`pthread_exit`), the kernel shows a zombie while the other
    /// threads run.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads < 2
    }

    /// Another redlock's guardian, keeper or hook runner, which ends by itself.
    pub(super) fn is_helper(&self) -> bool {
        self.is_guardian || self.is_keeper || self.is_hook_runner
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }

    /// Whether this entry is this process, and shows its ID and no other: in the /proc of an outer
    /// PID namespace a process has one ID for each namespace.
    pub(super) fn is_us(entry: &str) -> bool {
        let status = read_at_once(&format!("/proc/{entry}/status")).unwrap_or_default();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let numbers = field("NSpid:").or_else(|| field("Pid:")).unwrap_or_default();
        numbers.trim() == getpid().to_string()
    }
}

/// For entries of less than 4 KiB. Every run reads one, and the standard library would need a dozen
/// reads, as the size is not known beforehand.
fn read_at_once(path: &str) -> io::Result<String> {
    let mut bytes = vec![0; 4096];
    let length = File::open(path)?.read_at(&mut bytes, 0)?;
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the kernel lists a process's children.
pub(super) fn lists_children(us: Pid) -> bool {
    fs::metadata(format!("/proc/{us}/task/{us}/children")).is_ok()
}

/// The children of all threads of a process.
pub(super) fn children(of: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().filter_map(pid).collect::<Vec<_>>()).collect()
}

pub(super) fn all_processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::read(pid(entry.file_name().to_str()?)?)).collect()
}

/// The entries in /proc of a process's open files, and what they link to.
pub(super) fn open_files(pid: Pid) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), fs::read_link(entry.path()).ok()?)))
}

/// The ID of a process's user; `None` if /proc hides other users' processes (hidepid).
pub(super) fn user_of(pid: Pid) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|entry| entry.uid())
}

/// Whether this process descends from that one, as far as /proc shows it.
pub(super) fn is_ancestor(ancestor: Pid) -> bool {
    is_ancestor_of(ancestor, getpid())
}

/// True for the process itself, too.
pub(super) fn is_ancestor_of(ancestor: Pid, process: Pid) -> bool {
    let parent = |pid: &Pid| Process::read(*pid).map(|process| process.parent);
    std::iter::successors(Some(process), parent).take_while(|pid| pid.as_raw() > 0).any(|pid| pid == ancestor)
}

fn pid(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}

/// A variable with which a process of our user was started; `None` if that is unknown. A program with
/// the setuid bit has the environment of the user that started it.
pub(crate) fn variable_of(pid: i32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace();
    let us = geteuid().to_string();
    if users.any(|user| user != us) {
        return None;
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |entry: &[u8]| {
        Some(String::from_utf8_lossy(entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?).into_owned())
    };
    environment.split(|&b| b == 0).find_map(value)
}

/// Whether a process was started with all of these variables. False if that is unknown.
pub(super) fn carries(pid: Pid, variables: &Environment) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let has = |name: &OsStr, value: &OsStr| {
        let entry = [name.as_bytes(), value.as_bytes()].join(&b'=');
        environment.split(|&b| b == 0).any(|found| found == entry)
    };
    variables.iter().all(|(name, value)| has(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_any_byte() {
        let stat = b"42 (a) R 1 (\xff)) S 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 99";
        let process = Process::parse(stat).unwrap();
        assert_eq!(
            (process.pid, process.parent, process.group),
            (Pid::from_raw(42), Pid::from_raw(7), Pid::from_raw(8))
        );
        assert_eq!((process.state, process.started), (b'S', 12345));
        assert!(!process.is_guardian);
    }

    #[test]
    fn a_zombie_with_other_threads_is_not_dead() {
        let with_threads = |threads| {
            let stat = format!("42 (a) Z 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 {threads} 0 12345 99");
            Process::parse(stat.as_bytes()).unwrap()
        };
        assert!(with_threads(0).is_dead() && with_threads(1).is_dead());
        assert!(!with_threads(2).is_dead());
    }

    #[test]
    fn proc_shows_this_process() {
        assert!(Process::is_us("self"));
        assert!(!Process::is_us("1") && !Process::is_us("none"));
        assert!(is_ancestor(nix::unistd::getppid()) && !is_ancestor(Pid::from_raw(i32::MAX)));
        assert!(Process::read(getpid()).unwrap().is_same(&Process::read(getpid()).unwrap()));
    }

    #[test]
    fn a_process_is_recognized_by_the_variables_it_was_started_with() {
        let mark = ("REDLOCK_TEST".into(), "a b".into());
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").env("REDLOCK_TEST", "a b").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        // Until it calls exec it has the environment of this process.
        while Process::read(pid).is_some_and(|_| !carries(pid, &vec![mark.clone()])) {
            std::thread::yield_now();
        }
        assert!(carries(pid, &vec![mark]) && !carries(pid, &vec![("REDLOCK_TEST".into(), "a".into())]));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
