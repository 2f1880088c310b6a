//! The command under the lock: this very program, started once more. It logs what it sees for the
//! oracles.
//!
//! It relies on the kernel alone. A file for each key has a byte for every command that may be
//! inside, locked by an open file description that the command's children inherit: the kernel knows
//! who is inside to the microsecond, even for a command that was killed and can log nothing. An
//! append-only log has an order, so no clock is needed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::time::{ClockId, clock_gettime};

use crate::turn::{GROUPS, Mode, Tree};

/// In the environment of redlock, and so of all its descendants: the directory and the number of
/// the run.
pub const DIRECTORY: &str = "CHAOS_DIRECTORY";
pub const RUN: &str = "CHAOS_RUN";

/// The first argument of this program as a command, and as a child of that.
pub const SECTION: &str = "critical-section";
pub const CHILD: &str = "child-of-a-section";

/// How long the child of `Tree::Survivor` lives after the command has exited.
const SURVIVES: Duration = Duration::from_millis(200);

pub fn log_file(directory: &Path) -> PathBuf {
    directory.join("log")
}

/// The living processes of a run's command, one pid per line.
pub fn pids_file(directory: &Path, run: u64) -> PathBuf {
    directory.join(format!("pids-{run}"))
}

/// CLOCK_BOOTTIME.
pub fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the boot-time clock").into()
}

/// Appends one line, in one write.
pub fn append(path: &Path, line: &str) {
    let mut file = File::options().append(true).create(true).open(path).expect("a log");
    file.write_all(format!("{line}\n").as_bytes()).expect("a line of the log");
}

pub fn child(args: &[OsString]) -> ExitCode {
    sleep(Duration::from_millis(args[0].to_str().and_then(|ms| ms.parse().ok()).expect("ms")));
    ExitCode::SUCCESS
}

/// The arguments are those of `Turn::section_args`.
pub fn main(args: &[OsString]) -> ExitCode {
    let arg = |at: usize| args[at].to_str().expect("text").to_owned();
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("the directory"));
    let run: u64 = variable(RUN).parse().expect("the number of the run");
    let log = log_file(&directory);
    let mode = Mode::parse(&arg(0)).expect("a mode");
    let inside = Duration::from_millis(arg(2).parse().expect("ms"));
    let tree = match arg(3).as_str() {
        "Child" => Tree::Child,
        "Survivor" => Tree::Survivor,
        _ => Tree::Alone,
    };
    if arg(4) == "true" {
        // SAFETY: SIG_IGN is not a function of ours.
        unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) }.expect("SIGTERM is ignored");
    }
    append(&pids_file(&directory, run), &std::process::id().to_string());
    let fences = variable("REDLOCK_FENCE");
    let slot = std::env::var("REDLOCK_SLOT").ok();
    let keys: Vec<(String, String)> = std::iter::zip(arg(1).split(','), fences.split(' '))
        .map(|(key, fence)| (key.to_owned(), fence.to_owned()))
        .collect();
    let mut guards = Vec::new();
    for (key, _) in &keys {
        match enter(&directory, key, mode, slot.as_deref()) {
            Ok(guard) => guards.push(guard),
            Err(why) => append(&log, &format!("clash {run} {} {key} {why}", boot_time().as_nanos())),
        }
    }
    let counters: Vec<Option<Counter>> =
        keys.iter().map(|(key, _)| (mode == Mode::Exclusive).then(|| Counter::of(&directory, key))).collect();
    let seen: Vec<u64> =
        counters.iter().map(|counter| counter.as_ref().map_or(0, |counter| counter.value)).collect();
    let logged = |numbers: &[u64]| -> String {
        let words = keys.iter().zip(numbers).map(|((key, fence), n)| format!("{key}:{fence}:{n}"));
        words.collect::<Vec<_>>().join(",")
    };
    append(
        &log,
        &format!(
            "in {run} {} {mode} {} {}",
            boot_time().as_nanos(),
            slot.as_deref().unwrap_or("-"),
            logged(&seen)
        ),
    );
    let child = (tree != Tree::Alone).then(|| start_child(inside + SURVIVES));
    if let Some(child) = &child {
        append(&pids_file(&directory, run), &child.id().to_string());
    }
    sleep(inside);
    let written: Vec<u64> = counters.into_iter().map(|counter| counter.map_or(0, Counter::add_one)).collect();
    if let (Some(mut child), Tree::Child) = (child, tree) {
        let _ = child.kill();
        let _ = child.wait();
    }
    append(&log, &format!("out {run} {} {}", boot_time().as_nanos(), logged(&written)));
    drop(guards);
    ExitCode::SUCCESS
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn start_child(lives: Duration) -> Child {
    let mut command = Command::new("/proc/self/exe");
    command.arg(CHILD).arg(lives.as_millis().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid is async-signal-safe; nothing else runs between fork and exec.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(|_| ()).map_err(Into::into));
    }
    command.spawn().expect("a child")
}

/// The bytes of a key's file.
const ANY_HOLDER: i64 = 0;
const FIRST_GROUP: i64 = 10;
const FIRST_SLOT: i64 = 100;

/// Locks the bytes that this holder may have for itself; fails if another process has one.
fn enter(directory: &Path, key: &str, mode: Mode, slot: Option<&str>) -> Result<File, String> {
    let path = directory.join(format!("inside-{key}"));
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("the file of those inside");
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).expect("inherited by children");
    let fd = file.as_raw_fd();
    match mode {
        Mode::Exclusive => {
            lock(fd, libc::F_WRLCK, ANY_HOLDER).then_some(()).ok_or("another process is inside")?
        }
        Mode::Shared(group) => {
            lock(fd, libc::F_RDLCK, ANY_HOLDER).then_some(()).ok_or("a writer is inside")?;
            let byte = |of: &str| FIRST_GROUP + GROUPS.iter().position(|g| *g == of).expect("a group") as i64;
            lock(fd, libc::F_RDLCK, byte(group)).then_some(()).ok_or("the group's byte is locked")?;
            for other in GROUPS.iter().filter(|other| **other != group) {
                // Both lock their own byte before they check the other's: one of them sees it.
                is_free(fd, byte(other)).then_some(()).ok_or("readers of another group are inside")?;
            }
        }
        Mode::Slots(n) => {
            let slot: u32 = slot.and_then(|slot| slot.parse().ok()).ok_or("no slot")?;
            (slot < n).then_some(()).ok_or("a slot beyond the last")?;
            lock(fd, libc::F_WRLCK, FIRST_SLOT + i64::from(slot)).then_some(()).ok_or("the slot is taken")?;
        }
    }
    Ok(file)
}

fn range(kind: i32, byte: i64) -> libc::flock {
    // Zeroed, including fields that a platform may add. SAFETY: a struct of numbers.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (byte, 1);
    range
}

fn lock(fd: RawFd, kind: i32, byte: i64) -> bool {
    let range = range(kind, byte);
    // SAFETY: an open descriptor and a live struct.
    unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &range) == 0 }
}

fn is_free(fd: RawFd, byte: i64) -> bool {
    let mut range = range(libc::F_WRLCK, byte);
    // SAFETY: an open descriptor and a live struct.
    let asked = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut range) };
    asked == 0 && range.l_type == libc::F_UNLCK as libc::c_short
}

/// A number in a file, read at the start and written at the end without any protection.
struct Counter {
    file: File,
    value: u64,
}

impl Counter {
    fn of(directory: &Path, key: &str) -> Counter {
        let path = directory.join(format!("counter-{key}"));
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let text = fs::read_to_string(&path).expect("the counter");
        let value =
            if text.is_empty() { 0 } else { text.trim().parse().expect("a counter that is not torn") };
        Counter { file: file.expect("the counter"), value }
    }

    fn add_one(self) -> u64 {
        // Always the same length, in one write: a kill leaves the old number or the new one.
        self.file.write_all_at(format!("{:020}\n", self.value + 1).as_bytes(), 0).expect("the counter");
        self.value + 1
    }
}
