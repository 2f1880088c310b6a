//! Takes a lock on a random key, waits for it, extends and releases it as a run would do. This
//! shows what a server forbids or cannot do. Each server is treated as if it were the only one:
//! neither its quarantine nor the other servers matter, and the marker, which all locks share, is
//! not touched.

use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use redis::Value;

use super::{Contact, Keys, RedisLock, Server, Timing};
use crate::clock::BootTime;
use crate::lock::checkup::{Trial, TrialFailure, TrialStep, Unobserved, trial_request};
use crate::lock::redis::script::Call;
use crate::lock::{
    BackendError, Ended, Error, Extended, Grant, Lock, Outcome, Problem, Released, WaitPolicy,
};

/// The lease must outlast all steps.
const LEASE_IN_TIMEOUTS: u32 = 10;
/// How long the fence and the holder's info outlive this process if they are not deleted.
const LEFT_FOR_MS: u32 = 60_000;
/// Added to the waiter's round trips, so that it sleeps in BLPOP once.
const SHORT_WAIT: Duration = Duration::from_millis(20);

/// Held by each trial, from its first request to the deletion of its last key.
static TRIALS: RwLock<()> = RwLock::new(());

/// Waits until no trial is running; none starts while the guard is held.
pub(crate) fn between_trials() -> RwLockWriteGuard<'static, ()> {
    TRIALS.write().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn try_lock(
    server: &Server,
    keys: &Keys,
    node_timeout: Duration,
    contact: &mut Contact,
) -> Result<Trial, TrialFailure> {
    let _trial_is_running = TRIALS.read().unwrap_or_else(PoisonError::into_inner);
    let timing =
        Timing { ttl: Some(node_timeout * LEASE_IN_TIMEOUTS), node_timeout, quarantine: Duration::ZERO };
    let open = || RedisLock::new(vec![server.clone()], vec![keys.clone()], timing);
    let tried = take_and_release(open, keys, contact);
    match tried {
        Ok(took) => {
            // A release leaves only these two.
            let mut clean_up =
                |name| delete(contact, &[name]).map_err(|why| TrialFailure { step: TrialStep::CleanUp, why });
            let logged = clean_up(&keys.log)?;
            clean_up(&keys.fence)?;
            Ok(Trial { took, is_in_history: logged > 0 })
        }
        Err(failure) => {
            let Keys { lock, queue, waiters, info, fence, shared, modes, newest, log, who, done, .. } = keys;
            let _ =
                delete(contact, &[fence, log, lock, queue, waiters, info, shared, modes, newest, who, done]);
            Err(failure)
        }
    }
}

fn take_and_release(
    open: impl Fn() -> RedisLock,
    keys: &Keys,
    contact: &mut Contact,
) -> Result<Duration, TrialFailure> {
    let rtt = contact.round_trip();
    let at = |step| move |why| TrialFailure { step, why };
    let (started, mut holder) = (BootTime::now(), open());
    let grant = holder.acquire(&trial_request(WaitPolicy::No), &mut Unobserved);
    let grant = grant.map_err(|error| at(TrialStep::Take)(reason(error)))?;
    let taken_after = started.elapsed();
    // If this process is killed, they must not stay as long as those of a real lock.
    for name in [&keys.fence, &keys.info] {
        let args = vec![name.clone(), LEFT_FOR_MS.to_string().into_bytes()];
        let _ = contact.ask(Call::Command { name: "PEXPIRE", args });
    }
    let waited = wait_in_vain(&mut open(), rtt);
    let resumed = BootTime::now();
    let extended = extend(&mut holder, &grant);
    let released = release(&mut holder, &grant);
    waited.map_err(at(TrialStep::Wait))?;
    extended.map_err(at(TrialStep::Extend))?;
    released.map_err(at(TrialStep::Release))?;
    Ok(taken_after + resumed.elapsed())
}

/// Queues, sleeps and gives up, because the lock is held.
fn wait_in_vain(waiter: &mut RedisLock, rtt: Duration) -> Result<(), BackendError> {
    let wait = WaitPolicy::Queue { at_most: Some(rtt * 3 + SHORT_WAIT) };
    match waiter.acquire(&trial_request(wait), &mut Unobserved) {
        Err(Error::Held(_)) => Ok(()),
        Err(error) => Err(reason(error)),
        // The lock was held a moment ago.
        Ok(grant) => release(waiter, &grant).and(Err(lost())),
    }
}

fn extend(holder: &mut RedisLock, grant: &Grant) -> Result<(), BackendError> {
    match holder.extend(grant) {
        Extended::Until(..) => Ok(()),
        Extended::Lost(_) => Err(lost()),
        Extended::Unknown(why) => Err(why),
    }
}

fn release(holder: &mut RedisLock, grant: &Grant) -> Result<(), BackendError> {
    match holder.release(grant, &Ended::new(Outcome::Released), Duration::ZERO) {
        Released::Done(_) | Released::Incomplete(_) => Ok(()),
        Released::Lost(_) => Err(lost()),
        Released::Unknown(why) => Err(why),
    }
}

/// Returns how many of these keys existed.
fn delete(contact: &mut Contact, names: &[&Vec<u8>]) -> Result<i64, BackendError> {
    let args = names.iter().map(|name| (*name).clone()).collect();
    let reply = contact.ask(Call::Command { name: "DEL", args })?;
    if let Value::Int(count) = reply { Ok(count) } else { Err(contact.error(Problem::UnexpectedReply)) }
}

fn reason(error: Error) -> BackendError {
    match error {
        Error::Backend(error) => error,
        // No other client knows the key.
        Error::Held(_)
        | Error::Nested
        | Error::Deadlock(_)
        | Error::Superseded(_)
        | Error::Done(_)
        | Error::Cancelled(_) => lost(),
    }
}

/// A claim that no other client knows has vanished: the server loses its data.
fn lost() -> BackendError {
    BackendError { at: None, problem: Problem::ClaimVanished }
}
