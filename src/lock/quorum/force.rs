//! Taking a lock from whoever holds it.

use std::ops::ControlFlow;

use super::Quorum;
use super::round::{ask, listen};
use super::tally::join;
use crate::lock::answer::Answer;
use crate::lock::{BootTime, Busy, NodeError};

impl Quorum {
    /// Who holds the (first) lock, if anybody does; with `yes` nobody does afterwards. An error if a majority cannot
    /// be asked: what the others hold would still be a lock.
    pub fn break_open(&mut self, yes: bool) -> Result<Option<Busy>, NodeError> {
        let call = self.break_call(yes);
        let all = 0..self.nodes.len();
        let (mut holder, mut answered, mut errors) = (None, Vec::new(), Vec::new());
        let asked = ask(&mut self.nodes, all.clone(), |_, _| call.clone(), |_, error| errors.push(error));
        let until = BootTime::now() + self.timing.node_timeout;
        listen(&mut self.nodes, asked.clone(), until, None, |at, answer| {
            answered.push(at);
            match answer {
                Ok(Answer::Busy(busy)) => holder = holder.take().or(Some(*busy)),
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
            ControlFlow::Continue(())
        });
        errors.extend(asked.iter().filter(|at| !answered.contains(at)).map(|&at| self.nodes[at].timed_out()));
        if errors.len() > self.nodes.len() - self.majority() {
            return Err(join(&errors, self.nodes.len()));
        }
        Ok(holder)
    }
}
