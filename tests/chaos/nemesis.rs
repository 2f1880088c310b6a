//! Carries the plan out, and undoes what can be undone.

use std::time::{Duration, Instant};

use crate::plan::{Blow, Deed};
use crate::runs::Pidfd;
use crate::support::Proxy;
use crate::worker::Ring;
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
    /// By how much we are behind the plan: what comes next is as far from it as planned.
    lag_ms: u64,
    stopped: Vec<(usize, Pidfd)>,
    /// The offsets of the clocks.
    clocks_ms: Vec<i64>,
    /// What was done, with the time since the beginning.
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

    /// Does what is due; how long until the next step, nothing if there is none.
    pub fn act(&mut self, elapsed: Duration, world: &mut World, ring: &Ring) -> Option<Duration> {
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
        let what =
            if step.is_end { self.undo(step.blow, world, ring) } else { self.strike(step.blow, world, ring) };
        if let Some(what) = what {
            let end = if step.is_end { "end of " } else { "" };
            self.journal.push(format!("{:8.3} s  {end}{:?}{what}", elapsed.as_secs_f64(), blow.deed));
            if !step.is_end {
                *self.done.entry(name(blow.deed)).or_default() += 1;
            }
        }
        Some(Duration::ZERO)
    }

    /// What to add to the journal; nothing if there was nobody to strike.
    fn strike(&mut self, number: usize, world: &mut World, ring: &Ring) -> Option<String> {
        let blow = self.blows[number];
        if blow.deed.is_failure() {
            ring.checker.lock().expect("the checker").failure_begins();
        }
        let mut said = format!(", for {} ms", blow.lasts_ms);
        if blow.lasts_ms == 0 {
            said.clear();
        }
        match blow.deed {
            Deed::KillRedlock | Deed::KillGuardian | Deed::KillCommand => {
                let (run, _) = find_victim(ring, blow)?;
                said = format!(" of run {run}");
            }
            Deed::TerminateRedlock => {
                let (run, _) = find_victim(ring, blow)?;
                said = format!(" of run {run}");
            }
            Deed::StopRedlock | Deed::StopCommand => {
                let (run, pidfd) = find_victim(ring, blow)?;
                self.stopped.push((number, pidfd?));
                said = format!(" of run {run}{said}");
            }
            Deed::StopServer(at) => world.server(at).stop(),
            Deed::RestartServer { at, .. } => world.kill_server(at),
            Deed::KillClients(at) => {
                let killed = world.server(at).cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                said = format!(": {killed} of them");
            }
            Deed::FlushScripts(at) => drop(world.server(at).cmd(&["SCRIPT", "FLUSH"])),
            Deed::FlushAll(at) => drop(world.server(at).cmd(&["FLUSHALL"])),
            Deed::JumpClock { at, by_ms } => {
                self.clocks_ms[at] += by_ms;
                world.jump_clock(at, self.clocks_ms[at]);
            }
            Deed::Cut(link) => world.links(link).for_each(|proxy| proxy.cut()),
            Deed::Delay { link, by_ms } => {
                world.links(link).for_each(|proxy| delay(proxy, by_ms));
            }
            Deed::Stall(link) => world.links(link).for_each(|proxy| proxy.pause()),
            Deed::LoseReplies(link) => world.links(link).for_each(|proxy| proxy.drop_replies(true)),
            Deed::Strand(link) => world.links(link).for_each(|proxy| proxy.strand()),
        }
        if blow.deed.is_failure() && blow.lasts_ms == 0 {
            ring.checker.lock().expect("the checker").failure_ends();
        }
        Some(said)
    }

    fn undo(&mut self, number: usize, world: &mut World, ring: &Ring) -> Option<String> {
        let blow = self.blows[number];
        match blow.deed {
            Deed::StopRedlock | Deed::StopCommand => {
                let at = self.stopped.iter().position(|(of, _)| *of == number)?;
                self.stopped.remove(at).1.send(Signal::SIGCONT);
            }
            Deed::StopServer(at) => world.server(at).cont(),
            Deed::RestartServer { at, remembers } => world.start_server(at, remembers),
            Deed::Delay { link, .. } => world.links(link).for_each(|proxy| delay(proxy, 0)),
            Deed::Stall(link) => world.links(link).for_each(|proxy| proxy.resume()),
            // What was lost would never come: the connection ends, as it would after a while.
            Deed::LoseReplies(link) => world.links(link).for_each(|proxy| {
                proxy.drop_replies(false);
                proxy.cut();
            }),
            Deed::Strand(link) => world.links(link).for_each(|proxy| proxy.deliver()),
            _ => return None,
        }
        if blow.deed.is_failure() {
            ring.checker.lock().expect("the checker").failure_ends();
        }
        Some(String::new())
    }

    /// Everything that still lasts is over.
    pub fn make_good(&mut self, world: &mut World, ring: &Ring) {
        for (_, pidfd) in self.stopped.drain(..) {
            pidfd.send(Signal::SIGCONT);
        }
        world.make_good();
        ring.checker.lock().expect("the checker").failures_end();
    }
}

/// Waits a moment for one that fits: most commands are short.
fn find_victim(ring: &Ring, blow: Blow) -> Option<(u64, Option<Pidfd>)> {
    let start = Instant::now();
    loop {
        let hit = ring.runs.strike(blow.deed, blow.number);
        if hit.is_some() || start.elapsed() > Duration::from_millis(150) {
            return hit;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Half of it on the way there, half on the way back.
pub fn delay(proxy: &Proxy, by_ms: u64) {
    proxy.to_server(Duration::from_millis(by_ms / 2));
    proxy.to_client(Duration::from_millis(by_ms - by_ms / 2));
}

fn name(deed: Deed) -> &'static str {
    match deed {
        Deed::KillRedlock => "kill redlock",
        Deed::KillGuardian => "kill guardian",
        Deed::KillCommand => "kill command",
        Deed::TerminateRedlock => "terminate redlock",
        Deed::StopRedlock => "stop redlock",
        Deed::StopCommand => "stop command",
        Deed::StopServer(_) => "stop server",
        Deed::RestartServer { remembers: true, .. } => "restart server",
        Deed::RestartServer { remembers: false, .. } => "restart server empty",
        Deed::KillClients(_) => "kill clients",
        Deed::FlushScripts(_) => "flush scripts",
        Deed::FlushAll(_) => "flush all",
        Deed::JumpClock { .. } => "jump clock",
        Deed::Cut(_) => "cut",
        Deed::Delay { .. } => "delay",
        Deed::Stall(_) => "stall",
        Deed::LoseReplies(_) => "lose replies",
        Deed::Strand(_) => "strand",
    }
}
