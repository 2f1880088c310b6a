//! One attempt: the gate's vote, the votes of the other servers, then a token that a majority
//! knows.
//!
//! A client that has the gate's vote keeps its turn: if another server's vote still belongs to a
//! claim that is being released, the client waits for the release and sends its request again. It
//! steps back only if clients disagree about the gate.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::RedisLock;
use super::collect::Collected;
use super::longest_lease::LongestLease;
use super::reply::{AcquireReply, Granted, Refusal, ReleaseReply};
use super::requests::{Ask, Stamp};
use super::round::{Round, RoundReply, Watch};
use super::tally::{Tally, Verdict, Vote};
use super::waiting::Progress;
use crate::clock::{BootTime, wall_clock_millis};
use crate::lock::{BackendError, Blocked, Done, Lease, Observer, Problem, Superseded};
use crate::world::{Rule, follows};

/// How long to wait for the remaining servers after a majority has voted, since their replies
/// reveal duplicates (the same run_id): twice as long as the majority took, within these bounds.
const DUPLICATE_CHECK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
/// A newcomer's proposal for the token is this far ahead of its clock, so that it is seldom smaller
/// than the gate's.
const PROPOSAL_LEAD_MS: u64 = 500;

/// How one attempt ended.
#[derive(Debug)]
pub(super) enum Attempt {
    Won(Box<Win>),
    /// The gate has queued us, or would have if the request queued.
    Queued(Box<Blocked>),
    /// An ancestor of this process holds the lock.
    Nested,
    /// A run has succeeded a short time ago.
    Done(Box<Done>),
    /// A newer request has taken our place.
    Superseded(Box<Superseded>),
    /// The gate voted for us, but too many other servers did not.
    Outvoted {
        blocked: Box<Blocked>,
        /// The gate of the clients that outvoted us, where to queue next.
        follow: Option<usize>,
    },
    /// The gate voted for a slot that another client has: ask the gate for another one.
    AnotherSlot(Box<Blocked>),
    Quarantined(Vec<(String, Duration)>, Vec<BackendError>),
    Failed(BackendError),
    /// The gate voted for us, but then servers failed, or the time was over.
    Interrupted(BackendError),
    Cancelled(Signal),
}

/// A majority has voted for us.
#[derive(Debug)]
pub(super) struct Win {
    pub fences: Vec<u64>,
    pub slots: Vec<u32>,
    /// When the oldest of the votes that count was requested or last renewed. The gate's vote alone
    /// may be much older.
    pub taken_at: BootTime,
    pub lease: Lease,
    /// Number of servers that voted for us.
    pub voted: usize,
    /// The errors of the servers that could not vote.
    pub failures: Vec<BackendError>,
}

/// Requests that were sent before the attempt begins.
#[derive(Debug)]
pub(super) struct InFlight {
    gate: usize,
    /// The request to the gate, and a newcomer's requests to the other servers.
    round: Round,
}

/// What the gate's reply means for the attempt.
enum GateStep {
    /// The gate voted for us: collect the other votes.
    Enter(Granted),
    Queue(Box<Refusal>),
    NextGate(Vote),
    Stop(Attempt),
}

impl RedisLock {
    fn request_from_gate(&mut self, gate: usize, queues: bool, proposed: Option<u64>) -> InFlight {
        let ask = Ask::Gate { queues, stamp: self.stamp.as_ref(), proposed, slots: &self.lowest_slots };
        let call = self.requests.acquire(self.claim(), &self.terms, &ask);
        InFlight { gate, round: self.servers.timed_round([(gate, call)]) }
    }

    /// Sends the first request to all servers at once: if no client waits, one round trip is
    /// enough. Only the gate can name a slot: the other servers are asked when it has.
    pub(super) fn request_from_all(&mut self, queues: bool) -> InFlight {
        if self.servers.len() == 1 || self.terms.has_slots() {
            return self.request_from_gate(0, queues, None);
        }
        let proposed = wall_clock_millis() + PROPOSAL_LEAD_MS;
        let mut in_flight = self.request_from_gate(0, queues, Some(proposed));
        let call = self.requests.acquire(self.claim(), &self.terms, &Ask::Newcomer { proposed });
        let due = Some(BootTime::now() + self.servers.node_timeout);
        for at in self.servers.all_but(0) {
            in_flight.round.send(&mut self.servers, at, call.clone(), due);
        }
        in_flight
    }

    /// Requests the gate's vote, then those of the other servers.
    pub(super) fn attempt(
        &mut self,
        queues: bool,
        progress: &Progress,
        observer: &mut dyn Observer,
    ) -> Attempt {
        let mut longest_lease = LongestLease::new(self.requests.quarantine());
        longest_lease.add(&self.longest_lease);
        let mut tally = Tally::new(self.servers.names(), longest_lease);
        let (mut first_queue, has_votes) = (None, std::mem::take(&mut self.leaves_votes));
        if self.in_flight.is_none() {
            self.attempts += 1;
        }
        for gate in self.gates() {
            self.gate = gate;
            let in_flight =
                self.in_flight.take().unwrap_or_else(|| self.request_from_gate(gate, queues, None));
            let InFlight { round: mut others, .. } = in_flight;
            let replies_by = progress.replies_by(self.servers[gate].node.round_trip());
            let watch = Watch::Observer(&mut *observer);
            let (received, early) = match others.reply_of(gate, &mut self.servers, replies_by, watch) {
                Ok(received) => received,
                Err(signal) => return Attempt::Cancelled(signal),
            };
            self.note_punctuality(&received);
            let sent_at = received.sent_at;
            let step = gate_step(received.reply, self.servers.len() > 1);
            let mut has_released = false;
            if !matches!(step, GateStep::Enter(_)) {
                self.lowest_slots.clear();
                // Another gate than that of the last attempt may have queued us.
                let strays = if has_votes && matches!(step, GateStep::Queue(_)) {
                    self.servers.all_but(gate).collect()
                } else {
                    others.pending().into_iter().chain(early.iter().map(|reply| reply.at)).collect()
                };
                has_released = self.release_strays(strays);
            }
            let vote = match step {
                GateStep::Enter(granted) => {
                    self.note_member(gate, &granted.run_id, granted.stamp);
                    let votes = Collected { sent_at, granted, early, others, tally };
                    return self.enter(votes, queues, progress.gives_up_at, observer);
                }
                GateStep::Stop(attempt) => return attempt,
                GateStep::NextGate(vote) => {
                    // The release must not apply to the request to the next gate.
                    self.attempts += u32::from(has_released);
                    vote
                }
                GateStep::Queue(refusal) => {
                    self.note_refusal(gate, &refusal);
                    self.longest_lease.hear(&refusal.bound);
                    let failed = tally.too_many_failed();
                    return failed.map_or(Attempt::Queued(Box::new(refusal.blocked)), Attempt::Failed);
                }
            };
            if let Vote::No(refusal) = &vote {
                first_queue.get_or_insert((gate, Box::new(refusal.blocked.clone())));
            }
            tally.add(gate, vote);
            if replies_by.is_some() && progress.is_exhausted() {
                break;
            }
            // A server's quarantine begins with its first request, so send one to all of them.
            if tally.unfit().is_some() || (tally.cannot_win() && !tally.has_quarantined()) {
                break;
            }
        }
        if tally.unfit().is_none() && tally.cannot_win() && tally.has_failed() {
            self.probe_rest(&mut tally, progress);
        }
        match (self.without_majority(tally), first_queue) {
            (Attempt::Outvoted { .. }, Some((gate, blocked))) => {
                self.gate = gate;
                Attempt::Queued(blocked)
            }
            (attempt, _) => attempt,
        }
    }

    /// A single late reply does not change the gate.
    fn note_punctuality(&mut self, received: &RoundReply<AcquireReply>) {
        let member = &mut self.servers[received.at];
        if received.is_late && member.timeouts > 0 {
            member.avoid();
        } else if received.is_late {
            member.timeouts += 1;
        } else if received.reply.is_ok() {
            member.timeouts = 0;
        }
    }

    /// The attempt is lost anyway, but the error should name every server that does not reply.
    fn probe_rest(&mut self, tally: &mut Tally, progress: &Progress) {
        // This request is harmless, as there is nothing to release.
        let call =
            self.requests.release(self.claim(), &self.terms, Duration::ZERO, Duration::ZERO, None, None);
        let round = self.servers.round(tally.missing().into_iter().map(|at| (at, call.clone())));
        let until = BootTime::now() + self.servers.node_timeout;
        let until = progress.replies_by(Duration::ZERO).map_or(until, |by| until.min(by));
        for (at, reply) in round.replies::<ReleaseReply>(&mut self.servers, Some(until)) {
            if let Err(error) = reply {
                tally.add(at, Vote::Failed(error));
            }
        }
    }

    /// The servers in the order in which they are tried as the gate: the one that has the request
    /// already, the gate of the clients that outvoted us, those that reply in time, the others. If
    /// those that reply in time are no majority, the usual order is kept, as all are needed anyway.
    pub(super) fn gates(&self) -> Vec<usize> {
        let (avoided, others): (Vec<_>, Vec<_>) =
            self.servers.all().partition(|&at| self.servers[at].is_avoided());
        let mut order = if others.len() < self.servers.majority() {
            self.servers.all().collect()
        } else {
            [others, avoided].concat()
        };
        let in_flight = self.in_flight.as_ref().map(|in_flight| in_flight.gate);
        let follow = self.follow.filter(|&at| !self.servers[at].is_avoided());
        if let Some(first) = in_flight.or(follow) {
            order.retain(|&at| at != first);
            order.insert(0, first);
        }
        order
    }

    /// The gate voted for us: collects the other votes and agrees on a token.
    fn enter(
        &mut self,
        votes: Collected,
        queues: bool,
        gives_up_at: Option<BootTime>,
        observer: &mut dyn Observer,
    ) -> Attempt {
        let (sent_at, granted) = (votes.sent_at, votes.granted.clone());
        let mut votes = votes;
        loop {
            let mut tally = match self.collect_votes(votes, queues, gives_up_at, observer) {
                Ok(tally) => tally,
                Err(attempt) => return attempt,
            };
            if let Err(attempt) = self.read_late_votes(sent_at, &mut tally, observer) {
                return attempt;
            }
            self.longest_lease.add(tally.longest_lease());
            let taken_at = tally.lease_from().filter(|_| tally.unfit().is_none() && tally.has_majority());
            let Some(taken_at) = taken_at else { return self.without_majority(tally) };
            let unacknowledged = tally.unacknowledged(self.ttl.unwrap_or_default());
            if self.has_long_lease() && !unacknowledged.is_empty() {
                let problem = Problem::LongLease { servers: unacknowledged };
                return Attempt::Interrupted(BackendError { at: None, problem });
            }
            let lease = self.lease(taken_at);
            match self.agree_on_fence(&tally, granted.fences.clone(), lease) {
                Ok(_) if lease.deadline().has_passed() && follows(Rule::Deadline) => {
                    return Attempt::Interrupted(self.granted_too_late());
                }
                Ok(fences) => return Attempt::Won(Box::new(self.win(fences, &granted, lease, &tally))),
                Err(failed) if failed.is_empty() || failed.iter().any(|(at, _)| *at == self.gate) => {
                    return Attempt::Interrupted(self.granted_too_late());
                }
                // The votes of other servers may still complete the majority.
                Err(failed) => {
                    for (at, error) in failed {
                        tally.add(at, Vote::Failed(error));
                    }
                    let mut others = Round::default();
                    let due = Some(BootTime::now() + self.servers.node_timeout);
                    for at in tally.missing() {
                        others.expect(at, sent_at, due);
                    }
                    votes = Collected { sent_at, granted: granted.clone(), early: Vec::new(), others, tally };
                }
            }
        }
    }

    fn win(&mut self, fences: Vec<u64>, granted: &Granted, lease: Lease, tally: &Tally) -> Win {
        // Not later than the lease's start: a renewal may count this vote again, and must not take it
        // for a longer one.
        for (at, _) in tally.yes() {
            self.servers[at].vote = Some(lease);
        }
        self.servers.iter_mut().for_each(|member| member.acknowledged = Some(lease));
        // Votes live for a lease. Now that they are a grant, they must outlive this process.
        if self.servers.len() > 1 && self.requests.outlives_lease(&self.terms) {
            let call = self.requests.extend(self.claim(), Some(lease.sent_at()), &self.terms, None).in_full();
            let voters: Vec<usize> = tally.yes().map(|(at, _)| at).collect();
            self.servers.send(voters, &call);
        }
        let (slots, voted, failures) = (granted.slots.clone(), tally.yes().count(), tally.abstentions());
        Win { fences, slots, taken_at: lease.sent_at(), lease, voted, failures }
    }

    /// Reads the replies of the remaining servers for a moment. They may reveal that a server is
    /// listed twice, or that there are longer leases than the voters reported; the latter is worth a
    /// longer wait. A lease that is longer than usual needs all of them.
    fn read_late_votes(
        &mut self,
        sent_at: BootTime,
        tally: &mut Tally,
        observer: &mut dyn Observer,
    ) -> Result<(), Attempt> {
        let (shortest, longest) = DUPLICATE_CHECK;
        let late = tally.missing();
        let is_slow = late.iter().any(|&at| self.servers[at].node.is_resolving());
        let is_young = tally.depends_on_young_servers() && follows(Rule::WaitForOldServers);
        let has_quarantine = !tally.longest_lease().is_zero();
        let at_most = if is_young && has_quarantine || self.has_long_lease() {
            self.servers.node_timeout
        } else if is_young {
            longest
        } else if self.attempts > 1 {
            // After a wait there may be a waiter behind us: do not delay it.
            Duration::ZERO
        } else if is_slow {
            longest
        } else {
            (sent_at.elapsed() * 2).clamp(shortest, longest)
        };
        let until = self.lease(sent_at).deadline().min(BootTime::now() + at_most);
        let mut round = Round::default();
        for at in late {
            round.expect(at, sent_at, None);
        }
        while tally.unfit().is_none() {
            let next = round.next(&mut self.servers, Some(until), Watch::Observer(&mut *observer));
            let Some(received) = next.map_err(Attempt::Cancelled)? else { break };
            if let Ok(AcquireReply::Done(done)) = received.reply {
                return Err(Attempt::Done(done));
            }
            tally.add_reply(received.at, sent_at, received.reply);
        }
        Ok(())
    }

    pub(super) fn without_majority(&self, tally: Tally) -> Attempt {
        match tally.verdict(|at| self.servers[at].node.timed_out()) {
            Verdict::Won => unreachable!("called without a majority"),
            Verdict::Held(blocked) => Attempt::Outvoted { blocked, follow: None },
            Verdict::Quarantined(servers, errors) => Attempt::Quarantined(servers, errors),
            Verdict::Failed(error) => Attempt::Failed(error),
        }
    }

    pub(super) fn granted_too_late(&self) -> BackendError {
        self.servers[self.gate].node.error(Problem::GrantedTooLate)
    }

    fn note_member(&mut self, at: usize, run_id: &[u8], stamp: u64) {
        self.servers[at].run_id = run_id.to_vec();
        self.stamp.get_or_insert_with(|| Stamp::new(stamp, run_id));
    }

    pub(super) fn note_refusal(&mut self, at: usize, refusal: &Refusal) {
        self.servers[at].run_id.clone_from(&refusal.run_id);
        if let Some(stamp) = refusal.stamp {
            self.stamp.get_or_insert_with(|| Stamp::new(stamp, &refusal.run_id));
        }
    }

    /// The holder's gate, if we know that server and it is not the one that refused us.
    pub(super) fn holder_gate(&self, refusal: &Refusal) -> Option<usize> {
        if refusal.holder_gate.is_empty() || refusal.holder_gate == refusal.run_id {
            return None;
        }
        self.servers.all().find(|&at| {
            let member = &self.servers[at];
            member.run_id == refusal.holder_gate && !member.is_avoided()
        })
    }

    /// The gate did not grant: releases votes that other servers may have given, since they block
    /// the client whose turn it is. False if there are none.
    fn release_strays(&mut self, others: Vec<usize>) -> bool {
        if others.is_empty() || !follows(Rule::ReleaseStrays) {
            return false;
        }
        let call =
            self.requests.release(self.claim(), &self.terms, Duration::ZERO, Duration::ZERO, None, None);
        self.servers.send(others, &call);
        true
    }
}

fn gate_step(reply: Result<AcquireReply, BackendError>, has_others: bool) -> GateStep {
    match reply {
        Ok(AcquireReply::Granted(granted)) => GateStep::Enter(granted),
        Ok(AcquireReply::Nested) => GateStep::Stop(Attempt::Nested),
        Ok(AcquireReply::Superseded(by)) => GateStep::Stop(Attempt::Superseded(by)),
        Ok(AcquireReply::Done(done)) => GateStep::Stop(Attempt::Done(done)),
        // A foreign program, which knows no gate, may hold this server without a majority: then the
        // next server is the gate, for every client. If it has a majority, we wait in the first
        // queue.
        Ok(AcquireReply::Refused(refusal)) if refusal.blocked.is_foreign() && has_others => {
            GateStep::NextGate(Vote::No(refusal))
        }
        Ok(AcquireReply::Refused(refusal)) => GateStep::Queue(refusal),
        Ok(AcquireReply::Quarantined(quarantined)) => GateStep::NextGate(Vote::Quarantined(quarantined)),
        Err(error) => GateStep::NextGate(Vote::Failed(error)),
    }
}
