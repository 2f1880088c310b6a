//! A server that must be found first, or that sends us elsewhere. What is asked is kept until a server is reached, so
//! that it can be asked another one.

use std::time::Duration;

use redis::{ServerError as RedisError, Value};

use super::{Expected, Node};
use crate::clock::BootTime;
use crate::lock::redis::address::Address;
use crate::lock::redis::cluster::Redirection;
use crate::lock::redis::script::Call;
use crate::lock::{BackendError, Problem, ServerError, ServerErrorKind};

/// How soon a request is tried again while its slot is on its way to another node, or has no master.
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
    /// It cannot be executed now: whatever the cluster says after that is no progress.
    pub is_stalled: bool,
}

impl Node {
    /// When something is to be done even if nothing arrives.
    pub(in crate::lock::redis) fn wake_at(&self) -> Option<BootTime> {
        if let Some(postponed) = &self.postponed {
            return Some(postponed.at);
        }
        if self.unconfirmed.is_some() {
            return Some(self.progress_at + self.route.patience(self.step_timeout));
        }
        // Sentinels, masters and cluster nodes that do not answer are passed over, as long as there are others.
        let may_be_passed_over = !self.is_ready() && self.connection.is_some() && self.route.has_next();
        may_be_passed_over.then(|| self.progress_at + self.step_timeout)
    }

    /// Connected and logged in, as far as that is known before something is sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.is_logging_in() && (self.route.is_fixed() || self.is_connected())
    }

    /// The next step towards a connection: a Sentinel has answered, a name was resolved, the time for a step is over.
    pub(super) fn find_server(&mut self) -> Result<(), BackendError> {
        if self.postponed.as_ref().is_some_and(|postponed| postponed.at.has_passed()) {
            self.try_again()?;
        }
        if self.connection.is_none() {
            return Ok(());
        }
        if !self.route.is_fixed()
            && self.postponed.is_none()
            && self.wake_at().is_some_and(BootTime::has_passed)
        {
            let why = self.route.error(self.name_now(), Problem::TimedOut);
            return self.go_elsewhere(why);
        }
        match self.route.answer() {
            Some(Ok(address)) => self.dial(&address)?,
            Some(Err(why)) => self.go_elsewhere(why)?,
            None => {}
        }
        if let Some(found) = self.lookup.result() {
            match (found, &mut self.connection) {
                (Ok(mut addresses), Some(connection)) => {
                    let first = self.failed_connects % addresses.len().max(1);
                    addresses.rotate_left(first);
                    connection.connect(addresses);
                }
                (Ok(_), None) => {}
                (Err(error), _) => {
                    let why = self.error(Problem::UnknownHost(error.to_string()));
                    self.go_elsewhere(why)?;
                }
            }
        }
        Ok(())
    }

    /// Connect to this address, now or when its name is resolved.
    pub(super) fn dial(&mut self, address: &Address) -> Result<(), BackendError> {
        match (self.lookup.start(address), &mut self.connection) {
            (Ok(found), Some(connection)) => {
                connection.set_security(self.server.security(&address.host));
                if let Some(address) = found {
                    connection.connect(vec![address]);
                }
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                let why = self.unreachable(&error);
                self.go_elsewhere(why)?;
            }
        }
        Ok(())
    }

    /// What waits for the connection is sent when that is there.
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
        let address = self.route.pass_over(self.name(), why)?;
        self.connection = Some(self.connection_with_login());
        self.expected.extend(waiting);
        self.after_login = held_back;
        self.progress_at = BootTime::now();
        address.map_or(Ok(()), |address| self.dial(&address))
    }

    /// What counts for a lock is held back until it is known that the server is still the master.
    pub(super) fn confirm(&mut self, call: Call, value: Value) -> Option<(Call, Value)> {
        if !is_grant(&value) || !self.route.must_be_asked() {
            return Some((call, value));
        }
        self.unconfirmed = Some((call, value));
        self.progress_at = BootTime::now();
        None
    }

    /// The reply that was held back, when it is known what it is worth.
    pub(super) fn confirmed(&mut self) -> Option<Result<(Call, Value), BackendError>> {
        let is_late = self.wake_at().is_some_and(BootTime::has_passed);
        match self.route.verdict() {
            None if is_late && self.route.has_next() => {
                let why = self.route.error(self.name_now(), Problem::TimedOut);
                self.route.ask_next(why);
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

    /// `None` if the request was sent elsewhere, or will be tried again.
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
                self.send_again(call)?;
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
        // What makes it wait is told, not where it was sent on the way.
        self.delay = match redirection {
            Redirection::Later { .. } => Some(Delay { why, is_stalled: true }),
            Redirection::Moved | Redirection::Ask => earlier.or(Some(Delay { why, is_stalled: false })),
        };
        Ok(None)
    }

    fn try_again(&mut self) -> Result<(), BackendError> {
        let Some(Postponed { call, .. }) = self.postponed.take() else { return Ok(()) };
        let (asked_at, delay) = (self.asked_at, self.delay.take());
        self.send_again(call)?;
        (self.asked_at, self.delay) = (asked_at, delay);
        Ok(())
    }

    /// With the script's whole text: another server may not know it.
    fn send_again(&mut self, call: Call) -> Result<(), BackendError> {
        self.send(&in_full(&call), [Expected::Reply { call, in_full: true }])
    }

    /// The server said that it is a replica: another one is the master now.
    pub(super) fn demoted(&mut self) -> BackendError {
        let error = self.error(Problem::NoLongerMaster);
        self.disconnect();
        error
    }

    /// The server that a name in a URL stands for now.
    pub(in crate::lock::redis) fn present(&self) -> Option<&Address> {
        self.route.present()
    }

    /// The name in the URL, and the server that it stands for now.
    pub(super) fn name_now(&self) -> String {
        match self.route.present() {
            Some(address) => format!("{} ({address})", self.server),
            None => self.name(),
        }
    }
}

/// A lock was granted or renewed.
fn is_grant(value: &Value) -> bool {
    let Value::Array(fields) = value else { return false };
    matches!(fields.first(), Some(Value::BulkString(tag)) if tag == b"granted" || tag == b"extended")
}

fn in_full(call: &Call) -> Vec<u8> {
    call.packed_in_full().unwrap_or_else(|| call.packed())
}
