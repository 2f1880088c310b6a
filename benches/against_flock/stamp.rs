//! The command that runs under the lock in the hand-over: it notes when it started and when it
//! ended.
//!
//! The benchmark starts itself as this command, so that no shell's start-up is measured.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};

pub const ARGUMENT: &str = "--hold-and-note";

/// Long enough for the previous holder to be gone entirely.
const HELD_FOR: Duration = Duration::from_millis(3);

/// One holder's time.
#[derive(Debug)]
pub struct Stamp {
    pub name: usize,
    pub began: Duration,
    pub ended: Duration,
}

fn now() -> anyhow::Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?))
}

/// Holds until stdin is closed, and a moment longer. Reading the clock is its first action and,
/// except for writing the result, its last.
pub fn hold_and_note(file: &str, name: &str) -> anyhow::Result<()> {
    let began = now()?;
    let mut notes = File::options().append(true).create(true).open(file)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    sleep(HELD_FOR);
    let ended = now()?;
    notes.write_all(format!("{name} {} {}\n", began.as_nanos(), ended.as_nanos()).as_bytes())?;
    Ok(())
}

/// All notes, sorted by start time.
pub fn read(file: &Path) -> anyhow::Result<Vec<Stamp>> {
    let notes = fs::read_to_string(file)?;
    let mut stamps = notes.lines().map(parse).collect::<anyhow::Result<Vec<Stamp>>>()?;
    stamps.sort_by_key(|stamp| stamp.began);
    Ok(stamps)
}

fn parse(line: &str) -> anyhow::Result<Stamp> {
    let numbers = line.split(' ').map(str::parse::<u64>).collect::<Result<Vec<u64>, _>>()?;
    let [name, began, ended] = numbers[..] else {
        return Err(anyhow::anyhow!(line.to_owned())).context("a note with other than three numbers");
    };
    Ok(Stamp {
        name: usize::try_from(name)?,
        began: Duration::from_nanos(began),
        ended: Duration::from_nanos(ended),
    })
}
