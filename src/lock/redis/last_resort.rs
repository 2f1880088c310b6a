//! Who this client is to the servers, kept apart from the lock: enough to give back what it asked for when the
//! lock itself cannot be used any more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::requests::Terms;
use super::{Keys, LastResort, RedisLock, Server, Timing, WaiterId};

/// Servers take this for the latest attempt, whichever that was.
const LAST_ATTEMPT: u32 = u32::MAX;

pub(super) struct Identity {
    servers: Vec<Server>,
    keys: Vec<Keys>,
    timing: Timing,
    waiter: Arc<Mutex<WaiterId>>,
}

impl Identity {
    pub(super) fn new(servers: &[Server], keys: &[Keys], timing: Timing, waiter: WaiterId) -> Self {
        let waiter = Arc::new(Mutex::new(waiter));
        Self { servers: servers.to_vec(), keys: keys.to_vec(), timing, waiter }
    }

    pub(super) fn set_waiter(&self, waiter: WaiterId) {
        *self.waiter.lock().unwrap_or_else(PoisonError::into_inner) = waiter;
    }

    pub(super) fn servers(&self) -> Vec<Server> {
        self.servers.clone()
    }

    pub(super) fn last_resort(&self, terms: Terms, min_hold: Duration) -> LastResort {
        let Self { servers, keys, timing, waiter } = self;
        let (servers, keys, timing, waiter) = (servers.clone(), keys.clone(), *timing, Arc::clone(waiter));
        LastResort::new(min_hold, move |min_hold| {
            let mut lock = RedisLock::new(servers.clone(), keys.clone(), timing);
            lock.waiter = *waiter.lock().unwrap_or_else(PoisonError::into_inner);
            (lock.attempts, lock.terms) = (LAST_ATTEMPT, terms.clone());
            lock.release_for_another(min_hold);
        })
    }
}
