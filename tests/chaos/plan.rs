//! What the nemesis will do, and when: made from the seed before anything runs.
//!
//! What it does not stage, as redlock does not promise to survive it (docs/protocol.md, README "limits"):
//!
//! - One server that loses its memory while quarantine is off: it gives the lock away at once, beside a command that
//!   is still being stopped. In `Weather::Forgetful` every client has a quarantine as long as the longest lease, on
//!   one server, too; FLUSHALL is staged on one of several servers only.
//! - A server's clock that jumps forward by more than the margin of a lease. On one server it is the same as losing
//!   the lease, so there the clock goes back only (a bounded wait). On several, one server may jump while every other
//!   one has had no fault for longer than two leases, and has none until the forgotten leases are over: a second
//!   fault in that time would be a majority that has forgotten. Back by 2 s at most, as every lease there becomes
//!   longer by that.
//! - Memory lost and clock jumps in one run: a token is kept from going back by the memory of the servers or by their
//!   clocks; without both it may repeat.
//! - redlock and its guardian both killed, or one of them killed and the other stopped: there is nobody left to stop
//!   the tree. One such blow for each run.
//! - The command alone killed, or ended by a SIGTERM that redlock has forwarded, while it has a child and no
//!   `--wait-tree`: the lock is released when the command has ended, and the child is a daemon that was left behind (it
//!   gets the SIGTERM as well, but it is not waited for).
//! - The guardian stopped (a known defect, finding 60).
//! - The whole machine paused. A busy one does that by itself: chaos.rs watches how late it is woken, and two holders
//!   at once are not counted if it was later than the margin that a guardian has to end a tree before the lease.

use std::fmt;

use crate::dice::Dice;
use crate::turn::Terms;

/// Which kinds of faults go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// No server fails; links have latencies. Order is promised all the time.
    Gentle,
    /// Servers fail, and remember: an append-only file that is written before each reply.
    Remembering,
    /// Servers fail, and may forget everything.
    Forgetful,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
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

impl Deed {
    /// The server that it troubles.
    pub fn server(self) -> Option<usize> {
        match self {
            Deed::KillRedlock | Deed::KillGuardian | Deed::KillCommand => None,
            Deed::TerminateRedlock | Deed::StopRedlock | Deed::StopCommand => None,
            Deed::StopServer(at) | Deed::RestartServer { at, .. } | Deed::KillClients(at) => Some(at),
            Deed::FlushScripts(at) | Deed::FlushAll(at) | Deed::JumpClock { at, .. } => Some(at),
            Deed::Cut(link) | Deed::Stall(link) | Deed::LoseReplies(link) | Deed::Strand(link) => {
                Some(link.server)
            }
            Deed::Delay { link, .. } => Some(link.server),
        }
    }

    /// Whether a server, or the way to it, fails by it: then no order is promised.
    pub fn is_failure(self) -> bool {
        match self {
            Deed::FlushScripts(_) => false,
            // Below every node timeout.
            Deed::Delay { by_ms, .. } => by_ms > GENTLE_DELAY_MS,
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
    pub deed: Deed,
    /// Chooses the victim among the runs that are there at the moment.
    pub number: u64,
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "at {:.3} s {:?}", self.at_ms as f64 / 1000.0, self.deed)?;
        if self.lasts_ms > 0 {
            write!(f, " for {} ms", self.lasts_ms)?;
        }
        Ok(())
    }
}

/// All blows of a run, in their order.
pub fn draw(seed: u64, terms: &Terms, weather: Weather, has_clocks: bool, storm_ms: u64) -> Vec<Blow> {
    let mut dice = Dice::new(seed, 0xB10);
    let mut sky = Sky::new(terms, weather, has_clocks);
    let mut blows = Vec::new();
    if weather == Weather::Gentle {
        // Every host is nearer to one server than to another, from the beginning.
        for (host, server) in (0..terms.hosts).flat_map(|h| (0..terms.nodes).map(move |s| (h, s))) {
            let link = Link { host: Some(host), server };
            let deed = Deed::Delay { link, by_ms: dice.between(0, GENTLE_DELAY_MS) };
            blows.push(Blow { at_ms: 0, lasts_ms: 0, deed, number: 0 });
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

/// What the plan knows of the servers at a moment of the plan.
struct Sky<'a> {
    terms: &'a Terms,
    weather: Weather,
    has_clocks: bool,
    /// Of each server: until when it is troubled by the last blow.
    troubled_until: Vec<u64>,
    /// Of each server: when its last failure is over for those that it may have kept from voting.
    missed_until: Vec<u64>,
    /// No failure before this: a clock has jumped.
    still_until: u64,
    /// The clocks of single servers go back this many times.
    jumps_back: u64,
    /// The cycle in which a clock has jumped last.
    jumped_in: Option<u64>,
}

/// How often a clock jumps on several servers.
const CYCLE_MS: u64 = 30_000;

impl Sky<'_> {
    fn new(terms: &Terms, weather: Weather, has_clocks: bool) -> Sky<'_> {
        Sky {
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
        // Both are drawn, so that what is not possible now changes nothing later.
        let (against_a_run, against_a_server) = (Sky::against_a_run(dice), self.against_a_server(dice));
        let (deed, lasts_ms) =
            if dice.percent(45) || self.terms.nodes == 0 { against_a_run } else { against_a_server? };
        let blow = Blow { at_ms, lasts_ms, deed, number: dice.next() };
        let is_spared = dice.percent(85);
        if let Some(jump) = self.jump_due(dice, at_ms) {
            self.note(&jump);
            return Some(jump);
        }
        if blow.deed.is_failure() && self.waits_for_jump(at_ms) {
            return None;
        }
        self.permits(&blow, is_spared).then(|| {
            self.note(&blow);
            blow
        })
    }

    /// On several servers a clock may jump when the others have not failed for long: so every half minute they do not,
    /// until it has jumped.
    fn waits_for_jump(&self, now: u64) -> bool {
        self.has_clocks && self.terms.nodes > 1 && self.jumped_in != Some(now / CYCLE_MS)
    }

    fn jump_due(&self, dice: &mut Dice, now: u64) -> Option<Blow> {
        let at = dice.between(0, self.terms.nodes.max(1) as u64 - 1) as usize;
        let (back, ahead) = (-(dice.between(200, 2000) as i64), dice.between(500, 60_000) as i64);
        let by_ms = if dice.percent(60) { ahead } else { back };
        let blow = Blow { at_ms: now, lasts_ms: 0, deed: Deed::JumpClock { at, by_ms }, number: 0 };
        (self.waits_for_jump(now) && now > 1000 && self.permits(&blow, true)).then_some(blow)
    }

    fn against_a_run(dice: &mut Dice) -> (Deed, u64) {
        let deed = dice.weighted(&[
            (4, Deed::KillRedlock),
            (3, Deed::KillGuardian),
            (3, Deed::KillCommand),
            (3, Deed::TerminateRedlock),
            (4, Deed::StopRedlock),
            (2, Deed::StopCommand),
        ]);
        let short = dice.between(50, 600);
        let long = dice.between(600, 3500);
        match deed {
            Deed::StopRedlock => (deed, if dice.percent(50) { short } else { long }),
            Deed::StopCommand => (deed, short),
            _ => (deed, 0),
        }
    }

    fn against_a_server(&self, dice: &mut Dice) -> Option<(Deed, u64)> {
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
                (Deed::FlushScripts(at), 0)
            } else {
                (Deed::Delay { link, by_ms }, 0)
            });
        }
        let remembers = self.weather == Weather::Remembering || dice.percent(25);
        let jump = Deed::JumpClock { at, by_ms: -(dice.between(200, 1000) as i64) };
        let delay = dice.between(30, 900);
        let flush = self.weather == Weather::Forgetful && nodes > 1;
        let (deed, is_lasting) = dice.weighted(&[
            (4, (Deed::StopServer(at), true)),
            (4, (Deed::RestartServer { at, remembers }, true)),
            (3, (Deed::KillClients(at), false)),
            (2, (Deed::FlushScripts(at), false)),
            (if flush { 2 } else { 0 }, (Deed::FlushAll(at), false)),
            (if self.has_clocks && nodes == 1 { 3 } else { 0 }, (jump, false)),
            (3, (Deed::Cut(link), false)),
            (3, (Deed::Delay { link, by_ms: delay }, true)),
            (3, (Deed::Stall(link), true)),
            (3, (Deed::LoseReplies(link), true)),
            (3, (Deed::Strand(link), true)),
        ]);
        Some((deed, if is_lasting { lasts } else { 0 }))
    }

    fn permits(&self, blow: &Blow, is_spared: bool) -> bool {
        let (Some(server), now) = (blow.deed.server(), blow.at_ms) else { return true };
        if !blow.deed.is_failure() {
            return self.troubled_until[server] < now;
        }
        if self.troubled_until[server] >= now || self.still_until > now {
            return false;
        }
        if let Deed::JumpClock { by_ms, .. } = blow.deed {
            let is_quiet =
                |(at, until): (usize, &u64)| at == server || *until == 0 || *until + self.leases(2.5) < now;
            return if self.terms.nodes == 1 {
                self.jumps_back < 3 && by_ms < 0
            } else {
                self.missed_until.iter().enumerate().all(is_quiet)
            };
        }
        // Mostly a majority can serve, or there is nothing to see.
        let troubled = self.missed_until.iter().filter(|until| **until > now).count();
        troubled < self.terms.nodes.div_ceil(2).saturating_sub(1).max(1) || !is_spared
    }

    fn note(&mut self, blow: &Blow) {
        let Some(server) = blow.deed.server() else { return };
        let over = blow.at_ms + blow.lasts_ms;
        if !blow.deed.is_failure() {
            return;
        }
        self.troubled_until[server] = over + 300;
        let recovery = match blow.deed {
            Deed::RestartServer { .. } | Deed::FlushAll(_) if self.weather == Weather::Forgetful => {
                self.leases(1.0) + 1000
            }
            // One server has nobody beside it: let them have some turns.
            _ if self.terms.nodes == 1 => 1500,
            _ => 300,
        };
        self.missed_until[server] = over + recovery;
        if let Deed::JumpClock { .. } = blow.deed {
            self.still_until = over + self.leases(1.0) + 1000;
            self.jumps_back += 1;
            self.jumped_in = Some(blow.at_ms / CYCLE_MS);
        }
    }

    fn leases(&self, times: f64) -> u64 {
        (self.terms.longest_ttl_ms as f64 * times) as u64
    }
}
