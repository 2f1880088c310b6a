//! Collecting votes: the gate has voted for us; request the votes of the other servers until there
//! is a majority.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RedisLock;
use super::reply::{AcquireReply, Arrival, CollectReply, ExtendReply, Granted, Refusal};
use super::requests::{Ask, Place};
use super::round::{Round, RoundReply, Watch};
use super::script::{Call, WAITER_LEASE, WAITER_RENEWAL};
use super::tally::{Tally, Vote};
use super::vote::Attempt;
use super::waiting::BLPOP_SLACK;
use crate::clock::BootTime;
use crate::lock::{Blocked, Blocker, Observer};
use crate::world::{Rule, follows};

/// A foreign holder wakes no waiter when it releases the lock, so retry at this interval.
const FOREIGN_RETRY: Duration = Duration::from_millis(100);
/// How long a client whose turn it is at its gate waits for an older claim with another gate before
/// it steps back: that claim may be about to be released. If the client left the queue at that
/// moment, the waiter behind it would overtake it.
const BEFORE_YIELDING: Duration = Duration::from_millis(200);

/// The votes at the moment when the gate has voted for us.
pub(super) struct Collected {
    /// When the request to the gate was sent.
    pub sent_at: BootTime,
    /// The gate's reply.
    pub granted: Granted,
    /// The replies of the other servers to a newcomer that arrived before the gate's.
    pub early: Vec<RoundReply<AcquireReply>>,
    /// A newcomer's requests to the other servers, sent together with that to the gate.
    pub others: Round,
    pub tally: Tally,
}

/// The state of the collection.
struct Collection {
    queues: bool,
    gives_up_at: Option<BootTime>,
    started: BootTime,
    /// The gate's tokens and slots.
    fences: Vec<u64>,
    slots: Vec<u32>,
    tally: Tally,
    round: Round,
    /// Some votes do not carry our gate and stamp, which were not known when they were requested.
    is_newcomer: bool,
    /// When to renew the votes that we have.
    renew_at: Option<BootTime>,
    /// The last refusal.
    blocked: Option<Blocked>,
    /// The servers that refused us and at which we have waited for a release.
    waited_at: Vec<usize>,
    /// The servers where nobody but a waiter ahead of us keeps us out, and since when.
    behind_waiters: BTreeMap<usize, BootTime>,
    /// The last refusal of a slot that was not needed when it came.
    refused_slot: Option<(usize, Box<Refusal>)>,
    /// The servers that know a newer request with `--supersede`.
    superseded_at: Vec<usize>,
}

impl Collection {
    /// The user's limit applies to a held lock. Servers always have the node timeout to reply.
    fn ends_at(&self, node_timeout: Duration) -> Option<BootTime> {
        let replies_by = self.started + node_timeout;
        self.gives_up_at.map(|at| if self.blocked.is_some() { at } else { at.max(replies_by) })
    }

    /// While we wait, another client may have to yield to us. A newcomer's votes do not carry its
    /// place yet, but a renewal does: make it due at once.
    fn carry_place_soon(&mut self) {
        if self.is_newcomer && self.blocked.is_some() && follows(Rule::CarryPlace) {
            self.renew_at = Some(BootTime::now());
        }
    }

    /// A waiter ahead of us has neither taken the vote nor died: another claim keeps it out, whose client
    /// may need the vote that we have.
    fn is_stuck_behind(&mut self, at: usize, refusal: &Refusal) -> bool {
        if !matches!(refusal.blocked.by, Blocker::Queue) {
            self.behind_waiters.remove(&at);
            return false;
        }
        let since = *self.behind_waiters.entry(at).or_insert_with(BootTime::now);
        since.elapsed() > WAITER_LEASE && follows(Rule::YieldToWaiter)
    }
}

impl RedisLock {
    /// Returns the tally with a majority, or how the attempt ended otherwise. A request waits where
    /// it is refused, and keeps its votes. A request that does not queue waits only briefly, and
    /// only where the blocking claim is about to be released: of several requests that arrive at
    /// once, one must win.
    pub(super) fn collect_votes(
        &mut self,
        votes: Collected,
        queues: bool,
        gives_up_at: Option<BootTime>,
        observer: &mut dyn Observer,
    ) -> Result<Tally, Attempt> {
        let mut all = self.begin_collection(votes, queues, gives_up_at, observer)?;
        while !all.tally.has_majority() {
            let ends_at = all.ends_at(self.servers.node_timeout);
            if ends_at.is_some_and(BootTime::has_passed) {
                return Err(self.outvoted(&mut all));
            }
            if all.tally.unfit().is_some() || all.tally.cannot_be_completed() || all.round.is_over() {
                // The error should name every server that is known to fail.
                let now = Some(BootTime::now());
                while let Some((at, reply)) = all.round.reply::<CollectReply>(&mut self.servers, now) {
                    if let Err(error) = reply {
                        all.tally.add(at, Vote::Failed(error));
                    }
                }
                return Err(self.other_slot(&mut all).unwrap_or_else(|| self.without_majority(all.tally)));
            }
            if all.renew_at.is_some_and(BootTime::has_passed) {
                self.renew_votes(&mut all);
            }
            let until = all.renew_at.into_iter().chain(ends_at).min();
            let next = all.round.next(&mut self.servers, until, Watch::Observer(&mut *observer));
            if let Some(received) = next.map_err(Attempt::Cancelled)? {
                self.on_reply(&mut all, received, observer)?;
            }
        }
        Ok(all.tally)
    }

    fn on_reply(
        &mut self,
        all: &mut Collection,
        received: RoundReply<CollectReply>,
        observer: &mut dyn Observer,
    ) -> Result<(), Attempt> {
        let RoundReply { at, sent_at, reply, .. } = received;
        match reply {
            Ok(CollectReply::Acquire(AcquireReply::Refused(refusal))) => {
                self.on_refusal(all, at, refusal, observer)?;
            }
            // One server may know a newer request that the others have forgotten, or whose stamp is from
            // a clock that is ahead. The gate, which decides the order, has voted for us: it takes as
            // many servers to overrule it as to prevent a majority.
            Ok(CollectReply::Acquire(AcquireReply::Superseded(by))) => {
                all.tally.add_reply(at, sent_at, Ok(AcquireReply::Superseded(by.clone())));
                all.superseded_at.push(at);
                if all.superseded_at.len() > self.servers.len() - self.servers.majority() {
                    return Err(Attempt::Superseded(by));
                }
            }
            // A release marks a majority, but we may have the votes of those that it did not reach.
            Ok(CollectReply::Acquire(AcquireReply::Done(done))) => return Err(Attempt::Done(done)),
            Ok(CollectReply::Acquire(reply)) => {
                all.tally.add_reply(at, sent_at, Ok(reply));
                all.carry_place_soon();
            }
            Ok(CollectReply::Extend(reply)) => self.on_renewal(all, at, sent_at, &reply)?,
            Ok(CollectReply::Woken) => self.request_votes(all, vec![at], true),
            Err(error) => all.tally.add(at, Vote::Failed(error)),
        }
        Ok(())
    }

    /// Sends the request to all servers that have not received it.
    fn begin_collection(
        &mut self,
        votes: Collected,
        queues: bool,
        gives_up_at: Option<BootTime>,
        observer: &mut dyn Observer,
    ) -> Result<Collection, Attempt> {
        let Collected { sent_at, granted, early, others, tally } = votes;
        let started = BootTime::now();
        let mut all = Collection {
            queues,
            gives_up_at: if queues { gives_up_at } else { Some(started + self.servers.node_timeout) },
            started,
            fences: granted.fences.clone(),
            slots: granted.slots.clone(),
            tally,
            is_newcomer: !others.is_over() || !early.is_empty(),
            round: others,
            renew_at: self.ttl.map(|ttl| sent_at + ttl / 3),
            blocked: None,
            waited_at: Vec::new(),
            behind_waiters: BTreeMap::new(),
            refused_slot: None,
            superseded_at: Vec::new(),
        };
        all.tally.add(self.gate, Vote::Yes { granted, sent_at });
        if !all.is_newcomer {
            let missing = all.tally.missing();
            self.request_votes(&mut all, missing, queues);
        }
        // With a majority the refusals do not matter.
        let mut early = early;
        early.sort_by_key(|received| !matches!(received.reply, Ok(AcquireReply::Granted(_))));
        for RoundReply { at, sent_at, reply, is_late } in early {
            let reply = reply.map(CollectReply::Acquire);
            self.on_reply(&mut all, RoundReply { at, sent_at, reply, is_late }, observer)?;
        }
        Ok(all)
    }

    fn on_refusal(
        &mut self,
        all: &mut Collection,
        at: usize,
        refusal: Box<Refusal>,
        observer: &mut dyn Observer,
    ) -> Result<(), Attempt> {
        self.note_refusal(at, &refusal);
        if all.tally.has_majority() {
            all.tally.add(at, Vote::No(refusal));
            return Ok(());
        }
        if !all.slots.is_empty() && !all.tally.needs(at) {
            all.blocked = Some(refusal.blocked.clone());
            all.refused_slot = Some((at, refusal.clone()));
            all.tally.add(at, Vote::No(refusal));
            return Ok(());
        }
        if self.can_have_another_slot(all, at, &refusal) {
            return Err(Attempt::AnotherSlot(Box::new(refusal.blocked)));
        }
        let is_registered = refusal.stamp.is_some();
        let mut at_most = self.ttl.map_or(WAITER_RENEWAL, |ttl| (ttl / 4).min(WAITER_RENEWAL));
        if let Some(follow) = self.must_yield(at, &refusal) {
            if all.waited_at.contains(&at) {
                let blocked = Box::new(refusal.blocked);
                return Err(Attempt::Outvoted { blocked, follow: Some(follow) });
            }
            at_most = at_most.min(BEFORE_YIELDING);
        }
        if all.is_stuck_behind(at, &refusal) {
            return Err(Attempt::Outvoted { blocked: Box::new(refusal.blocked), follow: Some(at) });
        }
        if all.queues {
            observer.waiting(&refusal.blocked, all.started.elapsed());
        }
        if !follows(Rule::KeepTurn) {
            return Err(Attempt::Outvoted { blocked: Box::new(refusal.blocked), follow: None });
        }
        let waits = all.queues || self.is_on_its_way_out(&refusal);
        if waits && is_registered {
            all.waited_at.push(at);
            self.wait_for_release(all, at, &refusal, at_most);
        } else if waits {
            // A newcomer's request is not registered, so no release would wake it: register now.
            self.request_votes(all, vec![at], true);
        }
        let is_first = all.blocked.replace(refusal.blocked.clone()).is_none();
        if is_first {
            all.carry_place_soon();
        }
        all.tally.add(at, Vote::No(refusal));
        Ok(())
    }

    /// Another client has the slot that the gate named, and there is no majority without its servers.
    /// The gate may not know that client, and may have another slot that is free. When it has none, a
    /// request that queues waits for the release once, and then tries all slots again, unless it must
    /// yield.
    fn can_have_another_slot(&mut self, all: &Collection, at: usize, refusal: &Refusal) -> bool {
        let key = refusal.blocked.key;
        let Some(&slot) = all.slots.get(key) else { return false };
        let Some(next) = slot.checked_add(1) else { return false };
        let is_exhausted = self.lowest_slots.get(key).is_some_and(|lowest| slot < *lowest);
        let has_waited = all.queues && all.waited_at.contains(&at);
        let tries_again = has_waited && self.must_yield(at, refusal).is_none();
        if is_exhausted && !tries_again {
            return false;
        }
        self.lowest_slots.clone_from(&all.slots);
        self.lowest_slots[key] = next;
        true
    }

    /// The server that refused the slot has become necessary, because others have failed since.
    fn other_slot(&mut self, all: &mut Collection) -> Option<Attempt> {
        let (at, refusal) = all.refused_slot.take()?;
        let is_possible = all.tally.unfit().is_none() && !all.tally.cannot_be_completed();
        (is_possible && self.can_have_another_slot(all, at, &refusal))
            .then(|| Attempt::AnotherSlot(Box::new(refusal.blocked)))
    }

    fn on_renewal(
        &mut self,
        all: &mut Collection,
        at: usize,
        sent_at: BootTime,
        reply: &ExtendReply,
    ) -> Result<(), Attempt> {
        match reply {
            ExtendReply::Extended { quarantine, .. } if quarantine.is_zero() => {
                all.tally.renew(at, sent_at);
            }
            // The vote is lost, or the server may have lost the votes of other clients.
            ExtendReply::Extended { .. } | ExtendReply::Lost(_) if at == self.gate => {
                let unknown = Blocked { key: 0, position: None, queue_length: 0, by: Blocker::Queue };
                let blocked = Box::new(all.blocked.take().unwrap_or(unknown));
                return Err(Attempt::Outvoted { blocked, follow: None });
            }
            ExtendReply::Extended { .. } | ExtendReply::Lost(_) => {
                all.tally.remove(at);
                self.request_votes(all, vec![at], true);
            }
        }
        Ok(())
    }

    /// `queues`: the server registers the request if it refuses it. A request that does not queue
    /// is registered only where it was refused and waits.
    fn request_votes(&mut self, all: &mut Collection, servers: Vec<usize>, queues: bool) {
        let gate = self.servers[self.gate].run_id.as_slice();
        let (fences, slots) = (&all.fences, &all.slots);
        let ask = Ask::Vote { proposed: fences, slots, gate, stamp: self.stamp.as_ref(), queues };
        let call = self.requests.acquire(self.claim(), &self.terms, &ask);
        self.send(all, servers, &call, Duration::ZERO);
    }

    /// `sleeps`: how long the command blocks on the server, in addition to the node timeout.
    fn send(&mut self, all: &mut Collection, servers: Vec<usize>, call: &Call, sleeps: Duration) {
        let due = BootTime::now() + sleeps + self.servers.node_timeout;
        for at in servers {
            all.round.send(&mut self.servers, at, call.clone(), Some(due));
        }
    }

    /// Sleeps at this server until the lock is released there. The wake-up repeats our request.
    fn wait_for_release(
        &mut self,
        all: &mut Collection,
        at: usize,
        refusal: &Refusal,
        mut at_most: Duration,
    ) {
        if refusal.blocked.is_foreign() {
            at_most = at_most.min(FOREIGN_RETRY);
        }
        if let Some(expiry) = refusal.blocked.expires_in() {
            at_most = at_most.min(expiry + Duration::from_millis(1));
        }
        if let Some(gives_up_at) = all.gives_up_at {
            at_most = at_most.min(gives_up_at.remaining());
        }
        // Zero means "forever" to the server.
        let at_most = at_most.max(Duration::from_millis(1));
        let call = Call::BlockingPop { list: self.requests.notify_list(self.waiter), at_most };
        self.send(all, vec![at], &call, at_most + BLPOP_SLACK);
    }

    /// Our gate and stamp, for votes that were given before these were known.
    pub(super) fn place(&self) -> Option<Place> {
        let gate = self.servers[self.gate].run_id.clone();
        self.arrival().map(|stamp| Place { gate, stamp })
    }

    /// Keeps our votes alive while we wait for the others. The renewal carries our place.
    fn renew_votes(&mut self, all: &mut Collection) {
        all.renew_at = self.ttl.map(|ttl| BootTime::now() + ttl / 3);
        let place = self.place().filter(|_| follows(Rule::CarryPlace));
        let call = self.requests.extend(self.claim(), None, &self.terms, place.as_ref());
        let votes = all.tally.granted().collect();
        self.send(all, votes, &call, Duration::ZERO);
    }

    /// Where to queue if the blocking claim has another gate and arrived earlier: the older client
    /// waits and the younger yields, so that no two wait for each other. A claim with our own gate
    /// has lost or released the gate's vote, so it is about to be released. The same may be true of
    /// a newcomer's claim without a gate; if the newcomer stays, its renewal soon adds the gate.
    fn must_yield(&self, at: usize, refusal: &Refusal) -> Option<usize> {
        let gate = &self.servers[self.gate].run_id;
        let has_other_gate = !refusal.holder_gate.is_empty() && refusal.holder_gate != *gate;
        let is_older = match (&refusal.holder_arrival, self.arrival()) {
            (Some(theirs), Some(stamp)) => {
                *theirs < Arrival { stamp, waiter: self.waiter.to_string().into() }
            }
            _ => false,
        };
        (has_other_gate && is_older && follows(Rule::Yield)).then(|| self.holder_gate(refusal).unwrap_or(at))
    }

    /// Whether the blocking claim is about to be released: it has our gate, whose vote we have, or
    /// it may belong to a newcomer that was queued at the gate.
    fn is_on_its_way_out(&self, refusal: &Refusal) -> bool {
        let has_our_gate = refusal.holder_gate == self.servers[self.gate].run_id;
        matches!(refusal.blocked.by, Blocker::Holder(_)) && (has_our_gate || refusal.holder_gate.is_empty())
    }

    fn outvoted(&mut self, all: &mut Collection) -> Attempt {
        if let Some(attempt) = self.other_slot(all) {
            return attempt;
        }
        match &all.blocked {
            Some(blocked) => Attempt::Outvoted { blocked: Box::new(blocked.clone()), follow: None },
            None => self.without_majority(all.tally.clone()),
        }
    }
}
