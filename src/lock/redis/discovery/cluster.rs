//! Where the master of a lock's slot is. Any node of the cluster knows; its answer is remembered.
//! One lock needs no map of all slots.

use std::time::Duration;

use redis::{ServerError, Value};

use super::Address;
use crate::lock::redis::reply::CommandReply;
use crate::lock::redis::script::Call;
use crate::lock::redis::server::{Server, Target};
use crate::lock::redis::servers::Servers;
use crate::lock::{BackendError, Problem};

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

    /// Whether another node named the present one as the owner of the slot.
    pub(super) fn is_redirected(&self) -> bool {
        self.owner.as_ref() == Some(&self.present)
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

/// A master of a cluster, and one of its slots.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct Master {
    /// The server itself, with the cluster's login.
    pub server: Server,
    pub slot: u16,
}

/// All masters, for commands that read every lock.
pub(in crate::lock::redis) fn masters(
    server: &Server,
    node_timeout: Duration,
) -> Result<Vec<Master>, BackendError> {
    let mut nodes = Servers::new(vec![server.clone()], node_timeout);
    let call = Call::Command { name: "CLUSTER", args: vec![b"SLOTS".to_vec()] };
    let round = nodes.timed_round(nodes.to_all(&call));
    let mut replies = round.replies::<CommandReply>(&mut nodes, None);
    let node = &nodes[0].node;
    let CommandReply(value) = replies.pop().map_or_else(|| Err(node.timed_out()), |(_, reply)| reply)?;
    let addresses = node
        .present()
        .and_then(|speaker| parse_masters(&value, speaker))
        .ok_or_else(|| node.error(Problem::UnexpectedReply))?;
    let plain = |address| Server::discovered(Target::Tcp(address), server.clone());
    Ok(addresses.into_iter().map(|(address, slot)| Master { server: plain(address), slot }).collect())
}

/// The reply to CLUSTER SLOTS: for each range of slots the first, the last, and the nodes, master
/// first.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn parse_masters(value: &Value, speaker: &Address) -> Option<Vec<(Address, u16)>> {
    let Value::Array(ranges) = value else { return None };
    let mut masters = Vec::new();
    for range in ranges {
        let Value::Array(fields) = range else { return None };
        let Some(Value::Int(first_slot)) = fields.first() else { return None };
        let Some(Value::Array(master)) = fields.get(2) else { return None };
        let (host, port) = (master.first()?, master.get(1)?);
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::Nil => String::new(),
            _ => return None,
        };
        let Value::Int(port) = port else { return None };
        let address = Address::parse_redirection(&format!("{host}:{port}"), speaker)?;
        masters.push((address, u16::try_from(*first_slot).ok()?));
    }
    masters.sort_unstable();
    masters.dedup_by(|(one, _), (other, _)| one == other);
    Some(masters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(hosts: &str) -> Cluster {
        Cluster::of(&Server::parse(&format!("redis+cluster://{hosts}")).unwrap()).unwrap()
    }

    fn error(text: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
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

    #[test]
    fn each_master_is_named_once() {
        let speaker = Address { host: "10.0.0.9".into(), port: 1 };
        let node = |host: &str, port| Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)]);
        let range = |master, replica| Value::Array(vec![Value::Int(0), Value::Int(9), master, replica]);
        let reply = Value::Array(vec![
            range(node("10.0.0.2", 2), node("10.0.0.3", 3)),
            range(node("", 5), node("10.0.0.3", 3)),
            range(node("10.0.0.2", 2), node("10.0.0.4", 3)),
        ]);
        let masters = parse_masters(&reply, &speaker).unwrap();
        let shown: Vec<String> = masters.iter().map(|(address, slot)| format!("{address} {slot}")).collect();
        assert_eq!(shown, ["10.0.0.2:2 0", "10.0.0.9:5 0"]);
        assert_eq!(parse_masters(&Value::Nil, &speaker), None);
        assert_eq!(parse_masters(&Value::Array(vec![Value::Int(1)]), &speaker), None);
    }
}
