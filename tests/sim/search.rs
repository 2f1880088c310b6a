//! Runs many seeds on all processors, and adds up what they give.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::episode::{self, Report};
use crate::mutant::Mutant;
use crate::scenario::plot::Plot;
use crate::scenario::{Feature, Scenario};
use crate::shrink::shrink;

/// What is looked at, and how it is shown.
#[derive(Clone, Default)]
pub struct Search {
    /// `None`: each seed decides.
    pub servers: Option<usize>,
    pub mutant: Option<&'static Mutant>,
    /// Every seed has these features and no others; empty: each seed decides.
    pub features: Vec<Feature>,
    /// Every seed plays this plot.
    pub plot: Option<Plot>,
    pub is_traced: bool,
    /// A violation does not end the search.
    pub keeps_going: bool,
    /// A failing scenario is made shorter before it is shown.
    pub shrinks: bool,
    /// Violations are counted, but not shown.
    pub is_quiet: bool,
}

/// What several seeds have given.
#[derive(Clone, Debug, Default)]
pub struct Total {
    pub seeds: u64,
    pub grants: u64,
    pub faults: u64,
    /// Runs inside other runs.
    pub nested: usize,
    pub simulated_us: u64,
    pub violations: usize,
    pub trace: u64,
    /// The kinds of violations.
    kinds: BTreeMap<&'static str, usize>,
    first_failing: Option<u64>,
}

impl Total {
    pub fn summary(&self) -> String {
        let found = self.first_failing.map_or(String::new(), |seed| format!(r#","first_failing":{seed}"#));
        let kinds: Vec<String> =
            self.kinds.iter().map(|(kind, count)| format!(r#""{kind}":{count}"#)).collect();
        let kinds =
            if kinds.is_empty() { String::new() } else { format!(r#","kinds":{{{}}}"#, kinds.join(",")) };
        format!(
            r#"{{"seeds":{},"grants":{},"faults":{},"nested":{},"simulated_s":{},"violations":{},"trace":"{:016x}"{found}{kinds}}}"#,
            self.seeds,
            self.grants,
            self.faults,
            self.nested,
            self.simulated_us / 1_000_000,
            self.violations,
            self.trace
        )
    }

    fn add(&mut self, seed: u64, report: &Report) {
        self.seeds += 1;
        self.grants += report.grants;
        self.faults += report.faults;
        self.nested += report.nested;
        self.simulated_us += report.simulated_us;
        self.violations += report.violations.len();
        for violation in &report.violations {
            *self.kinds.entry(violation.kind).or_default() += 1;
        }
        if !report.violations.is_empty() {
            self.first_failing = Some(self.first_failing.map_or(seed, |first| first.min(seed)));
        }
        // Seeds may end in any order: their sum is the same.
        self.trace = self.trace.wrapping_add(report.trace_hash.rotate_left((seed % 64) as u32));
    }
}

impl Search {
    /// This many seeds.
    pub fn seeds(&self, first: u64, count: u64) -> Total {
        self.run(first, |seed, _| seed < first + count)
    }

    pub fn for_time(&self, first: u64, time: Duration) -> Total {
        let ends = Instant::now() + time;
        self.run(first, |_, found| Instant::now() < ends && (self.keeps_going || !found))
    }

    /// Until a violation is found, with at most this many seeds.
    pub fn until_found(&self, most: u64) -> Total {
        self.run(1, |seed, found| seed <= most && !found)
    }

    fn run(&self, first: u64, goes_on: impl Fn(u64, bool) -> bool + Sync) -> Total {
        let (next, has_found, total) =
            (AtomicU64::new(first), AtomicBool::new(false), Mutex::new(Total::default()));
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if !goes_on(seed, has_found.load(Ordering::Relaxed)) {
                            return;
                        }
                        let report = self.run_seed(seed);
                        if !report.violations.is_empty() && !has_found.swap(true, Ordering::Relaxed) {
                            self.show(seed, &report);
                        } else if self.keeps_going {
                            self.show_new_kinds(seed, &report, &total);
                        }
                        total.lock().expect("no thread panics").add(seed, &report);
                    }
                });
            }
        });
        total.into_inner().expect("no thread panics")
    }

    fn scenario(&self, seed: u64) -> Scenario {
        if let Some(plot) = self.plot {
            return plot.draw(seed);
        }
        let servers = self.servers.unwrap_or([1, 3, 3, 5][(seed % 4) as usize]);
        Scenario::draw(seed, servers, &self.features)
    }

    fn run_seed(&self, seed: u64) -> Report {
        let scenario = self.scenario(seed);
        let report = episode::run(&scenario, self.mutant, self.is_traced);
        if self.is_traced {
            report.trace.iter().for_each(|line| println!("{line}"));
        }
        report
    }

    /// The first violation of each kind.
    fn show_new_kinds(&self, seed: u64, report: &Report, total: &Mutex<Total>) {
        let mut shown = total.lock().expect("no thread panics").kinds.clone();
        for violation in &report.violations {
            if shown.insert(violation.kind, 1).is_none() {
                println!(
                    "seed {seed}: {} at {:.3} s: {}",
                    violation.kind,
                    violation.at_us as f64 / 1e6,
                    violation.text
                );
            }
        }
    }

    /// The first violation, with the shortest scenario that has it.
    fn show(&self, seed: u64, report: &Report) {
        if self.is_quiet {
            return;
        }
        let first = &report.violations[0];
        println!("seed {seed}: {} at {:.3} s: {}", first.kind, first.at_us as f64 / 1e6, first.text);
        println!("features: {:?}", self.scenario(seed).features);
        if !self.shrinks || self.keeps_going {
            return;
        }
        let scenario = self.scenario(seed);
        let shortest = shrink(&scenario, self.mutant, first.kind);
        println!("shortened from {} steps to {}:", scenario.steps.len(), shortest.steps.len());
        let report = episode::run(&shortest, self.mutant, true);
        let at_us = report.violations.first().map_or(u64::MAX, |violation| violation.at_us);
        let seconds =
            |line: &String| line.trim().split(' ').next().and_then(|number| number.parse::<f64>().ok());
        let is_before = |line: &&String| seconds(line).is_none_or(|at| at * 1e6 <= at_us as f64 + 1.0);
        report.trace.iter().filter(is_before).for_each(|line| println!("{line}"));
        for violation in &report.violations {
            println!(
                "violation: {} at {:.3} s: {}",
                violation.kind,
                violation.at_us as f64 / 1e6,
                violation.text
            );
        }
    }
}
