//! Checks whether outer runs of this process hold the lock. Nothing is taken, renewed or released.

use super::RedisLock;
use super::reply::{OuterHold, OuterReply};
use super::round::Watch;
use crate::clock::BootTime;
use crate::lock::wait::{Wait, backoff, sleep};
use crate::lock::{BackendError, Claim, Error, Lease, Observer, OuterLock, Request, majority_of};

/// The result of all replies together.
#[derive(Debug, PartialEq, Eq)]
enum OuterFinding {
    /// For each key, a majority knows the same claim in a mode that suffices.
    Held(Vec<OuterLock>),
    NotHeld,
    /// More replies are needed.
    Open,
}

impl RedisLock {
    pub(super) fn find_outer_locks(
        &mut self,
        request: &Request,
        claims: &[Claim],
        observer: &mut dyn Observer,
    ) -> Result<Option<Vec<OuterLock>>, Error> {
        let started = BootTime::now();
        let gives_up_at = request.wait.gives_up_at(started);
        let mut failures = 0;
        loop {
            let error = match self.query_once(claims, observer)? {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            let is_over = gives_up_at.is_some_and(BootTime::has_passed);
            if is_over || !request.waits_for_backend || !error.may_pass() {
                return Err(error.into());
            }
            observer.on_unavailable(&error, started.elapsed());
            let until = BootTime::now() + backoff(failures);
            let until = gives_up_at.map_or(until, |gives_up_at| until.min(gives_up_at));
            if let Wait::Cancelled(signal) = sleep(until, observer) {
                return Err(Error::Cancelled(signal));
            }
            failures += 1;
        }
    }

    fn query_once(
        &mut self,
        claims: &[Claim],
        observer: &mut dyn Observer,
    ) -> Result<Result<Option<Vec<OuterLock>>, BackendError>, Error> {
        let call = self.requests.outer(self.claim(), &self.terms, claims);
        let (keys, servers, mode_tag) =
            (self.requests.key_count(), self.servers.len(), self.terms.mode_tag.clone());
        let sent_at = BootTime::now();
        let mut round = self.servers.timed_round(self.servers.to_all(&call));
        let (mut replies, mut errors) = (Vec::new(), Vec::new());
        loop {
            let next = round.next::<OuterReply>(&mut self.servers, None, Watch::Observer(&mut *observer));
            let Some(received) = next.map_err(Error::Cancelled)? else {
                return Ok(Err(BackendError::no_majority(errors, servers)));
            };
            match received.reply {
                Ok(reply) => replies.push(reply.with_leases_from(sent_at)),
                Err(error) => errors.push(error),
            }
            match finding(&replies, keys, servers, &mode_tag) {
                OuterFinding::Held(locks) => return Ok(Ok(Some(locks))),
                OuterFinding::NotHeld => return Ok(Ok(None)),
                OuterFinding::Open => {}
            }
        }
    }
}

impl OuterReply {
    fn with_leases_from(mut self, sent_at: BootTime) -> Self {
        for hold in self.holds.iter_mut().flatten() {
            hold.lock.lease = hold.expires_in.map(|left| Lease::new(sent_at, left));
        }
        self
    }
}

/// A server that is listed twice has one vote.
fn finding(replies: &[OuterReply], keys: usize, servers: usize, mode_tag: &[u8]) -> OuterFinding {
    let mut known: Vec<&OuterReply> = Vec::new();
    for reply in replies {
        if !known.iter().any(|other| other.run_id == reply.run_id) {
            known.push(reply);
        }
    }
    let suffices = |hold: &&OuterHold| hold.mode_tag.is_empty() || hold.mode_tag == mode_tag;
    let mut locks = Vec::new();
    let mut is_open = false;
    for key in 0..keys {
        let holds: Vec<OuterLock> = known
            .iter()
            .filter_map(|reply| reply.holds.get(key)?.as_ref().filter(suffices))
            .map(|hold| hold.lock)
            .collect();
        let votes_for = |claim: Claim| holds.iter().filter(move |lock| lock.claim == claim);
        let best = holds.iter().max_by_key(|lock| votes_for(lock.claim).count());
        let votes = best.map_or(0, |lock| votes_for(lock.claim).count());
        if known.len() - votes > servers - majority_of(servers) {
            return OuterFinding::NotHeld;
        }
        is_open |= votes < majority_of(servers);
        // At least one server of any majority knows the final token, which is the largest.
        // Each of them may be the one without which there is no majority.
        let lease = best
            .and_then(|lock| OuterLock::first_to_end(&votes_for(lock.claim).copied().collect::<Vec<_>>()));
        let newest = best.and_then(|lock| votes_for(lock.claim).max_by_key(|lock| lock.fence));
        locks.extend(newest.map(|lock| OuterLock { lease, ..*lock }));
    }
    if is_open { OuterFinding::Open } else { OuterFinding::Held(locks) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::claim::WaiterId;

    fn reply(run_id: &str, holds: &[Option<(Claim, u64, &str)>]) -> OuterReply {
        let hold = |(claim, fence, tag): &(Claim, u64, &str)| OuterHold {
            lock: OuterLock { claim: *claim, fence: *fence, slot: 0, lease: None },
            expires_in: None,
            mode_tag: tag.as_bytes().to_vec(),
        };
        OuterReply { run_id: run_id.into(), holds: holds.iter().map(|h| h.as_ref().map(hold)).collect() }
    }

    #[test]
    fn a_majority_must_know_the_same_claim_in_a_mode_that_suffices() {
        let [ours, other] = [(); 2].map(|()| Claim { waiter: WaiterId::random(), attempt: 1 });
        let held = |id: &str, fence| reply(id, &[Some((ours, fence, ""))]);
        let none = |id: &str| reply(id, &[None]);
        let found = |replies: &[OuterReply]| finding(replies, 1, 3, b"");
        assert_eq!(found(&[]), OuterFinding::Open);
        assert_eq!(found(&[held("a", 7)]), OuterFinding::Open);
        assert_eq!(found(&[held("a", 7), held("a", 7)]), OuterFinding::Open, "listed twice");
        let lock = OuterLock { claim: ours, fence: 9, slot: 0, lease: None };
        assert_eq!(found(&[held("a", 7), held("b", 9)]), OuterFinding::Held(vec![lock]));
        assert_eq!(found(&[held("a", 7), none("b")]), OuterFinding::Open);
        assert_eq!(found(&[none("a"), none("b")]), OuterFinding::NotHeld);
        let theirs = reply("b", &[Some((other, 7, ""))]);
        assert_eq!(found(&[held("a", 7), theirs, none("c")]), OuterFinding::NotHeld);
    }

    #[test]
    fn outer_runs_must_hold_all_keys() {
        let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
        let of = |holds: &[Option<(Claim, u64, &str)>], tag: &[u8]| finding(&[reply("", holds)], 2, 1, tag);
        let (exclusive, shared) = (Some((claim, 1, "")), Some((claim, 2, "shared:a")));
        assert!(matches!(of(&[exclusive, shared], b"shared:a"), OuterFinding::Held(_)));
        assert_eq!(of(&[exclusive, shared], b"shared:b"), OuterFinding::NotHeld);
        assert_eq!(of(&[exclusive, shared], b""), OuterFinding::NotHeld);
        assert_eq!(of(&[exclusive, None], b""), OuterFinding::NotHeld);
    }
}
