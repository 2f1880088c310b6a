//! All masters of a cluster, for commands that read every lock.

use std::time::Duration;

use redis::Value;

use super::Address;
use crate::lock::redis::reply::CommandReply;
use crate::lock::redis::script::Call;
use crate::lock::redis::server::{Server, Target};
use crate::lock::redis::servers::Servers;
use crate::lock::{BackendError, Problem};

/// A master, and one of its slots.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct Master {
    /// The server itself, with the cluster's login.
    pub server: Server,
    pub slot: u16,
}

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
        .and_then(|speaker| parse(&value, speaker))
        .ok_or_else(|| node.error(Problem::UnexpectedReply))?;
    let plain = |address| Server::discovered(Target::Tcp(address), server.clone());
    Ok(addresses.into_iter().map(|(address, slot)| Master { server: plain(address), slot }).collect())
}

/// The reply to CLUSTER SLOTS: for each range of slots the first, the last, and the nodes, master
/// first.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn parse(value: &Value, speaker: &Address) -> Option<Vec<(Address, u16)>> {
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
        let masters = parse(&reply, &speaker).unwrap();
        let shown: Vec<String> = masters.iter().map(|(address, slot)| format!("{address} {slot}")).collect();
        assert_eq!(shown, ["10.0.0.2:2 0", "10.0.0.9:5 0"]);
        assert_eq!(parse(&Value::Nil, &speaker), None);
        assert_eq!(parse(&Value::Array(vec![Value::Int(1)]), &speaker), None);
    }
}
