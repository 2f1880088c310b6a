//! Asking the process that has locked a file to release the lock, with a signal that carries a
//! number.
//!
//! The signal is sent through a pidfd, and only to a process that blocks it, as redlock does from
//! start to end: others would die of it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::pidfd::PidFd;
use super::proc_entry::{Process, all_processes, open_files};

/// A real-time signal by its absolute number, as SIGRTMIN differs between glibc and musl.
pub(super) const ASK: libc::c_int = 50;

/// A byte of a file, as /proc shows locks on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedByte {
    pub device: u64,
    pub inode: u64,
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedHolder {
    /// The process with this ID.
    Yes(i32),
    /// No visible process has the lock.
    NotFound,
    /// The holder belongs to another user.
    Refused,
    /// The holder does not know the signal.
    TooOld,
}

/// `pid` is the holder's, according to its record, which anyone may have written: others are asked
/// as well, if that process cannot be. The signal carries `number`; without one nothing is sent.
pub(crate) fn ask_lock_holder(byte: LockedByte, pid: Option<i32>, number: Option<u32>) -> AskedHolder {
    let recorded = pid.and_then(|pid| Process::read(Pid::from_raw(pid)));
    let is_hidden = recorded.is_some_and(|process| {
        holds(process.pid, byte).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    });
    let mut result = if is_hidden { AskedHolder::Refused } else { AskedHolder::NotFound };
    let all = recorded.into_iter().chain(std::iter::once_with(all_processes).flatten());
    // A guardian has its redlock's locks, and blocks every signal, but does not read this one.
    let holders = all.filter(|process| !process.is_guardian).map(|process| process.pid);
    for pid in holders.filter(|pid| holds(*pid, byte).unwrap_or(false)) {
        result = match ask(pid, byte, number) {
            Ok(true) => return AskedHolder::Yes(pid.as_raw()),
            Ok(false) => AskedHolder::TooOld,
            Err(Errno::EPERM | Errno::EACCES) => AskedHolder::Refused,
            Err(_) => continue,
        };
    }
    result
}

pub(crate) fn has_locked(pid: i32, byte: LockedByte) -> bool {
    holds(Pid::from_raw(pid), byte).unwrap_or(false)
}

/// The processes that have a file with this link in /proc open, and the file, opened for reading and
/// writing. The kernel shows and opens only files of our own processes, and all of them for root, who
/// does not wait for another user's lease (fcntl) on a file with this name.
pub(crate) fn with_open_file(link: &str) -> Vec<(i32, File)> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let open = |pid: Pid| {
        let (path, _) = open_files(pid).find(|(_, target)| target.as_os_str() == link)?;
        Some((pid.as_raw(), options.open(path).ok()?))
    };
    all_processes().into_iter().filter_map(|process| open(process.pid)).collect()
}

/// False if the process does not know the signal: a command that inherited the file (--wait-tree),
/// or an older redlock.
fn ask(pid: Pid, byte: LockedByte, number: Option<u32>) -> nix::Result<bool> {
    let process = PidFd::open(pid)?;
    // The process is pinned. It may not be the one that was found.
    if !holds(pid, byte).unwrap_or(false) {
        return Err(Errno::ESRCH);
    }
    if !blocks(pid, ASK) {
        return Ok(false);
    }
    let Some(number) = number else { return Ok(true) };
    process.send_number(ASK, number)?;
    if Process::read(pid).is_some_and(|process| process.is_stopped()) {
        process.send(Signal::SIGCONT)?;
    }
    Ok(true)
}

/// Whether a process has locked this byte for writing through one of its open files.
fn holds(pid: Pid, byte: LockedByte) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let name = entry?.file_name();
        let Some(fd) = name.to_str() else { continue };
        let is_file = fs::metadata(format!("/proc/{pid}/fd/{fd}"))
            .is_ok_and(|about| (about.dev(), about.ino()) == (byte.device, byte.inode));
        if is_file && covers(&fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"))?, byte.offset) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Parses lines like "lock: 1: OFDLCK  ADVISORY  WRITE -1 00:19:7 2305843009213693953
/// 2305843009213693953".
fn covers(fdinfo: &str, offset: u64) -> bool {
    let mut locks = fdinfo.lines().filter_map(|line| line.strip_prefix("lock:"));
    locks.any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [.., kind, _, _, first, last] = fields[..] else { return false };
        let last = if last == "EOF" { Some(u64::MAX) } else { last.parse().ok() };
        let range = first.parse().ok().zip(last);
        kind == "WRITE" && range.is_some_and(|(first, last): (u64, u64)| (first..=last).contains(&offset))
    })
}

fn blocks(pid: Pid, signal: libc::c_int) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_in_fdinfo() {
        let shown = "pos:\t0\nflags:\t02100002\nlock:\t1: OFDLCK  ADVISORY  WRITE -1 00:19:7 10 12\n\
                     lock:\t2: OFDLCK  ADVISORY  READ -1 00:19:7 20 20\nlock:\t3: POSIX  ADVISORY  WRITE 1 00:19:7 30 EOF\n";
        for (offset, is_locked) in [(9, false), (10, true), (12, true), (13, false), (20, false), (99, true)]
        {
            assert_eq!(covers(shown, offset), is_locked, "{offset}");
        }
        assert!(!covers("lock:\tx\nlock:", 0));
    }
}
