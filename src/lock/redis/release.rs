//! Release of everything that we may hold, on all servers.

use std::time::Duration;

use super::RedisLock;
use super::log::LogEntry;
use super::node::Readiness;
use super::reply::ReleaseReply;
use super::requests::Terms;
use super::round::Round;
use super::script::Call;
use super::servers::Servers;
use crate::clock::BootTime;
use crate::lock::orphan::OrphanGrant;
use crate::lock::{BackendError, Claim, Error, Fault, Problem, ReleaseOrphan, Released, Request};

/// Upper limit for a release, whatever the node timeout: the caller waits for us to exit.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for the remaining replies after a majority has released: twice as long as the
/// majority took, within these bounds.
const FOR_STRAGGLERS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));
/// A request that is in flight when its client gives up arrives within this time.
const TOMBSTONE_TTL: Duration = Duration::from_mins(1);

/// Whether this waiter makes another attempt. If it does, its late requests are harmless: the next
/// attempt takes them over.
#[derive(Debug)]
pub(super) enum Release {
    Final {
        /// The end of the minimum hold.
        stay_until: Option<BootTime>,
        /// The entry in the history.
        entry: Option<LogEntry>,
    },
    BeforeRetry,
}

impl Release {
    fn min_hold(&self) -> Duration {
        match self {
            Self::Final { stay_until, .. } => stay_until.map_or(Duration::ZERO, BootTime::remaining),
            Self::BeforeRetry => Duration::ZERO,
        }
    }

    fn entry(&self) -> Option<&LogEntry> {
        match self {
            Self::Final { entry, .. } => entry.as_ref(),
            Self::BeforeRetry => None,
        }
    }
}

/// Servers and their replies.
type Replies = Vec<(usize, Result<ReleaseReply, BackendError>)>;

/// The result of all replies together.
pub(super) fn verdict(replies: Vec<Result<ReleaseReply, BackendError>>, servers: &Servers) -> Released {
    let (mut released, mut lost, mut errors) = (0, None, Vec::new());
    for reply in replies {
        match reply {
            Ok(ReleaseReply::Released) => released += 1,
            Ok(ReleaseReply::NotOurs(loss)) => lost = lost.max(Some(loss)),
            // Only a bearer receives this reply, and then notifies the run.
            Ok(ReleaseReply::HeldByRun) => {}
            Err(error) => errors.push(error),
        }
    }
    match lost {
        _ if released >= servers.majority() => Released::Done(errors),
        _ if errors.len() > servers.tolerated() => {
            Released::Unknown(BackendError::no_majority(errors, servers.len()))
        }
        Some(loss) => Released::Lost(loss),
        None => Released::Done(errors),
    }
}

impl RedisLock {
    /// Releases on every server, and at the gate last, since the gate wakes the next waiter. The
    /// requests are sent in this order without waiting in between: the next holder's requests to
    /// the other servers arrive after ours.
    pub(super) fn release_claim(&mut self, claim: Claim, release: &Release) -> Released {
        verdict(self.release_everywhere(claim, release), &self.servers)
    }

    /// Servers that have replied so far get one retry, over a new connection.
    fn release_everywhere(
        &mut self,
        claim: Claim,
        release: &Release,
    ) -> Vec<Result<ReleaseReply, BackendError>> {
        let (mut responsive, mut silent) = (Vec::new(), Vec::new());
        let node_timeout = self.servers.node_timeout;
        for at in self.servers.all_but(self.gate).chain([self.gate]) {
            let member = &mut self.servers[at];
            let has_voted = member.voted_at.is_some();
            let node = &mut member.node;
            node.discard_replies();
            let is_late = node.progress_at().elapsed() > node_timeout;
            match node.readiness() {
                Readiness::Unreached => {}
                Readiness::Idle => responsive.push(at),
                // A renewal was sent to it a moment ago.
                Readiness::Silent if has_voted && !is_late => responsive.push(at),
                Readiness::Blocked => {
                    node.disconnect();
                    responsive.push(at);
                }
                Readiness::Silent => silent.push(at),
            }
        }
        // A single server is worth the wait. One of several executes the release when it responds
        // again.
        if self.servers.len() == 1 {
            responsive.append(&mut silent);
        }
        drop(self.send_release(&silent, claim, release));
        let mut replies: Vec<_> = silent.iter().map(|&at| Err(self.servers[at].node.timed_out())).collect();
        let mut again = Vec::new();
        for (at, reply) in self.release_once(&responsive, claim, release) {
            match reply {
                Err(error) if error.fault() == Fault::Unavailable => again.push(at),
                reply => replies.push(reply),
            }
        }
        for (_, reply) in self.release_once(&again, claim, release) {
            // The first request may have been executed, and only its reply lost.
            replies.push(reply.map(|_| ReleaseReply::Released));
        }
        replies
    }

    fn send_release(&mut self, to: &[usize], claim: Claim, release: &Release) -> Round {
        let call = |tombstone_ttl| {
            let (min_hold, entry) = (release.min_hold(), release.entry());
            self.requests.release(claim, &self.terms, tombstone_ttl, min_hold, entry)
        };
        let may_execute_late =
            |at: usize| !matches!(release, Release::BeforeRetry) && self.servers[at].node.is_in_doubt();
        let ttl = |at| if may_execute_late(at) { TOMBSTONE_TTL } else { Duration::ZERO };
        let calls: Vec<(usize, Call)> = to.iter().map(|&at| (at, call(ttl(at)))).collect();
        self.servers.round(calls)
    }

    fn release_once(&mut self, to: &[usize], claim: Claim, release: &Release) -> Replies {
        let round = self.send_release(to, claim, release);
        let until = BootTime::now() + self.servers.node_timeout.min(RELEASE_TIMEOUT);
        let replies = match release {
            Release::Final { .. } => self.majority_of_replies(round, until),
            // The next attempt sends requests to all these servers.
            Release::BeforeRetry => round.replies(&mut self.servers, Some(until)),
        };
        for (at, reply) in &replies {
            if matches!(reply, Err(BackendError { problem: Problem::TimedOut, .. })) {
                self.servers[*at].node.disconnect();
            }
        }
        replies
    }

    /// When a majority has released, the outcome is certain. A more distant server's reply would
    /// change nothing, and the request is on its way.
    fn majority_of_replies(&mut self, mut round: Round, until: BootTime) -> Replies {
        let (sent_at, mut released, mut replies) = (BootTime::now(), 0, Vec::new());
        while released < self.servers.majority() {
            let Some((at, reply)) = round.reply(&mut self.servers, Some(until)) else {
                replies.extend(round.replies(&mut self.servers, Some(until)));
                return replies;
            };
            released += usize::from(matches!(reply, Ok(ReleaseReply::Released)));
            replies.push((at, reply));
        }
        let (shortest, longest) = FOR_STRAGGLERS;
        let until = until.min(BootTime::now() + (sent_at.elapsed() * 2).clamp(shortest, longest));
        while let Some(reply) = round.reply(&mut self.servers, Some(until)) {
            replies.push(reply);
        }
        replies
    }

    /// Releases the votes until the next attempt. A single server keeps our place in its queue.
    pub(super) fn release_votes(&mut self) {
        if self.servers.len() > 1 {
            let _ = self.release_claim(self.claim(), &Release::BeforeRetry);
        }
    }

    /// Stops waiting. What cannot be released now expires by itself.
    pub(super) fn stop_waiting(&mut self, entry: Option<LogEntry>) {
        self.abandoned = true;
        let _ = self.release_claim(self.claim(), &Release::Final { stay_until: None, entry });
    }

    /// Stops waiting for a server that has never replied: when it responds, it executes our request
    /// and then the release.
    pub(super) fn send_release_unanswered(&mut self) {
        self.abandoned = true;
        let call = self.requests.release(self.claim(), &self.terms, TOMBSTONE_TTL, Duration::ZERO, None);
        self.servers.send([self.gate], &call);
    }

    /// Records in the history that a request was refused without queueing; it has nothing to
    /// release. Sends the whole script, so that no reply is needed, and does not wait for one.
    pub(super) fn send_entry(&mut self, error: &Error, started: BootTime) {
        let Some(entry) = LogEntry::of_waiter(error, self.terms.exit_if_held, started) else { return };
        let call =
            self.requests.release(self.claim(), &self.terms, Duration::ZERO, Duration::ZERO, Some(&entry));
        let idle: Vec<usize> =
            self.servers.all().filter(|&at| self.servers[at].node.readiness() == Readiness::Idle).collect();
        self.servers.send(idle, &call.in_full());
    }

    /// See [`Lock::release_orphan`](crate::lock::Lock::release_orphan).
    pub(super) fn prepare_orphan_release(&self, request: &Request) -> ReleaseOrphan {
        let (servers, node_timeout) = (self.configured.clone(), self.servers.node_timeout);
        let (requests, terms) = (self.requests.clone(), Terms::new(request, self.requests.key_count()));
        // Servers take this for the latest attempt, whichever that was. With --retries, a later
        // attempt may have another waiter ID: until the command starts, its claims expire by
        // themselves.
        let latest = Claim { waiter: self.waiter, attempt: u32::MAX };
        let min_hold = request.min_hold;
        Box::new(move |grant, has_run| {
            let grant = match grant.map(OrphanGrant::from_bytes) {
                // There is no lock, or it belongs to another run.
                Some(None) => return,
                grant => grant.flatten(),
            };
            let claim = grant.as_ref().map_or(latest, |grant| grant.claim);
            let stay_until = grant.as_ref().filter(|_| has_run).map(|grant| grant.taken_at + min_hold);
            let stay_for = stay_until.map_or(Duration::ZERO, BootTime::remaining);
            let entry = grant.as_ref().map(LogEntry::of_orphan);
            // Requests of the dead process may still be in flight.
            let call = requests.release(claim, &terms, TOMBSTONE_TTL, stay_for, entry.as_ref());
            let mut servers = Servers::new(servers, node_timeout);
            // The gate, which wakes the next waiter, is last. It is the first server unless that
            // was unreachable.
            let call = call.in_full();
            for whom in [servers.all_but(0).collect::<Vec<_>>(), vec![0]] {
                let round = servers.timed_round(whom.into_iter().map(|at| (at, call.clone())));
                let _ = round.replies::<ReleaseReply>(&mut servers, None);
            }
        })
    }
}
