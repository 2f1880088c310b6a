//! Matching what arrives on the connection to what was sent.

use redis::Value;

use super::{Expected, Node, Readiness, ScriptCache};
use crate::clock::BootTime;
use crate::lock::redis::reply::Reply;
use crate::lock::redis::script::Call;
use crate::lock::redis::server::ROLE;
use crate::lock::{BackendError, Problem};

impl Node {
    /// The reply to the last request, if it has arrived.
    pub(in crate::lock::redis) fn reply<R: Reply>(&mut self) -> Option<Result<R, BackendError>> {
        let result = self.next_reply(R::is_reply_to)?;
        Some(result.and_then(|(call, value)| match R::parse(&call, &value) {
            Err(Problem::Replica) if !self.discovery.is_fixed() => Err(self.demoted()),
            parsed => parsed.map_err(|problem| self.error(problem)),
        }))
    }

    /// Drop the replies that have arrived and that no caller waits for.
    pub(in crate::lock::redis) fn discard_replies(&mut self) {
        while self.next_reply(|_| true).is_some() {}
    }

    /// The next reply to a request of this kind; replies to others are dropped.
    fn next_reply(
        &mut self,
        is_wanted: impl Fn(&Call) -> bool,
    ) -> Option<Result<(Call, Value), BackendError>> {
        if self.unconfirmed.is_some() {
            let confirmed = self.confirmed()?;
            return Some(confirmed).filter(|reply| reply.as_ref().map_or(true, |(call, _)| is_wanted(call)));
        }
        if let Err(error) = self.find_server() {
            return Some(Err(error));
        }
        let connection = self.connection.as_mut()?;
        let stage = connection.stage();
        connection.advance();
        if connection.stage() != stage {
            self.progress_at = BootTime::now();
        }
        loop {
            self.send_held_back();
            let bytes = match self.connection.as_mut()?.next_reply() {
                Ok(bytes) => bytes?,
                Err(e) if self.is_ready() => {
                    let resent = if e.is_end() { self.resend() } else { None };
                    match resent.map(Result::transpose) {
                        Some(None) => continue,
                        Some(ended) => return ended,
                        None => {}
                    }
                    self.disconnect();
                    return Some(Err(self.connection_error(e)));
                }
                Err(e) => match self.go_elsewhere(self.connection_error(e)) {
                    Ok(()) => continue,
                    Err(error) => return Some(Err(error)),
                },
            };
            let value = match redis::parse_redis_value(&bytes) {
                Ok(value) => value,
                Err(e) => {
                    self.disconnect();
                    return Some(Err(self.error(Problem::UnreadableReply(e.to_string()))));
                }
            };
            let now = BootTime::now();
            // BLPOP sleeps.
            if self.readiness() != Readiness::Blocked {
                self.last_step = now.since(self.progress_at);
            }
            self.progress_at = now;
            self.has_replied = true;
            let outcome = match self.expected.pop_front() {
                Some(Expected::Abandoned) => Ok(None),
                Some(Expected::Login(step)) => self.on_login(step, &value).map(|()| None),
                Some(Expected::Reply { call, in_full }) => {
                    let reply = self.on_reply(call, in_full, value);
                    reply.map(|reply| reply.filter(|(call, _)| is_wanted(call)))
                }
                None => Err(self.on_unsolicited(&value)),
            };
            if let Some(result) = outcome.transpose() {
                return Some(result);
            }
            if self.unconfirmed.is_some() {
                return None;
            }
        }
    }

    /// Check one step of the login.
    fn on_login(&mut self, step: &'static str, value: &Value) -> Result<(), BackendError> {
        if let Value::ServerError(e) = value {
            self.disconnect();
            return Err(self.server_error(e, step));
        }
        if step == ROLE {
            if !is_of_master(value) {
                return self.go_elsewhere(self.error(Problem::Replica));
            }
            self.discovery.confirm();
        }
        Ok(())
    }

    /// `None` if the script was unknown, and its text has been sent.
    fn on_reply(
        &mut self,
        call: Call,
        in_full: bool,
        value: Value,
    ) -> Result<Option<(Call, Value)>, BackendError> {
        let name = call.name();
        let Value::ServerError(e) = value else {
            self.discovery.confirm();
            return Ok(self.confirm(call, value));
        };
        if matches!(call, Call::BlockingPop { .. }) && self.discovery.ends_blpop(&e) {
            return Ok(Some((call, Value::Nil)));
        }
        if let Some(redirection) = self.discovery.redirect(&e) {
            return self.follow(&redirection, call, &e);
        }
        let whole = call.packed_in_full().filter(|_| e.code() == "NOSCRIPT" && !in_full);
        if whole.is_some() {
            self.script_cache = ScriptCache::Cold;
        }
        match (whole, &mut self.connection) {
            (Some(bytes), Some(connection)) => {
                connection.send(&bytes);
                self.expected.push_back(Expected::Reply { call, in_full: true });
                Ok(None)
            }
            _ if e.code() == "READONLY" && !self.discovery.is_fixed() => Err(self.demoted()),
            _ => Err(self.server_error(&e, name)),
        }
    }

    /// A server that rejects a connection (too many clients, protected mode) says so unasked. After
    /// anything else, no reply could be trusted to belong to its request.
    fn on_unsolicited(&mut self, value: &Value) -> BackendError {
        self.disconnect();
        if let Value::ServerError(e) = value {
            return self.server_error(e, "connecting");
        }
        self.error(Problem::UnreadableReply("nothing was asked".into()))
    }
}

/// Whether this reply to INFO replication is a master's.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn is_of_master(value: &Value) -> bool {
    match value {
        Value::BulkString(text) => text.windows(b"role:master".len()).any(|part| part == b"role:master"),
        _ => false,
    }
}
