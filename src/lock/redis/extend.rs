//! Renewing: all servers at once, a majority before the deadline; and healing servers that have lost the claim.

use super::RedisLock;
use super::node::State;
use super::reply::ExtendReply;
use super::servers::{Member, stop_if};
use super::tally::{ExtendTally, renewal_counts};
use crate::clock::BootTime;
use crate::lock::{Extended, Grant, Loss};

impl RedisLock {
    pub(super) fn extend_lease(&mut self, grant: &Grant) -> Extended {
        self.servers.iter_mut().for_each(finish_last_round);
        let asked = BootTime::now();
        let renewed = self.lease(asked);
        let call = self.requests.extend(grant, &self.terms);
        let mut tally = ExtendTally::new(self.servers.len());
        let sent = self.servers.ask(self.servers.all(), |_| call.clone());
        sent.failed.into_iter().for_each(|(_, error)| tally.add_error(error));
        // A reply after the deadline would not count.
        let deadline = grant.lease.unwrap_or(renewed).deadline();
        let until = deadline.min(asked + self.servers.node_timeout);
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
        tally.verdict(renewed, self.servers[self.gate].node.timed_out())
    }

    /// Right after a majority has said that the lock is ours: tell the servers that have lost the claim. Their
    /// votes count from the next round on.
    fn heal(&mut self, grant: &Grant) {
        let call = self.requests.heal(grant, &self.terms);
        let lost: Vec<usize> = self.servers.all().filter(|&at| self.servers[at].lost_claim).collect();
        self.servers.ask(lost, |_| call.clone());
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
