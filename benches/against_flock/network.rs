//! Distant servers: what a round-trip time costs a whole run and a hand-over, beside the minimum.
//!
//! All lines have the same latency. The kernel completes a connect at once, so the figures do not
//! include the round trip of the TCP handshake, which every client pays. The processes' own time is
//! subtracted: the same is measured without latency, in turn with the others.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::handover::noting;
use crate::nodes::redlock_run;
use crate::process::{Guarded, wait_until};
use crate::proxy::Proxy;
use crate::report::ms;
use crate::rig::{Rig, with};
use crate::server::Server;
use crate::stamp::{self, Stamp};
use crate::statistics::Summary;
use crate::stopwatch::Stopwatch;

const SERVERS: [usize; 3] = [1, 3, 5];
const ROUND_TRIPS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(80)];
const WARM_UP_ROUNDS: usize = 2;
const WAITERS: usize = 4;
/// A shorter round trip cannot be distinguished from the machine's noise.
const SHORTEST_GOAL: Duration = Duration::from_millis(10);

/// How often each is measured.
pub struct Effort {
    pub runs: usize,
    pub handovers: usize,
}

/// What is measured, and the round trips that it needs at least.
struct Figure {
    what: &'static str,
    /// The theoretical minimum.
    least: f64,
    /// Our goal.
    goal: f64,
}

/// One to acquire and one to release.
const WHOLE_RUN: Figure = Figure { what: "whole run", least: 2.0, goal: 2.2 };
/// Half a round trip until the release has arrived, and half until the next holder knows. Ours:
/// half for the release, half for the wake-up, one for the gate's vote and one for the others'.
const HAND_OVER: Figure = Figure { what: "hand-over", least: 1.0, goal: 3.1 };

/// Servers, and a line to each of them.
struct Site {
    servers: Vec<Server>,
    lines: Vec<Proxy>,
}

impl Site {
    fn start(rig: &mut Rig, n: usize) -> anyhow::Result<Self> {
        let start = |_| {
            let directory = rig.new_name();
            let directory = rig.file(&directory);
            fs::create_dir(&directory)?;
            Server::start(&directory)
        };
        let servers = (0..n).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let ports: Vec<u16> = servers.iter().map(Server::port).collect();
        Ok(Self { servers, lines: Proxy::to_ports(&ports) })
    }

    fn urls(&self) -> Vec<String> {
        self.lines.iter().map(Proxy::url).collect()
    }

    fn set(&self, round_trip: Duration) {
        self.lines.iter().for_each(|line| line.each_way(round_trip / 2));
    }
}

pub fn measure(rig: &mut Rig, effort: &Effort) -> anyhow::Result<()> {
    println!(
        "\nservers at a round-trip time r: medians, and their difference to those at r = 0, in round trips"
    );
    println!(
        "  {:<10} {:>7} {:>8} {:>12}  {:<25} {:>9} {:>8}  goal",
        "", "servers", "r", "median", "middle half", "beyond", "minimum"
    );
    for n in SERVERS {
        let mut site = Site::start(rig, n)?;
        let samples = whole_runs(rig, &site, effort.runs).with_context(|| format!("runs on {n} servers"))?;
        print(&WHOLE_RUN, n, &samples);
        let samples = handovers(rig, &mut site, effort.handovers)
            .with_context(|| format!("hand-overs on {n} servers"))?;
        print(&HAND_OVER, n, &samples);
    }
    Ok(())
}

/// For each round-trip time.
type Samples = [Vec<Duration>; ROUND_TRIPS.len()];

fn whole_runs(rig: &mut Rig, site: &Site, rounds: usize) -> anyhow::Result<Samples> {
    let (stopwatch, key, mut samples) = (Stopwatch::new(), rig.new_name(), Samples::default());
    let mut command = with(redlock_run(rig, &site.urls(), &key), "true");
    for round in 0..WARM_UP_ROUNDS + rounds {
        for (round_trip, samples) in ROUND_TRIPS.iter().zip(&mut samples) {
            site.set(*round_trip);
            let took = stopwatch.time(&mut command)?;
            if round >= WARM_UP_ROUNDS {
                samples.push(took);
            }
        }
    }
    Ok(samples)
}

fn handovers(rig: &mut Rig, site: &mut Site, rounds: usize) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..rounds {
        for (round_trip, samples) in ROUND_TRIPS.iter().zip(&mut samples) {
            site.set(*round_trip);
            for pair in one_queue(rig, site)?.windows(2) {
                ensure!(pair[1].name > pair[0].name, "{} was served after {}", pair[1].name, pair[0].name);
                samples.push(pair[1].began.checked_sub(pair[0].ended).context("two holders")?);
            }
        }
    }
    Ok(samples)
}

/// A holder, and waiters that arrive one after another.
fn one_queue(rig: &mut Rig, site: &mut Site) -> anyhow::Result<Vec<Stamp>> {
    let key = rig.new_name();
    let notes = rig.file(&format!("{key}.notes"));
    let urls = site.urls();
    let command = |rig: &Rig, place: usize| noting(redlock_run(rig, &urls, &key), &notes, place);
    let holder = Guarded::spawn_with_stdin(&mut command(rig, 0)?)?;
    wait_until("the first holder has started", || Ok(notes.exists()))?;
    let mut queue = Vec::new();
    for place in 1..=WAITERS {
        queue.push(Guarded::spawn(&mut command(rig, place)?)?);
        wait_until("the waiter has arrived", || Ok(site.servers[0].queue_length(&key)? == place))?;
    }
    holder.finish()?;
    queue.into_iter().try_for_each(Guarded::finish)?;
    let stamps = stamp::read(&notes)?;
    ensure!(stamps.len() == WAITERS + 1, "{} of {} have noted their time", stamps.len(), WAITERS + 1);
    Ok(stamps)
}

fn print(figure: &Figure, servers: usize, samples: &Samples) {
    let near = Summary::of(&samples[0]);
    for (round_trip, samples) in ROUND_TRIPS.iter().zip(samples) {
        let summary = Summary::of(samples);
        let half = format!("{} - {}", ms(summary.lower_quartile), ms(summary.upper_quartile));
        let beyond =
            |time: Duration| time.saturating_sub(near.median).as_secs_f64() / round_trip.as_secs_f64();
        let (mut trips, mut least, mut goal) = (String::new(), String::new(), String::new());
        if !round_trip.is_zero() {
            trips = format!("{:.2} r", beyond(summary.median));
            least = format!("{:.0} r", figure.least);
        }
        if *round_trip >= SHORTEST_GOAL {
            let verdict = if beyond(summary.median) <= figure.goal { "met" } else { "MISSED" };
            goal = format!("<= {:.1} r  {verdict}", figure.goal);
        }
        let line = format!(
            "  {:<10} {servers:>7} {:>5} ms {:>12}  {half:<25} {trips:>9} {least:>8}  {goal}",
            figure.what,
            round_trip.as_millis(),
            ms(summary.median)
        );
        println!("{}", line.trim_end());
    }
}
