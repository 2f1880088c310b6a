//! Renewing: all servers at once, a majority before the deadline; and healing servers that have lost the claim.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::RedisLock;
use super::node::State;
use super::reply::{ExtendReply, FollowUpReply};
use super::servers::{Member, RoundEnd, stop_if};
use super::tally::{ExtendTally, renewal_counts};
use crate::clock::BootTime;
use crate::lock::{Extended, Grant, Loss};

/// A renewal is due after a third of the lease, and the command is stopped a third before its end: at least two
/// attempts must fit between.
const RENEWAL_ATTEMPTS: u32 = 6;

impl RedisLock {
    pub(super) fn extend_lease(&mut self, grant: &Grant) -> Extended {
        self.servers.iter_mut().for_each(finish_last_round);
        let asked = BootTime::now();
        let renewed = self.lease(asked);
        let call = self.requests.extend(grant.claim, grant.taken_at, &self.terms);
        let mut tally = ExtendTally::new(self.servers.len());
        let sent = self.servers.ask(self.servers.all(), |_| call.clone());
        sent.failed.into_iter().for_each(|(_, error)| tally.add_error(error));
        // A reply after the deadline would not count.
        let deadline = grant.lease.unwrap_or(renewed).deadline();
        let until = deadline.min(asked + self.renewal_timeout());
        let votes_until: Vec<_> = self.servers.all().map(|at| self.servers[at].vote_until).collect();
        let mut updates = Vec::new();
        self.servers.listen(sent.sent, until, None, |at, reply| {
            match reply {
                Ok(ExtendReply::Extended { run_id, is_quarantined }) => {
                    let counts = renewal_counts(votes_until[at], is_quarantined, BootTime::now());
                    if counts {
                        tally.add_ours(run_id);
                    }
                    updates.push((at, Update::Ours { counts }));
                }
                Ok(ExtendReply::Lost(loss)) => {
                    tally.add_lost(loss);
                    updates.push((at, Update::Lost(loss)));
                }
                Err(error) => tally.add_error(error),
            }
            stop_if(tally.is_decided())
        });
        for (at, update) in updates {
            let member = &mut self.servers[at];
            match update {
                Update::Ours { counts } => {
                    member.lost_claim = false;
                    if counts {
                        member.vote_until = Some(renewed.deadline());
                    }
                }
                Update::Lost(loss) => member.lost_claim = loss == Loss::Expired,
            }
        }
        let renewed = (tally.has_majority() && !grant.is_over()).then_some(renewed);
        if renewed.is_some() {
            self.heal(grant);
        }
        self.renewal = renewed;
        tally.verdict(renewed, self.servers[self.gate].node.timed_out())
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
        let call = self.requests.heal(grant, &self.terms, &gate, self.stamp);
        for member in self.servers.iter_mut().filter(|member| member.lost_claim) {
            member.lost_claim = false;
            // With the whole script: a server that has restarted does not know it.
            let _ = member.node.ask_in_full(call.clone());
        }
    }

    /// After a majority: the remaining servers may still renew, with the deadline of this round, or need healing.
    pub(super) fn finish_renewal(&mut self, grant: &Grant, interrupt: BorrowedFd<'_>) {
        let Some(renewal) = self.renewal else { return };
        let until = renewal.deadline().min(BootTime::now() + self.renewal_timeout());
        loop {
            let pending: Vec<usize> =
                self.servers.all().filter(|&at| self.servers[at].node.state() == State::Silent).collect();
            if pending.is_empty() || until.has_passed() {
                return;
            }
            let mut replies = Vec::new();
            let ended = self.servers.listen_until::<FollowUpReply>(pending, until, interrupt, |at, reply| {
                replies.push((at, reply));
                stop_if(true)
            });
            for (at, reply) in replies {
                let member = &mut self.servers[at];
                match reply {
                    Ok(FollowUpReply::Extend(ExtendReply::Extended { is_quarantined, .. })) => {
                        if renewal_counts(member.vote_until, is_quarantined, BootTime::now()) {
                            member.vote_until = Some(renewal.deadline());
                        }
                    }
                    Ok(FollowUpReply::Extend(ExtendReply::Lost(loss))) => {
                        member.lost_claim = loss == Loss::Expired;
                    }
                    Ok(FollowUpReply::Heal) => {}
                    Err(_) => member.node.disconnect(),
                }
            }
            self.heal(grant);
            if ended != RoundEnd::Complete {
                return;
            }
        }
    }
}

/// What a reply to a renewal changes in the record of its server.
enum Update {
    Ours { counts: bool },
    Lost(Loss),
}

/// Late replies of the last round come first; a server that still owes one gets a new connection.
fn finish_last_round(member: &mut Member) {
    if let Some(Ok(ExtendReply::Lost(Loss::Expired))) = member.node.reply() {
        member.lost_claim = true;
    }
    if member.node.state() != State::Idle {
        member.node.disconnect();
    }
}
