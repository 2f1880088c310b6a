//! Does anything grow? Runs of all kinds on one server, on three servers and on this host, for any
//! time, beside holders and waiters that live all the time. Run it with scripts/soak.
//!
//! Now and then the runs pause, and what is left is counted (figures.rs). The number of keys is
//! bounded, so after the first tenth of the time everything that may exist does: any more at the
//! end is a leak.

#[path = "../../tests/chaos/dice.rs"]
#[allow(dead_code)]
mod dice;
mod figures;
#[path = "../against_flock/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../against_flock/server.rs"]
#[allow(dead_code)]
mod server;
mod turn;
mod world;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use dice::Dice;
use figures::Figures;
use turn::Turn;
use world::{BACKENDS, Backend, World};

const WORKERS_OF_BACKEND: u64 = 2;
const SAMPLES: u32 = 20;
const DEFAULT_MINUTES: f64 = 30.0;

/// State that all threads share.
struct SharedState {
    world: World,
    is_over: AtomicBool,
    /// Locked for reading during a turn, for writing during a count.
    pause: RwLock<()>,
    /// Runs, by backend.
    runs: [AtomicU64; BACKENDS.len()],
    killed: AtomicU64,
    held: AtomicU64,
    /// Failures of runs.
    failures: Mutex<Vec<String>>,
}

fn main() -> ExitCode {
    match start() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot soak: {error:#}");
            ExitCode::from(69)
        }
    }
}

/// Returns whether nothing has grown and every run has ended as it should.
fn start() -> anyhow::Result<bool> {
    let minutes = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => DEFAULT_MINUTES,
        [option, minutes] if option == "--minutes" => minutes.parse().context("--minutes")?,
        _ => anyhow::bail!("usage: [--minutes N]"),
    };
    ensure!((0.2..=24.0 * 60.0).contains(&minutes), "--minutes must be 0.2 to 1440");
    let time = Duration::from_secs_f64(minutes * 60.0);
    let shared = SharedState {
        world: World::start()?,
        is_over: AtomicBool::new(false),
        pause: RwLock::new(()),
        runs: Default::default(),
        killed: AtomicU64::new(0),
        held: AtomicU64::new(0),
        failures: Mutex::new(Vec::new()),
    };
    let all = &shared;
    let samples = thread::scope(|scope| {
        for (at, backend) in BACKENDS.into_iter().enumerate() {
            for worker in 0..WORKERS_OF_BACKEND {
                let dice = Dice::new(std::process::id().into(), at as u64 * WORKERS_OF_BACKEND + worker);
                scope.spawn(move || all.work(backend, dice));
            }
        }
        let samples = shared.sample(time);
        shared.is_over.store(true, SeqCst);
        samples
    })?;
    println!("{}", figures::table(&samples));
    let [one, three, host] = shared.runs.each_ref().map(|runs| runs.load(SeqCst));
    let (held, killed) = (shared.held.load(SeqCst), shared.killed.load(SeqCst));
    println!(
        "{} runs in {minutes} minutes: {one} on one server, {three} on three, {host} on this host;",
        one + three + host
    );
    println!("{held} found the lock held, {killed} were killed");
    let grown = figures::grown(&samples);
    let failures = shared.failures.into_inner().unwrap_or_default();
    grown.iter().for_each(|what| println!("GROWN: {what}"));
    failures.iter().take(10).for_each(|what| println!("FAILED: {what}"));
    println!("{} figures have grown, {} runs have failed", grown.len(), failures.len());
    Ok(grown.is_empty() && failures.is_empty())
}

impl SharedState {
    fn work(&self, backend: Backend, mut dice: Dice) {
        while !self.is_over.load(SeqCst) {
            let _turn = self.pause.read().expect("no thread panics");
            let turn = Turn::draw(backend, &mut dice);
            match turn.play(&self.world) {
                Ok(turn::End::Ran) => {}
                Ok(turn::End::Held) => drop(self.held.fetch_add(1, SeqCst)),
                Ok(turn::End::Killed) => drop(self.killed.fetch_add(1, SeqCst)),
                Err(why) => {
                    self.failures.lock().expect("no thread panics").push(format!("{turn:?}: {why:#}"))
                }
            }
            self.runs[backend as usize].fetch_add(1, SeqCst);
        }
    }

    /// The first sample is taken after a tenth of the time, the last one at its end.
    fn sample(&self, time: Duration) -> anyhow::Result<Vec<Figures>> {
        let (started, warm_up) = (Instant::now(), time / 10);
        let mut samples = Vec::new();
        for sample in 0..SAMPLES {
            let due = warm_up + (time - warm_up) * sample / (SAMPLES - 1);
            thread::sleep(due.saturating_sub(started.elapsed()));
            let _pause = self.pause.write().expect("no thread panics");
            samples.push(self.world.count()?);
            let runs: u64 = self.runs.iter().map(|runs| runs.load(SeqCst)).sum();
            println!("{:>5} s  {runs:>7} runs  {}", started.elapsed().as_secs(), figures::line(&samples));
        }
        Ok(samples)
    }
}
