//! Waiting until a lock is free, without taking it, without a place in the queue and without a
//! write: every release is logged, which wakes a blocked XREAD.

use std::time::Duration;

use redis::Value;

use super::{InspectLimits, RedisView};
use crate::clock::BootTime;
use crate::lock::redis::reply::CommandReply;
use crate::lock::redis::script::{Call, WAITER_RENEWAL};
use crate::lock::wait::{backoff, wait};
use crate::lock::{BackendError, Problem, Status, WaitProgress};

/// The lock is inspected this long after its lease ends, in case it was renewed, and not more often
/// than every MIN_PAUSE.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// The id of the last entry in the lock's log on each server; `None` if it cannot be queried.
type LogEnds = Vec<Option<Vec<u8>>>;

impl RedisView {
    pub(super) fn wait_for_release(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(WaitProgress<'_>),
    ) -> Result<Status, BackendError> {
        let is_over = || until.is_some_and(BootTime::has_passed);
        let mut has_replied = false;
        let mut failures = 0;
        loop {
            match self.inspect_with_log(key) {
                Ok((status, log)) => {
                    (has_replied, failures) = (true, 0);
                    if status.is_idle() || is_over() {
                        return Ok(status);
                    }
                    observer(WaitProgress::Taken(&status));
                    let pause = pause_of(&status);
                    let pause = until.map_or(pause, |until| pause.min(until.remaining()));
                    self.block_on_logs(key, &log, pause);
                }
                Err(error) if !has_replied || !error.may_pass() || is_over() => return Err(error),
                Err(error) => {
                    observer(WaitProgress::Failing(&error));
                    let pause = BootTime::now() + backoff(failures);
                    failures += 1;
                    wait(&[], until.map_or(pause, |until| pause.min(until)), None);
                }
            }
        }
    }

    /// The status, and the end of each log.
    fn inspect_with_log(&mut self, key: &[u8]) -> Result<(Status, LogEnds), BackendError> {
        let limits = InspectLimits { holders: 1, waiters: 0, log: true, durations: 0 };
        let reports = self.inspect_with_majority(key, limits)?;
        let log = reports.iter().map(|report| report.last_log_id.clone()).collect();
        Ok((self.merged(key, &reports, 0), log))
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
                // A broken connection is found by the next inspection. A key of another type, or a
                // server without streams, does no harm: the time passes below.
                Err(error) => !matches!(error.problem, Problem::Server(_)),
            };
        }
        // A request behind a blocked command would wait for it.
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
    expires.map_or(WAITER_RENEWAL, |left| (left + AFTER_EXPIRY).clamp(MIN_PAUSE, WAITER_RENEWAL))
}
