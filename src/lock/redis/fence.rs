//! Agreement on a fencing token that a majority knows.

use super::RedisLock;
use super::reply::RaiseReply;
use super::tally::Tally;
use crate::lock::{BackendError, Lease};
use crate::world::{Rule, follows};

/// The replies of one round.
#[derive(Default)]
struct Raised {
    agreed: usize,
    /// The tokens of servers that refused because theirs are larger.
    higher: Vec<Vec<u64>>,
    failed: Vec<(usize, BackendError)>,
}

impl RedisLock {
    /// Returns one token for each key: the largest of the votes, after a majority has stored it.
    /// Otherwise a later majority could overlap this one only in a server that does not know the
    /// token, and grant a smaller one. It is never smaller than the gate's, even if the gate's vote
    /// does not count: only the gate derives tokens from its clock. Otherwise returns the voters that
    /// have failed meanwhile; none if there was no time left.
    pub(super) fn agree_on_fence(
        &mut self,
        tally: &Tally,
        of_gate: Vec<u64>,
        lease: Lease,
    ) -> Result<Vec<u64>, Vec<(usize, BackendError)>> {
        let votes: Vec<(usize, &[u64])> =
            tally.yes().map(|(at, granted)| (at, granted.fences.as_slice())).collect();
        let mut fences = of_gate;
        for (_, theirs) in &votes {
            raise_to(&mut fences, theirs, 0);
        }
        loop {
            let round = self.raise_round(&votes, &fences, lease);
            if round.agreed >= self.servers.majority() || !follows(Rule::StoredToken) {
                return Ok(fences);
            }
            let tried = fences.clone();
            for theirs in &round.higher {
                raise_to(&mut fences, theirs, 1);
            }
            if fences == tried || lease.deadline().has_passed() {
                return Err(round.failed);
            }
        }
    }

    /// Sends the tokens to every voter with lower ones. Waits for a reply only while the majority
    /// depends on it. Every voter is asked to confirm a lock that no process will renew, and a majority
    /// must: `break` frees it without notifying the client, and votes from before and after that are
    /// no majority.
    fn raise_round(&mut self, votes: &[(usize, &[u64])], fences: &[u64], lease: Lease) -> Raised {
        let majority = self.servers.majority();
        let must_confirm = majority > 1 && self.terms.is_unheld && follows(Rule::ConfirmToken);
        let is_agreed = |vote: &&(usize, &[u64])| vote.1 == fences && !must_confirm;
        let (agreed, lower): (Vec<_>, Vec<_>) = votes.iter().partition(is_agreed);
        let mut raised = Raised { agreed: agreed.len(), ..Raised::default() };
        let call = self.requests.raise(self.claim(), &self.terms, fences);
        let mut round = self.servers.timed_round(lower.into_iter().map(|(at, _)| (at, call.clone())));
        while raised.agreed < majority
            && let Some((at, reply)) = round.reply(&mut self.servers, Some(lease.deadline()))
        {
            match reply {
                Ok(RaiseReply::Raised) => raised.agreed += 1,
                Ok(RaiseReply::Refused(theirs)) => raised.higher.push(theirs),
                Err(error) => raised.failed.push((at, error)),
            }
        }
        raised
    }
}

/// Raises each token to at least the other one plus `above`.
fn raise_to(fences: &mut [u64], theirs: &[u64], above: u64) {
    for (fence, theirs) in fences.iter_mut().zip(theirs) {
        *fence = (*fence).max(theirs.saturating_add(above));
    }
}
