//! The lock on servers: the queue at the gate, then the votes of all servers.
//!
//! The gate is the first reachable server, in an order that is the same for all clients. The client
//! that has its vote requests the votes of all other servers; a majority of the configured servers
//! makes the lock. Waiters use only the gate, so votes are not split. Safety does not depend on it:
//! clients may disagree about the gate. A newcomer sends its request to all servers at once, and
//! releases the other votes if the gate queues it.
//!
//! One Redis server is a quorum of one: its vote at the gate is the majority.
//!
//! Only this room uses the redis crate, which parses URLs and replies and writes commands.

/// The entry point for fuzz/, which can use what is private to this room.
#[cfg(fuzzing)]
#[path = "../../../fuzz/src/redis.rs"]
pub(crate) mod fuzz;

mod bearer;
mod break_lock;
mod break_watch;
mod checkup;
mod collect;
mod connection;
mod deadlock;
mod discovery;
mod extend;
mod fence;
mod keys;
mod listening;
mod log;
mod longest_lease;
mod node;
mod outer;
mod password;
mod release;
mod renewal_tally;
mod reply;
mod requests;
mod resp;
mod round;
mod script;
mod server;
mod server_error;
mod servers;
#[cfg(test)]
mod simulation;
mod tally;
mod tls;
mod view;
mod vote;
mod waiting;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::clock::BootTime;
use crate::world::{Rule, follows};

pub(crate) use bearer::RedisBearer;
pub(crate) use break_lock::RedisBreaker;
pub(crate) use checkup::{between_trials, check_servers};
pub(crate) use keys::{BARE, Keys};
pub(crate) use password::Password;
pub(crate) use requests::Timing;
pub(crate) use script::{PROTOCOL, USUAL_LEASE};
pub(crate) use server::Server;
pub(crate) use tls::{PemFile, Tls, TlsFiles};
pub(crate) use view::RedisView;

use super::claim::{Claim, WaiterId};
use super::deadlock::DeadlockSearch;
use super::wait::Wait;
use super::{
    AncestorLock, BackendError, BreakWatch, Ended, Error, Extended, Grant, Lease, Lock, Mode, Observer,
    OuterLock, Problem, ReleaseOrphan, Released, Request, Votes,
};
use log::LogEntry;
use longest_lease::LongestLease;
use node::Readiness;
use release::Release;
use requests::{Requests, Stamp, Terms};
use servers::Servers;
use vote::{Attempt, InFlight, Win};
use waiting::{NextAttempt, Progress, pause};

/// The lease of a lock that never expires, in calculations with our own clock.
const FOREVER: Duration = Duration::from_hours(1000 * 365 * 24);

/// How many claims of former waiters are released again: the newest.
const MOST_FORMER: usize = 16;

pub(crate) struct RedisLock {
    servers: Servers,
    requests: Requests,
    ttl: Option<Duration>,
    waiter: WaiterId,
    attempts: u32,
    /// The terms of the last request.
    terms: Terms,
    /// The last attempt has left its votes to the next one, which takes them over.
    leaves_votes: bool,
    /// This waiter has given up; the next request needs a new waiter ID.
    abandoned: bool,
    /// What former waiters of ours may still have on these servers.
    former: Vec<(usize, Claim)>,
    /// It determines our place in every queue.
    stamp: Option<Stamp>,
    /// The server whose queue we are in.
    gate: usize,
    /// The gate of the clients that outvoted us, or which can name another slot.
    follow: Option<usize>,
    /// The lowest slot to ask the gate for, of each key: those below were refused by other servers.
    lowest_slots: Vec<u32>,
    /// As far as any server has reported: it applies to all votes.
    longest_lease: LongestLease,
    /// The lease of the last renewal that a majority agreed to.
    renewal: Option<Lease>,
    /// The requests of the first attempt, if they were sent ahead.
    in_flight: Option<InFlight>,
    /// The servers as configured, for further connections besides those of `servers`.
    configured: Vec<Server>,
}

impl RedisLock {
    pub(crate) fn new(servers: Vec<Server>, keys: Vec<Keys>, timing: Timing) -> Self {
        let waiter = WaiterId::random();
        Self {
            configured: servers.clone(),
            requests: Requests::new(keys, servers.len(), timing),
            servers: Servers::new(servers, timing.node_timeout),
            ttl: timing.ttl,
            waiter,
            attempts: 0,
            terms: Terms::default(),
            leaves_votes: false,
            abandoned: false,
            former: Vec::new(),
            stamp: None,
            gate: 0,
            follow: None,
            lowest_slots: Vec::new(),
            longest_lease: LongestLease::default(),
            renewal: None,
            in_flight: None,
        }
    }

    /// The servers refuse late requests of the former one, which has released everything. One that has
    /// not confirmed that hears of it again with the next release.
    fn become_another_waiter(&mut self) {
        let claim = self.claim();
        let has_confirmed =
            |at: &usize| matches!(self.servers[*at].node.readiness(), Readiness::Unreached | Readiness::Idle);
        let silent = self.servers.all().filter(|at| !has_confirmed(at));
        self.former.splice(0..0, silent.map(|at| (at, claim)));
        self.former.truncate(if follows(Rule::ReleaseFormer) { MOST_FORMER } else { 0 });
        (self.waiter, self.stamp, self.follow, self.abandoned) = (WaiterId::random(), None, None, false);
    }

    fn claim(&self) -> Claim {
        Claim { waiter: self.waiter, attempt: self.attempts }
    }

    /// Our arrival stamp, as servers report it.
    fn arrival(&self) -> Option<u64> {
        self.stamp.as_ref().map(|stamp| stamp.micros)
    }

    /// The lease of a grant whose request was sent at this moment.
    fn lease(&self, sent_at: BootTime) -> Lease {
        let from = if follows(Rule::LeaseFromRequest) { sent_at } else { BootTime::now() };
        Lease::new(from, self.ttl.unwrap_or(FOREVER))
    }

    /// Whether every server must know the length of our lease: one that has lost its data must not
    /// vote for as long, and learns that from the others. Not with `--quarantine off`.
    fn has_long_lease(&self) -> bool {
        let needs_all = self.servers.len() > 1 && !self.requests.quarantine().is_zero();
        needs_all && self.ttl.is_some_and(|ttl| ttl > USUAL_LEASE)
    }

    /// A longer lease than usual lasts no longer than every server has acknowledged.
    fn as_acknowledged(&self, lease: Lease) -> Lease {
        if !self.has_long_lease() || lease.ttl() <= USUAL_LEASE {
            return lease;
        }
        let until = |acknowledged: Lease| {
            // It may have acknowledged another ttl.
            if follows(Rule::AcknowledgedTtl) {
                acknowledged.end()
            } else {
                acknowledged.sent_at() + lease.ttl()
            }
        };
        let all = self.servers.all().map(|at| self.servers[at].acknowledged.map(until));
        let ends = all.min().flatten().unwrap_or(lease.sent_at());
        Lease::new(lease.sent_at(), lease.ttl().min(ends.since(lease.sent_at()).max(USUAL_LEASE)))
    }

    /// Makes attempts until one is granted the lock. The caller cleans up after an error.
    fn wait_for_grant(
        &mut self,
        request: &Request,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<Grant, Error> {
        loop {
            let next = match self.attempt(request.wait.queues(), progress, observer) {
                Attempt::Won(win) if win.lease.deadline().has_passed() && follows(Rule::Deadline) => {
                    return Err(self.granted_too_late().into());
                }
                Attempt::Won(win) => return Ok(self.grant(*win, request, progress)),
                Attempt::Nested => return Err(Error::Nested),
                Attempt::Superseded(by) => return Err(Error::Superseded(by)),
                Attempt::Done(done) => return Err(Error::Done(done)),
                Attempt::Cancelled(signal) => return Err(Error::Cancelled(signal)),
                Attempt::AnotherSlot(blocked) if request.wait.queues() && progress.is_over() => {
                    return Err(Error::Held(blocked));
                }
                Attempt::AnotherSlot(_) => {
                    // Of the gate that named the first one: an earlier server may be silent.
                    (progress.had_reply, self.leaves_votes) = (true, true);
                    self.follow = Some(self.gate);
                    continue;
                }
                Attempt::Queued(blocked) => self.after_queueing(blocked, progress, observer)?,
                Attempt::Outvoted { blocked, follow } => {
                    self.after_defeat(blocked, follow, progress, observer)?
                }
                Attempt::Quarantined(quarantined, causes) => {
                    self.after_quarantine(quarantined, causes, progress, observer)?
                }
                Attempt::Interrupted(error) => {
                    progress.had_reply = true;
                    self.after_failure(error, request.waits_for_backend, progress, observer)?
                }
                Attempt::Failed(error) => {
                    self.after_failure(error, request.waits_for_backend, progress, observer)?
                }
            };
            let NextAttempt::AfterPause(pause_for) = next else { continue };
            if let Wait::Cancelled(signal) = pause(progress, pause_for, observer) {
                return Err(Error::Cancelled(signal));
            }
            progress.failures_in_a_row += 1;
        }
    }

    fn grant(&self, win: Win, request: &Request, progress: &Progress) -> Grant {
        let Win { fences, slots, taken_at, lease, voted, failures } = win;
        let claim = self.claim();
        // A lock with one slot is exclusive for the scripts, so they return no slot number.
        let is_only_slot = request.mode == (Mode::Slot { of: 1 });
        Grant {
            claim,
            ancestor_locks: vec![AncestorLock {
                claim,
                host_ticket: None,
                keys: Vec::new(),
                attach_id: None,
            }],
            fences,
            slots: if is_only_slot { vec![0; self.requests.key_count()] } else { slots },
            lease: self.ttl.map(|_| lease),
            taken_at,
            waited: progress.started.elapsed(),
            votes: Votes { servers: self.servers.len(), voted, failures },
            outer: Vec::new(),
        }
    }

    /// Leaves nothing on the servers after a failed acquisition.
    fn clean_up(&mut self, error: &Error, had_reply: bool, entry: Option<LogEntry>) {
        let is_only_server = self.servers.len() == 1;
        match error {
            // The request did not queue, so there is nothing to remove.
            Error::Held(blocked)
                if is_only_server
                    && blocked.position.is_none()
                    && !self.servers[self.gate].node.is_in_doubt() => {}
            Error::Backend(BackendError { problem: Problem::TimedOut, .. })
                if is_only_server && !had_reply =>
            {
                self.stop_waiting_unanswered();
            }
            Error::Held(_)
            | Error::Nested
            | Error::Deadlock(_)
            | Error::Superseded(_)
            | Error::Done(_)
            | Error::Cancelled(_)
            | Error::Backend(_) => self.stop_waiting(entry),
        }
    }
}

impl Lock for RedisLock {
    /// Sends nothing if a host name must be resolved first: that takes a thread, and the caller is
    /// about to fork.
    fn send_ahead(&mut self, request: &Request) {
        self.terms = Terms::new(request, self.requests.key_count());
        if self.servers.all().all(|at| self.servers[at].node.has_address()) {
            self.attempts += 1;
            self.in_flight = Some(self.request_from_all(request.wait.queues()));
        }
    }

    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        self.terms = Terms::new(request, self.requests.key_count());
        self.lowest_slots.clear();
        if self.abandoned {
            self.become_another_waiter();
        }
        // The server may have closed the connections of an earlier request.
        if self.in_flight.is_none() {
            self.servers.iter_mut().for_each(|member| member.node.disconnect());
        }
        // `send_ahead` could not send it: a host name had to be resolved first.
        if self.in_flight.is_none() && self.attempts == 0 {
            self.attempts = 1;
            self.in_flight = Some(self.request_from_all(request.wait.queues()));
        }
        let mut progress = Progress {
            started,
            gives_up_at: request.wait.gives_up_at(started),
            had_reply: false,
            failures_in_a_row: 0,
            has_several: self.servers.len() > 1,
            knows_keepers: false,
            deadlock: DeadlockSearch::new(
                self.waiter.to_string(),
                &request.ancestors,
                self.requests.keys().iter().map(|keys| keys.key.clone()).collect(),
            ),
        };
        let result = self.wait_for_grant(request, &mut progress, observer);
        if let Err(error) = &result {
            let entry = LogEntry::of_waiter(error, request.exit_if_held, started);
            let entry = entry.filter(|_| request.wait.queues());
            self.clean_up(error, progress.had_reply, entry);
        }
        result
    }

    fn find_outer(
        &mut self,
        request: &Request,
        outer: &[AncestorLock],
        observer: &mut dyn Observer,
    ) -> Result<Option<Vec<OuterLock>>, Error> {
        self.terms = Terms::new(request, self.requests.key_count());
        let claims: Vec<Claim> = outer.iter().map(|lock| lock.claim).collect();
        self.find_outer_locks(request, &claims, observer)
    }

    fn break_watch(&self, grant: &Grant) -> Option<Box<dyn BreakWatch>> {
        Some(Box::new(self.watch_for_break(grant, self.configured.clone())))
    }

    fn set_ttl(&mut self, ttl: Option<Duration>) {
        self.ttl = ttl;
        self.requests.set_ttl(ttl);
    }

    fn attempts(&self) -> u32 {
        self.attempts
    }

    fn extend(&mut self, grant: &Grant) -> Extended {
        self.extend_lease(grant, None)
    }

    fn extend_unless(&mut self, grant: &Grant, interrupt: BorrowedFd<'_>) -> Extended {
        self.extend_lease(grant, Some(interrupt))
    }

    fn follow_up(&mut self, grant: &Grant, interrupt: BorrowedFd<'_>) {
        self.finish_renewal(grant, interrupt);
    }

    fn release(&mut self, grant: &Grant, ended: &Ended, min_hold: Duration) -> Released {
        let stay_until = (!min_hold.is_zero()).then(|| grant.taken_at + min_hold);
        let entry = Some(LogEntry::of_grant(grant, ended));
        let mark_kept_for = self.terms.mark_kept_for(ended);
        self.release_claim(grant.claim, &Release { stay_until, mark_kept_for, entry, ..Release::default() })
    }

    fn record_refusal(&mut self, error: &Error, started: BootTime) {
        self.send_entry(error, started);
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        let _ = self.release_claim(self.claim(), &Release::default());
    }

    fn release_orphan(&self, request: &Request) -> Option<ReleaseOrphan> {
        Some(self.prepare_orphan_release(request))
    }
}
