//! Many clients at once: is there progress, and how long does each wait?
//!
//! Each section is a process. Measured beside flock, which has no server.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};

use crate::report::{Row, ms};
use crate::rig::Rig;

/// The argument with which the benchmark starts itself as a section's command.
pub const ARGUMENT: &str = "--section";

const CLIENTS: usize = 20;
const SECTIONS: usize = 5;
const SECTION: Duration = Duration::from_millis(5);
/// Sections a second / flock's.
const GOAL: f64 = 0.85;
/// The 99th percentile / the median.
const GOAL_WAIT: f64 = 1.2;

/// The command of a section: prints when it started and ended.
pub fn section() -> anyhow::Result<()> {
    let began = now()?;
    thread::sleep(SECTION);
    println!("{} {}", began.as_nanos(), now()?.as_nanos());
    Ok(())
}

fn now() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_BOOTTIME)?.into())
}

/// A section that took place.
struct Section {
    waited: Duration,
    began: Duration,
    ended: Duration,
}

#[derive(Default)]
struct Crowd {
    sections: Vec<Section>,
    failures: usize,
    took: Duration,
    overlaps: usize,
}

impl Crowd {
    fn add(&mut self, mut other: Crowd) {
        other.sections.sort_by_key(|section| section.began);
        self.overlaps += other.sections.windows(2).filter(|pair| pair[1].began < pair[0].ended).count();
        self.sections.append(&mut other.sections);
        self.failures += other.failures;
        self.took += other.took;
    }

    fn a_second(&self) -> f64 {
        self.sections.len() as f64 / self.took.as_secs_f64()
    }

    /// Median and 99th percentile of the waits.
    fn waits(&self) -> (Duration, Duration) {
        let mut waits: Vec<Duration> = self.sections.iter().map(|section| section.waited).collect();
        waits.sort();
        let at = |hundredths: usize| waits.get((waits.len() * hundredths).div_ceil(100).saturating_sub(1));
        [50, 99].map(|hundredths| at(hundredths).copied().unwrap_or_default()).into()
    }

    fn row(&self, name: &str, is_ours: bool, least: f64) -> Row {
        let (rate, (median, high)) = (self.a_second(), self.waits());
        let row = Row::new(name, format!("{rate:.0} a second")).spread(format!(
            "wait {}, p99 {}; {} failures, {} overlaps",
            ms(median),
            ms(high),
            self.failures,
            self.overlaps
        ));
        if !is_ours {
            return row;
        }
        let is_met = rate >= least && high <= median.mul_f64(GOAL_WAIT) && self.failures + self.overlaps == 0;
        row.goal(format!(">= {GOAL} x flock's, p99 <= {GOAL_WAIT} x median"), is_met)
    }
}

pub fn measure(rig: &mut Rig, urls: &str, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let lockers = rig.lockers(urls)?;
    let mut crowds: Vec<Crowd> = (0..=lockers.len()).map(|_| Crowd::default()).collect();
    for _ in 0..rounds {
        let key = rig.new_name();
        crowds[0].add(crowd(|| rig.flock(&key))?);
        for (locker, all) in lockers.iter().zip(&mut crowds[1..]) {
            let key = rig.new_name();
            all.add(crowd(|| locker.run(urls, &key))?);
        }
    }
    let least = GOAL * crowds[0].a_second();
    let ours = [false].into_iter().chain(lockers.iter().map(|locker| locker.is_ours));
    let names = ["flock"].into_iter().chain(lockers.iter().map(|locker| locker.name.as_str()));
    Ok(names.zip(ours).zip(&crowds).map(|((name, is_ours), crowd)| crowd.row(name, is_ours, least)).collect())
}

/// All clients at once, each with its sections one after another.
fn crowd(lock: impl Fn() -> Command + Sync) -> anyhow::Result<Crowd> {
    let started = Instant::now();
    let client = || (0..SECTIONS).map(|_| one_section(lock())).collect::<anyhow::Result<Vec<_>>>();
    let outcomes = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let join = |client: thread::ScopedJoinHandle<_>| client.join().expect("a client's thread");
        clients.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let took = started.elapsed();
    let outcomes: Vec<Option<Section>> = outcomes.into_iter().flatten().collect();
    let failures = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    Ok(Crowd { sections: outcomes.into_iter().flatten().collect(), failures, took, overlaps: 0 })
}

/// None if the lock's program failed.
fn one_section(mut locked: Command) -> anyhow::Result<Option<Section>> {
    locked.arg(std::env::current_exe()?).arg(ARGUMENT).stdin(Stdio::null()).stderr(Stdio::null());
    let asked = now()?;
    let output = locked.output().with_context(|| format!("cannot start {locked:?}"))?;
    if !output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8(output.stdout)?;
    let (began, ended) = text.trim_end().split_once(' ').context("a section without output")?;
    let [began, ended] = [began.parse()?, ended.parse()?].map(Duration::from_nanos);
    Ok(Some(Section { waited: began.saturating_sub(asked), began, ended }))
}
