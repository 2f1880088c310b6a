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
use super::round::{Round, Watch};
use crate::clock::BootTime;
use crate::lock::{BackendError, Extended, Grant, Lease, Loss, Problem};

/// A renewal is due after a third of the lease, and the command is stopped a third before its end: at least two
/// attempts must fit between.
const RENEWAL_ATTEMPTS: u32 = 6;

impl RedisLock {
    pub(super) fn extend_lease(&mut self, grant: &Grant) -> Extended {
        let (servers, asked) = (self.servers.len(), BootTime::now());
        let mut tally = RenewalTally::default();
        let place = self.place().filter(|_| servers > 1);
        let call = |place| self.requests.extend(grant.claim, grant.taken_at, &self.terms, place);
        // The first time with the script's text: on a slow line there may be no time for a second round trip.
        let (first, next) = (call(place.as_ref()).in_full(), call(None));
        let mut round = Round::default();
        for at in self.servers.all() {
            // A server that still owes a reply, and may yet give it in time, is not asked again.
            if self.owes_a_reply(at) {
                round.expect(at, asked, None);
                continue;
            }
            let member = &mut self.servers[at];
            member.node.discard_replies();
            if member.node.readiness() != Readiness::Idle {
                member.node.disconnect();
            }
            member.renewal_asked_at = Some(asked);
            let call = if member.has_renewed { &next } else { &first };
            round.ask(&mut self.servers, at, call.clone(), None);
        }
        // A reply after the deadline would not count.
        let deadline = grant.lease.map_or(self.lease(asked).deadline(), |lease| lease.deadline());
        let mut until = deadline.min(asked + self.renewal_timeout());
        while let Some((at, reply)) = round.reply(&mut self.servers, Some(until)) {
            self.count(at, reply, &mut tally);
            if tally.is_decided(servers, asked) {
                // What has arrived by now is still read: a server that has lost the claim is healed at once.
                until = BootTime::now();
            }
        }
        let pending = round.pending();
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

    /// Right after a majority has confirmed that the lock is ours: give the claim back to the servers that have
    /// lost it. Their votes count from the next round on. Returns the servers that were asked.
    fn heal(&mut self, grant: &Grant) -> Vec<usize> {
        let gate = self.servers[self.gate].run_id.clone();
        let held = (grant.fences.as_slice(), grant.taken_at.elapsed());
        let call = self.requests.heal(grant.claim, held, &self.terms, &gate, self.stamp);
        let lost: Vec<usize> = self.servers.all().filter(|&at| self.servers[at].lost_claim).collect();
        for &at in &lost {
            self.servers[at].lost_claim = false;
        }
        // With the script's text: a server that has restarted does not know it.
        self.servers.send(lost.iter().copied(), &call.in_full());
        lost
    }

    /// After a majority: the remaining servers may still renew, or need healing.
    pub(super) fn finish_renewal(&mut self, grant: &Grant, interrupt: BorrowedFd<'_>) {
        let Some(renewal) = self.renewal else { return };
        let now = BootTime::now();
        let until = renewal.deadline().min(now + self.renewal_timeout());
        let mut round = Round::default();
        for at in self.servers.all() {
            let node = &self.servers[at].node;
            if node.readiness() == Readiness::Silent && node.is_open() {
                round.expect(at, now, None);
            }
        }
        let watch = || Watch::Interrupt(interrupt);
        while let Ok(Some(received)) = round.next(&mut self.servers, Some(until), watch()) {
            match received.reply {
                Ok(FollowUpReply::Extend(reply)) => {
                    self.count(received.at, Ok(reply), &mut RenewalTally::default());
                }
                Ok(FollowUpReply::Heal) => {}
                Err(_) => self.servers[received.at].node.disconnect(),
            }
            for at in self.heal(grant) {
                round.expect(at, now, None);
            }
        }
    }
}
