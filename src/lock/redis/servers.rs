//! The configured servers and the state of this client at each.

use std::ops::{Index, IndexMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;

use super::node::Node;
use super::reply::Reply;
use super::script::Call;
use super::server::Server;
use crate::clock::BootTime;
use crate::lock::{BackendError, Lease, majority_of};

/// A server and the state of this client there.
#[derive(Debug)]
pub(super) struct Member {
    server: Server,
    pub node: Node,
    /// Renewals that were repeated over new connections while the first one is unanswered.
    repeated: Vec<Repeated>,
    /// Identifies the server; empty until it is known, or if there is only one server.
    pub run_id: Vec<u8>,
    /// Number of late replies in a row.
    pub timeouts: u32,
    /// Until then it is the gate only if necessary.
    pub avoid_until: Option<BootTime>,
    /// It has lost our claim and must be healed.
    pub lost_claim: bool,
    /// The lease of its last vote for us, counted from its request, with the ttl of that request.
    pub vote: Option<Lease>,
    /// The lease that was last requested with the ttl that it acknowledged.
    pub acknowledged: Option<Lease>,
    /// It has renewed before, so it has that script.
    pub has_renewed: bool,
    /// The lease of the renewal that it has not replied to.
    pub renewal: Option<Lease>,
}

#[derive(Debug)]
struct Repeated {
    node: Node,
    renewal: Lease,
}

/// At most this many connections wait for the reply to a repeated renewal. On a slow line each needs
/// several round trips to begin.
const MOST_REPEATED: usize = 8;

/// A server that is avoided is not the preferred gate for this time.
const AVOID_FOR: Duration = Duration::from_secs(10);

impl Member {
    fn new(server: Server, node_timeout: Duration) -> Self {
        Self {
            node: Node::new(server.clone(), node_timeout),
            server,
            repeated: Vec::new(),
            run_id: Vec::new(),
            timeouts: 0,
            avoid_until: None,
            lost_claim: false,
            vote: None,
            acknowledged: None,
            has_renewed: false,
            renewal: None,
        }
    }

    /// The reply to the last request, over whichever connection it arrives.
    pub(super) fn reply<R: Reply>(&mut self) -> Option<Result<R, BackendError>> {
        let reply = self.node.reply();
        if self.repeated.is_empty() || matches!(reply, Some(Ok(_))) {
            self.stop_repeating();
            return reply;
        }
        for at in 0..self.repeated.len() {
            if let Some(Ok(reply)) = self.repeated[at].node.reply() {
                let Repeated { node, renewal } = self.repeated.swap_remove(at);
                self.node.disconnect();
                (self.node, self.renewal) = (node, Some(renewal));
                self.stop_repeating();
                return Some(Ok(reply));
            }
        }
        // One that failed is of no use; the first connection's error counts when it is the last.
        self.repeated.retain(|repeated| repeated.node.is_open());
        reply.filter(|_| self.repeated.is_empty())
    }

    /// Sends a renewal over a new connection, without giving up the older ones: the line may be back,
    /// and the kernel would repeat the old request only much later.
    pub(super) fn repeat(&mut self, call: Call, renewal: Lease, node_timeout: Duration) {
        if self.repeated.len() == MOST_REPEATED {
            self.repeated.remove(0).node.disconnect();
        }
        let mut node = Node::new(self.server.clone(), node_timeout);
        if node.ask(call.in_full()).is_ok() {
            self.repeated.push(Repeated { node, renewal });
        }
    }

    /// The last renewal that is unanswered.
    pub(super) fn last_renewal(&self) -> Option<Lease> {
        self.repeated.last().map(|repeated| repeated.renewal).or(self.renewal)
    }

    pub(super) fn stop_repeating(&mut self) {
        self.repeated.drain(..).for_each(|mut repeated| repeated.node.disconnect());
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        [&self.node].into_iter().chain(self.repeated.iter().map(|repeated| &repeated.node))
    }

    pub(super) fn poll_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.nodes().filter_map(Node::poll_for)
    }

    pub(super) fn wake_at(&self) -> Option<BootTime> {
        self.nodes().filter_map(Node::wake_at).min()
    }

    /// It was late twice in a row, or at the end of a wait.
    pub(super) fn avoid(&mut self) {
        self.avoid_until = Some(BootTime::now() + AVOID_FOR);
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
