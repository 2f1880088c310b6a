//! Many clients want the lock: how long is it free between two holders?

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;

use crate::process::{Guarded, is_asleep, name_of, tickets_waiting, wait_until};
use crate::report::{Row, warn_of_noise};
use crate::rig::Rig;
use crate::stamp::{self, Stamp};
use crate::statistics::Summary;

/// redlock / flock.
const GOAL: f64 = 1.3;
const GOAL_HERE: f64 = 1.2;

#[derive(Clone, Copy)]
enum Tool {
    Flock,
    Redlock,
    /// Without a server.
    RedlockHere,
}

/// The measurements of one tool in all its rounds.
#[derive(Default)]
struct Measured {
    gaps: Vec<Duration>,
    overlaps: usize,
    inversions: usize,
}

impl Measured {
    fn add(&mut self, stamps: &[Stamp]) {
        for pair in stamps.windows(2) {
            match pair[1].began.checked_sub(pair[0].ended) {
                Some(gap) => self.gaps.push(gap),
                None => self.overlaps += 1,
            }
        }
        self.inversions += inversions(stamps);
    }
}

/// Pairs of which the later arrival was served first. The names are the order of arrival.
fn inversions(stamps: &[Stamp]) -> usize {
    let overtaken = |(place, stamp): (usize, &Stamp)| {
        stamps[place + 1..].iter().filter(|later_served| later_served.name < stamp.name).count()
    };
    stamps.iter().enumerate().map(overtaken).sum()
}

pub fn measure(rig: &mut Rig, waiters: usize, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let (mut flock, mut redlock, mut here) = (Measured::default(), Measured::default(), Measured::default());
    for _ in 0..rounds {
        flock.add(&one_round(rig, Tool::Flock, waiters)?);
        redlock.add(&one_round(rig, Tool::Redlock, waiters)?);
        here.add(&one_round(rig, Tool::RedlockHere, waiters)?);
    }
    let all = [&flock, &redlock, &here];
    ensure!(all.iter().all(|seen| !seen.gaps.is_empty()), "no hand-over without overlap");
    Ok(rows(&flock, &redlock, &here))
}

fn rows(flock: &Measured, redlock: &Measured, here: &Measured) -> Vec<Row> {
    let flock_gap = Summary::of(&flock.gaps);
    warn_of_noise(&flock_gap);
    let gaps = |what: &str, seen: &Measured, goal: f64| {
        let gap = Summary::of(&seen.gaps);
        Row::timed(format!("{what}, {} gaps", seen.gaps.len()), &gap, &flock_gap)
            .goal(format!("<= {goal} x flock"), gap.ratio_to(&flock_gap) <= goal)
    };
    let none = |what: String, count: usize| Row::new(what, count.to_string()).goal("0", count == 0);
    let mut rows = vec![
        Row::timed(format!("flock, {} gaps", flock.gaps.len()), &flock_gap, &flock_gap),
        gaps("redlock, TCP", redlock, GOAL),
        gaps("redlock, this host", here, GOAL_HERE),
        Row::new("flock: overlaps, inversions", format!("{}, {}", flock.overlaps, flock.inversions)),
    ];
    for (what, seen) in [("TCP", redlock), ("this host", here)] {
        rows.push(none(format!("{what}: overlaps"), seen.overlaps));
        rows.push(none(format!("{what}: FIFO inversions"), seen.inversions));
    }
    rows
}

/// A holder, then the waiters one after another; when all have arrived, the holder releases.
fn one_round(rig: &mut Rig, tool: Tool, waiters: usize) -> anyhow::Result<Vec<Stamp>> {
    let key = rig.new_name();
    let notes = rig.file(&format!("{key}.notes"));
    let url = rig.server.tcp_url();
    fs::create_dir(rig.host_directory(&key))?;
    let command = |rig: &Rig, place: usize| {
        let locked = match tool {
            Tool::Flock => rig.flock(&key),
            Tool::Redlock => rig.redlock_run(&url, &key),
            Tool::RedlockHere => rig.redlock_run_here(&key),
        };
        noting(locked, &notes, place)
    };
    let holder = Guarded::spawn_with_stdin(&mut command(rig, 0)?)?;
    wait_until("the first holder has started", || Ok(notes.exists()))?;
    let mut queue = Vec::new();
    for place in 1..=waiters {
        let waiter = Guarded::spawn(&mut command(rig, place)?)?;
        wait_until("the waiter has arrived", || match tool {
            Tool::Flock => Ok(name_of(waiter.pid())? == "flock" && is_asleep(waiter.pid())?),
            Tool::Redlock => Ok(rig.server.queue_length(&key)? == place),
            Tool::RedlockHere => Ok(tickets_waiting(&rig.host_directory(&key))? == place),
        })?;
        queue.push(waiter);
    }
    holder.finish()?;
    queue.into_iter().try_for_each(Guarded::finish)?;
    let stamps = stamp::read(&notes)?;
    ensure!(stamps.len() == waiters + 1, "{} of {} have noted their time", stamps.len(), waiters + 1);
    Ok(stamps)
}

/// The lock's command line with this program as the command.
pub fn noting(mut locked: Command, notes: &Path, place: usize) -> anyhow::Result<Command> {
    let ourselves: PathBuf = std::env::current_exe()?;
    locked.arg(ourselves).arg(stamp::ARGUMENT).arg(notes).arg(place.to_string());
    Ok(locked)
}
