//! What is counted, and how much it may grow from the start to the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use redis::Connection;

use crate::process::{Memory, memory};

/// Fluctuations of the allocators.
const SERVER_MEMORY_SLACK: u64 = 512 * 1024;
const PROCESS_MEMORY_SLACK: u64 = 512;
/// Reservations of runs that happen to coincide.
const FILES_SLACK: u64 = 4096;
/// A server keeps each script from its first use on: six at most.
const SCRIPTS_SLACK: u64 = 3;
/// The number of fences, tombstones and wake-ups that have not expired yet varies.
const KEYS_SLACK: u64 = 8;

/// By name: the figure, and by how much it may grow.
#[derive(Default)]
pub struct Figures(BTreeMap<String, (u64, u64)>);

/// A run and its descendants.
pub struct Life {
    pub processes: u64,
    resident_kib: u64,
    descriptors: u64,
    threads: u64,
}

impl Life {
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let mut life = Self { processes: 0, resident_kib: 0, descriptors: 0, threads: 0 };
        let mut pids = vec![pid];
        while let Some(pid) = pids.pop() {
            life.processes += 1;
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                let children = fs::read_to_string(task?.path().join("children"))?;
                pids.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
                life.threads += 1;
            }
            life.resident_kib += memory(pid, Memory::Resident)?;
            life.descriptors += fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
        }
        Ok(life)
    }
}

impl Figures {
    fn add(&mut self, name: String, figure: u64, slack: u64) {
        self.0.insert(name, (figure, slack));
    }

    pub fn add_server(&mut self, at: usize, server: &mut Connection) -> anyhow::Result<()> {
        let info: String = redis::cmd("INFO").query(server)?;
        let number = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            anyhow::Ok(value.with_context(|| format!("no {name}"))?.parse::<u64>()?)
        };
        self.add(format!("server {at}: used_memory"), number("used_memory")?, SERVER_MEMORY_SLACK);
        self.add(format!("server {at}: scripts"), number("number_of_cached_scripts")?, SCRIPTS_SLACK);
        self.add(format!("server {at}: clients"), number("connected_clients")?, 0);
        self.add(format!("server {at}: keys"), keys(server)?.len() as u64, KEYS_SLACK);
        Ok(())
    }

    pub fn add_directory(&mut self, directory: &Path) -> anyhow::Result<()> {
        let sizes: Vec<u64> = fs::read_dir(directory)?
            .map(|file| Ok(file?.metadata()?.len()))
            .collect::<std::io::Result<_>>()?;
        self.add("lock directory: files".into(), sizes.len() as u64, 0);
        self.add("lock directory: bytes".into(), sizes.iter().sum(), FILES_SLACK);
        Ok(())
    }

    pub fn add_life(&mut self, what: &str, life: &Life) {
        self.add(format!("{what}: resident KiB"), life.resident_kib, PROCESS_MEMORY_SLACK);
        self.add(format!("{what}: descriptors"), life.descriptors, 0);
        self.add(format!("{what}: threads"), life.threads, 0);
    }

    pub fn add_processes(&mut self, redlock: &Path, mark: &str) -> anyhow::Result<()> {
        self.add("processes of redlock".into(), Self::processes(redlock, mark)?, 0);
        self.add("zombies below us".into(), zombies()?, 0);
        Ok(())
    }

    /// Processes of this redlock, and commands of killed holders.
    pub fn processes(redlock: &Path, mark: &str) -> anyhow::Result<u64> {
        let is_ours = |directory: &Path| {
            let is_redlock = fs::read_link(directory.join("exe")).is_ok_and(|exe| exe == redlock);
            let command = fs::read(directory.join("cmdline")).unwrap_or_default();
            is_redlock || command == format!("sleep\0{mark}\0").into_bytes()
        };
        Ok(fs::read_dir("/proc")?.flatten().filter(|entry| is_ours(&entry.path())).count() as u64)
    }
}

/// Children of ours that have exited and were not waited for.
fn zombies() -> anyhow::Result<u64> {
    let parent = std::process::id().to_string();
    let is_ours = |stat: &str| {
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        fields.starts_with(&format!("Z {parent} "))
    };
    let processes = fs::read_dir("/proc")?.flatten();
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    Ok(stats.filter(|stat| is_ours(stat)).count() as u64)
}

/// Every key on a server.
pub fn keys(server: &mut Connection) -> anyhow::Result<Vec<String>> {
    Ok(redis::cmd("KEYS").arg("*").query(server)?)
}

/// A short line about the newest sample.
pub fn line(samples: &[Figures]) -> String {
    let Some(newest) = samples.last() else { return String::new() };
    let sum = |part: &str| -> u64 {
        newest.0.iter().filter(|(name, _)| name.ends_with(part)).map(|(_, (figure, _))| figure).sum()
    };
    format!(
        "servers {} KiB, {} keys, {} clients; {} files; long runs {} KiB, {} descriptors, {} threads",
        sum("used_memory") / 1024,
        sum(" keys"),
        sum("clients"),
        sum("files"),
        sum("resident KiB"),
        sum("descriptors"),
        sum("threads")
    )
}

/// Each figure at the start, in the middle and at the end.
pub fn table(samples: &[Figures]) -> String {
    let [Some(first), Some(middle), Some(last)] =
        [samples.first(), samples.get(samples.len() / 2), samples.last()]
    else {
        return String::new();
    };
    let mut table = format!("{:<34} {:>10} {:>10} {:>10} {:>10}\n", "", "start", "middle", "end", "allowed");
    for (name, (start, slack)) in &first.0 {
        let at = |sample: &Figures| sample.0.get(name).map_or(0, |(figure, _)| *figure);
        table +=
            &format!("{name:<34} {start:>10} {:>10} {:>10} {:>10}\n", at(middle), at(last), start + slack);
    }
    table
}

/// The figures that have grown from the start to the last quarter by more than their slack: in each
/// sample of that quarter, so that a single moment does not count.
pub fn grown(samples: &[Figures]) -> Vec<String> {
    let (Some(first), quarter) = (samples.first(), samples.len() / 4) else { return Vec::new() };
    let late = &samples[samples.len() - quarter.max(1)..];
    let least_late = |name: &String| late.iter().filter_map(|sample| sample.0.get(name)).map(|at| at.0).min();
    let grown = first.0.iter().filter_map(|(name, (start, slack))| {
        let end = least_late(name)?;
        (end > start + slack).then(|| format!("{name}: {start} -> {end}"))
    });
    grown.collect()
}
