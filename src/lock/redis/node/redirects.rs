//! Requests to a server that must be found first, or that sends us elsewhere. A request is kept
//! until a server is reached, so that another one can be asked.

use std::time::Duration;

use redis::{ServerError as RedisError, Value};

use super::{Expected, Node, in_full};
use crate::clock::BootTime;
use crate::lock::redis::discovery::Redirection;
use crate::lock::redis::script::Call;
use crate::lock::{BackendError, Problem, ServerError, ServerErrorKind};

/// The pause before a retry while the slot moves to another node, or has no master.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A request that the cluster cannot execute now.
#[derive(Debug)]
pub(super) struct Postponed {
    at: BootTime,
    call: Call,
}

/// Why the cluster did not execute a request at once.
#[derive(Debug)]
pub(super) struct Delay {
    pub why: BackendError,
    /// It cannot be executed now: later replies of the cluster are no progress.
    pub is_stalled: bool,
}

impl Node {
    /// When [`Node::reply`] must be called even if nothing arrives.
    pub(in crate::lock::redis) fn wake_at(&self) -> Option<BootTime> {
        if let Some(postponed) = &self.postponed {
            return Some(postponed.at);
        }
        if self.unconfirmed.is_some() {
            return Some(self.progress_at + self.discovery.patience(self.step_timeout));
        }
        // Sentinels, masters and cluster nodes that do not reply are passed over while there are
        // others.
        let may_be_passed_over = !self.is_ready() && self.connection.is_some() && self.discovery.has_next();
        may_be_passed_over.then(|| self.progress_at + self.step_timeout)
    }

    /// Connected and logged in, as far as is known before something is sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.is_logging_in() && (self.discovery.is_fixed() || self.is_connected())
    }

    /// The next step towards a connection: a Sentinel has replied, a name was resolved, the time
    /// for a step is over.
    pub(super) fn find_server(&mut self) -> Result<(), BackendError> {
        if self.postponed.as_ref().is_some_and(|postponed| postponed.at.has_passed()) {
            self.retry()?;
        }
        if self.connection.is_none() {
            return Ok(());
        }
        if !self.discovery.is_fixed()
            && self.postponed.is_none()
            && self.wake_at().is_some_and(BootTime::has_passed)
        {
            return self.go_elsewhere(self.discovery.silence());
        }
        while let Some(found) = self.discovery.advance() {
            match found {
                Ok(endpoint) => self.connect_to(Some(endpoint)),
                Err(why) => self.go_elsewhere(why)?,
            }
        }
        Ok(())
    }

    /// Send the requests that waited for the connection and the login.
    pub(super) fn send_held_back(&mut self) {
        if self.is_ready()
            && !self.after_login.is_empty()
            && let Some(connection) = &mut self.connection
        {
            connection.send(&std::mem::take(&mut self.after_login));
        }
    }

    /// Nothing was executed where we were: ask another Sentinel, or another node of the cluster.
    pub(super) fn go_elsewhere(&mut self, why: BackendError) -> Result<(), BackendError> {
        let mut waiting = std::mem::take(&mut self.expected);
        waiting.retain(|expected| !matches!(expected, Expected::Login(_)));
        let held_back = std::mem::take(&mut self.after_login);
        self.disconnect();
        let endpoint = self.discovery.pass_over(why)?;
        self.connection = Some(self.connection_with_login());
        self.expected.extend(waiting);
        self.after_login = held_back;
        self.progress_at = BootTime::now();
        self.connect_to(endpoint);
        Ok(())
    }

    /// Hold a grant back until it is known that the server is still the master.
    pub(super) fn confirm(&mut self, call: Call, value: Value) -> Option<(Call, Value)> {
        if !is_grant(&value) || !self.discovery.asks_for_master() {
            return Some((call, value));
        }
        self.unconfirmed = Some((call, value));
        self.progress_at = BootTime::now();
        None
    }

    /// The reply that was held back, once it is known whether it counts.
    pub(super) fn confirmed(&mut self) -> Option<Result<(Call, Value), BackendError>> {
        let is_late = self.wake_at().is_some_and(BootTime::has_passed);
        match self.discovery.is_still_master() {
            None if is_late && self.discovery.has_next() => {
                self.discovery.ask_next_sentinel();
                self.progress_at = BootTime::now();
                None
            }
            None if !is_late => None,
            Some(false) => Some(Err(self.demoted())),
            // Without any Sentinel there is no failover.
            None | Some(true) => {
                self.progress_at = BootTime::now();
                self.unconfirmed.take().map(Ok)
            }
        }
    }

    /// Always `None`: the request was sent elsewhere, or will be retried.
    pub(super) fn follow(
        &mut self,
        redirection: &Redirection,
        call: Call,
        error: &RedisError,
    ) -> Result<Option<(Call, Value)>, BackendError> {
        let why = ServerError::new(error.code(), error.details(), call.name());
        let why = self.error(Problem::Server(ServerError { kind: ServerErrorKind::CannotServe, ..why }));
        let (asked_at, earlier) = (self.asked_at, self.delay.take().filter(|delay| delay.is_stalled));
        match redirection {
            Redirection::Moved => {
                self.disconnect();
                self.ask_in_full(call)?;
            }
            Redirection::Ask => {
                self.disconnect();
                let bytes = [redis::cmd("ASKING").get_packed_command(), in_full(&call)].concat();
                self.send(&bytes, [Expected::Abandoned, Expected::Reply { call, in_full: true }])?;
            }
            Redirection::Later { elsewhere } => {
                if *elsewhere {
                    self.disconnect();
                }
                self.postponed = Some(Postponed { at: BootTime::now() + RETRY_AFTER, call });
            }
        }
        self.asked_at = asked_at;
        // A timeout reports what the request waits for, not where it was sent on the way.
        self.delay = match redirection {
            Redirection::Later { .. } => Some(Delay { why, is_stalled: true }),
            Redirection::Moved | Redirection::Ask => earlier.or(Some(Delay { why, is_stalled: false })),
        };
        Ok(None)
    }

    fn retry(&mut self) -> Result<(), BackendError> {
        let Some(Postponed { call, .. }) = self.postponed.take() else { return Ok(()) };
        let (asked_at, delay) = (self.asked_at, self.delay.take());
        // Another server may not know the script.
        self.ask_in_full(call)?;
        (self.asked_at, self.delay) = (asked_at, delay);
        Ok(())
    }

    /// The server says that it is a replica: another one is the master now.
    pub(super) fn demoted(&mut self) -> BackendError {
        let error = self.error(Problem::NoLongerMaster);
        self.disconnect();
        error
    }
}

/// Whether a lock was granted or renewed.
fn is_grant(value: &Value) -> bool {
    let Value::Array(fields) = value else { return false };
    matches!(fields.first(), Some(Value::BulkString(tag)) if tag == b"granted" || tag == b"extended")
}
