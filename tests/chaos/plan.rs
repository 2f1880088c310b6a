//! What the nemesis will do, and when: generated from the seed before anything runs.
//!
//! It leaves out what redlock does not promise to survive (docs/protocol.md, README "limits"):
//!
//! - One server that loses its data while quarantine is off: it grants the lock at once, beside a
//!   command that is still being stopped. In `Weather::Forgetful` every client has a quarantine as
//!   long as the longest lease, on one server, too; FLUSHALL happens on one of several servers
//!   only.
//! - A server's clock that jumps forward by more than the margin of a lease. On one server this is
//!   the same as losing the lease, so there the clock only goes back (a bounded wait). On several,
//!   one server may jump while every other one has had no fault for longer than two leases, and has
//!   none until the lost leases have ended: a second fault in that time would be a majority that
//!   has lost its data. Back by 2 s at most, as every lease there becomes longer by that.
//! - Lost data and clock jumps in one run: the data of the servers or their clocks keep a token
//!   from going back; without both it may repeat.
//! - redlock and its guardian both killed, or one of them killed and the other stopped: no process
//!   is left to stop the tree. Each run gets one such blow.
//! - Only the command killed, or ended by a SIGTERM that redlock has forwarded, while it has a
//!   child and no `--wait-tree`: the lock is released when the command has exited, and the child is
//!   a daemon that was left behind (it gets the SIGTERM as well, but is not waited for).
//! - The guardian stopped (a known defect, finding 60).
//! - The whole machine paused. A busy machine pauses by itself: chaos.rs measures how late it is
//!   woken, and two holders at once do not count if it was later than the margin that a guardian
//!   has to end a tree before the lease.

use std::fmt;

use crate::dice::Dice;
use crate::turn::Terms;

/// Which kinds of faults occur together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// No server fails; links have latencies. Order is promised all the time.
    Gentle,
    /// Servers fail, but keep their data: an append-only file that is written before each reply.
    Remembering,
    /// Servers fail, and may lose all data.
    Forgetful,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    KillRedlock,
    KillGuardian,
    KillCommand,
    TerminateRedlock,
    StopRedlock,
    StopCommand,
    StopServer(usize),
    RestartServer { at: usize, remembers: bool },
    KillClients(usize),
    FlushScripts(usize),
    FlushAll(usize),
    JumpClock { at: usize, by_ms: i64 },
    Cut(Link),
    Delay { link: Link, by_ms: u64 },
    Stall(Link),
    LoseReplies(Link),
    Strand(Link),
}

/// From one host, or from all, to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub host: Option<usize>,
    pub server: usize,
}

impl Fault {
    /// The server that it affects.
    pub fn server(self) -> Option<usize> {
        match self {
            Fault::KillRedlock | Fault::KillGuardian | Fault::KillCommand => None,
            Fault::TerminateRedlock | Fault::StopRedlock | Fault::StopCommand => None,
            Fault::StopServer(at) | Fault::RestartServer { at, .. } | Fault::KillClients(at) => Some(at),
            Fault::FlushScripts(at) | Fault::FlushAll(at) | Fault::JumpClock { at, .. } => Some(at),
            Fault::Cut(link) | Fault::Stall(link) | Fault::LoseReplies(link) | Fault::Strand(link) => {
                Some(link.server)
            }
            Fault::Delay { link, .. } => Some(link.server),
        }
    }

    /// Whether it makes a server, or the line to it, fail: then no order is promised.
    pub fn is_failure(self) -> bool {
        match self {
            Fault::FlushScripts(_) => false,
            // Below every node timeout.
            Fault::Delay { by_ms, .. } => by_ms > GENTLE_DELAY_MS,
            _ => self.server().is_some(),
        }
    }
}

/// The longest latency of a link that does not count as failing.
pub const GENTLE_DELAY_MS: u64 = 30;

#[derive(Clone, Copy, Debug)]
pub struct Blow {
    pub at_ms: u64,
    /// Until it is undone; 0 if there is nothing to undo.
    pub lasts_ms: u64,
    pub fault: Fault,
    /// Selects the victim from the current runs.
    pub number: u64,
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "at {:.3} s {:?}", self.at_ms as f64 / 1000.0, self.fault)?;
        if self.lasts_ms > 0 {
            write!(f, " for {} ms", self.lasts_ms)?;
        }
        Ok(())
    }
}

/// All blows of a run, in order.
pub fn draw(seed: u64, terms: &Terms, weather: Weather, has_clocks: bool, storm_ms: u64) -> Vec<Blow> {
    let mut dice = Dice::new(seed, 0xB10);
    let mut sky = ServerStates::new(terms, weather, has_clocks);
    let mut blows = Vec::new();
    if weather == Weather::Gentle {
        // From the start every host is closer to one server than to another.
        for (host, server) in (0..terms.hosts).flat_map(|h| (0..terms.nodes).map(move |s| (h, s))) {
            let link = Link { host: Some(host), server };
            let fault = Fault::Delay { link, by_ms: dice.between(0, GENTLE_DELAY_MS) };
            blows.push(Blow { at_ms: 0, lasts_ms: 0, fault, number: 0 });
        }
    }
    let longest_pause = dice.one_of(&[700, 400, 200]);
    let mut at_ms = 300;
    while at_ms < storm_ms {
        if let Some(blow) = sky.draw(&mut dice, at_ms) {
            blows.push(blow);
        }
        at_ms += dice.between(30, longest_pause);
    }
    blows
}

/// The state of the servers at a moment of the plan.
struct ServerStates<'a> {
    terms: &'a Terms,
    weather: Weather,
    has_clocks: bool,
    /// Per server: until when the last blow affects it.
    troubled_until: Vec<u64>,
    /// Per server: when its last failure is over for clients that it may have kept from voting.
    missed_until: Vec<u64>,
    /// No failure before this: a clock has jumped.
    still_until: u64,
    /// The clocks of single servers go back this many times.
    jumps_back: u64,
    /// The cycle in which a clock jumped last.
    jumped_in: Option<u64>,
}

/// How often a clock jumps on several servers.
const CYCLE_MS: u64 = 30_000;

impl ServerStates<'_> {
    fn new(terms: &Terms, weather: Weather, has_clocks: bool) -> ServerStates<'_> {
        ServerStates {
            terms,
            weather,
            has_clocks: has_clocks && weather == Weather::Remembering,
            troubled_until: vec![0; terms.nodes],
            missed_until: vec![0; terms.nodes],
            still_until: 0,
            jumps_back: 0,
            jumped_in: None,
        }
    }

    fn draw(&mut self, dice: &mut Dice, at_ms: u64) -> Option<Blow> {
        // Both are drawn, so that a blow that is not possible now changes nothing later.
        let (against_a_run, against_a_server) =
            (ServerStates::against_a_run(dice), self.against_a_server(dice));
        let (fault, lasts_ms) =
            if dice.percent(45) || self.terms.nodes == 0 { against_a_run } else { against_a_server? };
        let blow = Blow { at_ms, lasts_ms, fault, number: dice.next() };
        let is_spared = dice.percent(85);
        if let Some(jump) = self.jump_due(dice, at_ms) {
            self.note(&jump);
            return Some(jump);
        }
        if blow.fault.is_failure() && self.waits_for_jump(at_ms) {
            return None;
        }
        self.permits(&blow, is_spared).then(|| {
            self.note(&blow);
            blow
        })
    }

    /// On several servers a clock may jump when the others have not failed for long: so every half
    /// minute they do not fail until it has jumped.
    fn waits_for_jump(&self, now: u64) -> bool {
        self.has_clocks && self.terms.nodes > 1 && self.jumped_in != Some(now / CYCLE_MS)
    }

    fn jump_due(&self, dice: &mut Dice, now: u64) -> Option<Blow> {
        let at = dice.between(0, self.terms.nodes.max(1) as u64 - 1) as usize;
        let (back, ahead) = (-(dice.between(200, 2000) as i64), dice.between(500, 60_000) as i64);
        let by_ms = if dice.percent(60) { ahead } else { back };
        let blow = Blow { at_ms: now, lasts_ms: 0, fault: Fault::JumpClock { at, by_ms }, number: 0 };
        (self.waits_for_jump(now) && now > 1000 && self.permits(&blow, true)).then_some(blow)
    }

    fn against_a_run(dice: &mut Dice) -> (Fault, u64) {
        let fault = dice.weighted(&[
            (4, Fault::KillRedlock),
            (3, Fault::KillGuardian),
            (3, Fault::KillCommand),
            (3, Fault::TerminateRedlock),
            (4, Fault::StopRedlock),
            (2, Fault::StopCommand),
        ]);
        let short = dice.between(50, 600);
        let long = dice.between(600, 3500);
        match fault {
            Fault::StopRedlock => (fault, if dice.percent(50) { short } else { long }),
            Fault::StopCommand => (fault, short),
            _ => (fault, 0),
        }
    }

    fn against_a_server(&self, dice: &mut Dice) -> Option<(Fault, u64)> {
        let nodes = self.terms.nodes as u64;
        if nodes == 0 {
            return None;
        }
        let at = dice.between(0, nodes - 1) as usize;
        let host = dice.between(0, self.terms.hosts as u64 - 1) as usize;
        let link = Link { host: dice.percent(60).then_some(host), server: at };
        let (brief, long) = (dice.between(30, 400), dice.between(400, 2500));
        let lasts = if dice.percent(50) { brief } else { long };
        let by_ms = dice.between(0, GENTLE_DELAY_MS);
        if self.weather == Weather::Gentle {
            return Some(if dice.percent(50) {
                (Fault::FlushScripts(at), 0)
            } else {
                (Fault::Delay { link, by_ms }, 0)
            });
        }
        let remembers = self.weather == Weather::Remembering || dice.percent(25);
        let jump = Fault::JumpClock { at, by_ms: -(dice.between(200, 1000) as i64) };
        let delay = dice.between(30, 900);
        let flush = self.weather == Weather::Forgetful && nodes > 1;
        let (fault, is_lasting) = dice.weighted(&[
            (4, (Fault::StopServer(at), true)),
            (4, (Fault::RestartServer { at, remembers }, true)),
            (3, (Fault::KillClients(at), false)),
            (2, (Fault::FlushScripts(at), false)),
            (if flush { 2 } else { 0 }, (Fault::FlushAll(at), false)),
            (if self.has_clocks && nodes == 1 { 3 } else { 0 }, (jump, false)),
            (3, (Fault::Cut(link), false)),
            (3, (Fault::Delay { link, by_ms: delay }, true)),
            (3, (Fault::Stall(link), true)),
            (3, (Fault::LoseReplies(link), true)),
            (3, (Fault::Strand(link), true)),
        ]);
        Some((fault, if is_lasting { lasts } else { 0 }))
    }

    fn permits(&self, blow: &Blow, is_spared: bool) -> bool {
        let (Some(server), now) = (blow.fault.server(), blow.at_ms) else { return true };
        if !blow.fault.is_failure() {
            return self.troubled_until[server] < now;
        }
        if self.troubled_until[server] >= now || self.still_until > now {
            return false;
        }
        if let Fault::JumpClock { by_ms, .. } = blow.fault {
            let is_quiet =
                |(at, until): (usize, &u64)| at == server || *until == 0 || *until + self.leases(2.5) < now;
            return if self.terms.nodes == 1 {
                self.jumps_back < 3 && by_ms < 0
            } else {
                self.missed_until.iter().enumerate().all(is_quiet)
            };
        }
        // Usually a majority can serve; otherwise there is nothing to observe.
        let troubled = self.missed_until.iter().filter(|until| **until > now).count();
        troubled < self.terms.nodes.div_ceil(2).saturating_sub(1).max(1) || !is_spared
    }

    fn note(&mut self, blow: &Blow) {
        let Some(server) = blow.fault.server() else { return };
        let over = blow.at_ms + blow.lasts_ms;
        if !blow.fault.is_failure() {
            return;
        }
        self.troubled_until[server] = over + 300;
        let recovery = match blow.fault {
            Fault::RestartServer { .. } | Fault::FlushAll(_) if self.weather == Weather::Forgetful => {
                self.leases(1.0) + 1000
            }
            // A single server has no other beside it: let the runs have some turns.
            _ if self.terms.nodes == 1 => 1500,
            _ => 300,
        };
        self.missed_until[server] = over + recovery;
        if let Fault::JumpClock { .. } = blow.fault {
            self.still_until = over + self.leases(1.0) + 1000;
            self.jumps_back += 1;
            self.jumped_in = Some(blow.at_ms / CYCLE_MS);
        }
    }

    fn leases(&self, times: f64) -> u64 {
        (self.terms.longest_ttl_ms as f64 * times) as u64
    }
}
