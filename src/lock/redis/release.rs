//! Release of everything that we may hold, on all servers.

use std::time::Duration;

use super::RedisLock;
use super::log::LogEntry;
use super::node::{Node, Readiness};
use super::reply::ReleaseReply;
use super::requests::{TOMBSTONE_TTL, Terms};
use super::round::{Round, Step};
use super::script::Call;
use super::servers::Servers;
use crate::clock::BootTime;
use crate::lock::orphan::OrphanGrant;
use crate::lock::{BackendError, Claim, Error, ReleaseOrphan, Released, Request};
use crate::world::{Rule, follows};

/// Upper limit for each step of a release (a reply, a new connection), whatever the node timeout:
/// the caller waits for us to exit.
const RELEASE_STEP: Duration = Duration::from_secs(1);
/// Upper limit for a waiter that leaves or tries again, or four round trips: it holds nothing that does
/// not expire by itself, and the caller waits.
const LEAVING: Duration = Duration::from_millis(400);
/// How long to wait for the remaining replies after a majority has released: twice as long as the
/// majority took, within these bounds.
const FOR_STRAGGLERS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));
/// How long a server to which a new connection must be opened may take when the others have
/// released.
const FOR_UNSENT: Duration = Duration::from_millis(300);

/// What a release ends, and leaves behind.
#[derive(Debug, Default)]
pub(super) struct Release {
    pub of: Ending,
    /// The end of the minimum hold.
    pub stay_until: Option<BootTime>,
    /// How long the mark of success is kept, if the run leaves one.
    pub mark_kept_for: Option<Duration>,
    /// The entry in the history.
    pub entry: Option<LogEntry>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    #[default]
    Grant,
    /// A waiter gives up.
    Wait,
    /// The waiter makes another attempt. It takes over its late requests, so they are harmless.
    Attempt,
}

impl Release {
    fn min_hold(&self) -> Duration {
        self.stay_until.map_or(Duration::ZERO, BootTime::remaining)
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
            Ok(ReleaseReply::NotOurs(loss, _)) => lost = lost.max(Some(loss)),
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

    /// Releases on every server that may have received a request of ours. One that does not reply
    /// over the connection that it has gets the request again, over a new one.
    fn release_everywhere(
        &mut self,
        claim: Claim,
        release: &Release,
    ) -> Vec<Result<ReleaseReply, BackendError>> {
        let (step, limit) = (self.servers.node_timeout.min(RELEASE_STEP), self.release_limit(release));
        let at_most = |steps: u32| {
            let until = BootTime::now() + step * steps;
            limit.map_or(until, |limit| until.min(limit))
        };
        let whom = self.prepare_release();
        let is_new = |servers: &Servers, at: usize| !servers[at].node.is_open();
        let fresh: Vec<usize> = whom.iter().copied().filter(|&at| is_new(&self.servers, at)).collect();
        // A new connection takes a step of its own.
        let steps = if fresh.is_empty() { 1 } else { 2 };
        let mut first = self.send_release(&whom, claim, release);
        let (mut replies, mut again) = (Replies::new(), Vec::new());
        for (at, reply) in self.enough_replies(&mut first, release, at_most(steps)) {
            match reply {
                Err(error) if error.may_pass() && !fresh.contains(&at) => again.push(at),
                reply => replies.push((at, reply)),
            }
        }
        let mut left = first.pending();
        // A gate that has the request, but is slow to reply, is not asked again.
        if !self.is_decided(&replies, &left, release, false) {
            let late: Vec<usize> = left.extract_if(.., |at| !fresh.contains(at)).collect();
            for &at in &late {
                self.servers[at].node.disconnect();
            }
            again.extend(late);
        }
        let mut second = self.send_release(&again, claim, release);
        let more = self.enough_replies(&mut second, release, at_most(2));
        // The first request may have been executed, and only its reply lost.
        replies.extend(more.into_iter().map(|(at, reply)| (at, reply.map(|_| ReleaseReply::Released))));
        left.extend(second.pending());
        // The server has executed what was sent before that.
        self.former.retain(|(at, _)| !replies.iter().any(|(done, reply)| done == at && reply.is_ok()));
        self.ensure_script(&left, claim, release);
        let late = left.iter().map(|&at| Err(self.servers[at].node.timed_out()));
        replies.into_iter().map(|(_, reply)| reply).chain(late).collect()
    }

    /// `None` if only the steps have limits: a lock is released, or no server has replied, so that no
    /// round trip is known.
    fn release_limit(&self, release: &Release) -> Option<BootTime> {
        let nodes = self.servers.all().map(|at| &self.servers[at].node);
        let longest = nodes.filter(|node| node.has_replied()).map(Node::round_trip).max();
        let longest = longest.filter(|_| release.of != Ending::Grant)?;
        Some(BootTime::now() + LEAVING.max(longest * 4))
    }

    /// The servers to release on: others first, the gate last. A connection that sleeps in BLPOP, or
    /// on which an older request is unanswered, is not used.
    fn prepare_release(&mut self) -> Vec<usize> {
        let node_timeout = self.servers.node_timeout;
        let mut whom = Vec::new();
        for at in self.servers.all_but(self.gate).chain([self.gate]) {
            let member = &mut self.servers[at];
            member.stop_repeating();
            let node = &mut member.node;
            node.discard_replies();
            let is_late = node.progress_at().elapsed() > node_timeout;
            match node.readiness() {
                Readiness::Unreached => continue,
                Readiness::Closed if !follows(Rule::ReleaseReconnects) => continue,
                Readiness::Idle | Readiness::Closed => {}
                // A request was sent a moment ago.
                Readiness::Silent if !is_late => {}
                Readiness::Blocked | Readiness::Silent => node.disconnect(),
            }
            whom.push(at);
        }
        whom
    }

    fn send_release(&mut self, to: &[usize], claim: Claim, release: &Release) -> Round {
        let call = |tombstone_ttl| {
            let (min_hold, mark, entry) = (release.min_hold(), release.mark_kept_for, release.entry.as_ref());
            self.requests.release(claim, &self.terms, tombstone_ttl, min_hold, mark, entry)
        };
        let may_execute_late =
            |at: usize| release.of != Ending::Attempt && self.servers[at].node.is_in_doubt();
        let ttl = |at| {
            if may_execute_late(at) && follows(Rule::Tombstone) { TOMBSTONE_TTL } else { Duration::ZERO }
        };
        let calls: Vec<(usize, Call)> = to.iter().map(|&at| (at, call(ttl(at)))).collect();
        for (at, former) in self.former.iter().filter(|(at, _)| to.contains(at)) {
            let call = self.requests.release(*former, &self.terms, TOMBSTONE_TTL, Duration::ZERO, None, None);
            self.servers.send([*at], &call);
        }
        self.servers.round(calls)
    }

    /// Whether the outcome is certain: a majority has released and, if it is needed, the gate, which
    /// wakes the next waiter.
    fn is_decided(&self, replies: &Replies, pending: &[usize], release: &Release, needs_gate: bool) -> bool {
        let is_released = |(_, reply): &&(usize, _)| matches!(reply, Ok(ReleaseReply::Released));
        let released = replies.iter().filter(is_released).count();
        let needs_gate = needs_gate && follows(Rule::ReleaseIsSent);
        match release.of {
            // The next attempt sends requests to all these servers.
            Ending::Attempt => pending.is_empty(),
            Ending::Grant | Ending::Wait => {
                let has_gate = !needs_gate || !pending.contains(&self.gate);
                pending.is_empty() || released >= self.servers.majority() && has_gate
            }
        }
    }

    /// Whether the kernel has what was sent to these servers.
    fn is_sent(&self, pending: &[usize]) -> bool {
        pending.iter().all(|&at| self.servers[at].node.has_sent_all()) || !follows(Rule::ReleaseIsSent)
    }

    /// When enough servers have released, the outcome is certain. The others have a moment longer: a
    /// more distant server's reply would change nothing, and the request is on its way.
    fn enough_replies(&mut self, round: &mut Round, release: &Release, until: BootTime) -> Replies {
        let (sent_at, limit, mut until, mut replies) = (BootTime::now(), until, until, Replies::new());
        // `None` until the outcome is certain; then whether everything is sent. A connection that turns
        // out to be closed makes one of the requests unsent again.
        let mut state = None;
        while !round.is_over() {
            let pending = round.pending();
            let is_decided = state.is_some() || self.is_decided(&replies, &pending, release, true);
            let is_sent = is_decided.then(|| self.is_sent(&pending));
            if is_sent != state {
                let (shortest, longest) = FOR_STRAGGLERS;
                let stragglers = (sent_at.elapsed() * 2).clamp(shortest, longest);
                let more = if is_sent == Some(true) { stragglers } else { FOR_UNSENT };
                (state, until) = (is_sent, limit.min(BootTime::now() + more));
            }
            match round.step(&mut self.servers, until) {
                Step::Reply(at, reply) => replies.push((at, reply)),
                Step::Progress => {}
                Step::Over => break,
            }
        }
        replies
    }

    /// A server that has not replied may not know the script, and we will not read that. It gets the
    /// whole text as well, without an entry for the history, of which there must be only one.
    fn ensure_script(&mut self, to: &[usize], claim: Claim, release: &Release) {
        let (min_hold, mark) = (release.min_hold(), release.mark_kept_for);
        let call = self.requests.release(claim, &self.terms, Duration::ZERO, min_hold, mark, None);
        let cold: Vec<usize> =
            to.iter().copied().filter(|&at| self.servers[at].node.may_lack_script()).collect();
        self.servers.send(cold, &call.in_full());
    }

    /// Releases the votes until the next attempt. A single server keeps our place in its queue.
    pub(super) fn release_votes(&mut self) {
        if self.servers.len() > 1 && follows(Rule::ReleaseVotes) {
            let _ = self.release_claim(self.claim(), &Release { of: Ending::Attempt, ..Release::default() });
        }
    }

    /// Stops waiting. What cannot be released now expires by itself.
    pub(super) fn stop_waiting(&mut self, entry: Option<LogEntry>) {
        self.abandoned = true;
        let _ = self.release_claim(self.claim(), &Release { of: Ending::Wait, entry, ..Release::default() });
    }

    /// Stops waiting for a server that has never replied. When it responds, it executes the request
    /// and the release, in any order: the release leaves a tombstone. So it is enough that the
    /// kernel has it.
    pub(super) fn stop_waiting_unanswered(&mut self) {
        self.abandoned = true;
        let until = BootTime::now() + self.servers.node_timeout.min(RELEASE_STEP);
        let whom = self.prepare_release();
        let mut round = self.send_release(&whom, self.claim(), &Release::default());
        while !whom.iter().all(|&at| self.servers[at].node.has_sent_all())
            && !matches!(round.step::<ReleaseReply>(&mut self.servers, until), Step::Over)
        {}
    }

    /// Records in the history that a request was refused without queueing; it has nothing to
    /// release. Sends the whole script, so that no reply is needed, and does not wait for one.
    pub(super) fn send_entry(&mut self, error: &Error, started: BootTime) {
        let Some(entry) = LogEntry::of_waiter(error, self.terms.exit_if_held, started) else { return };
        let (claim, now) = (self.claim(), Duration::ZERO);
        let call = self.requests.release(claim, &self.terms, now, now, None, Some(&entry));
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
            let call = requests.release(claim, &terms, TOMBSTONE_TTL, stay_for, None, entry.as_ref());
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
