//! Taking a lock on servers away from its holders.
//!
//! A claim is marked on a majority of the servers: from then on its holder cannot renew it, and is
//! notified. The lock is freed by its holder, or when its lease ends: see lua/include/mark.lua.

use std::collections::BTreeMap;

use super::listening::{ListenEvent, Listening};
use super::reply::{BreakReply, InspectReply, Mark};
use super::requests::{BreakAction, Requests};
use super::script::WAITER_RENEWAL;
use super::view::RedisView;
use super::{Keys, Server, Timing};
use crate::clock::BootTime;
use crate::lock::claim::WaiterId;
use crate::lock::wait::wait;
use crate::lock::{
    BackendError, BreakMode, Breaker, Done, Fault, Freed, Holder, HolderInfo, HolderKind, Notified, Reason,
    Renewal, majority_of,
};

pub(crate) struct RedisBreaker {
    view: RedisView,
    keys: Keys,
    requests: Requests,
    /// Our identity on the servers: holders see it, and releases wake us by it.
    id: WaiterId,
    who: HolderInfo,
    reason: Reason,
    /// The mark of success, as of the last inspection.
    done: Option<Done>,
    /// A majority was marked: from now on marks are only added, never withdrawn.
    has_marked_majority: bool,
    /// A second set of connections, which block until a release.
    listening: Option<Listening>,
}

/// The replies of one round, and the servers that have not replied.
struct BreakRound {
    replies: Vec<BreakReply>,
    errors: Vec<BackendError>,
    servers: usize,
}

impl RedisBreaker {
    pub(crate) fn new(servers: Vec<Server>, keys: Keys, timing: Timing, who: HolderInfo) -> Self {
        Self {
            requests: Requests::new(vec![keys.clone()], servers.len(), timing),
            keys,
            view: RedisView::new(servers, "", timing.node_timeout),
            id: WaiterId::random(),
            who,
            reason: Reason::Broken,
            done: None,
            has_marked_majority: false,
            listening: None,
        }
    }

    /// The holder is notified of this instead of a break.
    pub(crate) fn with_reason(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    fn send_to_all(&mut self, action: BreakAction, claims: &[Vec<u8>]) -> BreakRound {
        let call = self.requests.break_lock((self.id, &self.who), action, claims, self.reason);
        let servers = &mut self.view.servers;
        let round_trip = servers.timed_round(servers.to_all(&call));
        let mut round = BreakRound { replies: Vec::new(), errors: Vec::new(), servers: servers.len() };
        for (at, reply) in round_trip.replies(servers, None) {
            match reply {
                Ok(reply) => round.replies.push(reply),
                Err(error) => {
                    servers[at].node.disconnect();
                    round.errors.push(error);
                }
            }
        }
        round
    }

    /// Marks twice: a server that had lost the claim may have got it back from its holder in
    /// between, without the mark. What we had marked on a majority before the second round began
    /// cannot be undone in this way, nor by another client that withdraws its own marks.
    fn mark(&mut self, claims: &[Vec<u8>]) -> Result<(), BackendError> {
        let mut round = self.send_to_all(BreakAction::Mark, claims);
        let mut is_done = round.has_marked(claims, |mark| mark != Mark::None);
        if self.view.servers.len() > 1 && is_done {
            round = self.send_to_all(BreakAction::Mark, claims);
            is_done = round.has_marked(claims, |mark| mark == Mark::Old);
        }
        if is_done {
            self.has_marked_majority = true;
            return Ok(());
        }
        if !self.has_marked_majority {
            self.send_to_all(BreakAction::Unmark, claims);
        }
        Err(BackendError::no_majority(round.errors, self.view.servers.len()))
    }
}

impl Breaker for RedisBreaker {
    fn holders(&mut self) -> Result<Vec<Holder>, BackendError> {
        let (mut holders, done) = self.view.holders_to_break(&self.keys)?;
        self.done = done;
        holders.sort_by_key(|held| (held.slot, std::cmp::Reverse(held.held_for)));
        Ok(holders)
    }

    fn done(&self) -> Option<Done> {
        self.done.clone()
    }

    /// One server that has the mark is enough for a run not to start.
    fn forget_done(&mut self) -> Result<(), BackendError> {
        let mut round = self.send_to_all(BreakAction::Forget, &[]);
        round.errors.pop().map_or(Ok(()), Err)
    }

    fn notify(&mut self, holders: &[Holder], how: BreakMode) -> Result<Notified, BackendError> {
        let claim = |held: &Holder| held.id.clone().into_bytes();
        let claims: Vec<Vec<u8>> = holders.iter().map(claim).collect();
        if how == BreakMode::Gentle {
            self.mark(&claims)?;
            // No process holds these, so there is nothing to stop and nothing to wait for.
            let is_unheld = |held: &&Holder| held.info.renewal == Renewal::Nobody;
            let unheld: Vec<Vec<u8>> = holders.iter().filter(is_unheld).map(claim).collect();
            if !unheld.is_empty() {
                self.send_to_all(BreakAction::Free, &unheld);
            }
            return Ok(Notified { unreachable: Vec::new(), freed: Freed::No });
        }
        // A deleted claim cannot be restored, but a mark can be withdrawn: so a majority is marked
        // first. Other programs do not know marks.
        let is_ours = |held: &&Holder| held.kind != HolderKind::Foreign;
        let marked: Vec<Vec<u8>> = holders.iter().filter(is_ours).map(claim).collect();
        let servers = self.view.servers.len();
        if servers > 1 && !marked.is_empty() {
            self.mark(&marked)?;
        }
        let freed = match self.send_to_all(BreakAction::Free, &claims).require_majority() {
            Ok(()) => Freed::Yes,
            Err(error) if servers > 1 && marked.len() == holders.len() => Freed::OnlyNotified(error),
            Err(error) if servers == 1 && error.fault() != Fault::Unavailable => return Err(error),
            Err(error) => Freed::Unknown(error),
        };
        Ok(Notified { unreachable: Vec::new(), freed })
    }

    /// A release wakes us. Any other end is found by the next inspection.
    fn wait(&mut self, until: BootTime) {
        let until = until.min(BootTime::now() + WAITER_RENEWAL);
        let listening = self.listening.get_or_insert_with(|| {
            Listening::new(
                self.view.configured.clone(),
                self.view.servers.node_timeout,
                self.view.inspect_call_to_break(&self.keys),
                self.requests.notify_list(self.id),
                WAITER_RENEWAL,
                BootTime::now(),
            )
        });
        let mut is_woken = false;
        while !is_woken && !until.has_passed() {
            listening
                .advance::<InspectReply>(|_, heard| is_woken |= matches!(heard, ListenEvent::Element(_)));
            if !is_woken {
                let next = listening.next_moment().map_or(until, |moment| moment.min(until));
                wait(&listening.poll_for(), next, None);
            }
        }
    }

    fn frees_at_once(&self) -> bool {
        true
    }
}

impl BreakRound {
    /// The marks on each claim that a majority may have.
    fn by_claim(&self) -> BTreeMap<&[u8], Vec<Mark>> {
        let mut claims: BTreeMap<&[u8], Vec<Mark>> = BTreeMap::new();
        let mut run_ids: Vec<&[u8]> = Vec::new();
        for reply in &self.replies {
            // A server that is listed twice has one vote.
            if run_ids.contains(&reply.run_id.as_slice()) {
                continue;
            }
            run_ids.push(&reply.run_id);
            for (claim, mark) in &reply.holders {
                claims.entry(claim).or_default().push(*mark);
            }
        }
        claims.retain(|_, votes| votes.len() + self.errors.len() >= majority_of(self.servers));
        claims
    }

    fn require_majority(self) -> Result<(), BackendError> {
        if self.errors.len() > self.servers - majority_of(self.servers) {
            return Err(BackendError::no_majority(self.errors, self.servers));
        }
        Ok(())
    }

    /// Whether each of these claims is gone, or can no longer be renewed.
    fn has_marked(&self, claims: &[Vec<u8>], is_marked: impl Fn(Mark) -> bool) -> bool {
        let present = self.by_claim();
        let counts = |mark: &&Mark| is_marked(**mark) || **mark == Mark::Freed;
        let is_enough = |marks: &Vec<Mark>| marks.iter().filter(counts).count() >= majority_of(self.servers);
        // A claim that is in no reply is gone only if the servers without a reply are a minority.
        let is_gone = self.errors.len() < majority_of(self.servers);
        claims.iter().all(|claim| present.get(claim.as_slice()).map_or(is_gone, is_enough))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Problem;

    const CLAIM: &[u8] = b"3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1";

    /// The replies of three servers: one for each of these marks has the claim, `free` have no
    /// claim, and the others fail.
    fn round(marks: &[Mark], free: usize) -> BreakRound {
        let holders = marks.iter().map(|mark| vec![(CLAIM.to_vec(), *mark)]);
        let holders = holders.chain((0..free).map(|_| Vec::new()));
        let reply = |(at, holders): (usize, _)| BreakReply { run_id: at.to_string().into(), holders };
        let replies: Vec<BreakReply> = holders.enumerate().map(reply).collect();
        let errors = (replies.len()..3).map(|_| BackendError::new("n", Problem::TimedOut)).collect();
        BreakRound { replies, errors, servers: 3 }
    }

    #[test]
    fn a_claim_is_broken_if_no_majority_can_renew_it() {
        let is_broken = |marks: &[Mark], free| {
            round(marks, free).has_marked(&[CLAIM.to_vec()], |mark| mark != Mark::None)
        };
        assert!(is_broken(&[Mark::New, Mark::Old], 0));
        assert!(is_broken(&[Mark::New, Mark::New, Mark::None], 0));
        assert!(!is_broken(&[Mark::New, Mark::None], 1), "it may be marked on one, and renewed on two");
        assert!(!is_broken(&[Mark::New], 0), "the others may renew it");
        assert!(!is_broken(&[Mark::New], 1), "the third may have it, too");
        assert!(is_broken(&[Mark::None], 2), "a minority is no lock");
        assert!(is_broken(&[], 2) && is_broken(&[Mark::Freed, Mark::Freed], 1), "gone");
        assert!(!is_broken(&[], 1) && !is_broken(&[], 0), "not known");
    }
}
