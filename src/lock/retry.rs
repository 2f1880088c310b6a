//! Retrying instead of queueing.

use std::time::Duration;

use super::wait::{Wait, sleep};
use super::{Error, Grant, Lock, Observer, Request, WaitPolicy};
use crate::clock::{BootTime, jitter};

/// Take the lock according to the request's [`WaitPolicy`].
pub(crate) fn acquire(
    lock: &mut dyn Lock,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<Grant, Error> {
    let started = BootTime::now();
    let result = match request.wait {
        WaitPolicy::No | WaitPolicy::Queue { .. } => lock.acquire(request, observer),
        WaitPolicy::Retry { count, interval, at_most } => {
            let attempt = Request { wait: WaitPolicy::No, ..request.clone() };
            retry(lock, &attempt, Retries { count, interval, at_most }, observer)
        }
    };
    if let Err(error) = &result
        && !request.wait.queues()
    {
        lock.record_refusal(error, started);
    }
    result
}

#[derive(Clone, Copy)]
struct Retries {
    /// The number of attempts after the first.
    count: u32,
    interval: Duration,
    /// The time for all attempts together.
    at_most: Option<Duration>,
}

fn retry(
    lock: &mut dyn Lock,
    attempt: &Request,
    retries: Retries,
    observer: &mut dyn Observer,
) -> Result<Grant, Error> {
    let started = BootTime::now();
    let give_up = retries.at_most.map(|at_most| started + at_most);
    let mut may_recover = attempt.waits_for_backend;
    let mut left = retries.count;
    loop {
        let error = match lock.acquire(attempt, observer) {
            Ok(grant) => return Ok(Grant { waited: grant.taken_at.since(started), ..grant }),
            Err(error) => error,
        };
        if left == 0 || give_up.is_some_and(BootTime::has_passed) {
            return Err(error);
        }
        left -= 1;
        match &error {
            Error::Held(blocked) => {
                may_recover = true;
                observer.waiting(blocked, started.elapsed());
            }
            // As for a queueing waiter: servers that are down at the start are an error, unless the
            // request waits for them; servers that fail while we wait may come back.
            Error::Backend(cause) if may_recover && cause.may_pass() => {
                observer.on_unavailable(cause, started.elapsed());
            }
            Error::Backend(_)
            | Error::Nested
            | Error::Deadlock(_)
            | Error::Superseded(_)
            | Error::Done(_)
            | Error::Cancelled(_) => {
                return Err(error);
            }
        }
        // Between a half and one and a half, so that clients that failed together do not retry
        // together.
        let next = BootTime::now() + retries.interval / 2 + jitter(retries.interval);
        // Make one last attempt when the time is over.
        let next = give_up.map_or(next, |give_up| next.min(give_up));
        if let Wait::Cancelled(signal) = sleep(next, observer) {
            return Err(Error::Cancelled(signal));
        }
    }
}
