//! The simulator: the real client of lock/redis and the real scripts of lua/, on virtual time.
//!
//! - `server`: a virtual Redis server, which executes the scripts in Lua 5.1
//! - `differential`: it behaves as a real redis-server (`real_server`)
//! - `network`: virtual TCP between clients and servers, by the kernel's rules
//! - `scheduler`: one event at a time, one client at a time, everything from one seed
//! - `client`: what a process does; `scenario`: what a seed makes happen; `episode`: it happens
//! - `oracle`: what must never happen; `trace`: what happened; `shrink`: what of it was needed
//! - `mutant`: rules that are left out, which the oracles must notice
//!
//! As a test it compares the virtual server with a real one, runs fixed seeds, and looks for every
//! mutant. By hand: `scripts/simulate`.

#[allow(dead_code, unused_imports)]
#[path = "../../src/clock.rs"]
mod clock;
#[allow(dead_code)]
#[path = "../chaos/dice.rs"]
mod dice;
#[allow(dead_code)]
#[path = "../../src/exit.rs"]
mod exit;
#[allow(dead_code, unused_imports)]
#[path = "../../src/lock/mod.rs"]
mod lock;
#[allow(dead_code)]
#[path = "../../src/world.rs"]
mod world;

mod client;
mod differential;
mod episode;
mod mutant;
mod network;
mod oracle;
mod real_server;
mod scenario;
mod scheduler;
mod scripts;
mod search;
mod server;
mod shrink;
mod trace;

use std::process::ExitCode;
use std::time::Duration;

use mutant::Mutant;
use scenario::{Feature, plot};
use search::{Search, Total};

const USAGE: &str = "usage: scripts/simulate [--seconds N] [--seed S] [--servers 1|3|5] [--mutant M]
                        [--features A,B,...] [--plot P] [--trace] [--keep-going]
       scripts/simulate --mutants          lists the mutants";

/// As a test: how many seeds for each number of servers, and for each mutant at most.
const SEEDS: [(usize, u64); 3] = [(1, 300), (3, 280), (5, 80)];
/// Seeds that once failed, and their number of servers.
const FAILED_ONCE: [(usize, u64); 15] = [
    (3, 201_289),
    (1, 300_792),
    (5, 302_283),
    (3, 400_986),
    (1, 401_688),
    (3, 500_865),
    (3, 501_418),
    (5, 602_223),
    (3, 602_705),
    (3, 801_689),
    (5, 810_719),
    (3, 3_010_706),
    (3, 6_001_521),
    (3, 7_002_998),
    (1, 9_001_199),
];
const SEEDS_FOR_MUTANT: u64 = 200;
const SEEDS_FOR_PLOT: u64 = 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("by-hand") => by_hand(&args[1..]),
        _ => as_tests(),
    }
}

/// Prints as the test runners do.
#[derive(Default)]
struct Results {
    passed: usize,
    failed: usize,
}

impl Results {
    fn add(&mut self, name: &str, is_ok: bool, about: &str) {
        *(if is_ok { &mut self.passed } else { &mut self.failed }) += 1;
        println!("test {name} ... {} {about}", if is_ok { "ok" } else { "FAILED" });
    }
}

fn as_tests() -> ExitCode {
    let mut results = Results::default();
    for (name, compared) in differential::all() {
        results.add(name, compared.is_ok(), &compared.unwrap_or_else(|difference| difference));
    }
    let mut grants = 0;
    for (servers, seeds) in SEEDS {
        let total = Search { servers: Some(servers), ..Search::default() }.seeds(1, seeds);
        results.add(
            &format!("no_promise_is_broken_on_{servers}_servers"),
            total.violations == 0,
            &total.summary(),
        );
        grants += total.grants;
    }
    for (servers, seed) in FAILED_ONCE {
        let total = Search { servers: Some(servers), ..Search::default() }.seeds(seed, 1);
        let name = format!("no_promise_is_broken_with_seed_{seed}_on_{servers}_servers");
        results.add(&name, total.violations == 0, &total.summary());
    }
    for plot in plot::ALL {
        let total = Search { plot: Some(plot), ..Search::default() }.seeds(1, SEEDS_FOR_PLOT);
        results.add(&format!("the_plot_{plot:?}_does_no_harm"), total.violations == 0, &total.summary());
    }
    results.add("the_clients_get_locks", grants > 1000, "");
    let once = || Search { servers: Some(3), ..Search::default() }.seeds(7, 2).trace;
    results.add("a_seed_gives_one_trace", once() == once(), "");
    for mutant in mutant::ALL {
        let search = Search {
            servers: Some(mutant.servers),
            features: mutant.features.to_vec(),
            plot: mutant.plot,
            mutant: Some(mutant),
            is_quiet: true,
            ..Search::default()
        };
        let total = search.until_found(SEEDS_FOR_MUTANT);
        let is_found = total.violations > 0 && mutant.changes_something();
        results.add(
            &format!("the_mutant_{}_is_found", mutant.name.replace('-', "_")),
            is_found,
            &total.summary(),
        );
    }
    println!("{} passed, {} failed", results.passed, results.failed);
    if results.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn by_hand(args: &[String]) -> ExitCode {
    let (mut seconds, mut seed, mut search) = (None, None, Search { shrinks: true, ..Search::default() });
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|number| number.parse::<u64>().ok());
        let is_known = match word.as_str() {
            "--seconds" => number().map(|n| seconds = Some(n)).is_some(),
            "--seed" => number().map(|n| seed = Some(n)).is_some(),
            "--servers" => number().filter(|n| *n > 0).map(|n| search.servers = Some(n as usize)).is_some(),
            "--features" => {
                let names = words.next().map_or("", String::as_str).split(',');
                let features: Option<Vec<Feature>> = names.map(Feature::parse).collect();
                features.map(|features| search.features = features).is_some()
            }
            "--plot" => {
                let name = words.next().map_or("", String::as_str);
                search.plot = plot::ALL.into_iter().find(|plot| format!("{plot:?}") == name);
                search.plot.is_some()
            }
            "--mutant" => {
                search.mutant = words.next().and_then(|name| Mutant::by_name(name));
                search.mutant.filter(|mutant| mutant.changes_something()).is_some_and(|mutant| {
                    (search.servers, search.features) = (Some(mutant.servers), mutant.features.to_vec());
                    search.plot = mutant.plot;
                    true
                })
            }
            "--mutants" => {
                mutant::ALL.iter().for_each(|mutant| println!("{}", mutant.name));
                return ExitCode::SUCCESS;
            }
            "--trace" => {
                search.is_traced = true;
                true
            }
            "--keep-going" => {
                search.keeps_going = true;
                true
            }
            _ => false,
        };
        if !is_known {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    }
    let total: Total = match (seconds, seed) {
        // One seed is looked at.
        (None, Some(seed)) => search.seeds(seed, 1),
        (seconds, seed) => search.for_time(seed.unwrap_or(1), Duration::from_secs(seconds.unwrap_or(60))),
    };
    println!("{}", total.summary());
    if total.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
