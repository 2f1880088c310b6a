//! Renewal at all servers at once, which needs a majority before the deadline; and repair
//! ("healing") of servers that have lost the claim.
//!
//! A vote holds for one lease, counted from the moment when its request was sent. The lock is ours
//! until the deadline of the latest moment from which the votes of a majority hold: a late reply
//! counts for its own round.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::RedisLock;
use super::node::Readiness;
use super::renewal_tally::{RenewalTally, renewal_counts};
use super::reply::{ExtendReply, FollowUpReply};
use super::round::{Round, Watch};
use super::script::Call;
use crate::clock::BootTime;
use crate::lock::wait::is_readable;
use crate::lock::{BackendError, Extended, Grant, Lease, Loss, Problem};
use crate::world::{Rule, follows};

/// A renewal is due after a third of the lease, and the command is stopped a third before its end:
/// at least two attempts must fit in between.
const RENEWAL_ATTEMPTS: u32 = 6;
/// A renewal that is unanswered for this long is repeated over a new connection. When a line comes
/// back, the kernel repeats the old request only after a time that doubles with each try.
const REPEAT_AFTER: Duration = Duration::from_millis(250);

impl RedisLock {
    pub(super) fn extend_lease(&mut self, grant: &Grant, interrupt: Option<BorrowedFd<'_>>) -> Extended {
        let servers = self.servers.len();
        let requested = self.lease(BootTime::now());
        let mut tally = RenewalTally::default();
        let place = self.place().filter(|_| servers > 1);
        let call = |place| self.requests.extend(grant.claim, Some(grant.taken_at), &self.terms, place);
        // The first renewal sends the whole script: on a slow network there may be no time for a
        // second round trip.
        let (first, next) = (call(place.as_ref()).in_full(), call(None));
        let mut round = Round::default();
        for at in self.servers.all() {
            // The reply to an earlier request may still arrive in time.
            if self.owes_a_reply(at) {
                round.expect(at, requested.sent_at(), None);
                continue;
            }
            let member = &mut self.servers[at];
            member.stop_repeating();
            member.node.discard_replies();
            if member.node.readiness() != Readiness::Idle {
                member.node.disconnect();
            }
            member.renewal = Some(requested);
            let call = if member.has_renewed { &next } else { &first };
            round.send(&mut self.servers, at, call.clone(), None);
        }
        // A reply after the deadline would not count.
        let deadline = grant.lease.map_or(requested.deadline(), |lease| lease.deadline());
        let until = deadline.min(requested.sent_at() + self.renewal_timeout());
        self.collect_renewals(&mut round, (&first, requested), until, interrupt, &mut tally);
        let pending = round.pending();
        // The earlier votes of servers that have not replied still hold.
        for &at in &pending {
            let member = &self.servers[at];
            if let Some(vote) = member.vote {
                let vote = if follows(Rule::OwnTtl) { vote } else { self.lease(vote.sent_at()) };
                tally.add_ours(member.run_id.clone(), vote);
            }
        }
        let is_longer =
            |lease: &Lease| grant.lease.is_none_or(|current| lease.deadline() > current.deadline());
        let renewed = tally.lease(servers).map(|lease| self.as_acknowledged(lease));
        self.renewal = renewed.filter(|lease| is_longer(lease) && !grant.is_over());
        if self.renewal.is_some() || !follows(Rule::HealAfterMajority) {
            self.heal(grant);
        }
        let timed_out = |at: usize| self.servers[at].node.timed_out();
        let late = pending.iter().map(|&at| timed_out(at)).collect();
        tally.verdict(servers, self.renewal, late, timed_out(self.gate))
    }

    /// Reads replies until a majority has renewed. Servers that stay silent are asked again and
    /// again, each time over a new connection. After an interrupt they have as long as between two
    /// requests.
    fn collect_renewals(
        &mut self,
        round: &mut Round,
        (call, requested): (&Call, Lease),
        mut until: BootTime,
        mut interrupt: Option<BorrowedFd<'_>>,
        tally: &mut RenewalTally,
    ) {
        loop {
            self.repeat_renewals(round, call);
            let repeat_at = BootTime::now() + REPEAT_AFTER;
            let watch = || interrupt.map_or(Watch::Nothing, Watch::Interrupt);
            while let Ok(Some(received)) = round.next(&mut self.servers, Some(until.min(repeat_at)), watch())
            {
                self.count(received.at, received.reply, tally);
                if tally.is_decided(self.servers.len(), requested.deadline()) {
                    // Read the replies that have arrived: a server that has lost the claim is then
                    // healed at once.
                    until = BootTime::now();
                }
            }
            if round.is_over() || until.has_passed() {
                return;
            }
            if interrupt.is_some_and(is_readable) {
                (until, interrupt) = (until.min(BootTime::now() + REPEAT_AFTER), None);
            }
        }
    }

    fn repeat_renewals(&mut self, round: &Round, call: &Call) {
        let (renewal, node_timeout) = (self.lease(BootTime::now()), self.servers.node_timeout);
        for at in round.pending() {
            let member = &mut self.servers[at];
            let patience = REPEAT_AFTER.max(member.node.round_trip() * 2);
            if member.last_renewal().is_some_and(|last| last.sent_at().elapsed() >= patience) {
                member.repeat(call.clone(), renewal, node_timeout);
            }
        }
    }

    fn owes_a_reply(&self, at: usize) -> bool {
        let member = &self.servers[at];
        let is_recent = member.renewal.is_some_and(|renewal| renewal.sent_at().elapsed() < renewal.ttl() / 2);
        is_recent && member.node.readiness() == Readiness::Silent
    }

    fn count(&mut self, at: usize, reply: Result<ExtendReply, BackendError>, tally: &mut RenewalTally) {
        let now = BootTime::now();
        let member = &mut self.servers[at];
        let vote_until = member.vote.map(|vote| vote.deadline());
        let requested = member.renewal.take();
        match reply {
            Ok(ExtendReply::Extended { run_id, quarantine, .. }) => {
                member.has_renewed = true;
                member.run_id.clone_from(&run_id);
                if !renewal_counts(vote_until, !quarantine.is_zero(), now) {
                    tally.add_error(member.node.error(Problem::InQuarantine(quarantine)));
                } else if let Some(requested) = requested {
                    if quarantine.is_zero() {
                        member.acknowledged = Some(requested);
                    }
                    // A shorter renewal does not shorten what was granted before.
                    let vote = member.vote.filter(|vote| vote.deadline() > requested.deadline());
                    let vote = vote.unwrap_or(requested);
                    member.vote = Some(vote);
                    tally.add_ours(run_id, vote);
                }
            }
            Ok(ExtendReply::Lost(loss)) => {
                member.lost_claim = matches!(loss, Loss::Expired);
                tally.add_lost(loss);
            }
            Err(error) => tally.add_error(error),
        }
    }

    /// A lost reply must leave time for another attempt before the command is stopped.
    fn renewal_timeout(&self) -> Duration {
        let longest = self.ttl.map(|ttl| ttl / RENEWAL_ATTEMPTS);
        longest.map_or(self.servers.node_timeout, |longest| self.servers.node_timeout.min(longest))
    }

    /// Restores the claim on servers that have lost it. Called right after a majority has confirmed
    /// that the lock is ours. The restored votes count from the next round on. Returns these
    /// servers.
    fn heal(&mut self, grant: &Grant) -> Vec<usize> {
        let gate = self.servers[self.gate].run_id.clone();
        let slots = if self.terms.has_slots() { grant.slots.as_slice() } else { &[] };
        let held = (grant.fences.as_slice(), slots, grant.taken_at.elapsed());
        let call = self.requests.heal(grant.claim, held, &self.terms, &gate, self.arrival());
        let lost: Vec<usize> = self.servers.all().filter(|&at| self.servers[at].lost_claim).collect();
        for &at in &lost {
            self.servers[at].lost_claim = false;
        }
        // A restarted server does not have the script.
        self.servers.send(lost.iter().copied(), &call.in_full());
        lost
    }

    /// After a majority has renewed: the remaining servers may still do so, or need healing.
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
