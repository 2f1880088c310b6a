//! The configured servers: ask several at once, read their replies as they come, count a majority.
//!
//! Knows nothing of a lock's state, so that commands that only look can be built on it as well.

use std::ops::{ControlFlow, Index, IndexMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::node::Node;
use super::reply::Reply;
use super::script::Call;
use super::server::Server;
use crate::clock::BootTime;
use crate::lock::wait::{Wait, is_readable, wait};
use crate::lock::{BackendError, Observer, majority_of};
use nix::poll::PollFlags;
use nix::sys::signal::Signal;

/// A server, and what this client remembers of it.
#[derive(Debug)]
pub(super) struct Member {
    pub node: Node,
    /// Identifies the server, as far as it has told; empty where there is only one.
    pub run_id: Vec<u8>,
    /// How often in a row it did not answer in time.
    pub timeouts: u32,
    /// Not made the gate without need until then.
    pub avoid_until: Option<BootTime>,
    /// It has lost our claim and is to be healed.
    pub lost_claim: bool,
    /// When its last vote for us was asked for: it holds for a lease from then.
    pub voted_at: Option<BootTime>,
    /// It has renewed before, so it knows that script.
    pub has_renewed: bool,
    /// When it was last asked to renew.
    pub renewal_asked_at: Option<BootTime>,
}

impl Member {
    fn new(server: Server, node_timeout: Duration) -> Self {
        Self {
            node: Node::new(server, node_timeout),
            run_id: Vec::new(),
            timeouts: 0,
            avoid_until: None,
            lost_claim: false,
            voted_at: None,
            has_renewed: false,
            renewal_asked_at: None,
        }
    }

    pub(super) fn is_avoided(&self) -> bool {
        self.avoid_until.is_some_and(|until| !until.has_passed())
    }
}

#[derive(Debug)]
pub(super) struct Servers {
    members: Vec<Member>,
    /// What one server may take to answer, connecting included.
    pub node_timeout: Duration,
}

/// How a round of replies ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// The listener had heard enough, or every server has answered.
    Complete,
    TimedOut,
    Cancelled(Signal),
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum NoReply {
    Cancelled(Signal),
    Failed(BackendError),
    /// It may still come.
    Late(BackendError),
}

/// The servers that a request was sent to, and those that it could not be sent to.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub sent: Vec<usize>,
    pub failed: Vec<(usize, BackendError)>,
}

/// The servers that have answered, and what.
pub(super) type Replies<R> = Vec<(usize, Result<R, BackendError>)>;

pub(super) fn stop_if(enough: bool) -> ControlFlow<()> {
    if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

impl Servers {
    /// In the order of their addresses, which is the same for all clients.
    pub(super) fn new(mut servers: Vec<Server>, node_timeout: Duration) -> Self {
        servers.sort_by(|a, b| a.order().cmp(&b.order()));
        let members = servers.into_iter().map(|server| Member::new(server, node_timeout)).collect();
        Self { members, node_timeout }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn majority(&self) -> usize {
        majority_of(self.len())
    }

    /// How many servers may fail without making a majority impossible.
    pub(super) fn tolerated(&self) -> usize {
        self.len() - self.majority()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.len()
    }

    pub(super) fn all_but(&self, gate: usize) -> impl Iterator<Item = usize> + use<> {
        self.all().filter(move |&at| at != gate)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.members.iter().map(|member| member.node.name()).collect()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut()
    }

    /// Send to all of these without waiting.
    pub(super) fn ask(
        &mut self,
        whom: impl IntoIterator<Item = usize>,
        mut call: impl FnMut(&Member) -> Call,
    ) -> Asked {
        let mut asked = Asked::default();
        for at in whom {
            let member = &mut self.members[at];
            let call = call(member);
            match member.node.ask(call) {
                Ok(()) => asked.sent.push(at),
                Err(error) => asked.failed.push((at, error)),
            }
        }
        asked
    }

    /// The same with the script's whole text.
    pub(super) fn ask_in_full(&mut self, whom: impl IntoIterator<Item = usize>, call: &Call) -> Asked {
        let mut asked = Asked::default();
        for at in whom {
            match self.members[at].node.ask_in_full(call.clone()) {
                Ok(()) => asked.sent.push(at),
                Err(error) => asked.failed.push((at, error)),
            }
        }
        asked
    }

    /// Hand the replies of these servers to the listener as they come, until it has heard enough.
    pub(super) fn listen<R: Reply>(
        &mut self,
        pending: Vec<usize>,
        until: BootTime,
        mut observer: Option<&mut dyn Observer>,
        listener: impl FnMut(usize, Result<R, BackendError>) -> ControlFlow<()>,
    ) -> RoundEnd {
        self.listen_with(pending, until, listener, |watched, until| {
            match wait(watched, until, observer.as_deref_mut()) {
                Wait::Cancelled(signal) => Some(RoundEnd::Cancelled(signal)),
                Wait::Ready | Wait::Over => None,
            }
        })
    }

    /// The same, but ended as soon as `interrupt` is readable.
    pub(super) fn listen_until<R: Reply>(
        &mut self,
        pending: Vec<usize>,
        until: BootTime,
        interrupt: BorrowedFd<'_>,
        listener: impl FnMut(usize, Result<R, BackendError>) -> ControlFlow<()>,
    ) -> RoundEnd {
        self.listen_with(pending, until, listener, |watched, until| {
            let mut watched = watched.to_vec();
            watched.push((interrupt, PollFlags::POLLIN));
            wait(&watched, until, None);
            is_readable(interrupt).then_some(RoundEnd::TimedOut)
        })
    }

    fn listen_with<R: Reply>(
        &mut self,
        mut pending: Vec<usize>,
        until: BootTime,
        mut listener: impl FnMut(usize, Result<R, BackendError>) -> ControlFlow<()>,
        mut wait: impl FnMut(&[(BorrowedFd<'_>, PollFlags)], BootTime) -> Option<RoundEnd>,
    ) -> RoundEnd {
        loop {
            let mut is_enough = false;
            pending.retain(|&at| match self.members[at].node.reply::<R>() {
                Some(reply) => {
                    is_enough |= listener(at, reply).is_break();
                    false
                }
                None => true,
            });
            if is_enough || pending.is_empty() {
                return RoundEnd::Complete;
            }
            if until.has_passed() {
                return RoundEnd::TimedOut;
            }
            let watched: Vec<_> = pending.iter().filter_map(|&at| self.members[at].node.poll_for()).collect();
            let until =
                pending.iter().filter_map(|&at| self.members[at].node.wake_at()).fold(until, BootTime::min);
            if let Some(end) = wait(&watched, until) {
                return end;
            }
        }
    }

    /// The replies that come until the listener has heard enough, with an error for each server that could not be asked;
    /// and the servers that have not answered.
    pub(super) fn collect_some<R: Reply>(
        &mut self,
        asked: Asked,
        until: BootTime,
        mut listener: impl FnMut(&Result<R, BackendError>) -> ControlFlow<()>,
    ) -> (Replies<R>, Vec<usize>) {
        let mut replies: Vec<_> = asked.failed.into_iter().map(|(at, error)| (at, Err(error))).collect();
        let mut late = asked.sent.clone();
        self.listen::<R>(asked.sent, until, None, |at, reply| {
            late.retain(|&other| other != at);
            let heard = listener(&reply);
            replies.push((at, reply));
            heard
        });
        (replies, late)
    }

    /// Every reply, with an error for each server that could not be asked or did not answer in time.
    pub(super) fn collect<R: Reply>(&mut self, asked: Asked, until: BootTime) -> Replies<R> {
        let (mut replies, late) = self.collect_some(asked, until, |_| ControlFlow::Continue(()));
        replies.extend(late.into_iter().map(|at| (at, Err(self[at].node.timed_out()))));
        replies
    }

    /// The same, for callers that are in no hurry: each step of a connection has its own time, as a line across an ocean
    /// needs several round trips to begin.
    pub(super) fn collect_patiently<R: Reply>(&mut self, asked: Asked) -> Replies<R> {
        let mut replies: Vec<_> = asked.failed.into_iter().map(|(at, error)| (at, Err(error))).collect();
        let (mut late, mut until) = (asked.sent, BootTime::now() + self.node_timeout);
        while !late.is_empty() && !until.has_passed() {
            self.listen::<R>(late.clone(), until, None, |at, reply| {
                late.retain(|&other| other != at);
                replies.push((at, reply));
                ControlFlow::Continue(())
            });
            until = late.iter().map(|&at| self.overdue_at(at, until)).fold(until, BootTime::max);
        }
        replies.extend(late.into_iter().map(|at| (at, Err(self[at].node.timed_out()))));
        replies
    }

    /// When a server that was to answer by this moment is late: each step of the connection has its own time.
    pub(super) fn overdue_at(&self, at: usize, until: BootTime) -> BootTime {
        until.max(self[at].node.progress_at() + self.node_timeout)
    }

    /// The reply of one server, if it comes before this moment.
    pub(super) fn early_reply_of<R: Reply>(
        &mut self,
        at: usize,
        until: BootTime,
        observer: &mut dyn Observer,
    ) -> Option<Result<R, NoReply>> {
        let mut received = None;
        let ended = self.listen::<R>(vec![at], until, Some(observer), |_, reply| {
            received = Some(reply.map_err(NoReply::Failed));
            ControlFlow::Break(())
        });
        match ended {
            RoundEnd::Cancelled(signal) if received.is_none() => Some(Err(NoReply::Cancelled(signal))),
            RoundEnd::Cancelled(_) | RoundEnd::Complete | RoundEnd::TimedOut => received,
        }
    }

    /// The reply of one server.
    pub(super) fn reply_of<R: Reply>(
        &mut self,
        at: usize,
        until: BootTime,
        observer: &mut dyn Observer,
    ) -> Result<R, NoReply> {
        loop {
            let until = self.overdue_at(at, until);
            if let Some(reply) = self.early_reply_of(at, until, observer) {
                return reply;
            }
            if self.overdue_at(at, until).has_passed() {
                return Err(NoReply::Late(self[at].node.timed_out()));
            }
        }
    }
}

impl Index<usize> for Servers {
    type Output = Member;

    fn index(&self, at: usize) -> &Member {
        &self.members[at]
    }
}

impl IndexMut<usize> for Servers {
    fn index_mut(&mut self, at: usize) -> &mut Member {
        &mut self.members[at]
    }
}
