//! Chaos: workers that take locks in all modes, a nemesis that breaks what can break, and oracles
//! that detect broken promises. By hand: `scripts/chaos`. As tests: a minute of it, with fixed
//! seeds.
//!
//! - `turn`: the request of one run; `section`: its command, which logs what it sees
//! - `plan`: what the nemesis does, what it must not do, and why; `nemesis`: does it
//! - `worker`: runs redlock in a loop; `runs`: the current runs
//! - `oracle`: what must never happen; `chaos`: one run of all this, and its end
//! - `self_test`: proves that each oracle can detect a violation
//!
//! The seed determines the plan of the nemesis and of every worker; how they coincide depends on
//! the machine.

#[allow(dead_code, unused_imports, unused_macros)]
#[path = "../suite/support/mod.rs"]
#[macro_use]
mod support;

mod chaos;
mod dice;
mod nemesis;
mod oracle;
mod plan;
mod runs;
mod section;
mod self_test;
mod turn;
mod worker;
mod world;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use chaos::{INTERRUPTED, Options};
use plan::Weather;

const USAGE: &str = "usage: scripts/chaos [--seconds N] [--nodes 0|1|3|5] [--seed S] [--workers N]
                     [--weather gentle|remembering|forgetful] [--order fail|report]
                     [--keep-going] [--keep-files] [--plan] [--program PATH]
       scripts/chaos --self-test";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|first| first.to_str()) {
        Some(section::SECTION) => section::main(&args[1..]),
        Some(section::CHILD) => section::child(&args[1..]),
        Some("by-hand") => by_hand(&words(&args[1..])),
        _ => as_tests(&words(&args)),
    }
}

fn words(args: &[OsString]) -> Vec<String> {
    args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

fn catch_interrupts() {
    let _ = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst));
}

fn by_hand(args: &[String]) -> ExitCode {
    catch_interrupts();
    if args == ["--self-test"] {
        return if self_test::run(false) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let Some(options) = parse(args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    let report = chaos::run(&options);
    let verdict = if report.is_interrupted {
        "interrupted".to_owned()
    } else {
        format!("{} violations", report.violations.len())
    };
    println!("chaos: {verdict} in {} turns", report.served);
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(args: &[String]) -> Option<Options> {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.subsec_nanos();
    let mut options = Options::new(3, u64::from(seed) % 1_000_000, 60);
    let mut order_fails = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--keep-going" => options.keep_going = true,
            "--keep-files" => options.keep_files = true,
            "--plan" => options.prints_plan = true,
            "--seconds" => options.seconds = args.next()?.parse().ok()?,
            "--seed" => options.seed = args.next()?.parse().ok()?,
            "--workers" => {
                options.workers = Some(args.next()?.parse().ok().filter(|n| (1..=64).contains(n))?)
            }
            "--nodes" => options.nodes = args.next()?.parse().ok().filter(|n| [0, 1, 3, 5].contains(n))?,
            "--program" => options.program = std::fs::canonicalize(args.next()?).ok()?,
            "--order" => {
                let value = args.next()?;
                order_fails = Some(["report", "fail"].iter().position(|word| word == value)? == 1);
            }
            "--weather" => {
                let weathers = [
                    ("gentle", Weather::Gentle),
                    ("remembering", Weather::Remembering),
                    ("forgetful", Weather::Forgetful),
                ];
                let name = args.next()?;
                options.weather = Some(weathers.into_iter().find(|(word, _)| word == name)?.1);
            }
            _ => return None,
        }
    }
    options.order_fails = order_fails.unwrap_or(true);
    Some(options)
}

/// A test's name, and a function that returns whether it passes.
type Test = (&'static str, fn() -> bool);

/// A minute of chaos, for `cargo test`.
const TESTS: [Test; 4] = [
    ("locks_on_this_host_survive_chaos", || short(0, 1, 8)),
    ("locks_on_one_server_survive_chaos", || short(1, 1, 12)),
    ("locks_on_three_servers_survive_chaos", || short(3, 2, 14)),
    ("every_oracle_detects_a_violation", || self_test::run(true)),
];

fn short(nodes: usize, seed: u64, seconds: u64) -> bool {
    // Tests run on busy machines: no lease is so short that its margin is a moment.
    chaos::run(&Options { shortest_ttl_ms: 2000, ..Options::new(nodes, seed, seconds) }).is_good()
}

/// Acts like cargo's test harness, with the options that cargo and nextest use.
fn as_tests(args: &[String]) -> ExitCode {
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let mut filters: Vec<&String> = Vec::new();
    let mut skipped: Vec<&String> = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--skip" => skipped.extend(rest.next()),
            "--format" | "--test-threads" | "--color" | "-Z" | "--logfile" | "--shuffle-seed" => {
                rest.next();
            }
            flag if flag.starts_with('-') => {}
            _ => filters.push(arg),
        }
    }
    let matches = |name: &str, filter: &String| {
        if has("--exact") { name == filter } else { format!("chaos::{name}").contains(filter.as_str()) }
    };
    let chosen = TESTS.iter().filter(|(name, _)| {
        (filters.is_empty() || filters.iter().any(|filter| matches(name, filter)))
            && !skipped.iter().any(|filter| matches(name, filter))
            && !has("--ignored")
    });
    let chosen: Vec<_> = chosen.collect();
    if has("--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    catch_interrupts();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = Vec::new();
    for (name, test) in &chosen {
        let start = Instant::now();
        let is_good = !INTERRUPTED.load(Ordering::SeqCst) && test();
        println!(
            "test {name} ... {} ({:.0} s)",
            if is_good { "ok" } else { "FAILED" },
            start.elapsed().as_secs_f64()
        );
        if !is_good {
            failed.push(*name);
        }
    }
    println!(
        "\ntest result: {}. {} failed {failed:?}\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}
