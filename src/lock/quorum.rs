//! The lock on servers: the queue on the gate, and the votes of all.
//!
//! One Redis is a quorum of one: the gate is the only voter. Waiting means sleeping in BLPOP on the
//! gate; the releaser pushes the wake-up. Every step sends one script and takes one answer.

use std::time::Duration;

use super::node::{ACQUIRE, Answer, Call, EXTEND, Node, RELEASE, Script};
use super::wait::{Wait, wait};
use super::{
    BootTime, Busy, Claim, Error, Extended, Fault, Grant, Lease, Lock, Names, NodeError, Observer, Patience,
    Released, Request, Server, WaiterId,
};

/// How often a waiter shows that it is alive: one BLPOP and one script in this time.
const RENEW_PLACE: Duration = Duration::from_millis(2100);
/// How long a waiter counts as alive without.
const PLACE_LEASE: Duration = Duration::from_millis(5000);
/// A fencing token outlives its lock; when it is forgotten the server's clock keeps tokens growing.
const KEEP_FENCE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Servers look at blocked clients' timeouts ten times a second.
const NAP_SLACK: Duration = Duration::from_millis(300);
/// What giving back may take at the most, whatever the node timeout: somebody waits for us to end.
const CLEANUP: Duration = Duration::from_secs(2);
/// A request still under way when its sender gives up will have arrived after this time.
const KEEP_GONE: Duration = Duration::from_secs(60);
/// Between attempts to reach a lost server: at first, and at most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub ttl: Duration,
    /// What one server may take to answer, connecting included.
    pub node_timeout: Duration,
}

pub struct Quorum {
    gate: Node,
    names: Names,
    timing: Timing,
    id: WaiterId,
    attempts: u32,
    /// A first request that is under way, and when it was sent.
    begun: Option<(BootTime, Result<(), NodeError>)>,
}

/// Why no answer came.
enum Silence {
    Cancelled,
    Failed(NodeError),
    /// It may still come.
    Late(NodeError),
}

impl Quorum {
    pub fn new(server: Server, names: Names, timing: Timing) -> Self {
        Self { gate: Node::new(server), names, timing, id: WaiterId::random(), attempts: 0, begun: None }
    }

    fn claim(&self) -> Claim {
        Claim { waiter: self.id, attempt: self.attempts }
    }

    fn call(&self, script: &'static Script, claim: Claim, more_args: Vec<Vec<u8>>) -> Call {
        let names = &self.names;
        let keys = [&names.lock, &names.queue, &names.waiters, &names.info, &names.fence];
        let mut keys: Vec<Vec<u8>> = keys.into_iter().cloned().collect();
        keys.push(names.gone_of(claim.waiter));
        let mut args = vec![claim.to_string().into_bytes(), names.notify.clone()];
        args.extend(more_args);
        Call::Script { script, keys, args }
    }

    fn acquire_call(&self, request: &Request) -> Call {
        let place_lease = match request.patience {
            Patience::None => Duration::ZERO,
            Patience::AtMost(_) | Patience::Forever => PLACE_LEASE,
        };
        let mut args = [self.timing.ttl, place_lease, KEEP_FENCE].map(millis).to_vec();
        for (field, value) in request.who.fields() {
            args.extend([field.into(), value.into()]);
        }
        self.call(&ACQUIRE, self.claim(), args)
    }

    /// When it was sent, and whether it could be.
    fn ask_for_it(&mut self, request: &Request) -> (BootTime, Result<(), NodeError>) {
        self.attempts += 1;
        let asked = BootTime::now();
        (asked, self.gate.ask(self.acquire_call(request)))
    }

    fn ask(
        &mut self,
        call: Call,
        within: Duration,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Answer, Silence> {
        let until = BootTime::now() + within;
        self.gate.ask(call).map_err(Silence::Failed)?;
        self.answer(until, observer)
    }

    fn answer(
        &mut self,
        until: BootTime,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Answer, Silence> {
        loop {
            if let Some(answer) = self.gate.answer() {
                return answer.map_err(Silence::Failed);
            }
            if until.has_passed() {
                return Err(Silence::Late(self.gate.timed_out()));
            }
            if wait(self.gate.poll_for(), until, observer.as_deref_mut()) == Wait::Cancelled {
                return Err(Silence::Cancelled);
            }
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
        let list = self.names.notify_of(self.id);
        let within = at_most + NAP_SLACK + self.timing.node_timeout;
        self.ask(Call::Nap { list, at_most }, within, Some(observer)).map(drop)
    }

    /// Give back the lock or the place in the queue, whatever this waiter may have by now. On a budget
    /// of its own: whoever gives up may have none left.
    fn give_back(&mut self, claim: Claim) -> Result<Answer, NodeError> {
        if self.gate.is_napping() {
            self.gate.hang_up();
        }
        let mut last = None;
        for _ in 0..2 {
            let keep_gone = if self.gate.has_loose_end() { KEEP_GONE } else { Duration::ZERO };
            let call = self.call(&RELEASE, claim, vec![millis(keep_gone)]);
            match self.ask(call, self.timing.node_timeout.min(CLEANUP), None) {
                // The one before may have been carried out, and only its answer lost.
                Ok(Answer::Lost(_)) if last.is_some() => return Ok(Answer::Released),
                Ok(answer) => return Ok(answer),
                // Without an observer there is nobody to cancel.
                Err(Silence::Cancelled) => {}
                Err(Silence::Failed(error) | Silence::Late(error)) => {
                    self.gate.hang_up();
                    let hopeless = error.fault != Fault::Unavailable;
                    last = Some(error);
                    if hopeless {
                        break;
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| self.gate.timed_out()))
    }

    /// Give up waiting. What cannot be given back now expires by itself.
    fn withdraw(&mut self) {
        let _ = self.give_back(self.claim());
    }

    /// Give up on a server that has not said a word: it finds our request and, behind it, that we gave up, if
    /// ever it looks.
    fn leave_word(&mut self) {
        let call = self.call(&RELEASE, self.claim(), vec![millis(KEEP_GONE)]);
        let _ = self.gate.ask(call);
    }

    /// After `failures` failures in a row: a pause that grows, and differs between waiters.
    fn pause(&self, failures: u32, give_up: Option<BootTime>, observer: &mut dyn Observer) -> Wait {
        let (first, most) = RECONNECT;
        let pause = (first * 2u32.saturating_pow(failures.min(10))).min(most);
        let mut until = BootTime::now() + pause / 2 + self.id.jitter(failures, pause / 2);
        if let Some(give_up) = give_up {
            until = until.min(give_up);
        }
        while !until.has_passed() {
            if wait(None, until, Some(observer)) == Wait::Cancelled {
                return Wait::Cancelled;
            }
        }
        Wait::Over
    }
}

impl Lock for Quorum {
    /// Not if the server's name must be looked up: that takes a thread, and we are about to fork.
    fn begin(&mut self, request: &Request) {
        if self.gate.has_address() {
            self.begun = Some(self.ask_for_it(request));
        }
    }

    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        let give_up = match request.patience {
            Patience::None => Some(started),
            Patience::AtMost(patience) => Some(started + patience),
            Patience::Forever => None,
        };
        let mut was_answered = false;
        let mut failures = 0;
        loop {
            let (asked, sent) = self.begun.take().unwrap_or_else(|| self.ask_for_it(request));
            let answer = match sent {
                Ok(()) => self.answer(asked + self.timing.node_timeout, Some(observer)),
                Err(error) => Err(Silence::Failed(error)),
            };
            let silence = match answer {
                Ok(Answer::Granted { fence }) => {
                    let lease = Lease::new(asked, self.timing.ttl);
                    if !lease.deadline().has_passed() {
                        let waited = asked.since(started);
                        return Ok(Grant {
                            claim: self.claim(),
                            fence,
                            lease: Some(lease),
                            taken_at: asked,
                            waited,
                        });
                    }
                    let late = "granted the lock too late to be of use (--ttl is too short for this network)";
                    Silence::Failed(self.gate.error(Fault::Unavailable, late.into()))
                }
                Ok(Answer::Busy(busy)) => {
                    (was_answered, failures) = (true, 0);
                    if is_ancestor(&busy, request) {
                        self.withdraw();
                        return Err(Error::Nested);
                    }
                    if give_up.is_some_and(BootTime::has_passed) {
                        self.withdraw();
                        return Err(Error::Held(busy));
                    }
                    observer.waiting(&busy, BootTime::now().since(started));
                    match self.nap(&busy, give_up, observer) {
                        Ok(()) => continue,
                        Err(silence) => silence,
                    }
                }
                Ok(_) => {
                    Silence::Failed(self.gate.error(Fault::Unavailable, "answered an older request".into()))
                }
                Err(silence) => silence,
            };
            let error = match silence {
                Silence::Cancelled => {
                    self.withdraw();
                    return Err(Error::Cancelled);
                }
                Silence::Late(error) if !was_answered => {
                    self.leave_word();
                    return Err(Error::Node(error));
                }
                Silence::Failed(error) | Silence::Late(error) => error,
            };
            // At the start a server that cannot be asked is an error at once; one that goes away while
            // we wait for others may come back.
            if !was_answered || error.fault != Fault::Unavailable || give_up.is_some_and(BootTime::has_passed)
            {
                self.withdraw();
                return Err(Error::Node(error));
            }
            observer.trouble(&error);
            self.gate.hang_up();
            if self.pause(failures, give_up, observer) == Wait::Cancelled {
                self.withdraw();
                return Err(Error::Cancelled);
            }
            failures += 1;
        }
    }

    fn extend(&mut self, grant: &Grant) -> Extended {
        let asked = BootTime::now();
        let call = self.call(&EXTEND, grant.claim, vec![millis(self.timing.ttl)]);
        // An answer after the deadline would not count.
        let left = grant.lease.map_or(Duration::MAX, |lease| lease.deadline().since(asked));
        match self.ask(call, self.timing.node_timeout.min(left), None) {
            Ok(Answer::Extended) if !grant.is_over() => Extended::Until(Lease::new(asked, self.timing.ttl)),
            Ok(Answer::Lost(loss)) => Extended::Lost(loss),
            Ok(_) => Extended::Unknown(self.gate.timed_out()),
            Err(Silence::Failed(error) | Silence::Late(error)) => {
                self.gate.hang_up();
                Extended::Unknown(error)
            }
            Err(Silence::Cancelled) => Extended::Unknown(self.gate.timed_out()),
        }
    }

    fn release(&mut self, grant: &Grant) -> Released {
        match self.give_back(grant.claim) {
            Ok(Answer::Lost(loss)) => Released::Lost(loss),
            Ok(_) => Released::Done,
            Err(error) => Released::Unknown(error),
        }
    }
}

fn is_ancestor(busy: &Busy, request: &Request) -> bool {
    let holder = busy.holder.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let holder = holder.and_then(|text| text.parse::<Claim>().ok());
    holder.is_some_and(|claim| request.ancestors.iter().any(|ancestor| ancestor.waiter == claim.waiter))
}

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}
