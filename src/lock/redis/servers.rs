//! The configured servers and the state of this client at each.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use super::node::Node;
use super::script::Call;
use super::server::Server;
use crate::clock::BootTime;
use crate::lock::majority_of;

/// A server and the state of this client there.
#[derive(Debug)]
pub(super) struct Member {
    pub node: Node,
    /// Identifies the server; empty until it is known, or if there is only one server.
    pub run_id: Vec<u8>,
    /// Number of late replies in a row.
    pub timeouts: u32,
    /// Until then it is the gate only if necessary.
    pub avoid_until: Option<BootTime>,
    /// It has lost our claim and must be healed.
    pub lost_claim: bool,
    /// When its last vote for us was requested: the vote holds for one lease from then.
    pub voted_at: Option<BootTime>,
    /// It has renewed before, so it has that script.
    pub has_renewed: bool,
    /// When the renewal that it has not replied to was sent.
    pub renewal_sent_at: Option<BootTime>,
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
            renewal_sent_at: None,
        }
    }

    pub(super) fn is_avoided(&self) -> bool {
        self.avoid_until.is_some_and(|until| !until.has_passed())
    }
}

#[derive(Debug)]
pub(super) struct Servers {
    members: Vec<Member>,
    /// The time limit for each step of a request: connecting, login, reply.
    pub node_timeout: Duration,
}

impl Servers {
    /// Sorts the servers by their addresses: the order is the same for all clients.
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

    /// Number of servers that may fail without making a majority impossible.
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

    /// Sends this request to each of these servers without waiting for replies.
    pub(super) fn send(&mut self, whom: impl IntoIterator<Item = usize>, call: &Call) {
        for at in whom {
            // A request that cannot be sent counts as lost on the way.
            let _ = self.members[at].node.ask(call.clone());
        }
    }

    /// When a server that should reply by `until` is late: each step of the connection has its own
    /// time limit.
    pub(super) fn overdue_at(&self, at: usize, until: BootTime) -> BootTime {
        until.max(self[at].node.progress_at() + self.node_timeout)
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
