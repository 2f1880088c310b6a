//! Draws the faults.

use super::*;

impl Draft {
    pub(super) fn draw_fault(&mut self, at: u64) {
        let Some(victim) = self.victim(at) else { return };
        match self.dice.between(0, 9) {
            0..3 => self.draw_burst(at, victim),
            3 => self.draw_failure_of_several(at, victim),
            _ => {
                let server = self.dice.next() as usize % self.scenario.servers;
                self.draw_one(at, victim, server, |_| true);
            }
        }
    }

    fn draw_one(&mut self, at: u64, actor: u64, server: ServerId, is_meant: impl Fn(&Fault) -> bool) {
        let for_us = self.dice.one_of(&[20_000, 100_000, 400_000, 1_000_000, 2_500_000, LONGEST_FAULT_US]);
        let mut possible = self.possible_faults(actor, server, for_us);
        possible.retain(is_meant);
        if !possible.is_empty() {
            let fault = possible[self.dice.next() as usize % possible.len()].clone();
            self.push(at, What::Fault(fault));
        }
    }

    /// Several faults strike the same process soon after each other, about when it asks for its lock
    /// or renews it.
    fn draw_burst(&mut self, at: u64, victim: u64) {
        let Some(recent) = self.recent.iter().find(|recent| recent.actor.number == victim) else { return };
        let between = recent.actor.access.timing.ttl.expect("a lease").as_micros() as u64 / 3;
        let next = recent.starts + (at - recent.starts).next_multiple_of(between);
        let (keys, has_token) = match &recent.actor.job {
            Job::Run(run) => (run.keys.clone(), !matches!(run.subject, Subject::Command(_))),
            _ => (Vec::new(), false),
        };
        let mut moment = next.saturating_sub(self.dice.between(0, 300_000)).max(at);
        for _ in 0..self.dice.between(2, 4) {
            let server = self.dice.next() as usize % self.scenario.servers;
            if has_token && self.has(F::Tokens) && self.dice.percent(30) {
                let mut actor = self.actor_with(Job::Extend { of: victim, keys: keys.clone() });
                actor.access.timing.ttl = Some(LONGEST_TTL);
                self.push(moment, What::Start(Box::new(actor)));
            } else {
                self.draw_one(moment, victim, server, Fault::strikes_process);
            }
            moment += self.dice.one_of(&[1000, 50_000, 300_000, 1_500_000]);
        }
    }

    /// The same happens to most servers.
    fn draw_failure_of_several(&mut self, mut at: u64, victim: u64) {
        let any = self.dice.next() as usize % self.scenario.servers;
        let spared = self.spared.unwrap_or(any);
        let kind = self.dice.next();
        for server in (0..self.scenario.servers).filter(|server| *server != spared) {
            let mut possible = self.possible_faults(victim, server, 100_000);
            possible.retain(|fault| !fault.strikes_process() && !matches!(fault, Fault::FlushAll));
            if !possible.is_empty() {
                let fault = possible[kind as usize % possible.len()].clone();
                self.push(at, What::Fault(fault));
            }
            at += self.dice.one_of(&[100, 20_000, 200_000]);
        }
    }

    /// Whom a fault strikes: preferably one that holds its lock for long.
    fn victim(&mut self, at: u64) -> Option<u64> {
        let numbers = |is_meant: &dyn Fn(&Recent) -> bool| -> Vec<u64> {
            self.recent.iter().filter(|recent| is_meant(recent)).map(|recent| recent.actor.number).collect()
        };
        let (all, living) = (numbers(&|_| true), numbers(&|recent| recent.ends > at));
        let among = if self.dice.percent(70) && !living.is_empty() { living } else { all };
        (!among.is_empty()).then(|| among[self.dice.next() as usize % among.len()])
    }

    fn possible_faults(&mut self, actor: u64, server: ServerId, for_us: u64) -> Vec<Fault> {
        let mut possible = Vec::new();
        let mut add = |feature: Feature, fault: Fault| {
            if self.scenario.features.contains(&feature) {
                possible.push(fault);
            }
        };
        add(F::Kills, Fault::Kill { actor, has_guardian: true });
        add(F::PowerLoss, Fault::Kill { actor, has_guardian: false });
        add(F::Pauses, Fault::Pause { actor, for_us });
        // Less than the 2 s in which a woken waiter must reply, and than the shortest node timeout.
        let (stall, server_stall) =
            (self.dice.one_of(&[90_000, 700_000, 1_400_000]), self.dice.one_of(&[10_000, 40_000, 80_000]));
        add(F::Stalls, Fault::Pause { actor, for_us: stall });
        add(F::Stalls, Fault::PauseServer { server, for_us: server_stall });
        add(F::Signals, Fault::Signal { actor });
        add(F::ServerPauses, Fault::PauseServer { server, for_us });
        add(F::ClosedConnections, Fault::CloseConnections { server });
        add(F::ScriptFlush, Fault::ForgetScripts { server });
        add(F::NewHistory, Fault::NewHistory { server });
        add(F::Restarts, Fault::Restart { server, keeps: Keeps::All, for_us: for_us / 4 });
        add(F::Refusals, Fault::OutOfMemory { server, for_us });
        let command = self.dice.one_of(&["EVALSHA", "ZADD", "PEXPIRE", "BLPOP"]);
        add(F::Refusals, Fault::Deny { server, command, for_us });
        let by_us =
            self.dice.one_of(&[-(LONGEST_STEP_BACK_US as i64), -2_000_000, -200_000, 200_000, 4_000_000]);
        // Many steps back would be an eternity.
        let is_step = |step: &&Step| matches!(step.what, What::Fault(Fault::StepClock { .. }));
        if self.scenario.steps.iter().filter(is_step).count() < 3 {
            add(F::ClockSteps, Fault::StepClock { server, by_us });
        }
        let is_short = self.scenario.features.contains(&F::MixedQuarantines);
        let age = self.dice.between(0, 10_000_000);
        let keeps = self.dice.one_of(&[Keeps::Nothing, Keeps::OldCopy(age)]);
        let down = if is_short { 20_000 } else { for_us / 4 };
        if self.spared != Some(server) {
            add(F::DataLoss, Fault::Restart { server, keeps, for_us: down });
            add(F::DataLoss, Fault::Flush { server });
        }
        let is_flush = |step: &Step| matches!(step.what, What::Fault(Fault::FlushAll));
        if self.spared.is_none() && !self.scenario.steps.iter().any(is_flush) {
            add(F::DataLoss, Fault::FlushAll);
        }
        let all: Vec<ServerId> = (0..self.scenario.servers).collect();
        let servers = match self.dice.between(0, 3) {
            0 => all,
            1 => all.into_iter().filter(|&at| at != server).collect(),
            _ => vec![server],
        };
        let how = self.dice.one_of(&[Cut::ToServer, Cut::ToClient, Cut::Both, Cut::Both]);
        add(F::Cuts, Fault::Cut { actor, servers: servers.clone(), how, for_us });
        let latency_us = self.dice.one_of(&[50_000, 150_000, 450_000, 900_000]);
        add(F::SlowLines, Fault::Slow { actor, servers, latency_us, for_us });
        possible
    }
}
