//! The command runs: what does redlock use meanwhile?

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::process::{Guarded, Memory, child_named, memory};
use crate::report::Row;
use crate::rig::{Locker, Rig};

pub const GUARDIAN: &str = "lock-guardian";
/// A command that exits when its stdin is closed.
const HOLDING_COMMAND: &str = "cat";
const RESIDENT_GOAL: f64 = 4.0;
const PROPORTIONAL_GOAL: f64 = 2.0;
const BINARY_GOAL: f64 = 4.0;
/// From this duration on a command is not a short one.
const LONG: Duration = Duration::from_millis(500);

/// A program with a command that runs until `finish`.
fn holding(mut command: Command) -> anyhow::Result<Guarded> {
    // No refresh happens during the measurement.
    command.env("REDLOCK_TTL", "10m").arg(HOLDING_COMMAND);
    Guarded::spawn_with_stdin(&mut command)
}

/// The guardian of a redlock that holds.
fn guardian_of(holder: &Guarded) -> anyhow::Result<u32> {
    let guardian = child_named(holder.pid(), GUARDIAN)?;
    child_named(guardian, HOLDING_COMMAND)?;
    Ok(guardian)
}

pub fn holder(rig: &Rig, key: &str) -> anyhow::Result<Guarded> {
    let holder = holding(rig.redlock_run(&rig.server.tcp_url(), key))?;
    guardian_of(&holder)?;
    Ok(holder)
}

pub fn measure(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let url = rig.server.tcp_url();
    let mut rows = Vec::new();
    for locker in rig.lockers(&url)? {
        let key = rig.new_name();
        let holder = holding(locker.run(&url, &key))?;
        let mut pids = vec![holder.pid()];
        if locker.is_ours {
            pids.push(guardian_of(&holder)?);
        } else {
            child_named(holder.pid(), HOLDING_COMMAND)?;
        }
        sleep(LONG);
        rows.push(row(&locker, &pids)?);
        holder.finish()?;
    }
    let key = rig.new_name();
    let flock = holding(rig.flock(&key))?;
    child_named(flock.pid(), HOLDING_COMMAND)?;
    rows.push(Row::new("VmRSS of flock", mib(kib_of(&[flock.pid()], Memory::Resident)?)));
    flock.finish()?;
    Ok(rows)
}

/// With redlock's guardian, without the command.
fn row(locker: &Locker, pids: &[u32]) -> anyhow::Result<Row> {
    let [resident, proportional] = [Memory::Resident, Memory::Proportional].map(|kind| kib_of(pids, kind));
    let (resident, proportional) = (resident?, proportional?);
    let size = fs::metadata(&locker.program)?.len() as f64 / 1024.0;
    let row = Row::new(&locker.name, mib(resident)).spread(format!(
        "resident; PSS {}; the file has {}",
        mib(proportional),
        mib(size)
    ));
    if !locker.is_ours {
        return Ok(row);
    }
    let goals = [(resident, RESIDENT_GOAL), (proportional, PROPORTIONAL_GOAL), (size, BINARY_GOAL)];
    let are_met = goals.iter().all(|(kib, goal)| *kib <= goal * 1024.0);
    Ok(row.goal(format!("<= {}", goals.map(|(_, goal)| goal.to_string()).join(", ")), are_met))
}

fn kib_of(pids: &[u32], kind: Memory) -> anyhow::Result<f64> {
    let each = pids.iter().map(|pid| memory(*pid, kind));
    Ok(each.sum::<anyhow::Result<u64>>()? as f64)
}

fn mib(kib: f64) -> String {
    format!("{:.2} MiB", kib / 1024.0)
}
