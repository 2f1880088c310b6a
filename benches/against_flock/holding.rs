//! The command runs: what does redlock use meanwhile?

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::process::{Guarded, Memory, child_named, memory};
use crate::report::Row;
use crate::rig::{Rig, with};

pub const GUARDIAN: &str = "lock-guardian";
/// A command that exits when its stdin is closed.
const HOLDING_COMMAND: &str = "cat";
const RESIDENT_GOAL: f64 = 4.0;
const PROPORTIONAL_GOAL: f64 = 2.0;
const BINARY_GOAL: f64 = 4.0;
/// From this duration on a command is not a short one.
const LONG: Duration = Duration::from_millis(500);

/// redlock with a command that runs until `finish`.
pub fn holder(rig: &Rig, key: &str) -> anyhow::Result<Guarded> {
    let mut command = with(rig.redlock_run(&rig.server.tcp_url(), key), HOLDING_COMMAND);
    // No refresh happens during the measurement.
    command.env("REDLOCK_TTL", "10m");
    let holder = Guarded::spawn_with_stdin(&mut command)?;
    child_named(child_named(holder.pid(), GUARDIAN)?, HOLDING_COMMAND)?;
    Ok(holder)
}

pub fn measure(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let key = rig.new_name();
    let redlock = holder(rig, &key)?;
    let flock = Guarded::spawn_with_stdin(&mut with(rig.flock(&key), HOLDING_COMMAND))?;
    child_named(flock.pid(), HOLDING_COMMAND)?;
    sleep(LONG);
    let ours = [redlock.pid(), child_named(redlock.pid(), GUARDIAN)?];
    let rows = vec![
        memory_row("VmRSS of redlock and guardian", &ours, Memory::Resident, RESIDENT_GOAL)?,
        memory_row("PSS of redlock and guardian", &ours, Memory::Proportional, PROPORTIONAL_GOAL)?,
        Row::new("VmRSS of redlock alone", mib(kib_of(&ours[..1], Memory::Resident)?)),
        Row::new("VmRSS of the guardian alone", mib(kib_of(&ours[1..], Memory::Resident)?)),
        Row::new("VmRSS of flock", mib(kib_of(&[flock.pid()], Memory::Resident)?)),
        binary_row(rig)?,
    ];
    redlock.finish()?;
    flock.finish()?;
    Ok(rows)
}

fn memory_row(what: &str, pids: &[u32], kind: Memory, goal: f64) -> anyhow::Result<Row> {
    let kib = kib_of(pids, kind)?;
    Ok(Row::new(what, mib(kib)).goal(format!("<= {goal} MiB"), kib <= goal * 1024.0))
}

fn binary_row(rig: &Rig) -> anyhow::Result<Row> {
    let kib = fs::metadata(&rig.redlock)?.len() as f64 / 1024.0;
    Ok(Row::new("size of the binary", mib(kib))
        .goal(format!("< {BINARY_GOAL} MiB"), kib < BINARY_GOAL * 1024.0))
}

fn kib_of(pids: &[u32], kind: Memory) -> anyhow::Result<f64> {
    let each = pids.iter().map(|pid| memory(*pid, kind));
    Ok(each.sum::<anyhow::Result<u64>>()? as f64)
}

fn mib(kib: f64) -> String {
    format!("{:.2} MiB", kib / 1024.0)
}
