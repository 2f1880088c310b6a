//! The lock on servers: the queue at the gate, then the votes of all.
//!
//! The gate is the first server, in an order that is the same for all clients, that can be asked. The client
//! that has its vote asks all other servers; a majority of the configured servers makes the lock. Waiters touch
//! only the gate, so votes are not split; and if clients disagree about the gate, safety does not depend on it.
//! A newcomer asks all servers at once, and gives the other votes back if the gate queues it.
//!
//! One Redis is a quorum of one: its vote at the gate is the majority.
//!
//! The redis crate is named in this room only: it parses URLs and replies and writes commands.

/// The way in for fuzz/, which sees what this room sees.
#[cfg(fuzzing)]
#[path = "../../../fuzz/src/redis.rs"]
pub(crate) mod fuzz;

mod bearer;
mod break_lock;
mod break_watch;
mod checkup;
mod collect;
mod connection;
mod discovery;
mod extend;
mod fence;
mod keys;
mod listening;
mod log;
mod node;
mod outer;
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

pub(crate) use bearer::RedisBearer;
pub(crate) use break_lock::RedisBreaker;
pub(crate) use checkup::{between_trials, check_servers};
pub(crate) use keys::Keys;
pub(crate) use requests::Timing;
pub(crate) use server::Server;
pub(crate) use tls::{Tls, TlsOptions};
pub(crate) use view::RedisView;

use super::claim::{Claim, WaiterId};
use super::wait::Wait;
use super::{
    AncestorLock, BackendError, Blocked, Blocker, BreakWatch, Ended, Error, Extended, Fault, Grant, Lease,
    Lock, Mode, Observer, OuterLock, Problem, ReleaseOrphan, Released, Request, Votes,
};
use log::LogEntry;
use release::Release;
use requests::{Requests, Terms};
use round::Received;
use script::WAITER_RENEWAL;
use servers::Servers;
use vote::{Attempt, InFlight, Win};
use waiting::{Progress, pause};

/// The lease of a lock that never expires, as far as our own clock is concerned.
const FOREVER: Duration = Duration::from_hours(1000 * 365 * 24);

pub(crate) struct RedisLock {
    servers: Servers,
    requests: Requests,
    ttl: Option<Duration>,
    waiter: WaiterId,
    attempts: u32,
    /// Of the last request.
    terms: Terms,
    /// This waiter has given up; the next request is another waiter's.
    abandoned: bool,
    /// When this waiter arrived, by the clock of the first server that told it: its place in every queue.
    stamp: Option<u64>,
    /// The server in whose queue we are.
    gate: usize,
    /// Where the clients queue that outvoted us.
    follow: Option<usize>,
    /// The lease of the last renewal that a majority agreed to.
    renewal: Option<Lease>,
    /// The first attempt's requests, if they were sent ahead.
    in_flight: Option<InFlight>,
    /// As configured, for connections beside those of `servers`.
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
            abandoned: false,
            stamp: None,
            gate: 0,
            follow: None,
            renewal: None,
            in_flight: None,
        }
    }

    fn claim(&self) -> Claim {
        Claim { waiter: self.waiter, attempt: self.attempts }
    }

    /// The lease of a grant that was asked for at this moment.
    fn lease(&self, asked: BootTime) -> Lease {
        Lease::new(asked, self.ttl.unwrap_or(FOREVER))
    }

    /// Attempt after attempt until the lock is ours. Leaves the clean-up to its caller.
    fn wait_for_grant(
        &mut self,
        request: &Request,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<Grant, Error> {
        loop {
            let mut pause_for = None;
            match self.attempt(request.wait.queues(), progress.gives_up_at, observer) {
                Attempt::Won(win) if win.lease.deadline().has_passed() => {
                    return Err(self.granted_too_late().into());
                }
                Attempt::Won(win) => return Ok(self.grant(*win, request, progress)),
                Attempt::Nested => return Err(Error::Nested),
                Attempt::Superseded(by) => return Err(Error::Superseded(by)),
                Attempt::Cancelled(signal) => return Err(Error::Cancelled(signal)),
                Attempt::Queued(blocked) => {
                    (progress.was_answered, progress.failures_in_a_row) = (true, 0);
                    if progress.is_over() {
                        return Err(Error::Held(blocked));
                    }
                    observer.waiting(&blocked, progress.started.elapsed());
                    self.connect_ahead(blocked.position == Some(0));
                    let woken = self.wait_for_wakeup(&blocked, progress.gives_up_at, observer);
                    let Received { reply, is_late, .. } = woken.map_err(Error::Cancelled)?;
                    let Err(error) = reply else { continue };
                    // One of several servers is passed over in the next attempt.
                    if self.servers.len() == 1 && !is_late && error.fault() != Fault::Unavailable {
                        return Err(error.into());
                    }
                    pause_for = self.yield_to_those_ahead(&blocked, is_late);
                    observer.on_unavailable(&error, progress.started.elapsed());
                    self.servers[self.gate].node.disconnect();
                }
                Attempt::Outvoted { blocked, follow } => {
                    progress.was_answered = true;
                    if progress.is_over() {
                        return Err(Error::Held(blocked));
                    }
                    self.release_votes();
                    observer.waiting(&blocked, progress.started.elapsed());
                    self.follow = follow;
                    if follow.is_some() {
                        continue;
                    }
                }
                Attempt::Quarantined(quarantined, causes) => {
                    if progress.is_over() {
                        let servers = self.servers.len();
                        let problem = Problem::Quarantined { servers, quarantined, causes };
                        return Err(BackendError { at: None, problem }.into());
                    }
                    self.release_votes();
                    progress.was_answered = true;
                    let shortest = quarantined.iter().map(|(_, left)| *left).min();
                    pause_for = shortest.map(|left| left.min(WAITER_RENEWAL));
                    let by = Blocker::Quarantine(quarantined);
                    observer.waiting(
                        &Blocked { key: 0, position: None, queue_length: 0, by },
                        progress.started.elapsed(),
                    );
                }
                Attempt::Failed(error) => {
                    let may_recover = progress.was_answered || request.waits_for_backend;
                    if !may_recover || !error.may_pass() || progress.is_over() {
                        return Err(error.into());
                    }
                    self.release_votes();
                    observer.on_unavailable(&error, progress.started.elapsed());
                    self.servers[self.gate].node.disconnect();
                }
            }
            if let Wait::Cancelled(signal) = pause(progress, pause_for, observer) {
                return Err(Error::Cancelled(signal));
            }
            progress.failures_in_a_row += 1;
        }
    }

    fn grant(&self, win: Win, request: &Request, progress: &Progress) -> Grant {
        let Win { fences, slots, taken_at, lease, voted, failures } = win;
        let claim = self.claim();
        // One slot is a lock: the scripts know no number for it.
        let is_only_slot = request.mode == (Mode::Slot { of: 1 });
        Grant {
            claim,
            ancestor_locks: vec![AncestorLock { claim, host_ticket: None, attach_id: None }],
            fences,
            slots: if is_only_slot { vec![0; self.requests.key_count()] } else { slots },
            lease: self.ttl.map(|_| lease),
            taken_at,
            waited: progress.started.elapsed(),
            votes: Votes { servers: self.servers.len(), voted, failures },
            outer: Vec::new(),
        }
    }

    /// Leave nothing behind after a failed acquisition.
    fn clean_up(&mut self, error: &Error, was_answered: bool, entry: Option<LogEntry>) {
        let is_only_server = self.servers.len() == 1;
        match error {
            // A request that did not even queue.
            Error::Held(blocked)
                if is_only_server
                    && blocked.position.is_none()
                    && !self.servers[self.gate].node.is_in_doubt() => {}
            Error::Backend(BackendError { problem: Problem::TimedOut, .. })
                if is_only_server && !was_answered =>
            {
                self.send_release_unanswered();
            }
            Error::Held(_)
            | Error::Nested
            | Error::Superseded(_)
            | Error::Cancelled(_)
            | Error::Backend(_) => self.stop_waiting(entry),
        }
    }
}

impl Lock for RedisLock {
    /// Not if a server's name must be resolved: that takes a thread, and the caller is about to fork.
    fn send_ahead(&mut self, request: &Request) {
        self.terms = Terms::new(request, self.requests.key_count());
        if self.servers.all().all(|at| self.servers[at].node.has_address()) {
            self.attempts += 1;
            self.in_flight = Some(self.ask_as_newcomer(request.wait.queues()));
        }
    }

    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        self.terms = Terms::new(request, self.requests.key_count());
        if std::mem::take(&mut self.abandoned) {
            (self.waiter, self.stamp, self.follow) = (WaiterId::random(), None, None);
        }
        // Connections of an earlier request may have been closed since.
        if self.in_flight.is_none() {
            self.servers.iter_mut().for_each(|member| member.node.disconnect());
        }
        // A name had to be resolved first.
        if self.in_flight.is_none() && self.attempts == 0 {
            self.attempts = 1;
            self.in_flight = Some(self.ask_as_newcomer(request.wait.queues()));
        }
        let mut progress = Progress {
            started,
            gives_up_at: request.wait.gives_up_at(started),
            was_answered: false,
            failures_in_a_row: 0,
        };
        let result = self.wait_for_grant(request, &mut progress, observer);
        if let Err(error) = &result {
            let entry = LogEntry::of_waiter(error, request.exit_if_held, started);
            let entry = entry.filter(|_| request.wait.queues());
            self.clean_up(error, progress.was_answered, entry);
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
        self.ask_for_outer(request, &claims, observer)
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
        self.extend_lease(grant)
    }

    fn follow_up(&mut self, grant: &Grant, interrupt: BorrowedFd<'_>) {
        self.finish_renewal(grant, interrupt);
    }

    fn release(&mut self, grant: &Grant, ended: &Ended, min_hold: Duration) -> Released {
        let stay_until = (!min_hold.is_zero()).then(|| grant.taken_at + min_hold);
        let entry = Some(LogEntry::of_grant(grant, ended));
        self.release_claim(grant.claim, &Release::Final { stay_until, entry })
    }

    fn record_refusal(&mut self, error: &Error, started: BootTime) {
        self.send_entry(error, started);
    }

    fn abandon(&mut self) {
        self.stop_waiting(None);
    }

    fn release_orphan(&self, request: &Request) -> Option<ReleaseOrphan> {
        Some(self.prepare_orphan_release(request))
    }
}
