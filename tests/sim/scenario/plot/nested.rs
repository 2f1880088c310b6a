//! Runs inside runs.

use super::*;
use crate::client::Inside;
use crate::lock::Mode;

/// More processes do not start: see `MOST_PROCESSES` in episode.
const MOST_RUNS: usize = 11;

pub(super) fn circle(stage: &mut Stage) {
    let length = stage.0.dice.between(2, 4) as usize;
    let keys = &["a", "b", "c", "d"][..length];
    // How the keys are held, how the runs inside ask for them, and how many hold one of them.
    let ways = [
        (Mode::Exclusive, Mode::Exclusive, 1),
        (Mode::Shared { group: Vec::new() }, Mode::Exclusive, 1),
        (Mode::Exclusive, Mode::Shared { group: Vec::new() }, 1),
        (Mode::Slot { of: 1 }, Mode::Slot { of: 1 }, 1),
        (Mode::Slot { of: 2 }, Mode::Slot { of: 2 }, 2),
    ];
    let fitting = if length == 2 { ways.len() } else { ways.len() - 1 };
    let (outer, inner, holders) = ways[stage.0.dice.next() as usize % fitting].clone();
    // The first machine is switched off before the last run asks: there is no circle then.
    let one_dies = holders == 1 && stage.0.dice.percent(30);
    // A slot gets free by itself: there is no circle either.
    let one_ends = holders == 2 && stage.0.dice.percent(50);
    for at in 0..length * holders {
        let (key, next) = (keys[at % length], keys[(at + 1) % length]);
        let begins = stage.between_ms(0, 100);
        let is_last = at + 1 == length * holders;
        if is_last && one_ends {
            nest(stage, begins, &[(key, outer.clone())], (2000, 3000));
            continue;
        }
        let after_ms = if is_last && one_dies { (600, 1500) } else { (1, 200) };
        let runs = nest(stage, begins, &[(key, outer.clone()), (next, inner.clone())], after_ms);
        if one_dies && at == 0 {
            let dies_at = stage.between_ms(400, 550);
            switch_off(stage, dies_at, &runs);
        }
    }
    // Another one, which holds nothing, waits for a key.
    if stage.0.dice.percent(50) {
        let (mut waiter, begins) = (stage.run(QUEUES, Stage::command(0), 5, 30), stage.between_ms(0, 600));
        if let Job::Run(run) = &mut waiter.job {
            run.mode = inner;
        }
        stage.start(begins, waiter);
    }
}

pub(super) fn nested(stage: &mut Stage) {
    let is_ordered = stage.0.dice.percent(50);
    let modes = match stage.0.dice.between(0, 2) {
        0 => vec![Mode::Exclusive],
        1 => vec![Mode::Exclusive, Mode::Shared { group: Vec::new() }],
        _ => vec![Mode::Slot { of: 2 }],
    };
    let (mut runs, mut nests) = (0, Vec::new());
    loop {
        let depth = stage.0.dice.one_of(&[1, 2, 2, 2, 3]);
        runs += depth;
        if runs > MOST_RUNS {
            break;
        }
        let mut keys = Vec::new();
        while keys.len() < depth {
            let key = stage.0.dice.one_of(&["a", "b", "c"]);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if is_ordered {
            keys.sort_unstable();
        }
        let mode = |key| (key, modes[stage.0.dice.next() as usize % modes.len()].clone());
        let locks: Vec<(&str, Mode)> = keys.into_iter().map(mode).collect();
        let begins = stage.between_ms(0, 1500);
        nests.push(nest(stage, begins, &locks, (1, 1000)));
    }
    if stage.0.dice.percent(40) {
        let (victim, at) = (stage.0.dice.next() as usize % nests.len(), stage.between_ms(100, 5000));
        switch_off(stage, at, &nests[victim]);
    }
}

fn switch_off(stage: &mut Stage, at_us: u64, runs: &[u64]) {
    for &actor in runs {
        stage.fault(at_us, Fault::Kill { actor, has_guardian: false });
    }
}

/// Runs inside each other, each with its lock, which they ask for this long after their outer runs have
/// theirs. Returns their numbers.
fn nest(stage: &mut Stage, at_us: u64, locks: &[(&str, Mode)], after_ms: (u64, u64)) -> Vec<u64> {
    let mut numbers = Vec::new();
    for (at, (key, mode)) in locks.iter().enumerate() {
        let lives = Duration::from_micros(stage.between_ms(after_ms.0, after_ms.1));
        let mut actor = stage.run(QUEUES, Subject::Command(lives), 5, 30);
        if let Job::Run(run) = &mut actor.job {
            (run.keys, run.mode) = (vec![(*key).to_owned()], mode.clone());
            run.inside = numbers.last().map(|&outer| Inside { outer, after: lives });
            if at + 1 < locks.len() {
                // Numbers are given in order.
                run.subject = Subject::Nested(actor.number + 1);
            }
        }
        numbers.push(stage.start(at_us, actor));
    }
    numbers
}
