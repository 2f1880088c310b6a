#[path = "model/exclusion.rs"]
mod exclusion;
#[path = "model/fence.rs"]
mod fence;
#[path = "model/names.rs"]
mod names;
#[path = "model/rules.rs"]
mod rules;

use exclusion::*;
use rules::Rules;
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Instant;

const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;

fn gof<const C: usize>() {
    let mut rules = Rules::ALL;
    match std::env::var("OFF").as_deref() {
        Ok("raise") => rules.raise_round = false,
        Ok("clock") => rules.clock_floor = false,
        _ => {}
    }
    let model = fence::Fence::<C> {
        rules,
        attempts: env("ATT", 1),
        largest_fence: env("F", 4),
        spread: env("SPREAD", 2),
        empty_restarts: env("RST", 0),
        symmetry: env("SYM", 1) == 1,
    };
    let start = Instant::now();
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .threads(env("THREADS", 2) as usize)
        .target_state_count(std::env::var("MAX").map_or(0, |v| v.parse().unwrap()))
        .spawn_bfs()
        .join();
    println!(
        "{:?} unique {} gen {} depth {} {:?}",
        model,
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    for (name, path) in checker.discoveries() {
        println!("{name}: {} steps", path.clone().into_actions().len());
        if name == fence::UNIQUE || name == fence::ORDERED {
            println!("  F {:?}", path.clone().into_states()[0].nodes.map(|n| n.fence));
            for a in path.into_actions() {
                println!("  {a:?}");
            }
        }
    }
}
#[test]
fn f2() {
    gof::<2>();
}
#[test]
fn f3() {
    gof::<3>();
}
fn env(name: &str, default: u8) -> u8 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap())
}

fn go<const C: usize>() {
    let mut rules = Rules::ALL;
    match std::env::var("OFF").as_deref() {
        Ok("deadline") => rules.deadline = false,
        Ok("attempt") => rules.attempt_numbers = false,
        Ok("quarantine") => rules.quarantine = false,
        Ok("first") => rules.rest_comes_first = false,
        Ok("chain") => rules.rest_breaks_chain = false,
        _ => {}
    }
    let model = Exclusion::<C> {
        rules,
        ttl: env("TTL", 2),
        attempts: env("ATT", 1),
        restarts: env("RST", 0),
        renewals: env("REN", 1) == 1,
        healing: match env("HEAL", 2) {
            0 => Healing::Never,
            1 => Healing::ByTheRule,
            _ => Healing::AtWill,
        },
        symmetry: env("SYM", 1) == 1,
    };
    let start = Instant::now();
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .threads(env("THREADS", 2) as usize)
        .target_state_count(std::env::var("MAX").map_or(0, |v| v.parse().unwrap()))
        .spawn_bfs()
        .join();
    println!(
        "{:?} unique {} gen {} depth {} {:?}",
        model,
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    for (name, path) in checker.discoveries() {
        println!("{name}: {} steps", path.clone().into_actions().len());
        if name == EXCLUSION {
            for a in path.into_actions() {
                println!("  {a:?}");
            }
        }
    }
}

#[test]
fn two() {
    go::<2>();
}
#[test]
fn three() {
    go::<3>();
}
