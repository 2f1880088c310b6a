//! Taking a lock away from its holder.

use super::reply::BreakReply;
use super::requests::Requests;
use super::servers::Servers;
use super::{Keys, Server, Timing};
use crate::clock::BootTime;
use crate::lock::claim::{Claim, WaiterId};
use crate::lock::{BackendError, Blocked};

/// What holds the lock, if anything does; with `yes` nothing does afterwards. An error if a majority cannot be
/// asked: what the other servers hold would still be a lock.
pub(crate) fn break_lock(
    servers: Vec<Server>,
    keys: Keys,
    timing: Timing,
    yes: bool,
) -> Result<Option<Blocked>, BackendError> {
    let requests = Requests::new(vec![keys], servers.len(), timing);
    let mut servers = Servers::new(servers, timing.node_timeout);
    let call = requests.break_lock(Claim { waiter: WaiterId::random(), attempt: 0 }, yes);
    let asked = servers.ask(servers.all(), |_| call.clone());
    let (mut holder, mut errors) = (None, Vec::new());
    for (_, reply) in servers.collect(asked, BootTime::now() + timing.node_timeout) {
        match reply {
            Ok(BreakReply::Held(blocked)) => holder = holder.or(Some(*blocked)),
            Ok(BreakReply::Free) => {}
            Err(error) => errors.push(error),
        }
    }
    if errors.len() > servers.tolerated() {
        return Err(BackendError::no_majority(errors, servers.len()));
    }
    Ok(holder)
}
