//! One attempt: the gate's vote, then everyone's, then a token that a majority knows.

use std::ops::ControlFlow;
use std::time::Duration;

use super::round::{Round, ask, listen, stop_if};
use super::tally::{Tally, Verdict, Vote};
use super::{Quorum, Silence};
use crate::lock::answer::Answer;
use crate::lock::node::Node;
use crate::lock::{BootTime, Busy, Fault, NodeError, Observer, Patience};

/// After the majority, for the others to show that they are who they are said to be: as long as all took so far
/// again, within bounds.
const COURTESY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
/// A server that did not answer is not asked first again for this time.
const SHUN: Duration = Duration::from_secs(10);

/// How one attempt ended.
pub(super) enum Attempt {
    Won {
        fences: Vec<u64>,
        slots: Vec<u32>,
        asked: BootTime,
    },
    /// The gate has us in its queue.
    Queued(Box<Busy>),
    /// A process that we run under is in the way.
    Nested,
    /// The gate is ours, but too many others are somebody else's.
    Outvoted(Box<Busy>),
    SittingOut(Vec<(String, Duration)>, Vec<NodeError>),
    Failed(NodeError),
    /// Not a word from the only server.
    Silent(NodeError),
    Cancelled,
}

impl Quorum {
    /// When it was sent, and whether it could be.
    pub(super) fn ask_gate(&mut self, gate: usize, patience: Patience) -> (BootTime, Result<(), NodeError>) {
        let call = self.acquire_call(patience, None);
        (BootTime::now(), self.nodes[gate].ask(call))
    }

    /// Ask the gate, then everyone.
    pub(super) fn attempt(&mut self, patience: Patience, observer: &mut dyn Observer) -> Attempt {
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
                Ok(Ok(Answer::Granted { fences, slots, run_id })) => {
                    let _ = tally.add(gate, Vote::Yes { fences: fences.clone(), run_id });
                    return match self.fan_out(asked, &fences, tally, patience, observer) {
                        Attempt::Won { fences, .. } => Attempt::Won { fences, slots, asked },
                        other => other,
                    };
                }
                Ok(Ok(Answer::Nested)) => return Attempt::Nested,
                // A program that knows no gate may hold this server and no majority: then the next one is the
                // gate, for everyone who looks. If it has one, we wait in the first queue.
                Ok(Ok(Answer::Busy(busy))) if busy.is_foreign() && self.nodes.len() > 1 => {
                    first_queue.get_or_insert((gate, busy.clone()));
                    Vote::Held(busy)
                }
                Ok(Ok(Answer::Busy(busy))) => {
                    return tally.too_many_failed().map_or(Attempt::Queued(busy), Attempt::Failed);
                }
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
        let call = self.release_call(self.claim(), Duration::ZERO, Duration::ZERO);
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

    /// Who may be the gate, in order: first those of whom nothing bad is known. If without the rest there is no
    /// majority, all must be asked anyway.
    fn gates(&self) -> Vec<usize> {
        let is_shunned = |&at: &usize| self.shunned_until[at].is_some_and(|until| !until.has_passed());
        let (shunned, others): (Vec<_>, Vec<_>) = (0..self.nodes.len()).partition(is_shunned);
        if others.len() < self.majority() {
            (0..self.nodes.len()).collect()
        } else {
            [others, shunned].concat()
        }
    }

    /// The gate's vote is ours: ask all others that have not failed already.
    fn fan_out(
        &mut self,
        asked: BootTime,
        proposed: &[u64],
        mut tally: Tally,
        patience: Patience,
        observer: &mut dyn Observer,
    ) -> Attempt {
        let lease = self.lease(asked);
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
        // Not after a wait: somebody is already waiting for us to be done.
        if tally.has_majority() && self.attempts == 1 {
            let silent: Vec<usize> = others.into_iter().filter(|&at| !tally.has_vote_of(at)).collect();
            let is_slow = silent.iter().any(|&at| self.nodes[at].is_being_looked_up());
            let courtesy = if is_slow { COURTESY.1 } else { asked.elapsed() * 2 };
            let courtesy = courtesy.clamp(COURTESY.0, COURTESY.1);
            let until = lease.deadline().min(BootTime::now() + courtesy);
            ended = listen(&mut self.nodes, silent, until, Some(observer), |at, answer| {
                stop_if(add(&mut tally, at, vote(answer)))
            });
        }
        match (unfit, ended) {
            (Some(error), _) => Attempt::Failed(error),
            (None, Round::Cancelled) => Attempt::Cancelled,
            (None, _) if tally.has_majority() => match self.agree_on_fence(&tally, lease) {
                Ok(fences) if !lease.deadline().has_passed() => {
                    for (at, ..) in tally.yes() {
                        self.yes_until[at] = Some(lease.deadline());
                    }
                    Attempt::Won { fences, slots: Vec::new(), asked }
                }
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

    pub(super) fn too_late(&self) -> NodeError {
        let text = "the lock was granted too late to be of use (--ttl is too short for this network)";
        self.nodes[self.gate].error(Fault::Unavailable, text.into())
    }
}

fn vote(answer: Result<Answer, NodeError>) -> Vote {
    match answer {
        Ok(Answer::Granted { fences, run_id, .. }) => Vote::Yes { fences, run_id },
        Ok(Answer::Resting(left)) => Vote::Resting(left),
        Ok(Answer::Busy(busy)) => Vote::Held(busy),
        Ok(_) => Vote::Held(Box::default()),
        Err(error) => Vote::Failed(error),
    }
}
