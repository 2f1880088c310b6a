//! Counting votes. Pure: what the servers said goes in, what it means comes out.

use std::time::Duration;

use crate::lock::{Busy, Fault, NodeError};

/// What one server had to say to "may I have it?".
#[derive(Clone, Debug)]
pub enum Vote {
    Yes { fences: Vec<u64>, run_id: Vec<u8> },
    Held(Box<Busy>),
    Resting(Duration),
    Failed(NodeError),
}

/// What all of them together mean.
#[derive(Debug)]
pub enum Verdict {
    /// A majority of all configured servers said yes.
    Won,
    /// Enough are free, or held by others, for a majority to be had sooner or later.
    Held(Box<Busy>),
    /// Too many do not vote yet: their names and times, and who cannot be asked beside them.
    SittingOut(Vec<(String, Duration)>, Vec<NodeError>),
    /// Too many cannot be asked; or one that will never do.
    Failed(NodeError),
}

#[derive(Debug)]
pub struct Tally {
    names: Vec<String>,
    votes: Vec<Option<Vote>>,
}

impl Tally {
    pub fn new(names: Vec<String>) -> Self {
        let votes = vec![None; names.len()];
        Self { names, votes }
    }

    pub fn majority(&self) -> usize {
        majority_of(self.votes.len())
    }

    /// Returns an error for a vote that shows that the servers are not what they are said to be.
    pub fn add(&mut self, node: usize, vote: Vote) -> Result<(), NodeError> {
        if let Vote::Failed(error) = &vote
            && error.fault == Fault::Unfit
        {
            return Err(error.clone());
        }
        if let Vote::Yes { run_id, .. } = &vote
            && let Some(other) =
                self.yes().find(|(_, _, id)| !id.is_empty() && *id == run_id).map(|(at, ..)| at)
        {
            let text = format!("the same server as {}, listed twice", self.names[other]);
            return Err(NodeError { fault: Fault::Unfit, node: self.names[node].clone(), text });
        }
        self.votes[node] = Some(vote);
        Ok(())
    }

    /// The servers that said yes: their place, tokens and identity.
    pub fn yes(&self) -> impl Iterator<Item = (usize, &[u64], &Vec<u8>)> {
        self.votes.iter().enumerate().filter_map(|(at, vote)| match vote {
            Some(Vote::Yes { fences, run_id }) => Some((at, fences.as_slice(), run_id)),
            _ => None,
        })
    }

    pub fn has_vote_of(&self, node: usize) -> bool {
        self.votes[node].is_some()
    }

    pub fn has_failed(&self) -> bool {
        self.votes.iter().any(|vote| matches!(vote, Some(Vote::Failed(_))))
    }

    /// All errors together, if they alone make a majority impossible.
    pub fn too_many_failed(&self) -> Option<NodeError> {
        let errors = self.votes.iter().flatten().filter_map(|vote| match vote {
            Vote::Failed(error) => Some(error.clone()),
            _ => None,
        });
        let errors: Vec<NodeError> = errors.collect();
        let needless = self.votes.len() - self.majority();
        (errors.len() > needless).then(|| join(&errors, self.votes.len()))
    }

    pub fn has_resting(&self) -> bool {
        self.votes.iter().any(|vote| matches!(vote, Some(Vote::Resting(_))))
    }

    pub fn has_majority(&self) -> bool {
        self.yes().count() >= self.majority()
    }

    /// Too many have said something else.
    pub fn is_hopeless(&self) -> bool {
        let no = self.votes.iter().flatten().count() - self.yes().count();
        self.votes.len() - no < self.majority()
    }

    /// `silent`: what to say of a server that did not answer in time.
    pub fn verdict(mut self, silent: impl Fn(usize) -> NodeError) -> Verdict {
        if self.has_majority() {
            return Verdict::Won;
        }
        // Whoever has not answered when the matter was already decided against us counts as free.
        let is_decided = self.is_hopeless();
        for (at, vote) in self.votes.iter_mut().enumerate() {
            if vote.is_none() && !is_decided {
                *vote = Some(Vote::Failed(silent(at)));
            }
        }
        let needless = self.votes.len() - self.majority();
        let (mut errors, mut resting, mut busy) = (Vec::new(), Vec::new(), None);
        for (name, vote) in self.names.iter().zip(self.votes) {
            match vote {
                Some(Vote::Failed(error)) => errors.push(error),
                Some(Vote::Resting(left)) => resting.push((name.clone(), left)),
                Some(Vote::Held(held)) => busy = Some(held),
                Some(Vote::Yes { .. }) | None => {}
            }
        }
        if errors.len() > needless {
            return Verdict::Failed(join(&errors, self.names.len()));
        }
        if errors.len() + resting.len() > needless {
            return Verdict::SittingOut(resting, errors);
        }
        Verdict::Held(busy.unwrap_or_default())
    }
}

pub fn majority_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// One error that tells them all. Refused only if those that refused us are too many by themselves.
pub fn join(errors: &[NodeError], nodes: usize) -> NodeError {
    if let ([only], 1) = (errors, nodes) {
        return only.clone();
    }
    let needed = majority_of(nodes);
    let refused = errors.iter().filter(|error| error.fault == Fault::Refused).count();
    let fault = if refused > nodes - needed { Fault::Refused } else { Fault::Unavailable };
    let told: Vec<String> = errors.iter().map(NodeError::to_string).collect();
    let node = format!("{} of {nodes} servers cannot vote, {needed} must", errors.len());
    NodeError { fault, node, text: told.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yes(id: &str) -> Vote {
        Vote::Yes { fences: vec![1], run_id: id.into() }
    }

    fn failed(fault: Fault) -> Vote {
        Vote::Failed(NodeError { fault, node: "n".into(), text: "t".into() })
    }

    fn held() -> Vote {
        Vote::Held(Box::default())
    }

    fn tally(votes: Vec<Vote>, nodes: usize) -> Tally {
        let mut tally = Tally::new((0..nodes).map(|n| format!("n{n}")).collect());
        for (at, vote) in votes.into_iter().enumerate() {
            tally.add(at, vote).unwrap();
        }
        tally
    }

    fn verdict(votes: Vec<Vote>, nodes: usize) -> Verdict {
        let silent = |_| NodeError { fault: Fault::Unavailable, node: "n".into(), text: "silent".into() };
        tally(votes, nodes).verdict(silent)
    }

    #[test]
    fn a_majority_is_of_the_configured_not_of_the_reachable() {
        assert_eq!([1, 2, 3, 4, 5, 9].map(majority_of), [1, 2, 2, 3, 3, 5]);
        assert!(matches!(verdict(vec![yes("a"), yes("b")], 3), Verdict::Won));
        assert!(matches!(verdict(vec![yes("a"), yes("b")], 5), Verdict::Failed(_)));
    }

    #[test]
    fn an_error_is_not_held_and_held_is_not_an_error() {
        let error = || failed(Fault::Unavailable);
        assert!(matches!(verdict(vec![yes("a"), held(), held()], 3), Verdict::Held(_)));
        assert!(matches!(verdict(vec![yes("a"), error(), held()], 3), Verdict::Held(_)));
        assert!(matches!(verdict(vec![yes("a"), error(), error()], 3), Verdict::Failed(_)));
        assert!(matches!(verdict(vec![held(), error(), error()], 3), Verdict::Failed(_)));
        let rest = || Vote::Resting(Duration::from_secs(1));
        assert!(matches!(verdict(vec![yes("a"), rest(), error()], 3), Verdict::SittingOut(..)));
        assert!(matches!(verdict(vec![yes("a"), rest(), held()], 3), Verdict::Held(_)));
    }

    #[test]
    fn one_server_by_two_names_is_refused() {
        let mut tally = tally(vec![yes("a")], 3);
        assert_eq!(tally.add(2, yes("a")).unwrap_err().fault, Fault::Unfit);
    }

    #[test]
    fn refusals_decide_the_code_only_if_they_decide_the_vote() {
        let (refused, down) = (failed(Fault::Refused), failed(Fault::Unavailable));
        let fault = |votes| match verdict(votes, 3) {
            Verdict::Failed(error) => error.fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault(vec![refused.clone(), refused.clone(), yes("a")]), Fault::Refused);
        assert_eq!(fault(vec![refused, down, yes("a")]), Fault::Unavailable);
    }
}
