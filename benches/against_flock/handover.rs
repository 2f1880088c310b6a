//! Many want the lock: how long is it nobody's between two holders?

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;

use crate::process::{Guarded, is_asleep, name_of, wait_until};
use crate::report::{Row, warn_of_noise};
use crate::rig::Rig;
use crate::stamp::{self, Stamp};
use crate::statistics::Summary;

/// redlock / flock.
const GOAL: f64 = 1.5;

#[derive(Clone, Copy)]
enum Tool {
    Flock,
    Redlock,
}

/// What was seen of one tool in all its rounds.
#[derive(Default)]
struct Seen {
    gaps: Vec<Duration>,
    overlaps: usize,
    inversions: usize,
}

impl Seen {
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

/// Pairs of which the later to come was the earlier to be served. The names are the order of arrival.
fn inversions(stamps: &[Stamp]) -> usize {
    let overtaken = |(place, stamp): (usize, &Stamp)| {
        stamps[place + 1..].iter().filter(|later_served| later_served.name < stamp.name).count()
    };
    stamps.iter().enumerate().map(overtaken).sum()
}

pub fn measure(rig: &mut Rig, waiters: usize, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let (mut flock, mut redlock) = (Seen::default(), Seen::default());
    for _ in 0..rounds {
        flock.add(&one_round(rig, Tool::Flock, waiters)?);
        redlock.add(&one_round(rig, Tool::Redlock, waiters)?);
    }
    ensure!(!flock.gaps.is_empty() && !redlock.gaps.is_empty(), "no hand-over without overlap");
    Ok(rows(&flock, &redlock))
}

fn rows(flock: &Seen, redlock: &Seen) -> Vec<Row> {
    let (flock_gap, redlock_gap) = (Summary::of(&flock.gaps), Summary::of(&redlock.gaps));
    warn_of_noise(&flock_gap);
    let none = |what: &str, count: usize| Row::new(what, count.to_string()).goal("0", count == 0);
    vec![
        Row::timed(format!("flock, {} gaps", flock.gaps.len()), &flock_gap, &flock_gap),
        Row::timed(format!("redlock, {} gaps", redlock.gaps.len()), &redlock_gap, &flock_gap)
            .goal(format!("<= {GOAL} x flock"), redlock_gap.ratio_to(&flock_gap) <= GOAL),
        Row::new("flock: overlaps, inversions", format!("{}, {}", flock.overlaps, flock.inversions)),
        none("redlock: overlaps", redlock.overlaps),
        none("redlock: FIFO inversions", redlock.inversions),
    ]
}

/// A holder, then the waiters one after the other; when all have come, the holder lets go.
fn one_round(rig: &mut Rig, tool: Tool, waiters: usize) -> anyhow::Result<Vec<Stamp>> {
    let key = rig.new_name();
    let notes = rig.file(&format!("{key}.notes"));
    let url = rig.server.tcp_url();
    let command = |rig: &Rig, place: usize| {
        let locked = match tool {
            Tool::Flock => rig.flock(&key),
            Tool::Redlock => rig.redlock_run(&url, &key),
        };
        noting(locked, &notes, place)
    };
    let holder = Guarded::spawn_with_stdin(&mut command(rig, 0)?)?;
    wait_until("the first holder has begun", || Ok(notes.exists()))?;
    let mut queue = Vec::new();
    for place in 1..=waiters {
        let waiter = Guarded::spawn(&mut command(rig, place)?)?;
        wait_until("the waiter has come", || match tool {
            Tool::Flock => Ok(name_of(waiter.pid())? == "flock" && is_asleep(waiter.pid())?),
            Tool::Redlock => Ok(rig.server.queue_length(&key)? == place),
        })?;
        queue.push(waiter);
    }
    holder.finish()?;
    queue.into_iter().try_for_each(Guarded::finish)?;
    let stamps = stamp::read(&notes)?;
    ensure!(stamps.len() == waiters + 1, "{} of {} have noted their time", stamps.len(), waiters + 1);
    Ok(stamps)
}

/// The lock's command line with ourselves as the command.
fn noting(mut locked: Command, notes: &Path, place: usize) -> anyhow::Result<Command> {
    let ourselves: PathBuf = std::env::current_exe()?;
    locked.arg(ourselves).arg(stamp::ARGUMENT).arg(notes).arg(place.to_string());
    Ok(locked)
}
