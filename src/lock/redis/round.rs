//! A round: requests to several servers at once, and their replies as they arrive.
//!
//! Each server has one pending request: a newer one replaces it, and the reply to the older one is
//! dropped.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use nix::poll::PollFlags;
use nix::sys::signal::Signal;

use super::reply::Reply;
use super::script::Call;
use super::servers::{Member, Servers};
use crate::clock::BootTime;
use crate::lock::wait::{Wait, is_readable, wait};
use crate::lock::{BackendError, Observer};

/// The servers that have not replied yet.
#[derive(Debug, Default)]
pub(super) struct Round {
    pending: Vec<PendingReply>,
    /// The errors of servers to which the request could not be sent.
    failed: VecDeque<(usize, BackendError)>,
}

#[derive(Debug)]
struct PendingReply {
    at: usize,
    sent_at: BootTime,
    /// When the server is late; `None` if the caller decides. While its connection makes progress,
    /// each step has the node timeout: a distant server needs several round trips to begin.
    due: Option<BootTime>,
}

/// The reply of one server, or the error.
#[derive(Debug)]
pub(super) struct RoundReply<R> {
    pub at: usize,
    /// When the request was sent.
    pub sent_at: BootTime,
    pub reply: Result<R, BackendError>,
    /// The reply has not arrived in time, but may still arrive.
    pub is_late: bool,
}

/// What a round has come to.
pub(super) enum Step<R> {
    Reply(usize, Result<R, BackendError>),
    /// A request was sent that had to wait for its connection.
    Progress,
    /// The time is over.
    Over,
}

/// The event that ends a wait, other than a reply.
pub(super) enum Watch<'a> {
    Nothing,
    Observer(&'a mut dyn Observer),
    /// This descriptor is readable.
    Interrupt(BorrowedFd<'a>),
}

impl Servers {
    /// Sends these requests. The caller decides how long to wait for the replies.
    pub(super) fn round(&mut self, calls: impl IntoIterator<Item = (usize, Call)>) -> Round {
        let mut round = Round::default();
        for (at, call) in calls {
            round.send(self, at, call, None);
        }
        round
    }

    /// Sends these requests. Each server has the node timeout for each step.
    pub(super) fn timed_round(&mut self, calls: impl IntoIterator<Item = (usize, Call)>) -> Round {
        let (mut round, due) = (Round::default(), BootTime::now() + self.node_timeout);
        for (at, call) in calls {
            round.send(self, at, call, Some(due));
        }
        round
    }

    /// The same request to all servers.
    pub(super) fn to_all(&self, call: &Call) -> Vec<(usize, Call)> {
        self.all().map(|at| (at, call.clone())).collect()
    }

    fn late_at(&self, pending: &PendingReply) -> Option<BootTime> {
        pending.due.map(|due| self.overdue_at(pending.at, due))
    }
}

impl Round {
    pub(super) fn send(&mut self, servers: &mut Servers, at: usize, call: Call, due: Option<BootTime>) {
        let sent_at = BootTime::now();
        match servers[at].node.ask(call) {
            Ok(()) => self.expect(at, sent_at, due),
            Err(error) => self.failed.push_back((at, error)),
        }
    }

    /// Adds a request that was sent before.
    pub(super) fn expect(&mut self, at: usize, sent_at: BootTime, due: Option<BootTime>) {
        self.pending.retain(|pending| pending.at != at);
        self.pending.push(PendingReply { at, sent_at, due });
    }

    /// The servers that have not replied.
    pub(super) fn pending(&self) -> Vec<usize> {
        self.pending.iter().map(|pending| pending.at).collect()
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.pending.is_empty() && self.failed.is_empty()
    }

    /// The next reply; `None` if there is none before `until`, or none is expected.
    pub(super) fn next<R: Reply>(
        &mut self,
        servers: &mut Servers,
        until: Option<BootTime>,
        mut watch: Watch<'_>,
    ) -> Result<Option<RoundReply<R>>, Signal> {
        self.next_watching(servers, until, &mut watch)
    }

    fn next_watching<R: Reply>(
        &mut self,
        servers: &mut Servers,
        until: Option<BootTime>,
        watch: &mut Watch<'_>,
    ) -> Result<Option<RoundReply<R>>, Signal> {
        loop {
            if let Some(received) = self.take(servers) {
                return Ok(Some(received));
            }
            if self.pending.is_empty() || until.is_some_and(BootTime::has_passed) {
                return Ok(None);
            }
            if self.sleep(servers, until, watch)? {
                return Ok(None);
            }
        }
    }

    /// Sleeps until something may have arrived, or until this moment. Returns whether the interrupt
    /// is readable.
    fn sleep(
        &self,
        servers: &Servers,
        until: Option<BootTime>,
        watch: &mut Watch<'_>,
    ) -> Result<bool, Signal> {
        let members = self.pending.iter().map(|pending| &servers[pending.at]);
        let mut watched: Vec<_> = members.clone().flat_map(Member::poll_for).collect();
        let late = self.pending.iter().filter_map(|pending| servers.late_at(pending));
        let moments = members.filter_map(Member::wake_at).chain(late).chain(until);
        let until = moments.min().unwrap_or_else(|| BootTime::now() + servers.node_timeout);
        match watch {
            Watch::Nothing => {
                wait(&watched, until, None);
            }
            Watch::Observer(observer) => {
                if let Wait::Cancelled(signal) = wait(&watched, until, Some(&mut **observer)) {
                    return Err(signal);
                }
            }
            Watch::Interrupt(interrupt) => {
                watched.push((*interrupt, PollFlags::POLLIN));
                wait(&watched, until, None);
                return Ok(is_readable(*interrupt));
            }
        }
        Ok(false)
    }

    /// The reply to the only request of the round, which must have a time limit. `until` may be
    /// earlier.
    pub(super) fn only_reply<R: Reply>(
        &mut self,
        servers: &mut Servers,
        until: Option<BootTime>,
        watch: Watch<'_>,
    ) -> Result<RoundReply<R>, Signal> {
        let at = self.pending.first().map_or_else(|| self.failed[0].0, |pending| pending.at);
        Ok(self.reply_of(at, servers, until, watch)?.0)
    }

    /// The same for one of several servers, and what the others have replied before it. Their
    /// connections are opened in the meantime.
    pub(super) fn reply_of<R: Reply>(
        &mut self,
        at: usize,
        servers: &mut Servers,
        until: Option<BootTime>,
        mut watch: Watch<'_>,
    ) -> Result<(RoundReply<R>, Vec<RoundReply<R>>), Signal> {
        let mut others = Vec::new();
        while let Some(received) = self.next_watching(servers, until, &mut watch)? {
            if received.at == at {
                return Ok((received, others));
            }
            others.push(received);
        }
        let is_asked = |pending: &PendingReply| pending.at == at;
        let asked = self.pending.iter().position(is_asked).expect("a request with a time limit");
        let sent_at = self.pending.remove(asked).sent_at;
        let reply = Err(servers[at].node.timed_out());
        Ok((RoundReply { at, sent_at, reply, is_late: true }, others))
    }

    /// The next reply, or that the kernel has got one more request.
    pub(super) fn step<R: Reply>(&mut self, servers: &mut Servers, until: BootTime) -> Step<R> {
        let before = self.unsent(servers);
        loop {
            if let Some(received) = self.take(servers) {
                return Step::Reply(received.at, received.reply);
            }
            if self.unsent(servers) != before {
                return Step::Progress;
            }
            // Nothing is watched that could interrupt it.
            if until.has_passed() || self.sleep(servers, Some(until), &mut Watch::Nothing).is_err() {
                return Step::Over;
            }
        }
    }

    /// Number of requests that the kernel does not have yet.
    fn unsent(&self, servers: &Servers) -> usize {
        self.pending.iter().filter(|pending| !servers[pending.at].node.has_sent_all()).count()
    }

    /// The next reply, for a caller that watches nothing else.
    pub(super) fn reply<R: Reply>(
        &mut self,
        servers: &mut Servers,
        until: Option<BootTime>,
    ) -> Option<(usize, Result<R, BackendError>)> {
        let received = self.next(servers, until, Watch::Nothing).ok().flatten()?;
        Some((received.at, received.reply))
    }

    /// All replies, with an error for each server that has not replied by `until`.
    pub(super) fn replies<R: Reply>(
        mut self,
        servers: &mut Servers,
        until: Option<BootTime>,
    ) -> Vec<(usize, Result<R, BackendError>)> {
        let mut replies = Vec::new();
        while let Some(reply) = self.reply(servers, until) {
            replies.push(reply);
        }
        replies.extend(self.pending().into_iter().map(|at| (at, Err(servers[at].node.timed_out()))));
        replies
    }

    /// A reply or an error that is available now.
    fn take<R: Reply>(&mut self, servers: &mut Servers) -> Option<RoundReply<R>> {
        if let Some((at, error)) = self.failed.pop_front() {
            return Some(RoundReply { at, sent_at: BootTime::now(), reply: Err(error), is_late: false });
        }
        for i in 0..self.pending.len() {
            let at = self.pending[i].at;
            let (reply, is_late) = match servers[at].reply::<R>() {
                Some(reply) => (reply, false),
                None if servers.late_at(&self.pending[i]).is_some_and(BootTime::has_passed) => {
                    (Err(servers[at].node.timed_out()), true)
                }
                None => continue,
            };
            let sent_at = self.pending.remove(i).sent_at;
            return Some(RoundReply { at, sent_at, reply, is_late });
        }
        None
    }
}
