//! Collecting votes: the gate's is ours; ask the other servers until a majority has voted for us.

use std::time::Duration;

use super::BLPOP_SLACK;
use super::RedisLock;
use super::reply::{AcquireReply, CollectReply, ExtendReply, Granted, Refusal};
use super::requests::Ask;
use super::script::{Call, WAITER_RENEWAL};
use super::servers::{RoundEnd, Servers, stop_if};
use super::tally::{Tally, Vote};
use super::vote::Attempt;
use crate::clock::BootTime;
use crate::lock::{Blocked, Blocker, Observer};

/// A program other than redlock wakes nobody: so often we look whether it has gone.
const FOREIGN_RETRY: Duration = Duration::from_millis(100);

/// A vote that a newcomer has given back, or a release that is on its way, has arrived after this time.
const STRAY_VOTE: Duration = Duration::from_secs(2);

/// What there is when the gate has voted for us.
pub(super) struct Collected {
    /// When the gate was asked.
    pub asked: BootTime,
    /// What the gate granted.
    pub granted: Granted,
    /// Servers that were asked together with the gate.
    pub others: Vec<usize>,
    pub tally: Tally,
}

/// Whether a vote that is refused is registered in the server's queue, so that the release there wakes us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    None,
    First,
    /// The server was asked before with the same attempt.
    Again,
}

/// The replies that are still expected, and when they are overdue.
struct Pending(Vec<(usize, BootTime, BootTime)>);

impl Pending {
    fn add(&mut self, servers: impl IntoIterator<Item = usize>, asked: BootTime, overdue: BootTime) {
        self.0.extend(servers.into_iter().map(|at| (at, asked, overdue)));
    }

    fn servers(&self) -> Vec<usize> {
        self.0.iter().map(|(at, ..)| *at).collect()
    }

    /// When the request was sent.
    fn take(&mut self, at: usize) -> Option<BootTime> {
        let index = self.0.iter().position(|(other, ..)| *other == at)?;
        Some(self.0.swap_remove(index).1)
    }

    fn first_overdue(&self) -> Option<BootTime> {
        self.0.iter().map(|(_, _, overdue)| *overdue).min()
    }

    /// Each step of a connection has its own time.
    fn take_overdue(&mut self, servers: &Servers) -> Vec<usize> {
        for (at, _, overdue) in &mut self.0 {
            *overdue = servers.overdue_at(*at, *overdue);
        }
        let late: Vec<usize> =
            self.0.iter().filter(|(_, _, overdue)| overdue.has_passed()).map(|(at, ..)| *at).collect();
        self.0.retain(|(at, ..)| !late.contains(at));
        late
    }
}

impl RedisLock {
    /// Returns the tally with a majority, or how the attempt ended otherwise. A request waits where it is refused,
    /// and keeps the votes that it has. One that does not queue waits for a moment only, and only where the claim in
    /// the way is on its way out: of several that come at once, one must win.
    pub(super) fn collect_votes(
        &mut self,
        votes: Collected,
        queues: bool,
        gives_up_at: Option<BootTime>,
        observer: &mut dyn Observer,
    ) -> Result<Tally, Attempt> {
        let Collected { asked, granted, others, mut tally } = votes;
        let started = BootTime::now();
        let gives_up_at = if queues { gives_up_at } else { Some(started + self.servers.node_timeout) };
        let fences = granted.fences.clone();
        tally.add(self.gate, Vote::Yes { granted, asked });
        let mut pending = Pending(Vec::new());
        pending.add(others, asked, asked + self.servers.node_timeout);
        let silent: Vec<usize> =
            tally.missing().into_iter().filter(|at| !pending.servers().contains(at)).collect();
        let registration = if queues { Registration::First } else { Registration::None };
        self.ask_votes(silent, &fences, registration, &mut tally, &mut pending);
        let mut renew_at = self.ttl.map(|ttl| asked + ttl / 3);
        let mut blocked: Option<Blocked> = None;
        while !tally.has_majority() {
            if tally.unfit().is_some() || tally.cannot_be_completed() || pending.0.is_empty() {
                return Err(self.without_majority(tally));
            }
            let moments = [pending.first_overdue(), renew_at, gives_up_at];
            let until = moments.into_iter().flatten().min().unwrap_or(BootTime::now() + WAITER_RENEWAL);
            let mut replies = Vec::new();
            let ended = self.servers.listen::<CollectReply>(
                pending.servers(),
                until,
                Some(&mut *observer),
                |at, reply| {
                    replies.push((at, reply));
                    stop_if(true)
                },
            );
            if let RoundEnd::Cancelled(signal) = ended {
                return Err(Attempt::Cancelled(signal));
            }
            for (at, reply) in replies {
                let sent_at = pending.take(at).unwrap_or(asked);
                match reply {
                    Ok(CollectReply::Acquire(AcquireReply::Refused(refusal))) => {
                        self.note_refusal(at, &refusal);
                        if let Some(follow) = self.must_yield(at, &refusal, started) {
                            let blocked = Box::new(refusal.blocked);
                            return Err(Attempt::Outvoted { blocked, follow: Some(follow) });
                        }
                        if queues {
                            observer.waiting(&refusal.blocked, started.elapsed());
                        }
                        if queues || self.is_on_its_way_out(&refusal) {
                            let is_registered = refusal.stamp.is_some();
                            if is_registered {
                                self.wait_for_vote(
                                    at,
                                    &refusal,
                                    &fences,
                                    gives_up_at,
                                    &mut tally,
                                    &mut pending,
                                );
                            } else {
                                // A newcomer's request leaves nothing that a release could wake.
                                self.ask_votes(
                                    vec![at],
                                    &fences,
                                    Registration::Again,
                                    &mut tally,
                                    &mut pending,
                                );
                            }
                        }
                        blocked = Some(refusal.blocked.clone());
                        tally.add(at, Vote::No(refusal));
                    }
                    Ok(CollectReply::Acquire(reply)) => tally.add_reply(at, sent_at, Ok(reply)),
                    Ok(CollectReply::Extend(ExtendReply::Extended { is_quarantined: false, .. })) => {
                        tally.renew(at, sent_at);
                    }
                    // The vote is lost, or the server has lost its memory of others.
                    Ok(CollectReply::Extend(ExtendReply::Extended { .. } | ExtendReply::Lost(_))) => {
                        if at == self.gate {
                            return Err(self.outvoted(blocked, &tally));
                        }
                        tally.remove(at);
                        self.ask_votes(vec![at], &fences, Registration::Again, &mut tally, &mut pending);
                    }
                    Err(error) => tally.add(at, Vote::Failed(error)),
                }
            }
            for at in pending.take_overdue(&self.servers) {
                tally.add(at, Vote::Failed(self.servers[at].node.timed_out()));
            }
            if gives_up_at.is_some_and(BootTime::has_passed) {
                return Err(self.outvoted(blocked, &tally));
            }
            if renew_at.is_some_and(BootTime::has_passed) {
                renew_at = self.ttl.map(|ttl| BootTime::now() + ttl / 3);
                self.renew_votes(&tally, &mut pending);
            }
        }
        Ok(tally)
    }

    fn ask_votes(
        &mut self,
        servers: Vec<usize>,
        fences: &[u64],
        registration: Registration,
        tally: &mut Tally,
        pending: &mut Pending,
    ) {
        let call = self.vote_call(fences, registration);
        let now = BootTime::now();
        let asked = self.servers.ask(servers, |_| call.clone());
        for (at, error) in asked.failed {
            tally.add(at, Vote::Failed(error));
        }
        pending.add(asked.sent, now, now + self.servers.node_timeout);
    }

    fn vote_call(&self, fences: &[u64], registration: Registration) -> Call {
        let gate = self.servers[self.gate].run_id.as_slice();
        let (queues, again) = (registration != Registration::None, registration == Registration::Again);
        let ask = Ask::Vote { proposed: fences, gate, stamp: self.stamp, queues, again };
        self.requests.acquire(self.claim(), &self.terms, &ask)
    }

    /// Ask again as soon as the lock is released there.
    fn wait_for_vote(
        &mut self,
        at: usize,
        refusal: &Refusal,
        fences: &[u64],
        gives_up_at: Option<BootTime>,
        tally: &mut Tally,
        pending: &mut Pending,
    ) {
        let mut at_most = self.ttl.map_or(WAITER_RENEWAL, |ttl| (ttl / 4).min(WAITER_RENEWAL));
        if refusal.blocked.is_foreign() {
            at_most = at_most.min(FOREIGN_RETRY);
        }
        if let Some(expiry) = refusal.blocked.expires_in() {
            at_most = at_most.min(expiry + Duration::from_millis(1));
        }
        if let Some(gives_up_at) = gives_up_at {
            at_most = at_most.min(gives_up_at.remaining());
        }
        // Zero would mean "forever" to the server.
        let at_most = at_most.max(Duration::from_millis(1));
        let call = self.vote_call(fences, Registration::Again);
        let list = self.requests.notify_list(self.waiter);
        let now = BootTime::now();
        match self.servers[at].node.ask_after_wakeup(list, at_most, call) {
            Ok(()) => pending.add([at], now, now + at_most + BLPOP_SLACK + self.servers.node_timeout),
            Err(error) => tally.add(at, Vote::Failed(error)),
        }
    }

    /// Keep the votes that we have while we wait for the others.
    fn renew_votes(&mut self, tally: &Tally, pending: &mut Pending) {
        let call = self.requests.extend(self.claim(), BootTime::now(), &self.terms);
        let ours: Vec<usize> = tally.granted().collect();
        let now = BootTime::now();
        let asked = self.servers.ask(ours, |_| call.clone());
        pending.add(asked.sent, now, now + self.servers.node_timeout);
    }

    /// Where to queue if the refusing claim has another gate and arrived earlier: the older waits, the younger
    /// yields, so no two wait for each other. A claim with our own gate has lost or released it: it is on its way
    /// out.
    fn must_yield(&self, at: usize, refusal: &Refusal, started: BootTime) -> Option<usize> {
        let gate = &self.servers[self.gate].run_id;
        // A newcomer's vote does not tell its gate. One that stays is no stray vote, nor on its way out.
        let has_other_gate = match refusal.holder_gate.as_slice() {
            [] => started.elapsed() > STRAY_VOTE,
            theirs => theirs != gate,
        };
        let is_older = match (refusal.holder_stamp, self.stamp) {
            (Some(theirs), Some(ours)) => theirs < ours,
            _ => false,
        };
        (has_other_gate && is_older).then(|| self.holder_gate(refusal).unwrap_or(at))
    }

    /// The holder has our gate, whose vote is ours, or it is a newcomer that asked all servers at once and was queued.
    fn is_on_its_way_out(&self, refusal: &Refusal) -> bool {
        let has_our_gate = refusal.holder_gate == self.servers[self.gate].run_id;
        matches!(refusal.blocked.by, Blocker::Holder(_)) && (has_our_gate || refusal.holder_gate.is_empty())
    }

    fn outvoted(&self, blocked: Option<Blocked>, tally: &Tally) -> Attempt {
        match blocked {
            Some(blocked) => Attempt::Outvoted { blocked: Box::new(blocked), follow: None },
            None => self.without_majority(tally.clone()),
        }
    }
}
