//! A token for the grant that a majority knows.

use super::Quorum;
use super::round::{ask, listen, stop_if};
use super::tally::{Tally, join};
use crate::lock::answer::Answer;
use crate::lock::{BootTime, Lease, NodeError};

impl Quorum {
    /// One token for each key: the largest of the votes, known to a majority. Without that a later majority
    /// could overlap this one only in a server that never heard of it, and give a smaller one.
    pub(super) fn agree_on_fence(&mut self, tally: &Tally, lease: Lease) -> Result<Vec<u64>, NodeError> {
        let votes: Vec<(usize, &[u64])> = tally.yes().map(|(at, fences, _)| (at, fences)).collect();
        let mut fences = vec![0; self.names.len()];
        for (_, theirs) in &votes {
            raise_to(&mut fences, theirs, 0);
        }
        loop {
            let (agreed, behind): (Vec<_>, Vec<_>) = votes.iter().partition(|(_, theirs)| *theirs == fences);
            let behind = behind.into_iter().map(|(at, _)| at);
            let mut agreed = agreed.len();
            let call = self.raise_call(&fences);
            let (mut in_the_way, mut errors, majority) = (Vec::new(), Vec::new(), self.majority());
            let asked = ask(&mut self.nodes, behind, |_, _| call.clone(), |_, error| errors.push(error));
            // Whoever is behind is told in any case, and waited for only if it matters.
            if agreed >= majority {
                return Ok(fences);
            }
            let until = lease.deadline().min(BootTime::now() + self.timing.node_timeout);
            listen(&mut self.nodes, asked, until, None, |_, answer| {
                match answer {
                    Ok(Answer::Raised) => agreed += 1,
                    Ok(Answer::NotRaised(theirs)) => in_the_way.push(theirs),
                    Ok(_) => {}
                    Err(error) => errors.push(error),
                }
                stop_if(agreed >= majority)
            });
            if agreed >= majority {
                return Ok(fences);
            }
            let tried = fences.clone();
            for theirs in &in_the_way {
                raise_to(&mut fences, theirs, 1);
            }
            if fences == tried || lease.deadline().has_passed() {
                return Err(if errors.is_empty() {
                    self.too_late()
                } else {
                    join(&errors, self.nodes.len())
                });
            }
        }
    }
}

/// None of them smaller than these, and `above` them.
fn raise_to(fences: &mut [u64], theirs: &[u64], above: u64) {
    for (fence, theirs) in fences.iter_mut().zip(theirs) {
        *fence = (*fence).max(theirs + above);
    }
}
