//! The simulator: the real client of lock/redis and the real scripts of lua/, on virtual time.
//!
//! - `server`: a virtual Redis server, which executes the scripts in Lua 5.1
//! - `differential`: that it behaves as a real redis-server
//! - `network`: virtual TCP between clients and servers, by the kernel's rules
//! - `scheduler`: one event at a time, one client at a time, everything from one seed
//! - `client`: what a process does; `episode`: clients, servers and faults of one seed
//! - `oracle`: what must never happen; `trace`: what happened
//!
//! As a test it compares the virtual server with a real one and runs fixed seeds. By hand:
//! `scripts/simulate`.

#[allow(dead_code, unused_imports, unused_macros)]
#[path = "../suite/support/mod.rs"]
#[macro_use]
mod support;

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
mod network;
mod oracle;
mod scheduler;
mod server;
mod trace;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use episode::{Options, Report};

const USAGE: &str = "usage: scripts/simulate [--seconds N] [--seed S] [--servers 1|3|5] [--trace]";

/// As a test: how many seeds for each number of servers.
const SEEDS: u64 = 4;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("by-hand") => by_hand(&args[1..]),
        _ => as_tests(),
    }
}

fn as_tests() -> ExitCode {
    let mut failed = 0;
    for seed in 1..=10 {
        differential::compare(seed, 2000);
    }
    println!("test the_virtual_server_replies_as_a_real_one ... ok");
    for servers in [1, 3, 5] {
        let total = run_seeds(1, &Options { servers, is_traced: false }, |done| done.seeds < SEEDS);
        let is_ok = total.violations == 0 && total.grants > 0;
        failed += usize::from(!is_ok);
        let result = if is_ok { "ok" } else { "FAILED" };
        println!("test no_promise_is_broken_on_{servers}_servers ... {result} ({})", total.summary());
    }
    // The same seed gives the same events.
    let options = Options { servers: 3, is_traced: false };
    let hashes = [0, 1].map(|_| run_seeds(7, &options, |done| done.seeds < 1).trace);
    failed += usize::from(hashes[0] != hashes[1]);
    println!("test a_seed_gives_one_trace ... {}", if hashes[0] == hashes[1] { "ok" } else { "FAILED" });
    println!("{} passed, {failed} failed", 5 - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn by_hand(args: &[String]) -> ExitCode {
    let (mut seconds, mut seed, mut options) = (60, 1, Options { servers: 3, is_traced: false });
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|number| number.parse::<u64>().ok());
        let is_known = match word.as_str() {
            "--seconds" => number().map(|n| seconds = n).is_some(),
            "--seed" => number().map(|n| seed = n).is_some(),
            "--servers" => number().map(|n| options.servers = n as usize).is_some(),
            "--trace" => {
                options.is_traced = true;
                true
            }
            _ => false,
        };
        if !is_known || options.servers == 0 {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    }
    let ends = Instant::now() + Duration::from_secs(seconds);
    let total = run_seeds(seed, &options, |done| {
        // With --trace one seed is looked at.
        if options.is_traced { done.seeds < 1 } else { Instant::now() < ends }
    });
    println!("{}", total.summary());
    if total.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What several seeds have given.
#[derive(Default)]
struct Total {
    seeds: u64,
    grants: u64,
    faults: u64,
    simulated_us: u64,
    violations: usize,
    trace: u64,
}

impl Total {
    fn summary(&self) -> String {
        format!(
            r#"{{"seeds":{},"grants":{},"faults":{},"simulated_s":{},"violations":{},"trace":"{:016x}"}}"#,
            self.seeds,
            self.grants,
            self.faults,
            self.simulated_us / 1_000_000,
            self.violations,
            self.trace
        )
    }
}

fn run_seeds(first: u64, options: &Options, goes_on: impl Fn(&Total) -> bool) -> Total {
    let mut total = Total::default();
    while goes_on(&total) {
        let seed = first + total.seeds;
        let Report { grants, faults, simulated_us, violations, trace_hash, trace } =
            episode::run(seed, options);
        trace.iter().for_each(|line| println!("{line}"));
        violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
        total.seeds += 1;
        total.grants += grants;
        total.faults += faults;
        total.simulated_us += simulated_us;
        total.violations += violations.len();
        total.trace = total.trace.rotate_left(7) ^ trace_hash;
    }
    total
}
