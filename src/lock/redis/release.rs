//! Releasing whatever we may hold by now, wherever it may be.

use std::time::Duration;

use super::RedisLock;
use super::node::State;
use super::reply::ReleaseReply;
use super::servers::Asked;
use crate::clock::BootTime;
use crate::lock::{BackendError, Claim, Fault, Problem, Released};

/// What releasing may take at most, whatever the node timeout: the caller waits for us to end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// A request still in flight when its client gives up will have arrived after this time.
const TOMBSTONE_TTL: Duration = Duration::from_secs(60);

/// Whether this waiter will ask again. Then a late request of it does no harm: the next attempt takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// The locks stay taken until then.
    Final {
        stay_until: Option<BootTime>,
    },
    BeforeRetry,
}

impl Release {
    fn min_hold(self) -> Duration {
        match self {
            Self::Final { stay_until } => stay_until.map_or(Duration::ZERO, BootTime::remaining),
            Self::BeforeRetry => Duration::ZERO,
        }
    }
}

impl RedisLock {
    /// Release on every server: the others first, then the gate, which wakes the next waiter. Sent in this
    /// order without waiting in between: the next holder's requests to the others arrive after ours.
    pub(super) fn release_claim(&mut self, claim: Claim, release: Release) -> Released {
        let (mut released, mut lost, mut errors) = (0, None, Vec::new());
        for reply in self.release_everywhere(claim, release) {
            match reply {
                Ok(ReleaseReply::Released) => released += 1,
                Ok(ReleaseReply::NotOurs(loss)) => lost = lost.max(Some(loss)),
                Err(error) => errors.push(error),
            }
        }
        match lost {
            _ if released >= self.servers.majority() => Released::Done(errors),
            _ if errors.len() > self.servers.tolerated() => {
                Released::Unknown(BackendError::no_majority(errors, self.servers.len()))
            }
            Some(loss) => Released::Lost(loss),
            None => Released::Done(errors),
        }
    }

    /// Servers that answered so far get one retry, over a new connection.
    fn release_everywhere(
        &mut self,
        claim: Claim,
        release: Release,
    ) -> Vec<Result<ReleaseReply, BackendError>> {
        let (mut answering, mut silent) = (Vec::new(), Vec::new());
        let node_timeout = self.servers.node_timeout;
        for at in self.servers.all_but(self.gate).chain([self.gate]) {
            let member = &mut self.servers[at];
            let has_voted = member.voted_at.is_some();
            let node = &mut member.node;
            node.discard_replies();
            let is_late = node.progress_at().elapsed() > node_timeout;
            match node.state() {
                State::Unreached => {}
                State::Idle => answering.push(at),
                // It was asked to renew its vote a moment ago.
                State::Silent if has_voted && !is_late => answering.push(at),
                State::Blocked => {
                    node.disconnect();
                    answering.push(at);
                }
                State::Silent => silent.push(at),
            }
        }
        // The only server is worth the wait. Others process the release when they respond again.
        if self.servers.len() == 1 {
            answering.append(&mut silent);
        }
        self.send_release(&silent, claim, release);
        let mut replies: Vec<_> = silent.iter().map(|&at| Err(self.servers[at].node.timed_out())).collect();
        let mut again = Vec::new();
        for (at, reply) in self.release_once(&answering, claim, release) {
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

    fn send_release(&mut self, to: &[usize], claim: Claim, release: Release) -> Asked {
        let call =
            |tombstone_ttl| self.requests.release(claim, &self.terms, tombstone_ttl, release.min_hold());
        let (plain, with_tombstone) = (call(Duration::ZERO), call(TOMBSTONE_TTL));
        self.servers.ask(to.iter().copied(), |member| {
            let may_execute_late = release != Release::BeforeRetry && member.node.is_in_doubt();
            if may_execute_late { with_tombstone.clone() } else { plain.clone() }
        })
    }

    fn release_once(
        &mut self,
        to: &[usize],
        claim: Claim,
        release: Release,
    ) -> Vec<(usize, Result<ReleaseReply, BackendError>)> {
        let asked = self.send_release(to, claim, release);
        let until = BootTime::now() + self.servers.node_timeout.min(RELEASE_TIMEOUT);
        let replies = self.servers.collect(asked, until);
        for (at, reply) in &replies {
            if matches!(reply, Err(BackendError { problem: Problem::TimedOut, .. })) {
                self.servers[*at].node.disconnect();
            }
        }
        replies
    }

    /// Give the votes back until the next attempt. A single server keeps our place in its queue.
    pub(super) fn release_votes(&mut self) {
        if self.servers.len() > 1 {
            let _ = self.release_claim(self.claim(), Release::BeforeRetry);
        }
    }

    /// Stop waiting. What cannot be released now expires by itself.
    pub(super) fn stop_waiting(&mut self) {
        self.abandoned = true;
        let _ = self.release_claim(self.claim(), Release::Final { stay_until: None });
    }

    /// Stop waiting for a server that has not said a word: when it responds again it finds our request and,
    /// behind it, the release.
    pub(super) fn send_release_unanswered(&mut self) {
        self.abandoned = true;
        let call = self.requests.release(self.claim(), &self.terms, TOMBSTONE_TTL, Duration::ZERO);
        let _ = self.servers[self.gate].node.ask(call);
    }

    /// Over new connections, for a value that has asked for nothing itself; requests of the old ones, which may
    /// still be under way, are refused when they arrive.
    pub(super) fn release_for_another(&mut self, min_hold: Duration) {
        let call = self.requests.release(self.claim(), &self.terms, TOMBSTONE_TTL, min_hold);
        let asked = self.servers.ask_in_full(self.servers.all(), &call);
        let until = BootTime::now() + self.servers.node_timeout.min(RELEASE_TIMEOUT);
        let _ = self.servers.collect::<ReleaseReply>(asked, until);
    }
}
