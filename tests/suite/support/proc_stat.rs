//! /proc/PID/stat, for the tests and for benches/against_flock.

use std::fs;

/// The fields after the command name, starting with the state; None if there is no such process.
pub fn fields(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(") ")?;
    Some(behind_name.split_ascii_whitespace().map(str::to_owned).collect())
}

/// The processor time of a process with all its threads, in clock ticks (hundredths of a second).
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    fields(pid)?.get(11..13)?.iter().map(|ticks| ticks.parse::<u64>().ok()).sum()
}
