//! The lock on servers: the queue at the gate, then the votes of all.
//!
//! The gate is the first server, in the order given, that can be asked. Whoever has its vote asks all others
//! at once; a majority of the configured servers makes the lock. Losers never touch the others, so nobody
//! splits the vote; and if clients disagree about the gate, safety does not depend on it.
//!
//! One Redis is a quorum of one: its vote at the gate is the majority.

mod round;
mod tally;

use std::ops::ControlFlow;
use std::time::Duration;

use super::node::{ACQUIRE, Answer, Call, EXTEND, HEAL, Node, RAISE, RELEASE, Script};
use super::wait::{Wait, wait};
use super::{
    BootTime, Busy, Claim, Error, Extended, Fault, Grant, Held, Lease, Lock, Loss, Names, NodeError,
    Observer, Patience, Released, Request, Server, WaiterId, Who,
};
use round::{Round, ask, listen};
use tally::{Tally, Verdict, Vote, join, majority_of};

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
/// After the majority, for the others to show that they are who they are said to be.
const COURTESY: Duration = Duration::from_millis(5);
/// A server that did not answer is not asked first again for this time.
const SHUN: Duration = Duration::from_secs(10);
/// Between attempts after a failure: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub ttl: Duration,
    /// What one server may take to answer, connecting included.
    pub node_timeout: Duration,
    /// How long a server that has lost its memory does not vote; zero = it votes at once.
    pub quarantine: Duration,
}

pub struct Quorum {
    nodes: Vec<Node>,
    names: Names,
    timing: Timing,
    id: WaiterId,
    attempts: u32,
    /// What others are told about us; kept for a server that must be told again.
    who: Who,
    /// Where our queue is.
    gate: usize,
    /// A first request to the gate that is under way, and when it was sent.
    begun: Option<(BootTime, Result<(), NodeError>)>,
    /// Servers that did not answer, and until when they are not made the gate without need.
    shunned_until: Vec<Option<BootTime>>,
    /// Servers that have lost our lock and are to be healed.
    missing: Vec<bool>,
}

/// How one attempt ended.
enum Attempt {
    Won {
        fence: u64,
        asked: BootTime,
    },
    /// The gate has us in its queue.
    Queued(Box<Busy>),
    /// The gate is ours, but too many others are somebody else's.
    Outvoted(Box<Busy>),
    SittingOut(Vec<(String, Duration)>, Vec<NodeError>),
    Failed(NodeError),
    /// Not a word from the only server.
    Silent(NodeError),
    Cancelled,
}

impl Quorum {
    pub fn new(servers: Vec<Server>, names: Names, timing: Timing) -> Self {
        Self {
            shunned_until: vec![None; servers.len()],
            missing: vec![false; servers.len()],
            nodes: servers.into_iter().map(Node::new).collect(),
            names,
            timing,
            id: WaiterId::random(),
            attempts: 0,
            who: Who::default(),
            gate: 0,
            begun: None,
        }
    }

    fn majority(&self) -> usize {
        majority_of(self.nodes.len())
    }

    fn claim(&self) -> Claim {
        Claim { waiter: self.id, attempt: self.attempts }
    }

    fn call(&self, script: &'static Script, claim: Claim, more: Vec<Vec<u8>>) -> Call {
        let Names { lock, queue, waiters, info, fence, notify, node, .. } = &self.names;
        let gone = self.names.gone_of(claim.waiter);
        let keys = [lock, queue, waiters, info, fence, &gone, node].map(Clone::clone).to_vec();
        let nodes = self.nodes.len().to_string().into_bytes();
        let args = [vec![claim.to_string().into_bytes(), notify.clone(), nodes], more].concat();
        Call::Script { script, keys, args }
    }

    /// `proposed` is the gate's token; `None` at the gate itself.
    fn acquire_call(&self, patience: Patience, proposed: Option<u64>) -> Call {
        let place_lease = match (patience, proposed) {
            (Patience::None, _) | (_, Some(_)) => Duration::ZERO,
            (Patience::AtMost(_) | Patience::Forever, None) => PLACE_LEASE,
        };
        let mut args = [self.timing.ttl, place_lease, KEEP_FENCE].map(millis).to_vec();
        args.push(proposed.map_or_else(Vec::new, |fence| fence.to_string().into_bytes()));
        args.push(millis(self.timing.quarantine));
        args.extend(self.who_fields());
        self.call(&ACQUIRE, self.claim(), args)
    }

    fn heal_call(&self, grant: &Grant) -> Call {
        let mut args = [self.timing.ttl, KEEP_FENCE].map(millis).to_vec();
        args.push(grant.fence.to_string().into_bytes());
        args.extend(self.who_fields());
        self.call(&HEAL, grant.claim, args)
    }

    fn release_call(&self, claim: Claim, keep_gone: Duration) -> Call {
        self.call(&RELEASE, claim, vec![millis(keep_gone)])
    }

    fn who_fields(&self) -> impl Iterator<Item = Vec<u8>> {
        self.who.fields().into_iter().flat_map(|(field, value)| [field.into(), value.into()])
    }

    /// When it was sent, and whether it could be.
    fn ask_gate(&mut self, gate: usize, patience: Patience) -> (BootTime, Result<(), NodeError>) {
        let call = self.acquire_call(patience, None);
        (BootTime::now(), self.nodes[gate].ask(call))
    }

    /// Ask the gate, then everyone.
    fn attempt(&mut self, patience: Patience, observer: &mut dyn Observer) -> Attempt {
        let mut tally = Tally::new(self.nodes.iter().map(Node::name).collect());
        let mut first_queue = None;
        if self.begun.is_none() {
            self.attempts += 1;
        }
        for gate in self.gates() {
            let (asked, sent) = self.begun.take().unwrap_or_else(|| self.ask_gate(gate, patience));
            self.gate = gate;
            let until = asked + self.timing.node_timeout;
            let vote = match sent.map(|()| self.answer_of(gate, until, observer)) {
                Err(error) => Vote::Failed(error),
                Ok(Ok(Answer::Granted { fence, run_id })) => {
                    let _ = tally.add(gate, Vote::Yes { fence, run_id });
                    return self.fan_out(asked, fence, tally, patience, observer);
                }
                // A program that knows no gate may hold this server and no majority: then the next one is the
                // gate, for everyone who looks. If it has one, we wait in the first queue.
                Ok(Ok(Answer::Busy(busy))) if busy.is_foreign() && self.nodes.len() > 1 => {
                    first_queue.get_or_insert((gate, busy.clone()));
                    Vote::Held(busy)
                }
                Ok(Ok(Answer::Busy(busy))) => return Attempt::Queued(busy),
                Ok(Ok(Answer::Resting(left))) => Vote::Resting(left),
                Ok(Ok(_)) => Vote::Failed(
                    self.nodes[gate].error(Fault::Unavailable, "answered an older request".into()),
                ),
                Ok(Err(Silence::Cancelled)) => return Attempt::Cancelled,
                Ok(Err(Silence::Late(error))) if self.nodes.len() == 1 => return Attempt::Silent(error),
                Ok(Err(Silence::Late(error) | Silence::Failed(error))) => Vote::Failed(error),
            };
            if matches!(vote, Vote::Failed(_)) {
                self.shunned_until[gate] = Some(BootTime::now() + SHUN);
            }
            if let Err(error) = tally.add(gate, vote) {
                return Attempt::Failed(error);
            }
            // Whoever must sit out begins to when it is first asked: then ask them all.
            if tally.is_hopeless() && !tally.has_resting() {
                break;
            }
        }
        if tally.is_hopeless() && tally.has_failed() {
            self.hear_the_rest(&mut tally);
        }
        match (self.without_majority(tally), first_queue) {
            (Attempt::Outvoted(_), Some((gate, busy))) => {
                self.gate = gate;
                Attempt::Queued(busy)
            }
            (attempt, _) => attempt,
        }
    }

    /// It is lost anyway: but whoever must repair it wants to know of every server that does not answer.
    fn hear_the_rest(&mut self, tally: &mut Tally) {
        let rest: Vec<usize> = (0..self.nodes.len()).filter(|&at| !tally.has_vote_of(at)).collect();
        // Harmless, as there is nothing to give back.
        let call = self.release_call(self.claim(), Duration::ZERO);
        let mut errors = Vec::new();
        let asked =
            ask(&mut self.nodes, rest.into_iter(), |_, _| call.clone(), |at, error| errors.push((at, error)));
        let until = BootTime::now() + self.timing.node_timeout;
        let mut silent = asked.clone();
        listen(&mut self.nodes, asked, until, None, |at, answer| {
            silent.retain(|&other| other != at);
            errors.extend(answer.err().map(|error| (at, error)));
            ControlFlow::Continue(())
        });
        errors.extend(silent.into_iter().map(|at| (at, self.nodes[at].timed_out())));
        for (at, error) in errors {
            let _ = tally.add(at, Vote::Failed(error));
        }
    }

    /// Who may be the gate, in order: first those of whom nothing bad is known.
    fn gates(&self) -> Vec<usize> {
        let is_shunned = |&at: &usize| self.shunned_until[at].is_some_and(|until| !until.has_passed());
        let (shunned, others): (Vec<_>, Vec<_>) = (0..self.nodes.len()).partition(is_shunned);
        [others, shunned].concat()
    }

    /// The gate's vote is ours: ask all others that have not failed already.
    fn fan_out(
        &mut self,
        asked: BootTime,
        proposed: u64,
        mut tally: Tally,
        patience: Patience,
        observer: &mut dyn Observer,
    ) -> Attempt {
        let lease = Lease::new(asked, self.timing.ttl);
        let others: Vec<usize> = (0..self.nodes.len()).filter(|&at| !tally.has_vote_of(at)).collect();
        let call = self.acquire_call(patience, Some(proposed));
        let mut unfit = None;
        let mut add = |tally: &mut Tally, at: usize, vote: Vote| {
            if let Err(error) = tally.add(at, vote) {
                unfit.get_or_insert(error);
            }
            unfit.is_some()
        };
        let failed = |at, error| {
            add(&mut tally, at, Vote::Failed(error));
        };
        let others = ask(&mut self.nodes, others.into_iter(), |_, _| call.clone(), failed);
        let until = lease.deadline().min(BootTime::now() + self.timing.node_timeout);
        let mut ended = listen(&mut self.nodes, others.clone(), until, Some(&mut *observer), |at, answer| {
            stop_if(add(&mut tally, at, vote(answer)) || tally.has_majority() || tally.is_hopeless())
        });
        if tally.has_majority() {
            let silent: Vec<usize> = others.into_iter().filter(|&at| !tally.has_vote_of(at)).collect();
            let is_slow = silent.iter().any(|&at| self.nodes[at].is_being_looked_up());
            let courtesy = if is_slow { COURTESY * 10 } else { COURTESY };
            let until = lease.deadline().min(BootTime::now() + courtesy);
            ended = listen(&mut self.nodes, silent, until, Some(observer), |at, answer| {
                stop_if(add(&mut tally, at, vote(answer)))
            });
        }
        match (unfit, ended) {
            (Some(error), _) => Attempt::Failed(error),
            (None, Round::Cancelled) => Attempt::Cancelled,
            (None, _) if tally.has_majority() => match self.agree_on_fence(&tally, lease) {
                Ok(fence) if !lease.deadline().has_passed() => Attempt::Won { fence, asked },
                Ok(_) => Attempt::Failed(self.too_late()),
                Err(error) => Attempt::Failed(error),
            },
            (None, _) => self.without_majority(tally),
        }
    }

    fn without_majority(&self, tally: Tally) -> Attempt {
        match tally.verdict(|at| self.nodes[at].timed_out()) {
            // It would have been noticed before; whoever is not in it is simply somebody else's.
            Verdict::Won => Attempt::Outvoted(Box::default()),
            Verdict::Held(busy) => Attempt::Outvoted(busy),
            Verdict::SittingOut(who, errors) => Attempt::SittingOut(who, errors),
            Verdict::Failed(error) => Attempt::Failed(error),
        }
    }

    fn too_late(&self) -> NodeError {
        let text = "the lock was granted too late to be of use (--ttl is too short for this network)";
        self.nodes[self.gate].error(Fault::Unavailable, text.into())
    }

    /// One token for the grant: the largest of the votes, known to a majority. Without that a later majority
    /// could overlap this one only in a server that never heard of it, and give a smaller one.
    fn agree_on_fence(&mut self, tally: &Tally, lease: Lease) -> Result<u64, NodeError> {
        let votes: Vec<(usize, u64)> = tally.yes().map(|(at, fence, _)| (at, fence)).collect();
        let mut fence = votes.iter().map(|(_, fence)| *fence).max().unwrap_or_default();
        loop {
            let mut agreed = votes.iter().filter(|(_, theirs)| *theirs == fence).count();
            let behind = votes.iter().filter(|(_, theirs)| *theirs != fence).map(|(at, _)| *at);
            let args = vec![fence.to_string().into_bytes(), millis(KEEP_FENCE)];
            let call = self.call(&RAISE, self.claim(), args);
            let (mut higher, mut errors, majority) = (None, Vec::new(), self.majority());
            let asked = ask(&mut self.nodes, behind, |_, _| call.clone(), |_, error| errors.push(error));
            // Whoever is behind is told in any case, and waited for only if it matters.
            if agreed >= majority {
                return Ok(fence);
            }
            let until = lease.deadline().min(BootTime::now() + self.timing.node_timeout);
            listen(&mut self.nodes, asked, until, None, |_, answer| {
                match answer {
                    Ok(Answer::Raised) => agreed += 1,
                    Ok(Answer::NotRaised(theirs)) => higher = higher.max(Some(theirs)),
                    Ok(_) => {}
                    Err(error) => errors.push(error),
                }
                stop_if(agreed >= majority)
            });
            match higher {
                _ if agreed >= majority => return Ok(fence),
                Some(theirs) if theirs > fence && !lease.deadline().has_passed() => fence = theirs + 1,
                _ if errors.is_empty() => return Err(self.too_late()),
                _ => return Err(join(&errors, self.nodes.len())),
            }
        }
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
        let list = self.names.notify_of(self.id);
        let until = BootTime::now() + at_most + NAP_SLACK + self.timing.node_timeout;
        self.nodes[self.gate].ask(Call::Nap { list, at_most }).map_err(Silence::Failed)?;
        self.answer_of(self.gate, until, observer).map(drop)
    }

    /// Give back whatever this waiter may have anywhere by now: the others first, then the gate, which wakes the
    /// next one. Sent in this order, not waited for in between: the next one's requests to the others come
    /// behind ours. On a budget of its own: whoever gives up may have none left.
    fn give_back(&mut self, claim: Claim) -> Released {
        let (mut released, mut lost, mut errors) = (0, None, Vec::new());
        let gate = self.gate;
        let others = (0..self.nodes.len()).filter(|&at| at != gate);
        for answer in self.release_at(others.chain([gate]).collect(), claim) {
            match answer {
                Ok(Answer::Lost(loss)) => lost = lost.max(Some(loss)),
                Ok(_) => released += 1,
                Err(error) => errors.push(error),
            }
        }
        match lost {
            _ if released >= self.majority() => Released::Done,
            _ if errors.len() > self.nodes.len() - self.majority() => {
                Released::Unknown(join(&errors, self.nodes.len()))
            }
            Some(loss) => Released::Lost(loss),
            None => Released::Done,
        }
    }

    /// With one retry, over a new link, for those who answered so far and now do not.
    fn release_at(&mut self, whom: Vec<usize>, claim: Claim) -> Vec<Result<Answer, NodeError>> {
        for &at in &whom {
            self.nodes[at].forget_answers();
        }
        let attentive = |node: &Node| node.is_attentive() || node.is_napping();
        let is_expected = |at: &usize| self.nodes.len() == 1 || attentive(&self.nodes[*at]);
        let (expected, silent): (Vec<usize>, Vec<usize>) =
            whom.into_iter().filter(|&at| self.nodes[at].may_know_us()).partition(is_expected);
        // They find our word when they come to themselves.
        self.send_release(&silent, claim);
        let mut answers: Vec<_> = silent.iter().map(|&at| Err(self.nodes[at].timed_out())).collect();
        let mut again = Vec::new();
        for (at, answer) in self.release_once(&expected, claim) {
            match answer {
                Err(error) if error.fault == Fault::Unavailable => again.push(at),
                answer => answers.push(answer),
            }
        }
        for (_, answer) in self.release_once(&again, claim) {
            // The one before may have been carried out, and only its answer lost.
            answers.push(answer.map(|_| Answer::Released));
        }
        answers
    }

    /// Returns those who could not be asked.
    fn send_release(&mut self, whom: &[usize], claim: Claim) -> Vec<(usize, NodeError)> {
        let calls = [Duration::ZERO, KEEP_GONE].map(|keep_gone| self.release_call(claim, keep_gone));
        let mut failed = Vec::new();
        for &at in whom {
            if self.nodes[at].is_napping() {
                self.nodes[at].hang_up();
            }
        }
        let call = |_, node: &Node| calls[usize::from(node.has_loose_end())].clone();
        ask(&mut self.nodes, whom.iter().copied(), call, |at, error| failed.push((at, error)));
        failed
    }

    fn release_once(&mut self, whom: &[usize], claim: Claim) -> Vec<(usize, Result<Answer, NodeError>)> {
        let failed = self.send_release(whom, claim);
        let mut silent: Vec<usize> =
            whom.iter().copied().filter(|at| failed.iter().all(|(other, _)| other != at)).collect();
        let mut answers: Vec<_> = failed.into_iter().map(|(at, error)| (at, Err(error))).collect();
        let until = BootTime::now() + self.timing.node_timeout.min(CLEANUP);
        listen(&mut self.nodes, silent.clone(), until, None, |at, answer| {
            silent.retain(|&other| other != at);
            answers.push((at, answer));
            ControlFlow::Continue(())
        });
        for at in silent {
            answers.push((at, Err(self.nodes[at].timed_out())));
            self.nodes[at].hang_up();
        }
        answers
    }

    /// Whoever waits needs one connection.
    fn hang_up_others(&mut self) {
        let gate = self.gate;
        self.nodes.iter_mut().enumerate().filter(|(at, _)| *at != gate).for_each(|(_, node)| node.hang_up());
    }

    /// Give up waiting. What cannot be given back now expires by itself.
    fn withdraw(&mut self) {
        let _ = self.give_back(self.claim());
    }

    /// Give up on a server that has not said a word: it finds our request and, behind it, that we gave up, if
    /// ever it looks.
    fn leave_word(&mut self) {
        let call = self.release_call(self.claim(), KEEP_GONE);
        let _ = self.nodes[self.gate].ask(call);
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
        while !until.has_passed() {
            if wait(&[], until, Some(observer)) == Wait::Cancelled {
                return Wait::Cancelled;
            }
        }
        Wait::Over
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
        self.who = request.who.clone();
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
        let give_up = match request.patience {
            Patience::None => Some(started),
            Patience::AtMost(patience) => Some(started + patience),
            Patience::Forever => None,
        };
        let is_over = || give_up.is_some_and(BootTime::has_passed);
        let mut was_answered = false;
        let mut failures = 0;
        loop {
            let waited = || BootTime::now().since(started);
            let mut pause_for = None;
            match self.attempt(request.patience, observer) {
                Attempt::Won { fence, asked } => {
                    let lease = Lease::new(asked, self.timing.ttl);
                    if !lease.deadline().has_passed() {
                        let waited = asked.since(started);
                        let claim = self.claim();
                        let held_as = Held { claim, on_host: None };
                        return Ok(Grant {
                            claim,
                            held_as,
                            fence,
                            lease: Some(lease),
                            taken_at: asked,
                            waited,
                        });
                    }
                    self.withdraw();
                    return Err(Error::Node(self.too_late()));
                }
                Attempt::Queued(busy) => {
                    (was_answered, failures) = (true, 0);
                    if is_ancestor(&busy, request) || is_over() {
                        self.withdraw();
                        let nested = is_ancestor(&busy, request);
                        return Err(if nested { Error::Nested } else { Error::Held(busy) });
                    }
                    observer.waiting(&busy, waited());
                    self.hang_up_others();
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
                Attempt::Outvoted(busy) => {
                    was_answered = true;
                    self.withdraw();
                    if is_over() {
                        return Err(Error::Held(busy));
                    }
                    observer.waiting(&busy, waited());
                }
                Attempt::SittingOut(who, errors) => {
                    self.withdraw();
                    if is_over() {
                        return Err(Error::Node(still_sitting_out(&who, &errors, self.nodes.len())));
                    }
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
                    self.withdraw();
                    if !was_answered || error.fault != Fault::Unavailable || is_over() {
                        return Err(Error::Node(error));
                    }
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
        // Late answers of the last round first; whoever owes one since then is started afresh.
        for at in 0..self.nodes.len() {
            if let Some(Ok(Answer::Lost(Loss::Expired))) = self.nodes[at].answer() {
                self.missing[at] = true;
            }
            if !self.nodes[at].is_attentive() {
                self.nodes[at].hang_up();
            }
        }
        let asked = BootTime::now();
        let call = self.call(&EXTEND, grant.claim, vec![millis(self.timing.ttl)]);
        let (majority, total) = (self.majority(), self.nodes.len());
        let (mut ours, mut lost, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        let whom = ask(&mut self.nodes, 0..total, |_, _| call.clone(), |_, error| errors.push(error));
        // An answer after the deadline would not count.
        let deadline = grant.lease.map_or(asked + self.timing.ttl, |lease| lease.deadline());
        let until = deadline.min(asked + self.timing.node_timeout);
        let missing = &mut self.missing;
        listen(&mut self.nodes, whom, until, None, |at, answer| {
            match answer {
                // By identity: a server that is listed twice has one vote.
                Ok(Answer::Extended { run_id }) => {
                    missing[at] = false;
                    if !ours.contains(&run_id) {
                        ours.push(run_id);
                    }
                }
                Ok(Answer::Lost(loss)) => {
                    missing[at] = loss == Loss::Expired;
                    lost.push(loss);
                }
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
            stop_if(ours.len() >= majority || lost.len() > total - majority)
        });
        if ours.len() >= majority && !grant.is_over() {
            self.heal(grant);
            return Extended::Until(Lease::new(asked, self.timing.ttl));
        }
        match lost.iter().max() {
            Some(&loss) if lost.len() > total - majority => Extended::Lost(loss),
            _ if errors.is_empty() => Extended::Unknown(self.nodes[self.gate].timed_out()),
            _ => Extended::Unknown(join(&errors, total)),
        }
    }

    fn release(&mut self, grant: &Grant) -> Released {
        self.give_back(grant.claim)
    }
}

impl Quorum {
    /// Right after a majority has said that the lock is ours: tell those who have lost it. Their answers are
    /// counted from the next round on.
    fn heal(&mut self, grant: &Grant) {
        let call = self.heal_call(grant);
        let whom: Vec<usize> = (0..self.nodes.len()).filter(|&at| self.missing[at]).collect();
        ask(&mut self.nodes, whom.into_iter(), |_, _| call.clone(), |_, _| {});
    }
}

fn stop_if(enough: bool) -> ControlFlow<()> {
    if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn vote(answer: Result<Answer, NodeError>) -> Vote {
    match answer {
        Ok(Answer::Granted { fence, run_id }) => Vote::Yes { fence, run_id },
        Ok(Answer::Resting(left)) => Vote::Resting(left),
        Ok(Answer::Busy(busy)) => Vote::Held(busy),
        Ok(_) => Vote::Held(Box::default()),
        Err(error) => Vote::Failed(error),
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

fn is_ancestor(busy: &Busy, request: &Request) -> bool {
    let holder = busy.holder.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let holder = holder.and_then(|text| text.parse::<Claim>().ok());
    holder.is_some_and(|claim| request.ancestors.iter().any(|ancestor| ancestor.claim.waiter == claim.waiter))
}

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}
