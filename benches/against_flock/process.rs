//! Our processes: started so that none is left behind, and inspected in /proc.

use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

#[path = "../../tests/suite/support/proc_stat.rs"]
mod proc_stat;

pub const PATIENCE: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Polls until the condition is true; fails if it does not become true.
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while !is_true()? {
        ensure!(Instant::now() < give_up, "waited in vain: {what}");
        sleep(POLL_EVERY);
    }
    Ok(())
}

/// A child that is killed when this value is dropped, or when the benchmark itself is killed.
pub struct Guarded(Child);

impl Guarded {
    /// Without input or output; its stdin, if it has one, is closed by `finish`.
    pub fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null());
        Self::start(command)
    }

    pub fn spawn_with_stdin(command: &mut Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped());
        Self::start(command)
    }

    fn start(command: &mut Command) -> anyhow::Result<Self> {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: the closure makes one system call: it allocates nothing and takes no lock.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Closes its stdin; it must exit successfully.
    pub fn finish(mut self) -> anyhow::Result<()> {
        drop(self.0.stdin.take());
        wait_until("a child ends", || self.has_ended())?;
        let status = self.0.wait()?;
        ensure!(status.success(), "a child failed: {status}");
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both have no effect on a child that has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child of the process, by its name in the kernel.
pub fn child_named(parent: u32, name: &str) -> anyhow::Result<u32> {
    let mut found = None;
    wait_until(&format!("{parent} has a child {name}"), || {
        found = children(parent)?.into_iter().find(|child| name_of(*child).is_ok_and(|is| is == name));
        Ok(found.is_some())
    })?;
    found.context("found by wait_until")
}

fn children(parent: u32) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{parent}/task"))? {
        let children = fs::read_to_string(task?.path().join("children"))?;
        found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(found)
}

pub fn name_of(pid: u32) -> anyhow::Result<String> {
    Ok(fs::read_to_string(format!("/proc/{pid}/comm"))?.trim_end().to_owned())
}

pub fn is_asleep(pid: u32) -> anyhow::Result<bool> {
    Ok(proc_stat::fields(pid.cast_signed())
        .context("no such process")?
        .first()
        .is_some_and(|state| state == "S"))
}

/// The number of waiters on the only lock of this directory, from the kernel's list of blocked
/// requests.
pub fn tickets_waiting(directory: &Path) -> anyhow::Result<usize> {
    let is_lock = |file: &fs::DirEntry| !file.file_name().as_encoded_bytes().starts_with(b".");
    let file = fs::read_dir(directory)?.flatten().find(is_lock).context("no lock file")?;
    let of = format!(":{}", file.ino());
    let locks = fs::read_to_string("/proc/locks")?;
    let asks = |line: &&str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        matches!(words[..], [_, "->", "OFDLCK", _, _, _, file, _, _] if file.ends_with(&of))
    };
    Ok(locks.lines().filter(asks).count())
}

/// utime + stime, in clock ticks.
pub fn cpu_ticks(pid: u32) -> anyhow::Result<u64> {
    proc_stat::cpu_ticks(pid.cast_signed()).context("no such process")
}

/// The scheduler's own account, which is finer than a tick.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let account = fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += account.split(' ').next().context("schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

#[derive(Clone, Copy)]
pub enum Memory {
    /// Every resident page.
    Resident,
    /// A page that n processes share counts as 1/n.
    Proportional,
}

/// In KiB.
pub fn memory(pid: u32, kind: Memory) -> anyhow::Result<u64> {
    let (file, label) = match kind {
        Memory::Resident => ("status", "VmRSS:"),
        Memory::Proportional => ("smaps_rollup", "Pss:"),
    };
    let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
    let value =
        text.lines().find_map(|line| line.strip_prefix(label)).with_context(|| format!("no {label}"))?;
    Ok(value.trim().trim_end_matches(" kB").parse()?)
}
