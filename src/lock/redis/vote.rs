//! One attempt: the gate's vote, then the others', then a token that a majority knows.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::RedisLock;
use super::reply::{AcquireReply, Granted, ReleaseReply};
use super::servers::{NoReply, RoundEnd, stop_if};
use super::tally::{Tally, Verdict, Vote};
use crate::clock::BootTime;
use crate::lock::{BackendError, Blocked, Observer, Problem};

/// How long to listen on after the majority, to let the remaining servers reveal duplicates (the same run_id):
/// twice as long as the majority took, within these bounds.
const DUPLICATE_CHECK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
/// A server that did not answer is not asked first again for this time.
const AVOID_FOR: Duration = Duration::from_secs(10);

/// How one attempt ended.
#[derive(Debug)]
pub(super) enum Attempt {
    Won {
        fences: Vec<u64>,
        slots: Vec<u32>,
        asked: BootTime,
    },
    /// The gate has us in its queue, or would if the request queued.
    Queued(Box<Blocked>),
    /// A process that we run under is in the way.
    Nested,
    /// The gate is ours, but too many other servers are not.
    Outvoted(Box<Blocked>),
    Quarantined(Vec<(String, Duration)>, Vec<BackendError>),
    Failed(BackendError),
    Cancelled(Signal),
}

/// A request to the gate that is in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    asked: BootTime,
    /// Whether it could be sent.
    sent: Result<(), BackendError>,
}

/// What the gate's reply means for the attempt.
enum Step {
    /// The gate's vote is ours: ask the other servers.
    Enter(Granted),
    Queue(Box<Blocked>),
    NextGate(Vote),
    Stop(Attempt),
}

impl RedisLock {
    pub(super) fn ask_gate(&mut self, gate: usize, queues: bool) -> InFlight {
        let call = self.requests.acquire(self.claim(), &self.terms, queues, None);
        InFlight { asked: BootTime::now(), sent: self.servers[gate].node.ask(call) }
    }

    /// Ask the gate, then the other servers.
    pub(super) fn attempt(&mut self, queues: bool, observer: &mut dyn Observer) -> Attempt {
        let mut tally = Tally::new(self.servers.names());
        let mut first_queue = None;
        if self.in_flight.is_none() {
            self.attempts += 1;
        }
        for gate in self.gates() {
            let InFlight { asked, sent } =
                self.in_flight.take().unwrap_or_else(|| self.ask_gate(gate, queues));
            self.gate = gate;
            let vote = match self.gate_step(asked, sent, observer) {
                Step::Enter(granted) => return self.collect_votes(asked, granted, tally, observer),
                Step::Queue(blocked) => {
                    return tally.too_many_failed().map_or(Attempt::Queued(blocked), Attempt::Failed);
                }
                Step::Stop(attempt) => return attempt,
                Step::NextGate(vote) => vote,
            };
            match &vote {
                Vote::Failed(_) => self.servers[gate].avoid_until = Some(BootTime::now() + AVOID_FOR),
                Vote::No(blocked) => drop(first_queue.get_or_insert((gate, blocked.clone()))),
                Vote::Yes(_) | Vote::Quarantined(_) => {}
            }
            tally.add(gate, vote);
            // A server's quarantine begins when it is first asked: in that case ask them all.
            if tally.unfit().is_some() || (tally.cannot_win() && !tally.has_quarantined()) {
                break;
            }
        }
        if tally.unfit().is_none() && tally.cannot_win() && tally.has_failed() {
            self.probe_rest(&mut tally);
        }
        match (self.without_majority(tally), first_queue) {
            (Attempt::Outvoted(_), Some((gate, blocked))) => {
                self.gate = gate;
                Attempt::Queued(blocked)
            }
            (attempt, _) => attempt,
        }
    }

    fn gate_step(
        &mut self,
        asked: BootTime,
        sent: Result<(), BackendError>,
        observer: &mut dyn Observer,
    ) -> Step {
        if let Err(error) = sent {
            return Step::NextGate(Vote::Failed(error));
        }
        let until = asked + self.servers.node_timeout;
        match self.servers.reply_of::<AcquireReply>(self.gate, until, observer) {
            Ok(AcquireReply::Granted(granted)) => Step::Enter(granted),
            Ok(AcquireReply::Nested) => Step::Stop(Attempt::Nested),
            // A program that knows no gate may hold this server and no majority: then the next server is the
            // gate, for every client. If that program has a majority, we wait in the first queue.
            Ok(AcquireReply::Blocked(blocked)) if blocked.is_foreign() && self.servers.len() > 1 => {
                Step::NextGate(Vote::No(blocked))
            }
            Ok(AcquireReply::Blocked(blocked)) => Step::Queue(blocked),
            Ok(AcquireReply::Quarantined(left)) => Step::NextGate(Vote::Quarantined(left)),
            Err(NoReply::Cancelled(signal)) => Step::Stop(Attempt::Cancelled(signal)),
            Err(NoReply::Late(error) | NoReply::Failed(error)) => Step::NextGate(Vote::Failed(error)),
        }
    }

    /// The attempt is lost anyway, but the error should name every server that does not answer.
    fn probe_rest(&mut self, tally: &mut Tally) {
        // Harmless, as there is nothing to release.
        let call = self.requests.release(self.claim(), &self.terms, Duration::ZERO, Duration::ZERO);
        let asked = self.servers.ask(tally.missing(), |_| call.clone());
        let until = BootTime::now() + self.servers.node_timeout;
        for (at, reply) in self.servers.collect::<ReleaseReply>(asked, until) {
            if let Err(error) = reply {
                tally.add(at, Vote::Failed(error));
            }
        }
    }

    /// Which server may be the gate, in order: first those without a recent failure. If the others are too few
    /// for a majority, all must be asked anyway.
    fn gates(&self) -> Vec<usize> {
        let (avoided, others): (Vec<_>, Vec<_>) =
            self.servers.all().partition(|&at| self.servers[at].is_avoided());
        if others.len() < self.servers.majority() {
            self.servers.all().collect()
        } else {
            [others, avoided].concat()
        }
    }

    /// The gate's vote is ours: ask all other servers that have not failed already.
    fn collect_votes(
        &mut self,
        asked: BootTime,
        granted: Granted,
        mut tally: Tally,
        observer: &mut dyn Observer,
    ) -> Attempt {
        let lease = self.lease(asked);
        let slots = granted.slots.clone();
        let call = self.requests.acquire(self.claim(), &self.terms, false, Some(&granted.fences));
        tally.add(self.gate, Vote::Yes(granted));
        let others = self.servers.ask(tally.missing(), |_| call.clone());
        for (at, error) in others.failed {
            tally.add(at, Vote::Failed(error));
        }
        let until = lease.deadline().min(BootTime::now() + self.servers.node_timeout);
        let mut ended = self.servers.listen(others.sent, until, Some(&mut *observer), |at, reply| {
            tally.add_reply(at, reply);
            stop_if(tally.is_decided())
        });
        // Not after a wait: another waiter may be waiting for us to be done.
        if tally.has_majority() && self.attempts == 1 {
            ended = self.check_for_duplicates(asked, &mut tally, observer);
        }
        if let RoundEnd::Cancelled(signal) = ended {
            return Attempt::Cancelled(signal);
        }
        if tally.unfit().is_some() || !tally.has_majority() {
            return self.without_majority(tally);
        }
        match self.agree_on_fence(&tally, lease) {
            Ok(fences) if !lease.deadline().has_passed() => {
                for (at, _) in tally.yes() {
                    self.servers[at].vote_until = Some(lease.deadline());
                }
                Attempt::Won { fences, slots, asked }
            }
            Ok(_) => Attempt::Failed(self.granted_too_late()),
            Err(error) => Attempt::Failed(error),
        }
    }

    fn check_for_duplicates(
        &mut self,
        asked: BootTime,
        tally: &mut Tally,
        observer: &mut dyn Observer,
    ) -> RoundEnd {
        let (shortest, longest) = DUPLICATE_CHECK;
        let late = tally.missing();
        let is_slow = late.iter().any(|&at| self.servers[at].node.is_resolving());
        let at_most = if is_slow { longest } else { (asked.elapsed() * 2).clamp(shortest, longest) };
        let until = self.lease(asked).deadline().min(BootTime::now() + at_most);
        self.servers.listen(late, until, Some(observer), |at, reply| {
            tally.add_reply(at, reply);
            stop_if(tally.unfit().is_some())
        })
    }

    fn without_majority(&self, tally: Tally) -> Attempt {
        match tally.verdict(|at| self.servers[at].node.timed_out()) {
            Verdict::Won => unreachable!("called without a majority"),
            Verdict::Held(blocked) => Attempt::Outvoted(blocked),
            Verdict::Quarantined(servers, errors) => Attempt::Quarantined(servers, errors),
            Verdict::Failed(error) => Attempt::Failed(error),
        }
    }

    pub(super) fn granted_too_late(&self) -> BackendError {
        self.servers[self.gate].node.error(Problem::GrantedTooLate)
    }
}
