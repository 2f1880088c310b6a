//! What a plain acquire or release costs the server, by its own count.

use crate::crowd;
use crate::many::text;
use crate::report::Row;
use crate::rig::{Rig, with};
use crate::script_calls;
use crate::stopwatch::Stopwatch;

const RUNS: usize = 200;
const CALLS: usize = 2000;
/// Microseconds: between other work, with cold caches, and in a loop that does nothing else.
const GOAL: f64 = 50.0;
const GOAL_HOT: f64 = 18.0;

pub fn measure(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let key = rig.new_name();
    let mut run = with(rig.redlock_run(&rig.server.tcp_url(), &key), "true");
    let stopwatch = Stopwatch::new();
    stopwatch.time(&mut run)?;
    let between = micros_a_call(rig, |_| (0..RUNS).try_for_each(|_| stopwatch.time(&mut run).map(drop)))?;
    for command in script_calls::load() {
        rig.server.command(&command)?;
    }
    let asker = crowd::writer(0);
    let hot = micros_a_call(rig, |rig| {
        for _ in 0..CALLS {
            for words in [asker.acquire(), asker.release_with_history()] {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                rig.server.command(&words)?;
            }
        }
        Ok(())
    })?;
    let row = |what: &str, micros: f64, goal: f64| {
        Row::new(what, format!("{micros:.0} us")).goal(format!("<= {goal} us"), micros <= goal)
    };
    Ok(vec![row("between other work", between, GOAL), row("in a hot loop", hot, GOAL_HOT)])
}

/// The mean time of the scripts that are called meanwhile.
fn micros_a_call(rig: &mut Rig, work: impl FnOnce(&mut Rig) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    rig.server.command(&["CONFIG", "RESETSTAT"])?;
    work(rig)?;
    let stats = text(rig.server.command(&["INFO", "commandstats"])?);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
    let mean = line.split(',').find_map(|part| part.strip_prefix("usec_per_call="));
    Ok(mean.unwrap_or("0").parse()?)
}
