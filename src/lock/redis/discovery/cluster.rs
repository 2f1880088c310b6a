//! Where the master of a lock's slot is. Any node of the cluster knows; its answer is remembered.
//! One lock needs no map of all slots.

use redis::ServerError;

use super::Address;
use crate::lock::redis::server::{Server, Target};

/// Enough to follow a slot that moves, but not nodes that send us in a circle.
const MOST_REDIRECTIONS: u32 = 8;
/// At most this many nodes are remembered, those of the URL included.
const MOST_LEARNED: usize = 16;

#[derive(Debug)]
pub(super) struct Cluster {
    /// Those of the URL, and those that they have named.
    nodes: Vec<Address>,
    /// The node to ask while the owner of the slot is unknown.
    next: usize,
    /// How many nodes were tried since the last reply.
    tried: usize,
    /// The master of the slot, as last reported.
    owner: Option<Address>,
    /// The destination of the next request only.
    detour: Option<Address>,
    /// The node to which we are connected.
    present: Address,
    redirections: u32,
}

/// What an error reply of a cluster node asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lock::redis) enum Redirection {
    /// The slot has another owner.
    Moved,
    /// The slot is moving to another node, which must be tried for this request.
    Ask,
    /// The slot is moving, or has no owner: retry in a moment; elsewhere if this node may be wrong.
    Later { elsewhere: bool },
}

impl Cluster {
    pub(super) fn of(server: &Server) -> Option<Self> {
        let Target::Cluster { nodes } = &server.target else { return None };
        let present = nodes.first()?.clone();
        let nodes = nodes.clone();
        Some(Self { nodes, next: 0, tried: 0, owner: None, detour: None, present, redirections: 0 })
    }

    /// Where to connect to.
    pub(super) fn start(&mut self) -> Address {
        self.tried = 0;
        self.choose()
    }

    fn choose(&mut self) -> Address {
        let owner = self.detour.take().or_else(|| self.owner.clone());
        self.present = owner.unwrap_or_else(|| self.nodes[self.next % self.nodes.len()].clone());
        self.present.clone()
    }

    /// The next node to try if the present one cannot be reached; `None` after all of them.
    pub(super) fn pass_over(&mut self) -> Option<Address> {
        if !self.has_next() {
            return None;
        }
        self.tried += 1;
        self.forget_owner();
        Some(self.choose())
    }

    /// Ask another node for the owner: the one that named it may be wrong.
    fn forget_owner(&mut self) {
        self.owner = None;
        self.next = (self.next + 1) % self.nodes.len();
    }

    pub(super) fn has_next(&self) -> bool {
        self.tried < self.nodes.len()
    }

    /// What to do after this error; `None` if it is not the cluster's.
    pub(super) fn redirect(&mut self, error: &ServerError) -> Option<Redirection> {
        let target = || error.details().and_then(|details| details.split(' ').nth(1));
        let redirection = match error.code() {
            "MOVED" => Redirection::Moved,
            "ASK" => Redirection::Ask,
            "TRYAGAIN" => {
                self.redirections = 0;
                return Some(Redirection::Later { elsewhere: false });
            }
            // A node in a minority, or one that has just been started.
            "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => {
                self.forget_owner();
                return Some(Redirection::Later { elsewhere: true });
            }
            _ => return None,
        };
        let target = Address::parse_redirection(target()?, &self.present)?;
        self.redirections += 1;
        if self.redirections > MOST_REDIRECTIONS {
            // They do not agree yet, or name a dead node.
            self.redirections = 0;
            self.forget_owner();
            return Some(Redirection::Later { elsewhere: true });
        }
        if redirection == Redirection::Moved {
            if !self.nodes.contains(&target) && self.nodes.len() < MOST_LEARNED {
                self.nodes.push(target.clone());
            }
            self.owner = Some(target);
        } else {
            self.detour = Some(target);
        }
        Some(redirection)
    }

    /// The present node has executed a request.
    pub(super) fn confirm(&mut self) {
        (self.tried, self.redirections) = (0, 0);
    }

    pub(super) fn present(&self) -> &Address {
        &self.present
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(hosts: &str) -> Cluster {
        Cluster::of(&Server::parse(&format!("redis+cluster://{hosts}")).unwrap()).unwrap()
    }

    fn error(text: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap() {
            redis::Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    fn at(address: &Address) -> String {
        address.to_string()
    }

    #[test]
    fn the_owner_of_the_slot_is_remembered() {
        let mut cluster = cluster("a,b");
        assert_eq!(at(&cluster.start()), "a:6379");
        assert_eq!(cluster.redirect(&error("MOVED 17 10.0.0.1:7000")), Some(Redirection::Moved));
        assert_eq!(at(&cluster.start()), "10.0.0.1:7000");
        cluster.confirm();
        assert_eq!(at(&cluster.start()), "10.0.0.1:7000");
        assert_eq!(cluster.redirect(&error("MOVED 17 :7001")), Some(Redirection::Moved));
        assert_eq!(at(&cluster.start()), "10.0.0.1:7001");
    }

    #[test]
    fn a_detour_is_for_one_request() {
        let mut cluster = cluster("a");
        cluster.start();
        assert_eq!(cluster.redirect(&error("ASK 17 b:1")), Some(Redirection::Ask));
        assert_eq!(at(&cluster.start()), "b:1");
        assert_eq!(at(&cluster.start()), "a:6379");
    }

    #[test]
    fn each_node_is_tried_once_and_the_one_that_named_a_dead_owner_last() {
        let mut cluster = cluster("a,b");
        cluster.start();
        cluster.redirect(&error("MOVED 17 c:1"));
        cluster.start();
        let tried: Vec<String> = std::iter::from_fn(|| cluster.pass_over().as_ref().map(at)).collect();
        assert_eq!(tried, ["b:6379", "c:1", "a:6379"]);
        assert!(!cluster.has_next());
    }

    #[test]
    fn a_circle_ends() {
        let mut cluster = cluster("a");
        cluster.start();
        let mut redirect = || cluster.redirect(&error("MOVED 17 a:6379"));
        let followed = (0..100).take_while(|_| redirect() == Some(Redirection::Moved)).count();
        assert_eq!(followed, 8);
        assert_eq!(redirect(), Some(Redirection::Moved), "but not forever");
    }

    #[test]
    fn a_temporary_error_is_retried() {
        let mut cluster = cluster("a,b");
        cluster.start();
        assert_eq!(cluster.redirect(&error("TRYAGAIN x")), Some(Redirection::Later { elsewhere: false }));
        assert_eq!(cluster.redirect(&error("CLUSTERDOWN x y")), Some(Redirection::Later { elsewhere: true }));
        assert_eq!(at(&cluster.start()), "b:6379");
        assert_eq!(cluster.redirect(&error("NOPERM x")), None);
    }
}
