//! Waiting until a lock is free, without taking it, without a place in the queue and without a write: every release is
//! written into the lock's log, and a blocked XREAD is woken by that.

use std::time::Duration;

use redis::Value;

use super::{LookLimits, RedisView};
use crate::clock::BootTime;
use crate::lock::redis::reply::CommandReply;
use crate::lock::redis::script::{Call, WAITER_RENEWAL};
use crate::lock::wait::{backoff, wait};
use crate::lock::{BackendError, Problem, Seen, Status};

/// A lease that ends is noticed this much later: the lock may have been renewed, and must not be looked at too often.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);
const LEAST_PAUSE: Duration = Duration::from_millis(200);

/// For each server the id of the last entry of the lock's log; `None` if it cannot be asked.
type LogEnds = Vec<Option<Vec<u8>>>;

impl RedisView {
    pub(super) fn wait_for_release(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(Seen<'_>),
    ) -> Result<Status, BackendError> {
        let is_over = || until.is_some_and(BootTime::has_passed);
        let mut has_answered = false;
        let mut failures = 0;
        loop {
            match self.look_with_log(key) {
                Ok((status, log)) => {
                    (has_answered, failures) = (true, 0);
                    if status.is_idle() || is_over() {
                        return Ok(status);
                    }
                    observer(Seen::Taken(&status));
                    let pause = pause_of(&status);
                    let pause = until.map_or(pause, |until| pause.min(until.remaining()));
                    self.block_on_logs(key, &log, pause);
                }
                Err(error) if !has_answered || !error.may_pass() || is_over() => return Err(error),
                Err(error) => {
                    observer(Seen::Failing(&error));
                    let pause = BootTime::now() + backoff(failures);
                    failures += 1;
                    wait(&[], until.map_or(pause, |until| pause.min(until)), None);
                }
            }
        }
    }

    /// The status, and where the logs end.
    fn look_with_log(&mut self, key: &[u8]) -> Result<(Status, LogEnds), BackendError> {
        let limits = LookLimits { holders: 1, waiters: 0, log: true };
        let looked = self.look_with_majority(key, limits)?;
        let log = looked.iter().map(|looked| looked.last_log_id.clone()).collect();
        Ok((self.merged(key, &looked, 0), log))
    }

    /// Returns when a run has ended on one of the servers, or after this time.
    fn block_on_logs(&mut self, key: &[u8], log: &LogEnds, at_most: Duration) {
        let name = self.keys(key).log;
        let millis = at_most.as_millis().max(1).to_string();
        let blocks_until = BootTime::now() + at_most;
        let calls = log.iter().enumerate().filter_map(|(at, last)| {
            let words = [b"BLOCK".as_slice(), millis.as_bytes(), b"STREAMS", &name, last.as_ref()?];
            let args = words.iter().map(|word| word.to_vec()).collect();
            Some((at, Call::Command { name: "XREAD", args }))
        });
        let (mut round, mut is_woken) = (self.servers.round(calls), false);
        let overdue = Some(blocks_until + self.servers.node_timeout);
        while !is_woken && let Some((_, reply)) = round.reply(&mut self.servers, overdue) {
            is_woken = match reply {
                Ok(CommandReply(reply)) => reply != Value::Nil,
                // What is wrong with the connection is found out by the next look. Something else at the log's key, or a
                // server that knows no streams, does no harm: the time passes below.
                Err(error) => !matches!(error.problem, Problem::Server(_)),
            };
        }
        // What is sent behind a blocked command waits for it.
        for at in round.pending() {
            self.servers[at].node.disconnect();
        }
        if !is_woken {
            wait(&[], blocks_until, None);
        }
    }
}

fn pause_of(status: &Status) -> Duration {
    let expires = status.holders.iter().filter_map(|holder| holder.expires_in).min();
    expires.map_or(WAITER_RENEWAL, |left| (left + AFTER_EXPIRY).clamp(LEAST_PAUSE, WAITER_RENEWAL))
}
