//! Asking several times instead of queueing.

use std::time::Duration;

use super::wait::{Wait, sleep};
use super::{BootTime, Error, Fault, Grant, Lock, Observer, Patience, Request, WaiterId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// After the first attempt.
    pub count: u32,
    /// Between two of them, give or take a half: whoever failed together is not to come back together.
    pub interval: Duration,
}

impl Retries {
    /// Take the lock in one of the attempts. The request is one that does not wait; `patience` is for all of
    /// them together.
    pub fn acquire(
        self,
        lock: &mut dyn Lock,
        request: &Request,
        patience: Patience,
        observer: &mut dyn Observer,
    ) -> Result<Grant, Error> {
        let started = BootTime::now();
        let give_up = patience.ends(started);
        let mut was_answered = false;
        for left in (0..=self.count).rev() {
            let error = match lock.acquire(request, observer) {
                Ok(grant) => return Ok(Grant { waited: grant.taken_at.since(started), ..grant }),
                Err(error) => error,
            };
            if left == 0 || give_up.is_some_and(BootTime::has_passed) {
                return Err(error);
            }
            match &error {
                Error::Held(busy) => {
                    was_answered = true;
                    observer.waiting(busy, started.elapsed());
                }
                // As for a waiter: what is gone from the start is an error at once, what goes away may come back.
                Error::Node(node) if was_answered && node.fault == Fault::Unavailable => {
                    observer.trouble(node);
                }
                _ => return Err(error),
            }
            let pause = self.interval / 2 + WaiterId::random().jitter(0, self.interval);
            let next = BootTime::now() + pause;
            // The last one when patience ends, rather than none.
            let next = give_up.map_or(next, |give_up| next.min(give_up));
            if sleep(next, observer) == Wait::Cancelled {
                return Err(Error::Cancelled);
            }
        }
        unreachable!("the last attempt returns")
    }
}
