//! What a waiter that holds locks reads at its gate, to find out whether it waits for itself. The
//! gate's queues have all waiters of the clients that agree about it.

use nix::sys::signal::Signal;

use super::keys::Keys;
use super::reply::{HolderRecord, InspectReply, Record, Waiter};
use super::round::{Round, Watch};
use super::{RedisLock, view};
use crate::clock::BootTime;
use crate::lock::deadlock::{DeadlockSearch, LockNow, WaiterNow};
use crate::lock::{Deadlock, Mode, Observer};

impl RedisLock {
    /// Looks, if it is time. A server that does not reply, or refuses, is not an error here: the next
    /// request shows it.
    pub(super) fn look_for_deadlock(
        &mut self,
        search: &mut DeadlockSearch,
        observer: &mut dyn Observer,
    ) -> Result<Option<Deadlock>, Signal> {
        search.look(|keys| self.read_locks(keys, observer))
    }

    fn read_locks(&mut self, keys: &[Vec<u8>], observer: &mut dyn Observer) -> Result<Vec<LockNow>, Signal> {
        let ours = self.requests.keys()[0].clone();
        let names = keys.iter().map(|key| Keys::new(&self.configured, &ours.prefix, key));
        // On a cluster the other slots are on other servers.
        let names: Vec<Keys> = names.filter(|names| names.node == ours.node).collect();
        let call = view::inspect_call(&names, &ours.node, view::DESCRIBED);
        let mut round = Round::default();
        let until = BootTime::now() + self.servers.node_timeout;
        round.send(&mut self.servers, self.gate, call, Some(until));
        let received =
            round.only_reply::<InspectReply>(&mut self.servers, None, Watch::Observer(observer))?;
        let Ok(reply) = received.reply else { return Ok(Vec::new()) };
        Ok(names.iter().zip(reply.locks).filter_map(|(names, record)| lock_now(names, record)).collect())
    }
}

fn lock_now(names: &Keys, record: Record) -> Option<LockNow> {
    let (mode, holders, queue) = match record {
        Record::Held { mode, holders, queue, .. } => (mode, holders, queue),
        Record::Free { queue } => (Mode::Exclusive, Vec::new(), queue),
        Record::Foreign { .. } | Record::WrongType => return None,
    };
    // A lock that only a minimum hold keeps becomes free by itself, too.
    let ends =
        |holder: &HolderRecord| holder.has_ended || holder.info.renewal.ends_by_itself(holder.expires_in);
    let holders = holders.into_iter().filter(|holder| !ends(holder));
    Some(LockNow {
        key: names.key.clone(),
        mode,
        holders: holders.map(|holder| (holder.claim.waiter.to_string(), holder.info)).collect(),
        waiters: queue.waiters.into_iter().map(waiter_now).collect(),
    })
}

fn waiter_now(waiter: Waiter) -> WaiterNow {
    WaiterNow {
        id: String::from_utf8_lossy(&waiter.name).into_owned(),
        stamp: waiter.stamp(),
        mode: waiter.mode,
        held: waiter.held,
        alive: waiter.lease,
    }
}
