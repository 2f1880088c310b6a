//! Renewing: all servers at once, a majority before the deadline; and healing servers that have lost the claim.
//!
//! A vote holds for a lease from the moment at which it was asked for. The lock is ours until the deadline of the
//! latest moment from which a majority has voted: a reply that comes late counts for its own round.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::RedisLock;
use super::node::Readiness;
use super::renewal_tally::{RenewalTally, renewal_counts};
use super::reply::{ExtendReply, FollowUpReply};
use super::servers::{RoundEnd, stop_if};
use crate::clock::BootTime;
use crate::lock::{BackendError, Extended, Grant, Lease, Loss, Problem};

/// A renewal is due after a third of the lease, and the command is stopped a third before its end: at least two
/// attempts must fit between.
const RENEWAL_ATTEMPTS: u32 = 6;

impl RedisLock {
    pub(super) fn extend_lease(&mut self, grant: &Grant) -> Extended {
        let (servers, asked) = (self.servers.len(), BootTime::now());
        let mut tally = RenewalTally::default();
        // A server that still owes a reply, and may yet give it in time, is not asked again.
        let (owing, free): (Vec<usize>, Vec<usize>) =
            self.servers.all().partition(|&at| self.owes_a_reply(at));
        for &at in &free {
            let node = &mut self.servers[at].node;
            node.discard_replies();
            if node.readiness() != Readiness::Idle {
                node.disconnect();
            }
        }
        let place = self.place().filter(|_| servers > 1);
        let call = |place| self.requests.extend(grant.claim, grant.taken_at, &self.terms, place);
        let (first, next) = (call(place.as_ref()), call(None));
        // The first time with the whole script: on a slow line there may be no time for a second round trip.
        let (known, new): (Vec<usize>, Vec<usize>) =
            free.into_iter().partition(|&at| self.servers[at].has_renewed);
        let mut sent = self.servers.ask(known, |_| next.clone());
        let in_full = self.servers.ask_in_full(new, &first);
        sent.sent.extend(in_full.sent);
        sent.failed.extend(in_full.failed);
        sent.failed.into_iter().for_each(|(_, error)| tally.add_error(error));
        for &at in &sent.sent {
            self.servers[at].renewal_asked_at = Some(asked);
        }
        // A reply after the deadline would not count.
        let deadline = grant.lease.map_or(self.lease(asked).deadline(), |lease| lease.deadline());
        let until = deadline.min(asked + self.renewal_timeout());
        let mut pending = [owing, sent.sent].concat();
        while !pending.is_empty() && !until.has_passed() && !tally.is_decided(servers, asked) {
            let mut replies = Vec::new();
            self.servers.listen::<ExtendReply>(pending.clone(), until, None, |at, reply| {
                replies.push((at, reply));
                stop_if(true)
            });
            for (at, reply) in replies {
                pending.retain(|&other| other != at);
                self.count(at, reply, &mut tally);
            }
        }
        // Votes of earlier rounds that have not been answered again still hold.
        for &at in &pending {
            let member = &self.servers[at];
            if let Some(voted_at) = member.voted_at {
                tally.add_ours(member.run_id.clone(), voted_at);
            }
        }
        let renewed = tally.renewed_from(servers).map(|from| self.lease(from));
        let is_longer =
            |lease: &Lease| grant.lease.is_none_or(|current| lease.deadline() > current.deadline());
        self.renewal = renewed.filter(|lease| is_longer(lease) && !grant.is_over());
        if self.renewal.is_some() {
            self.heal(grant);
        }
        let timed_out = |at: usize| self.servers[at].node.timed_out();
        let late = pending.iter().map(|&at| timed_out(at)).collect();
        tally.verdict(servers, self.renewal, late, timed_out(self.gate))
    }

    fn owes_a_reply(&self, at: usize) -> bool {
        let member = &self.servers[at];
        let is_recent = member.renewal_asked_at.is_some_and(|asked| {
            let longest = self.ttl.map_or(self.servers.node_timeout, |ttl| ttl / 2);
            asked.elapsed() < longest
        });
        // There is no other server to turn to: a new connection may be quicker.
        let has_others = self.servers.len() > 1;
        has_others && is_recent && member.node.readiness() == Readiness::Silent && member.node.is_open()
    }

    fn count(&mut self, at: usize, reply: Result<ExtendReply, BackendError>, tally: &mut RenewalTally) {
        let now = BootTime::now();
        let vote_until = self.servers[at].voted_at.map(|voted_at| self.lease(voted_at).deadline());
        let member = &mut self.servers[at];
        let asked = member.renewal_asked_at.take();
        match reply {
            Ok(ExtendReply::Extended { run_id, quarantine, .. }) => {
                member.has_renewed = true;
                member.run_id.clone_from(&run_id);
                if !renewal_counts(vote_until, !quarantine.is_zero(), now) {
                    tally.add_error(member.node.error(Problem::InQuarantine(quarantine)));
                } else if let Some(asked) = asked {
                    member.voted_at = Some(asked);
                    tally.add_ours(run_id, asked);
                }
            }
            Ok(ExtendReply::Lost(loss)) => {
                member.lost_claim = matches!(loss, Loss::Expired);
                tally.add_lost(loss);
            }
            Err(error) => tally.add_error(error),
        }
    }

    /// One lost reply must leave time for another attempt before the command is stopped.
    fn renewal_timeout(&self) -> Duration {
        let longest = self.ttl.map(|ttl| ttl / RENEWAL_ATTEMPTS);
        longest.map_or(self.servers.node_timeout, |longest| self.servers.node_timeout.min(longest))
    }

    /// Right after a majority has said that the lock is ours: tell the servers that have lost the claim. Their
    /// votes count from the next round on.
    fn heal(&mut self, grant: &Grant) {
        let gate = self.servers[self.gate].run_id.clone();
        let held = (grant.fences.as_slice(), grant.taken_at.elapsed());
        let call = self.requests.heal(grant.claim, held, &self.terms, &gate, self.stamp);
        for member in self.servers.iter_mut().filter(|member| member.lost_claim) {
            member.lost_claim = false;
            // With the whole script: a server that has restarted does not know it.
            let _ = member.node.ask_in_full(call.clone());
        }
    }

    /// After a majority: the remaining servers may still renew, or need healing.
    pub(super) fn finish_renewal(&mut self, grant: &Grant, interrupt: BorrowedFd<'_>) {
        let Some(renewal) = self.renewal else { return };
        let until = renewal.deadline().min(BootTime::now() + self.renewal_timeout());
        loop {
            let pending: Vec<usize> = self
                .servers
                .all()
                .filter(|&at| {
                    self.servers[at].node.readiness() == Readiness::Silent && self.servers[at].node.is_open()
                })
                .collect();
            if pending.is_empty() || until.has_passed() {
                return;
            }
            let mut replies = Vec::new();
            let ended = self.servers.listen_until::<FollowUpReply>(pending, until, interrupt, |at, reply| {
                replies.push((at, reply));
                stop_if(true)
            });
            let mut ignored = RenewalTally::default();
            for (at, reply) in replies {
                match reply {
                    Ok(FollowUpReply::Extend(reply)) => self.count(at, Ok(reply), &mut ignored),
                    Ok(FollowUpReply::Heal) => {}
                    Err(_) => self.servers[at].node.disconnect(),
                }
            }
            self.heal(grant);
            if ended != RoundEnd::Complete {
                return;
            }
        }
    }
}
