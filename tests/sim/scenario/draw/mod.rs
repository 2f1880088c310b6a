//! Draws a scenario.

mod faults;

use std::collections::BTreeSet;
use std::time::Duration;

use super::{
    Actor, Cut, FEATURES, FIRST_START_US, Fault, Feature, HARMFUL, Keeps, Scenario, Step, What, address,
};
use crate::client::{Access, Job, Run, Subject, plain_run};
use crate::dice::Dice;
use crate::lock::{BreakMode, Mode, PROTOCOL, Prefer, Timing, WaitPolicy};
use crate::network::ServerId;
use crate::scheduler::{Clock, Site};

use Feature as F;

/// After the last fault, clients need this time until nothing reminds of it: a gate that was late is
/// avoided for 10 s, a silent connection is given up after a few seconds.
const SETTLING_US: u64 = 15_000_000;
/// A clock that is set back lengthens the leases on its server by this time at most.
const LONGEST_STEP_BACK_US: u64 = 8_000_000;
/// A server that was restarted does not vote for half a minute.
const SETTLING_AFTER_RESTART_US: u64 = 60_000_000;
const QUIET_US: u64 = 6_000_000;

pub(super) fn draw(seed: u64, servers: usize, only: &[Feature]) -> Scenario {
    let mut draft = Draft::new(seed, servers, only);
    draft.draw_all();
    draft.scenario
}

/// An actor, when it starts, and when it ends if it gets its lock at once.
struct Recent {
    starts: u64,
    ends: u64,
    actor: Actor,
}

pub(super) struct Draft {
    pub dice: Dice,
    pub scenario: Scenario,
    /// The actors whose processes may be living.
    recent: Vec<Recent>,
    next_actor: u64,
    /// A server that never loses its data.
    spared: Option<ServerId>,
}

fn choose_features(dice: &mut Dice, servers: usize) -> BTreeSet<Feature> {
    let is_harmless = dice.percent(25);
    let mut chosen: BTreeSet<Feature> =
        FEATURES.iter().filter(|(_, chance)| dice.percent(*chance)).map(|(feature, _)| *feature).collect();
    if is_harmless {
        chosen.retain(|feature| !HARMFUL.contains(feature));
    }
    if servers == 1 {
        for feature in [F::OtherNames, F::MixedQuarantines, F::LongQuarantine, F::DataLoss] {
            chosen.remove(&feature);
        }
    }
    if chosen.contains(&F::MixedQuarantines) {
        // A majority of servers of which none knows the longer quarantine is the documented limit.
        for feature in [F::Cuts, F::ServerPauses, F::SlowLines, F::Refusals, F::Restarts, F::LongQuarantine] {
            chosen.remove(&feature);
        }
        chosen.insert(F::DataLoss);
        // Two servers may lose their tokens soon after each other. Then only the clocks are left.
        chosen.remove(&F::ClockSkew);
    }
    if chosen.contains(&F::ClockSteps) {
        // Only the clock keeps tokens growing when the counter is lost.
        chosen.remove(&F::DataLoss);
        chosen.remove(&F::MixedQuarantines);
        // A clock that is set back makes a server look as if it were younger than a bound.
        chosen.remove(&F::LongQuarantine);
        // Which request is the newest is decided by a clock.
        chosen.remove(&F::Superseding);
        chosen.remove(&F::Cancelling);
    }
    if chosen.contains(&F::OtherNames) {
        chosen.remove(&F::DataLoss);
    }
    chosen
}

impl Draft {
    pub(super) fn new(seed: u64, servers: usize, only: &[Feature]) -> Self {
        let mut dice = Dice::new(seed, 4);
        let mut features = choose_features(&mut dice, servers);
        if !only.is_empty() {
            features = only.iter().copied().collect();
        }
        let has = |feature: Feature| features.contains(&feature);
        let keys = dice.between(1, if has(F::SeveralKeys) { 3 } else { 2 });
        let idle_limit_us = has(F::IdleLimit).then(|| dice.one_of(&[500_000, 1_000_000, 3_000_000]));
        let password = (has(F::Login) && dice.percent(70)).then(|| "secret".to_owned());
        // When all servers have lost their tokens only their clocks are left, and a quarantine.
        let skew = match (has(F::ClockSkew), has(F::DataLoss)) {
            (true, false) => 60_000_000,
            (true, true) => 10_000_000,
            (false, _) => 0,
        };
        let server_clocks = (0..servers)
            .map(|_| Clock { offset_us: within(&mut dice, skew), drift_ppm: within(&mut dice, 2000) })
            .collect();
        let keys = ["a", "b", "c"][..keys as usize].iter().map(|key| (*key).to_owned()).collect();
        let scenario = Scenario {
            seed,
            servers,
            features,
            keys,
            password,
            idle_limit_us,
            server_clocks,
            steps: Vec::new(),
        };
        let spared = match (scenario.features.contains(&F::MixedQuarantines), dice.percent(60)) {
            // If every server forgets the longest lease, nobody can know it: the documented limit.
            (true, _) => Some(0),
            (false, true) => Some(dice.next() as usize % servers),
            (false, false) => None,
        };
        Self { dice, scenario, recent: Vec::new(), next_actor: 0, spared }
    }

    fn has(&self, feature: Feature) -> bool {
        self.scenario.features.contains(&feature)
    }

    fn draw_all(&mut self) {
        // The first request begins the servers' quarantine.
        let retry = WaitPolicy::Retry { count: 3, interval: Duration::from_secs(1), at_most: None };
        let mut warm_up = self.actor_with(Job::Run(self.plain_run(retry)));
        if self.scenario.servers > 1 {
            warm_up.access.timing.quarantine = Duration::from_secs(30);
        }
        self.push(0, What::Start(Box::new(warm_up)));
        let ends = FIRST_START_US + self.dice.between(6, 16) * 1_000_000;
        let busy = if self.scenario.servers == 1 { 60_000 } else { 150_000 };
        let between = self.dice.between(busy / 3, busy * 2);
        let mut next_start = FIRST_START_US;
        let mut next_fault = FIRST_START_US + self.dice.between(0, 1_500_000);
        let fault_gap = self.dice.between(50_000, 700_000);
        loop {
            let at = next_start.min(next_fault);
            if at >= ends {
                break;
            }
            if at == next_start {
                self.draw_actor(at);
                next_start += self.dice.between(1000, 2 * between);
            } else {
                self.draw_fault(at);
                next_fault += self.dice.between(fault_gap / 10, 2 * fault_gap);
            }
        }
        if !self.scenario.is_order_strict() {
            let has_restarts = self.has(F::Restarts) || self.has(F::DataLoss);
            let mut settling = if has_restarts { SETTLING_AFTER_RESTART_US } else { SETTLING_US };
            if has_restarts && self.has(F::LongQuarantine) {
                settling += LONG_QUARANTINE.as_micros() as u64;
            }
            if self.has(F::ClockSteps) {
                settling += LONGEST_STEP_BACK_US;
            }
            let quiet = ends + LONGEST_FAULT_US + settling;
            self.push(quiet, What::Quiet);
            let mut at = quiet;
            while at < quiet + QUIET_US {
                at += self.dice.between(1000, 4 * between);
                self.draw_actor(at);
            }
        }
        self.scenario.steps.sort_by_key(|step| step.at_us);
    }

    pub(super) fn push(&mut self, at_us: u64, what: What) {
        self.scenario.steps.push(Step { at_us, what });
    }

    fn key(&mut self) -> String {
        let keys = self.scenario.keys.clone();
        keys[self.dice.next() as usize % keys.len()].clone()
    }

    pub(super) fn plain_run(&self, wait: WaitPolicy) -> Run {
        Run { wait, ..plain_run(&self.scenario.keys[0]) }
    }

    fn timing(&mut self) -> Timing {
        let several = self.scenario.servers > 1;
        let mut ttl = Duration::from_millis(self.dice.one_of(&[3000, 5000, 5000, 10_000, 30_000]));
        let mut quarantine = Duration::from_secs(if several { 30 } else { 0 });
        if self.has(F::MixedQuarantines) {
            // If those with the longer one are few, a server may not hear of it for a while.
            let is_usual = self.dice.percent(15);
            quarantine = Duration::from_secs(if is_usual { 30 } else { self.dice.one_of(&[0, 2, 5]) });
            // A client without a quarantine has not asked for its longer leases to be protected.
            ttl = ttl.min(quarantine.max(Duration::from_secs(2)));
        }
        // The first one has its lease before servers can fail: a longer lease needs all of them.
        let is_first = self.recent.is_empty();
        if self.has(F::LongQuarantine) && (is_first || self.dice.percent(5)) {
            quarantine = LONG_QUARANTINE;
            ttl = Duration::from_secs(if is_first { 60 } else { self.dice.one_of(&[5, 60]) });
        }
        let node_timeout = if several {
            (ttl / 20).clamp(Duration::from_millis(200), Duration::from_secs(1))
        } else {
            (ttl / 3).clamp(Duration::from_secs(1), Duration::from_secs(5))
        };
        Timing { ttl: Some(ttl), node_timeout, quarantine }
    }

    pub(super) fn actor_with(&mut self, job: Job) -> Actor {
        let number = self.next_actor;
        self.next_actor += 1;
        let dice = &mut self.dice;
        let boot_clock =
            Clock { offset_us: dice.between(0, 5_000_000) as i64, drift_ppm: within(dice, 1000) };
        let wall_clock = Clock { offset_us: within(dice, 10_000_000), drift_ppm: 0 };
        // A client without a quarantine waits for a moment only for servers that may know more.
        let is_far = dice.percent(20) && !self.scenario.features.contains(&F::MixedQuarantines);
        let latencies: &[u64] = if is_far { &[500, 5000, 30_000] } else { &[50, 100, 500] };
        let latencies_us = (0..self.scenario.servers).map(|_| dice.one_of(latencies)).collect();
        // By another name a server has another place in the order.
        let alias = if self.scenario.features.contains(&F::OtherNames) { dice.between(0, 1) } else { 0 };
        let login = self.scenario.password.as_ref().map_or(String::new(), |word| format!(":{word}@"));
        let database = if self.scenario.features.contains(&F::Login) { "/1" } else { "" };
        let urls = (0..self.scenario.servers)
            .map(|at| format!("redis://{login}{}{database}", address(at, alias, self.scenario.servers)))
            .collect();
        let timing = self.timing();
        Actor {
            number,
            site: Site { boot_clock, wall_clock },
            access: Access { urls, timing, protocol: PROTOCOL },
            latencies_us,
            job,
        }
    }

    fn draw_actor(&mut self, at: u64) {
        let job = self.draw_job();
        let actor = self.actor_with(job);
        let mut actor = actor;
        if matches!(actor.job, Job::Extend { .. }) && actor.access.timing.quarantine >= LONGEST_TTL {
            // Two extensions at the same time leave the shorter or the longer one.
            actor.access.timing.ttl = Some(LONGEST_TTL);
        }
        if let Job::Run(Run { subject: Subject::Command(lives), .. }) = &mut actor.job
            && actor.access.timing.ttl > Some(LONGEST_TTL)
        {
            // Its lease lasts for longer than the quarantine of the others.
            *lives = Duration::from_secs(self.dice.between(30, 60));
        }
        self.recent.push(Recent { starts: at, ends: at + lifetime_us(&actor), actor: actor.clone() });
        if self.recent.len() > 12 {
            self.recent.remove(0);
        }
        self.push(at, What::Start(Box::new(actor)));
    }

    fn draw_job(&mut self) -> Job {
        if self.has(F::Tokens) && self.dice.percent(25) {
            let with_tokens = self.recent.iter().filter_map(|Recent { actor, .. }| match &actor.job {
                Job::Run(run) if !matches!(run.subject, Subject::Command(_)) => {
                    Some((actor.number, run.keys.clone()))
                }
                _ => None,
            });
            let with_tokens: Vec<_> = with_tokens.collect();
            if !with_tokens.is_empty() {
                let (of, keys) = with_tokens[self.dice.next() as usize % with_tokens.len()].clone();
                return if self.dice.percent(60) {
                    Job::Extend { of, keys }
                } else {
                    Job::Release { of, keys }
                };
            }
        }
        if (self.has(F::Breaks) || self.has(F::ImmediateBreaks)) && self.dice.percent(6) {
            let is_immediate = !self.has(F::Breaks) || self.has(F::ImmediateBreaks) && self.dice.percent(30);
            let how = if is_immediate { BreakMode::Immediate } else { BreakMode::Gentle };
            return Job::Break { key: self.key(), how };
        }
        if self.dice.percent(2) {
            return Job::Audit { key: self.key() };
        }
        Job::Run(self.draw_run())
    }

    fn draw_run(&mut self) -> Run {
        let wait = match self.dice.between(0, 9) {
            0 if self.has(F::Impatience) => WaitPolicy::No,
            1 | 2 if self.has(F::Impatience) => {
                WaitPolicy::Queue { at_most: Some(Duration::from_millis(self.dice.between(100, 8000))) }
            }
            3 if self.has(F::Impatience) => {
                WaitPolicy::Retry { count: 3, interval: Duration::from_millis(500), at_most: None }
            }
            _ => WaitPolicy::Queue { at_most: None },
        };
        let mut run = self.plain_run(wait);
        run.keys = vec![self.key()];
        if self.has(F::SeveralKeys) && self.dice.percent(30) {
            let keys: BTreeSet<String> = [self.key(), self.key()].into();
            run.keys = keys.into_iter().collect();
        }
        if self.has(F::Sharing) && self.dice.percent(40) {
            run.mode = Mode::Shared { group: self.dice.one_of(&["", "", "g"]).as_bytes().to_vec() };
        } else if self.has(F::Slots) {
            // Other numbers of slots on one key are refused.
            run.mode = Mode::Slot { of: 3 };
        }
        if self.has(F::Preferences) {
            run.prefer = self.dice.one_of(&[Prefer::Fair, Prefer::Writers, Prefer::Readers]);
        }
        run.supersedes = self.has(F::Superseding) && self.dice.percent(40);
        let is_command = run.mode == Mode::Exclusive;
        if self.has(F::Cancelling) && is_command && self.dice.percent(40) {
            (run.cancels, run.supersedes) = (true, true);
        }
        // Runs that hold the lock together cannot have the option.
        if self.has(F::Once) && run.mode == Mode::Exclusive && self.dice.percent(40) {
            run.once = Some(Duration::from_secs(self.dice.one_of(&[2, 600])));
            run.fails = self.dice.percent(40);
        }
        if self.has(F::MinHold) && self.dice.percent(20) {
            let most = if self.has(F::ClockSteps) { USUAL_LEASE_MS } else { u64::MAX };
            let min_hold = self.dice.one_of(&[50, 50, 1000, 1000, 8000, 40_000]);
            run.min_hold = Duration::from_millis(min_hold.min(most));
        }
        let is_long = self.has(F::LongCommands) && self.dice.percent(12);
        let lives = if is_long { self.dice.between(1000, 12_000) } else { self.dice.between(1, 120) };
        let lives = Duration::from_millis(lives);
        run.subject = Subject::Command(lives);
        // `acquire` does not have these options.
        if run.cancels || run.once.is_some() {
            return run;
        }
        if self.has(F::Keepers) && self.dice.percent(25) {
            run.subject = Subject::Watched(lives);
        } else if self.has(F::Tokens) && self.dice.percent(8) {
            run.subject = Subject::Token;
        }
        run
    }
}

/// A server whose clock is set back does not know any more since when leases may be longer than this:
/// young servers then wait for the longest one.
const USUAL_LEASE_MS: u64 = 30_000;
/// Of clients that ask for nothing special.
const LONGEST_TTL: Duration = Duration::from_secs(30);
const LONG_QUARANTINE: Duration = Duration::from_secs(120);
const LONGEST_FAULT_US: u64 = 6_000_000;

/// How long its process lives at least, if it gets its lock at once.
fn lifetime_us(actor: &Actor) -> u64 {
    let lives = match &actor.job {
        Job::Run(Run { subject: Subject::Command(lives) | Subject::Watched(lives), .. }) => *lives,
        _ => Duration::ZERO,
    };
    lives.as_micros() as u64
}

fn within(dice: &mut Dice, bound: u64) -> i64 {
    dice.between(0, 2 * bound) as i64 - bound as i64
}
