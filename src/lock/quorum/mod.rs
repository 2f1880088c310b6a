//! The lock on servers: the queue at the gate, then the votes of all.
//!
//! The gate is the first server, in the order given, that can be asked. Whoever has its vote asks all others
//! at once; a majority of the configured servers makes the lock. Losers never touch the others, so nobody
//! splits the vote; and if clients disagree about the gate, safety does not depend on it.
//!
//! One Redis is a quorum of one: its vote at the gate is the majority.

mod calls;
mod fence;
mod force;
mod give_back;
mod renew;
mod round;
mod tally;
mod vote;

use std::ops::ControlFlow;
use std::time::Duration;

use super::answer::Answer;
use super::node::{Call, Node};
use super::wait::{Wait, sleep};
use super::{
    BootTime, Busy, Error, Extended, Fault, Grant, Held, Lease, Lock, Mode, Names, NodeError, Observer,
    Released, Request, Server, WaiterId,
};
use calls::Wish;
use give_back::Leaving;
use round::{Round, listen};
use tally::majority_of;
use vote::Attempt;

/// How often a waiter shows that it is alive: one BLPOP and one script in this time.
const RENEW_PLACE: Duration = Duration::from_millis(2100);
/// Servers look at blocked clients' timeouts ten times a second.
const NAP_SLACK: Duration = Duration::from_millis(300);
/// Between attempts after a failure: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The lease of a lock that never expires, as far as our own clock is concerned.
const FOR_EVER: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// `None` for a lock that never expires.
    pub ttl: Option<Duration>,
    /// What one server may take to answer, connecting included.
    pub node_timeout: Duration,
    /// How long a server that has lost its memory does not vote; zero = it votes at once.
    pub quarantine: Duration,
}

pub struct Quorum {
    nodes: Vec<Node>,
    names: Vec<Names>,
    timing: Timing,
    id: WaiterId,
    attempts: u32,
    /// What was asked for last.
    wish: Wish,
    /// This waiter has given up for good: whoever asks again is another one.
    has_left: bool,
    /// Where our queue is.
    gate: usize,
    /// A first request to the gate that is under way, and when it was sent.
    begun: Option<(BootTime, Result<(), NodeError>)>,
    /// Servers that did not answer, and until when they are not made the gate without need.
    shunned_until: Vec<Option<BootTime>>,
    /// Servers that have lost our lock and are to be healed.
    missing: Vec<bool>,
    /// Until when each server's last yes holds, by itself.
    yes_until: Vec<Option<BootTime>>,
}

impl Quorum {
    pub fn new(servers: Vec<Server>, names: Vec<Names>, timing: Timing) -> Self {
        Self {
            shunned_until: vec![None; servers.len()],
            missing: vec![false; servers.len()],
            yes_until: vec![None; servers.len()],
            nodes: servers.into_iter().map(Node::new).collect(),
            names,
            timing,
            id: WaiterId::random(),
            attempts: 0,
            wish: Wish::default(),
            has_left: false,
            gate: 0,
            begun: None,
        }
    }

    /// What a grant that was asked for at this moment is good for.
    fn lease(&self, asked: BootTime) -> Lease {
        Lease::new(asked, self.timing.ttl.unwrap_or(FOR_EVER))
    }

    /// Of the names, for those parts that they have in common.
    fn any_name(&self) -> &Names {
        &self.names[0]
    }

    fn majority(&self) -> usize {
        majority_of(self.nodes.len())
    }

    fn answer_of(
        &mut self,
        at: usize,
        until: BootTime,
        observer: &mut dyn Observer,
    ) -> Result<Answer, Silence> {
        let mut heard = None;
        let ended = listen(&mut self.nodes, vec![at], until, Some(observer), |_, answer| {
            heard = Some(answer);
            ControlFlow::Break(())
        });
        match (heard, ended) {
            (Some(answer), _) => answer.map_err(Silence::Failed),
            (None, Round::Cancelled) => Err(Silence::Cancelled),
            (None, _) => Err(Silence::Late(self.nodes[at].timed_out())),
        }
    }

    /// Sleep until it may be our turn: a wake-up, the holder's expiry, or the next sign of life.
    fn nap(
        &mut self,
        busy: &Busy,
        give_up: Option<BootTime>,
        observer: &mut dyn Observer,
    ) -> Result<(), Silence> {
        let mut at_most = RENEW_PLACE;
        if let (Some(0), Some(expiry)) = (busy.place, busy.expires_in) {
            at_most = at_most.min(expiry + Duration::from_millis(1));
        }
        if let Some(give_up) = give_up {
            at_most = at_most.min(give_up.remaining());
        }
        // Zero would mean "for ever" to the server.
        let at_most = at_most.max(Duration::from_millis(1));
        let list = self.any_name().notify_of(self.id);
        let until = BootTime::now() + at_most + NAP_SLACK + self.timing.node_timeout;
        self.nodes[self.gate].ask(Call::Nap { list, at_most }).map_err(Silence::Failed)?;
        self.answer_of(self.gate, until, observer).map(drop)
    }

    /// Whoever waits needs one connection; whoever is next opens the way to the others.
    fn prepare_others(&mut self, we_are_next: bool) {
        for at in (0..self.nodes.len()).filter(|&at| at != self.gate) {
            let node = &mut self.nodes[at];
            match we_are_next && self.shunned_until[at].is_none_or(BootTime::has_passed) {
                true => node.connect(),
                false => node.hang_up(),
            }
        }
    }

    /// A pause that grows with each failure in a row, and differs between waiters; or as long as is given.
    fn pause(
        &self,
        failures: u32,
        exactly: Option<Duration>,
        give_up: Option<BootTime>,
        observer: &mut dyn Observer,
    ) -> Wait {
        let (first, most) = PAUSE;
        let grown = (first * 2u32.saturating_pow(failures.min(10))).min(most);
        let jittered = grown / 2 + self.id.jitter(failures, grown / 2);
        let mut until = BootTime::now() + exactly.map_or(jittered, |exactly| exactly.min(RENEW_PLACE));
        if let Some(give_up) = give_up {
            until = until.min(give_up);
        }
        sleep(until, observer)
    }
}

/// Why no answer came.
enum Silence {
    Cancelled,
    Failed(NodeError),
    /// It may still come.
    Late(NodeError),
}

impl Lock for Quorum {
    /// Not if the server's name must be looked up: that takes a thread, and we are about to fork.
    fn begin(&mut self, request: &Request) {
        self.wish = Wish::of(request, self.names.len());
        if self.nodes[0].has_address() {
            self.attempts += 1;
            self.begun = Some(self.ask_gate(0, request.patience));
            // Where it costs nothing the way to the others is opened meanwhile.
            for other in self.nodes.iter_mut().skip(1).filter(|node| node.has_address()) {
                other.connect();
            }
        }
    }

    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        let give_up = request.patience.ends(started);
        self.wish = Wish::of(request, self.names.len());
        if std::mem::take(&mut self.has_left) {
            self.id = WaiterId::random();
        }
        // Who knows what has become of links since the last time.
        if self.begun.is_none() {
            self.nodes.iter_mut().for_each(Node::hang_up);
        }
        let is_over = || give_up.is_some_and(BootTime::has_passed);
        let mut was_answered = false;
        let mut failures = 0;
        loop {
            let waited = || BootTime::now().since(started);
            let mut pause_for = None;
            match self.attempt(request.patience, observer) {
                Attempt::Won { fences, slots, asked } => {
                    let lease = self.lease(asked);
                    if !lease.deadline().has_passed() {
                        let waited = asked.since(started);
                        let claim = self.claim();
                        // One slot is a lock: the scripts know no number for it.
                        let is_only_slot = request.mode == (Mode::Slot { of: 1 });
                        return Ok(Grant {
                            claim,
                            held_as: vec![Held { claim, on_host: None }],
                            fences,
                            slots: if is_only_slot { vec![0; self.names.len()] } else { slots },
                            lease: self.timing.ttl.map(|_| lease),
                            taken_at: asked,
                            waited,
                        });
                    }
                    self.withdraw();
                    return Err(Error::Node(self.too_late()));
                }
                Attempt::Queued(busy) => {
                    (was_answered, failures) = (true, 0);
                    if is_over() {
                        // Nothing of ours is left where we did not even queue.
                        if self.nodes.len() > 1 || busy.place.is_some() || self.nodes[0].has_loose_end() {
                            self.withdraw();
                        }
                        return Err(Error::Held(busy));
                    }
                    observer.waiting(&busy, waited());
                    self.prepare_others(busy.place == Some(0));
                    match self.nap(&busy, give_up, observer) {
                        Ok(()) => continue,
                        Err(Silence::Cancelled) => {
                            self.withdraw();
                            return Err(Error::Cancelled);
                        }
                        Err(Silence::Failed(error)) if error.fault != Fault::Unavailable => {
                            self.withdraw();
                            return Err(Error::Node(error));
                        }
                        Err(Silence::Failed(error) | Silence::Late(error)) => {
                            observer.trouble(&error);
                            self.nodes[self.gate].hang_up();
                        }
                    }
                }
                Attempt::Nested => {
                    self.withdraw();
                    return Err(Error::Nested);
                }
                Attempt::Outvoted(busy) => {
                    was_answered = true;
                    if is_over() {
                        self.withdraw();
                        return Err(Error::Held(busy));
                    }
                    self.step_back();
                    observer.waiting(&busy, waited());
                }
                Attempt::SittingOut(who, errors) => {
                    if is_over() {
                        self.withdraw();
                        return Err(Error::Node(still_sitting_out(&who, &errors, self.nodes.len())));
                    }
                    self.step_back();
                    was_answered = true;
                    pause_for = who.iter().map(|(_, left)| *left).min();
                    observer.waiting(&Busy { sitting_out: who, ..Busy::default() }, waited());
                }
                Attempt::Silent(error) if !was_answered => {
                    self.leave_word();
                    return Err(Error::Node(error));
                }
                // At the start servers that cannot be asked are an error at once; those that go away while we
                // wait for others may come back.
                Attempt::Failed(error) | Attempt::Silent(error) => {
                    if !was_answered || error.fault != Fault::Unavailable || is_over() {
                        self.withdraw();
                        return Err(Error::Node(error));
                    }
                    self.step_back();
                    observer.trouble(&error);
                    self.nodes[self.gate].hang_up();
                }
                Attempt::Cancelled => {
                    self.withdraw();
                    return Err(Error::Cancelled);
                }
            }
            if self.pause(failures, pause_for, give_up, observer) == Wait::Cancelled {
                self.withdraw();
                return Err(Error::Cancelled);
            }
            failures += 1;
        }
    }

    fn extend(&mut self, grant: &Grant) -> Extended {
        self.renew(grant)
    }

    fn release(&mut self, grant: &Grant, min_hold: Duration) -> Released {
        let stay_until = (!min_hold.is_zero()).then(|| grant.taken_at + min_hold);
        self.give_back(grant.claim, Leaving::ForGood { stay_until })
    }
}

fn still_sitting_out(who: &[(String, Duration)], errors: &[NodeError], nodes: usize) -> NodeError {
    let told: Vec<String> =
        who.iter().map(|(name, left)| format!("{name} for another {}s", left.as_secs_f64().ceil())).collect();
    let text = format!(
        "{} may have lost the locks that they granted and do not vote yet; --quarantine off would not wait",
        told.join(", ")
    );
    let text = errors.iter().fold(text, |text, error| format!("{text}; {error}"));
    let node = format!("no majority of {nodes} servers");
    NodeError { fault: Fault::Unavailable, node, text }
}
