//! Giving back, whatever we may have by now, wherever it may be.

use std::ops::ControlFlow;
use std::time::Duration;

use super::Quorum;
use super::round::{ask, listen};
use super::tally::join;
use crate::lock::answer::Answer;
use crate::lock::node::Node;
use crate::lock::{BootTime, Claim, Fault, NodeError, Released};

/// What giving back may take at the most, whatever the node timeout: somebody waits for us to end.
const CLEANUP: Duration = Duration::from_secs(2);
/// A request still under way when its sender gives up will have arrived after this time.
const KEEP_GONE: Duration = Duration::from_secs(60);

/// Whether this waiter will ask again. Then a late request of it does no harm: the next attempt takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// What we hold stays taken until so long after it was granted.
    ForGood {
        min_hold: Duration,
    },
    ForNow,
}

impl Quorum {
    /// Give back whatever this waiter may have anywhere by now: the others first, then the gate, which wakes the
    /// next one. Sent in this order, not waited for in between: the next one's requests to the others come
    /// behind ours. On a budget of its own: whoever gives up may have none left.
    pub(super) fn give_back(&mut self, claim: Claim, leaving: Leaving) -> Released {
        let (mut released, mut lost, mut errors) = (0, None, Vec::new());
        let gate = self.gate;
        let others = (0..self.nodes.len()).filter(|&at| at != gate);
        for answer in self.release_at(others.chain([gate]).collect(), claim, leaving) {
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
    fn release_at(
        &mut self,
        whom: Vec<usize>,
        claim: Claim,
        leaving: Leaving,
    ) -> Vec<Result<Answer, NodeError>> {
        for &at in &whom {
            self.nodes[at].forget_answers();
        }
        let attentive = |node: &Node| node.is_attentive() || node.is_napping();
        let is_expected = |at: &usize| self.nodes.len() == 1 || attentive(&self.nodes[*at]);
        let (expected, silent): (Vec<usize>, Vec<usize>) =
            whom.into_iter().filter(|&at| self.nodes[at].may_know_us()).partition(is_expected);
        // They find our word when they come to themselves.
        self.send_release(&silent, claim, leaving);
        let mut answers: Vec<_> = silent.iter().map(|&at| Err(self.nodes[at].timed_out())).collect();
        let mut again = Vec::new();
        for (at, answer) in self.release_once(&expected, claim, leaving) {
            match answer {
                Err(error) if error.fault == Fault::Unavailable => again.push(at),
                answer => answers.push(answer),
            }
        }
        for (_, answer) in self.release_once(&again, claim, leaving) {
            // The one before may have been carried out, and only its answer lost.
            answers.push(answer.map(|_| Answer::Released));
        }
        answers
    }

    /// Returns those who could not be asked.
    fn send_release(&mut self, whom: &[usize], claim: Claim, leaving: Leaving) -> Vec<(usize, NodeError)> {
        let min_hold = match leaving {
            Leaving::ForGood { min_hold } => min_hold,
            Leaving::ForNow => Duration::ZERO,
        };
        let calls =
            [Duration::ZERO, KEEP_GONE].map(|keep_gone| self.release_call(claim, keep_gone, min_hold));
        let mut failed = Vec::new();
        for &at in whom {
            if self.nodes[at].is_napping() {
                self.nodes[at].hang_up();
            }
        }
        let close_door = |node: &Node| leaving != Leaving::ForNow && node.has_loose_end();
        let call = |_, node: &Node| calls[usize::from(close_door(node))].clone();
        ask(&mut self.nodes, whom.iter().copied(), call, |at, error| failed.push((at, error)));
        failed
    }

    fn release_once(
        &mut self,
        whom: &[usize],
        claim: Claim,
        leaving: Leaving,
    ) -> Vec<(usize, Result<Answer, NodeError>)> {
        let failed = self.send_release(whom, claim, leaving);
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

    /// Stand in nobody's way until the next attempt. A single server keeps our place in its queue.
    pub(super) fn step_back(&mut self) {
        if self.nodes.len() > 1 {
            let _ = self.give_back(self.claim(), Leaving::ForNow);
        }
    }

    /// Give up waiting. What cannot be given back now expires by itself.
    pub(super) fn withdraw(&mut self) {
        self.has_left = true;
        let _ = self.give_back(self.claim(), Leaving::ForGood { min_hold: Duration::ZERO });
    }

    /// Give up on a server that has not said a word: it finds our request and, behind it, that we gave up, if
    /// ever it looks.
    pub(super) fn leave_word(&mut self) {
        self.has_left = true;
        let call = self.release_call(self.claim(), KEEP_GONE, Duration::ZERO);
        let _ = self.nodes[self.gate].ask(call);
    }
}
