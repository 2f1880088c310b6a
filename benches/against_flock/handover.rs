//! Many clients want the lock: how long is it free between two holders?

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::process::{Guarded, is_asleep, name_of, tickets_waiting, wait_until};
use crate::report::{Row, warn_of_noise};
use crate::rig::{Locker, Rig};
use crate::stamp::{self, Stamp};
use crate::statistics::Summary;

/// redlock / flock.
const GOAL: f64 = 1.3;
const GOAL_HERE: f64 = 1.2;

/// How long a peer may take to queue: only redlock's queue, and flock's, can be seen.
const PEER_ARRIVES: Duration = Duration::from_millis(50);

#[derive(Clone)]
enum Tool {
    Flock,
    /// redlock without a server.
    Here,
    OnServer(Locker),
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
    let url = rig.server.tcp_url();
    let mut tools = vec![Tool::Flock, Tool::Here];
    tools.extend(rig.lockers(&url)?.into_iter().map(Tool::OnServer));
    let mut measured: Vec<Measured> = tools.iter().map(|_| Measured::default()).collect();
    for _ in 0..rounds {
        for (tool, measured) in tools.iter().zip(&mut measured) {
            measured.add(&one_round(rig, tool, waiters)?);
        }
    }
    ensure!(measured.iter().all(|seen| !seen.gaps.is_empty()), "no hand-over without overlap");
    let flock = Summary::of(&measured[0].gaps);
    warn_of_noise(&flock);
    Ok(tools.iter().zip(&measured).flat_map(|(tool, seen)| rows(tool, seen, &flock)).collect())
}

fn rows(tool: &Tool, seen: &Measured, flock: &Summary) -> [Row; 2] {
    let gap = Summary::of(&seen.gaps);
    let (name, goal) = match tool {
        Tool::Flock => ("flock", None),
        Tool::Here => ("redlock, this host", Some(GOAL_HERE)),
        Tool::OnServer(locker) => (locker.name.as_str(), locker.is_ours.then_some(GOAL)),
    };
    let row = Row::timed(format!("{name}, {} gaps", seen.gaps.len()), &gap, flock);
    let count = Row::new("  overlaps, inversions", format!("{}, {}", seen.overlaps, seen.inversions));
    match goal {
        Some(goal) => [
            row.goal(format!("<= {goal} x flock"), gap.ratio_to(flock) <= goal),
            count.goal("0, 0", seen.overlaps + seen.inversions == 0),
        ],
        None => [row, count],
    }
}

/// A holder, then the waiters one after another; when all have arrived, the holder releases.
fn one_round(rig: &mut Rig, tool: &Tool, waiters: usize) -> anyhow::Result<Vec<Stamp>> {
    let key = rig.new_name();
    let notes = rig.file(&format!("{key}.notes"));
    let url = rig.server.tcp_url();
    fs::create_dir(rig.host_directory(&key))?;
    let command = |rig: &Rig, place: usize| {
        let locked = match tool {
            Tool::Flock => rig.flock(&key),
            Tool::Here => rig.redlock_run_here(&key),
            Tool::OnServer(locker) => locker.run(&url, &key),
        };
        noting(locked, &notes, place)
    };
    let holder = Guarded::spawn_with_stdin(&mut command(rig, 0)?)?;
    wait_until("the first holder has started", || Ok(notes.exists()))?;
    let mut queue = Vec::new();
    for place in 1..=waiters {
        let arrived = Instant::now();
        let waiter = Guarded::spawn(&mut command(rig, place)?)?;
        wait_until("the waiter has arrived", || match tool {
            Tool::Flock => Ok(name_of(waiter.pid())? == "flock" && is_asleep(waiter.pid())?),
            Tool::Here => Ok(tickets_waiting(&rig.host_directory(&key))? == place),
            Tool::OnServer(locker) if locker.is_ours => Ok(rig.server.queue_length(&key)? == place),
            Tool::OnServer(_) => Ok(arrived.elapsed() >= PEER_ARRIVES),
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
