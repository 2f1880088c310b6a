//! Makes a failing scenario shorter: what is left out changes nothing about the violation.

use crate::episode;
use crate::mutant::Mutant;
use crate::scenario::Scenario;

/// At most this many tries.
const MOST_TRIES: usize = 400;

/// Removes steps for as long as the same kind of violation remains.
pub fn shrink(scenario: &Scenario, mutant: Option<&'static Mutant>, kind: &str) -> Scenario {
    let mut best = scenario.clone();
    let mut tries = 0;
    let mut fails = |candidate: &Scenario| {
        tries += 1;
        let report = episode::run(candidate, mutant, false);
        tries <= MOST_TRIES && report.violations.iter().any(|violation| violation.kind == kind)
    };
    // What happens after the violation is not needed.
    let report = episode::run(&best, mutant, false);
    if let Some(first) = report.violations.iter().find(|violation| violation.kind == kind) {
        let mut candidate = best.clone();
        candidate.steps.retain(|step| step.at_us <= first.at_us);
        if fails(&candidate) {
            best = candidate;
        }
    }
    let mut chunk = best.steps.len() / 2;
    while chunk > 0 {
        let mut from = 1;
        // The first step makes the servers known.
        while from < best.steps.len() {
            let mut candidate = best.clone();
            candidate.steps.drain(from..(from + chunk).min(best.steps.len()));
            if fails(&candidate) {
                best = candidate;
            } else {
                from += chunk;
            }
        }
        chunk /= 2;
    }
    best
}
