//! Renewing: all at once, a majority before the deadline; and healing those who have lost the lock.

use super::Quorum;
use super::round::{ask, listen, stop_if};
use super::tally::join;
use crate::lock::answer::Answer;
use crate::lock::{BootTime, Extended, Grant, Loss};

impl Quorum {
    pub(super) fn renew(&mut self, grant: &Grant) -> Extended {
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
        let call = self.extend_call(grant);
        let (majority, total) = (self.majority(), self.nodes.len());
        let (mut ours, mut lost, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        let whom = ask(&mut self.nodes, 0..total, |_, _| call.clone(), |_, error| errors.push(error));
        // An answer after the deadline would not count.
        let renewed = self.lease(asked);
        let deadline = grant.lease.unwrap_or(renewed).deadline();
        let until = deadline.min(asked + self.timing.node_timeout);
        let (missing, yes_until) = (&mut self.missing, &mut self.yes_until);
        listen(&mut self.nodes, whom, until, None, |at, answer| {
            match answer {
                // One that lost its memory, and was healed, may have given its vote to somebody else before.
                // That counts for nothing only if our own, from then, has never run out.
                Ok(Answer::Extended { resting: true, .. })
                    if yes_until[at].is_none_or(BootTime::has_passed) =>
                {
                    missing[at] = false;
                }
                // By identity: a server that is listed twice has one vote.
                Ok(Answer::Extended { run_id, .. }) => {
                    missing[at] = false;
                    yes_until[at] = Some(renewed.deadline());
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
            return Extended::Until(renewed);
        }
        match lost.iter().max() {
            Some(&loss) if lost.len() > total - majority => Extended::Lost(loss),
            _ if errors.is_empty() => Extended::Unknown(self.nodes[self.gate].timed_out()),
            _ => Extended::Unknown(join(&errors, total)),
        }
    }

    /// Right after a majority has said that the lock is ours: tell those who have lost it. Their answers are
    /// counted from the next round on.
    fn heal(&mut self, grant: &Grant) {
        let call = self.heal_call(grant);
        let whom: Vec<usize> = (0..self.nodes.len()).filter(|&at| self.missing[at]).collect();
        ask(&mut self.nodes, whom.into_iter(), |_, _| call.clone(), |_, _| {});
    }
}
