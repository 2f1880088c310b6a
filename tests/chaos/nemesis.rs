//! Executes the plan, and undoes what can be undone.

use std::time::{Duration, Instant};

use crate::plan::{Blow, Fault};
use crate::runs::Pidfd;
use crate::support::Proxy;
use crate::worker::SharedState;
use crate::world::World;
use nix::sys::signal::Signal;

/// A step of the plan: a blow, or its end.
#[derive(Clone, Copy)]
struct Step {
    at_ms: u64,
    blow: usize,
    is_end: bool,
}

pub struct Nemesis {
    blows: Vec<Blow>,
    steps: Vec<Step>,
    next: usize,
    /// How far we are behind the plan: the distance to the next step stays as planned.
    lag_ms: u64,
    stopped: Vec<(usize, Pidfd)>,
    /// The offsets of the clocks.
    clocks_ms: Vec<i64>,
    /// What was done, with the time since the start.
    pub journal: Vec<String>,
    pub done: std::collections::BTreeMap<&'static str, u64>,
}

impl Nemesis {
    pub fn new(blows: Vec<Blow>, servers: usize) -> Nemesis {
        let mut steps: Vec<Step> = Vec::new();
        for (number, blow) in blows.iter().enumerate() {
            steps.push(Step { at_ms: blow.at_ms, blow: number, is_end: false });
            if blow.lasts_ms > 0 {
                steps.push(Step { at_ms: blow.at_ms + blow.lasts_ms, blow: number, is_end: true });
            }
        }
        steps.sort_by_key(|step| step.at_ms);
        Nemesis {
            blows,
            steps,
            next: 0,
            lag_ms: 0,
            stopped: Vec::new(),
            clocks_ms: vec![0; servers],
            journal: Vec::new(),
            done: Default::default(),
        }
    }

    /// Does what is due; returns how long until the next step, None if there is none.
    pub fn act(&mut self, elapsed: Duration, world: &mut World, shared: &SharedState) -> Option<Duration> {
        let step = *self.steps.get(self.next)?;
        let (now, due) = (elapsed.as_millis() as u64, step.at_ms + self.lag_ms);
        if now < due {
            return Some(Duration::from_millis(due - now));
        }
        if now > due + 200 {
            self.lag_ms += now - due;
        }
        self.next += 1;
        let blow = self.blows[step.blow];
        let what = if step.is_end {
            self.undo(step.blow, world, shared)
        } else {
            self.strike(step.blow, world, shared)
        };
        if let Some(what) = what {
            let end = if step.is_end { "end of " } else { "" };
            self.journal.push(format!("{:8.3} s  {end}{:?}{what}", elapsed.as_secs_f64(), blow.fault));
            if !step.is_end {
                *self.done.entry(name(blow.fault)).or_default() += 1;
            }
        }
        Some(Duration::ZERO)
    }

    /// Returns the journal entry; None if there was no victim.
    fn strike(&mut self, number: usize, world: &mut World, shared: &SharedState) -> Option<String> {
        let blow = self.blows[number];
        if blow.fault.is_failure() {
            shared.checker.lock().expect("the checker").failure_begins();
        }
        let mut details = format!(", for {} ms", blow.lasts_ms);
        if blow.lasts_ms == 0 {
            details.clear();
        }
        match blow.fault {
            Fault::KillRedlock | Fault::KillGuardian | Fault::KillCommand => {
                let (run, _) = find_victim(shared, blow)?;
                details = format!(" of run {run}");
            }
            Fault::TerminateRedlock => {
                let (run, _) = find_victim(shared, blow)?;
                details = format!(" of run {run}");
            }
            Fault::StopRedlock | Fault::StopCommand => {
                let (run, pidfd) = find_victim(shared, blow)?;
                self.stopped.push((number, pidfd?));
                details = format!(" of run {run}{details}");
            }
            Fault::StopServer(at) => world.server(at).stop(),
            Fault::RestartServer { at, .. } => world.kill_server(at),
            Fault::KillClients(at) => {
                let killed = world.server(at).cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                details = format!(": {killed} of them");
            }
            Fault::FlushScripts(at) => drop(world.server(at).cmd(&["SCRIPT", "FLUSH"])),
            Fault::FlushAll(at) => drop(world.server(at).cmd(&["FLUSHALL"])),
            Fault::JumpClock { at, by_ms } => {
                self.clocks_ms[at] += by_ms;
                world.jump_clock(at, self.clocks_ms[at]);
            }
            Fault::Cut(link) => world.links(link).for_each(|proxy| proxy.cut()),
            Fault::Delay { link, by_ms } => {
                world.links(link).for_each(|proxy| delay(proxy, by_ms));
            }
            Fault::Stall(link) => world.links(link).for_each(|proxy| proxy.pause()),
            Fault::LoseReplies(link) => world.links(link).for_each(|proxy| proxy.drop_replies(true)),
            Fault::Strand(link) => world.links(link).for_each(|proxy| proxy.strand()),
        }
        if blow.fault.is_failure() && blow.lasts_ms == 0 {
            shared.checker.lock().expect("the checker").failure_ends();
        }
        Some(details)
    }

    fn undo(&mut self, number: usize, world: &mut World, shared: &SharedState) -> Option<String> {
        let blow = self.blows[number];
        match blow.fault {
            Fault::StopRedlock | Fault::StopCommand => {
                let at = self.stopped.iter().position(|(of, _)| *of == number)?;
                self.stopped.remove(at).1.send(Signal::SIGCONT);
            }
            Fault::StopServer(at) => world.server(at).cont(),
            Fault::RestartServer { at, remembers } => world.start_server(at, remembers),
            Fault::Delay { link, .. } => world.links(link).for_each(|proxy| delay(proxy, 0)),
            Fault::Stall(link) => world.links(link).for_each(|proxy| proxy.resume()),
            // What was lost never arrives: the connection is closed, as it would be after a while.
            Fault::LoseReplies(link) => world.links(link).for_each(|proxy| {
                proxy.drop_replies(false);
                proxy.cut();
            }),
            Fault::Strand(link) => world.links(link).for_each(|proxy| proxy.deliver()),
            _ => return None,
        }
        if blow.fault.is_failure() {
            shared.checker.lock().expect("the checker").failure_ends();
        }
        Some(String::new())
    }

    /// Undoes everything that still lasts.
    pub fn restore(&mut self, world: &mut World, shared: &SharedState) {
        for (_, pidfd) in self.stopped.drain(..) {
            pidfd.send(Signal::SIGCONT);
        }
        world.restore();
        shared.checker.lock().expect("the checker").failures_end();
    }
}

/// Waits a moment for a victim that fits: most commands are short.
fn find_victim(shared: &SharedState, blow: Blow) -> Option<(u64, Option<Pidfd>)> {
    let start = Instant::now();
    loop {
        let hit = shared.runs.strike(blow.fault, blow.number);
        if hit.is_some() || start.elapsed() > Duration::from_millis(150) {
            return hit;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Half of it in each direction.
pub fn delay(proxy: &Proxy, by_ms: u64) {
    proxy.to_server(Duration::from_millis(by_ms / 2));
    proxy.to_client(Duration::from_millis(by_ms - by_ms / 2));
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::KillRedlock => "kill redlock",
        Fault::KillGuardian => "kill guardian",
        Fault::KillCommand => "kill command",
        Fault::TerminateRedlock => "terminate redlock",
        Fault::StopRedlock => "stop redlock",
        Fault::StopCommand => "stop command",
        Fault::StopServer(_) => "stop server",
        Fault::RestartServer { remembers: true, .. } => "restart server",
        Fault::RestartServer { remembers: false, .. } => "restart server empty",
        Fault::KillClients(_) => "kill clients",
        Fault::FlushScripts(_) => "flush scripts",
        Fault::FlushAll(_) => "flush all",
        Fault::JumpClock { .. } => "jump clock",
        Fault::Cut(_) => "cut",
        Fault::Delay { .. } => "delay",
        Fault::Stall(_) => "stall",
        Fault::LoseReplies(_) => "lose replies",
        Fault::Strand(_) => "strand",
    }
}
