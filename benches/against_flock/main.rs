//! redlock beside flock(1), and beside the least that a Redis lock can cost. Run it by scripts/bench.
//!
//! What is compared runs in turn (A B C A B C ...) in one go, so that a slow moment of the machine hits
//! all alike and the ratios mean something where the times do not. Missing a goal is a figure, not a
//! failure: the exit code tells only whether it could be measured.

mod handover;
mod holding;
mod process;
mod report;
mod rig;
mod server;
mod stamp;
mod statistics;
mod stopwatch;
mod uncontended;
mod waiting;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use rig::Rig;

/// How much of everything.
struct Effort {
    uncontended_rounds: usize,
    /// Waiters, and how many rounds with so many.
    handovers: [(usize, usize); 2],
    waiting_for: Duration,
}

const FULL: Effort =
    Effort { uncontended_rounds: 400, handovers: [(8, 16), (50, 5)], waiting_for: Duration::from_secs(10) };
const QUICK: Effort =
    Effort { uncontended_rounds: 60, handovers: [(8, 5), (50, 2)], waiting_for: Duration::from_secs(4) };

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot measure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, file, name] = arguments.as_slice()
        && word == stamp::ARGUMENT
    {
        return stamp::hold_and_note(file, name);
    }
    // Whoever started us was killed: nothing of ours stays, since the same holds for our children.
    set_pdeathsig(Signal::SIGKILL)?;
    let quick = arguments.iter().any(|argument| argument == "--quick");
    measure(if quick { &QUICK } else { &FULL })
}

fn measure(effort: &Effort) -> anyhow::Result<()> {
    let mut rig = Rig::build()?;
    report::heading(&mut rig);
    let uncontended = uncontended::measure(&mut rig, effort.uncontended_rounds).context("uncontended")?;
    report::section("uncontended: the whole process, start to end", &uncontended);
    let counts = uncontended::count_requests(&mut rig).context("requests")?;
    report::section("uncontended: what the server sees of one run", &counts);
    for (waiters, rounds) in effort.handovers {
        let rows = handover::measure(&mut rig, waiters, rounds)
            .with_context(|| format!("hand-over with {waiters} waiters"))?;
        report::section(
            &format!("hand-over, {waiters} waiters: end of one holder to start of the next"),
            &rows,
        );
    }
    let waiting = waiting::measure(&mut rig, effort.waiting_for).context("waiting")?;
    report::section("while waiting", &waiting);
    let holding = holding::measure(&mut rig).context("holding")?;
    report::section("while holding", &holding);
    Ok(())
}
