//! One server: connect, log in, match replies to requests.
//!
//! A request is sent without waiting ([`Node::ask`]) and its reply is read later ([`Node::reply`]), so
//! that one thread can have several servers at work.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use nix::poll::PollFlags;
use redis::Value;

use super::connection::Connection;
use super::reply::Reply;
use super::resolve::{Resolution, resolve};
use super::script::{Call, Waiting};
use super::server::{Server, Target};
use crate::clock::BootTime;
use crate::lock::{BackendError, Problem, ServerError};

/// What the next reply on the connection belongs to.
#[derive(Debug)]
enum Expected {
    Login(&'static str),
    /// BLPOP has returned: what was sent behind it is executed now.
    WakeUp,
    Reply {
        call: Call,
        /// The script's text was sent, so it cannot be unknown.
        in_full: bool,
    },
    /// The caller no longer waits for this one.
    Abandoned,
}

/// What can be expected of a server that is about to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No request of ours can have reached it.
    Unreached,
    /// Connected, and every request was answered: the next one will be answered soon, too.
    Idle,
    /// Blocked in BLPOP, and deaf to anything sent behind it.
    Blocked,
    /// It owes us a reply, or the connection was lost: it may be slow or stopped.
    Silent,
}

#[derive(Debug)]
pub(super) struct Node {
    server: Server,
    connection: Option<Connection>,
    /// The server's name is being resolved. Kept when a connection is given up, so that there is one look-up
    /// at a time.
    resolution: Option<Resolution>,
    expected: VecDeque<Expected>,
    /// Requests that are not sent before we are logged in: they would be executed as another user, or in
    /// another database.
    after_login: Vec<u8>,
    /// A request was sent on a connection that is now closed; the server may still execute it.
    in_doubt: bool,
    /// An earlier connection was open.
    reached: bool,
    /// How many connections never were: the next one starts with another of the host's addresses.
    failed_connects: usize,
    /// What was sent behind the last request, until that is answered.
    behind: Option<Waiting>,
    /// When the connection last came a step further: a request was sent, it was opened, a reply arrived. A line
    /// across an ocean needs several round trips to begin.
    progress_at: BootTime,
}

impl Node {
    pub(super) fn new(server: Server) -> Self {
        Self {
            server,
            connection: None,
            resolution: None,
            expected: VecDeque::new(),
            after_login: Vec::new(),
            in_doubt: false,
            reached: false,
            failed_connects: 0,
            behind: None,
            progress_at: BootTime::now(),
        }
    }

    pub(super) fn name(&self) -> String {
        self.server.to_string()
    }

    /// Send a request, behind whatever is still in flight on the connection, connecting if need be. The reply
    /// to an earlier request is then no longer wanted, but the order is kept: what the server executes late
    /// it executes before this.
    pub(super) fn ask(&mut self, call: Call) -> Result<(), BackendError> {
        // Behind an unanswered request the reply may go unread, even one that says that the script is unknown.
        let may_go_unread = self.in_doubt || self.has_unanswered_script();
        if may_go_unread {
            return self.ask_in_full(call);
        }
        self.send(&call.packed(), [Expected::Reply { call, in_full: false }])
    }

    /// The same with the script's whole text: one round trip, whether the server knows the script or not.
    pub(super) fn ask_in_full(&mut self, call: Call) -> Result<(), BackendError> {
        let bytes = call.packed_in_full().unwrap_or_else(|| call.packed());
        self.send(&bytes, [Expected::Reply { call, in_full: true }])
    }

    pub(super) fn ask_after_wakeup(&mut self, waiting: Waiting) -> Result<(), BackendError> {
        self.send(
            &waiting.packed(),
            [Expected::WakeUp, Expected::Reply { call: waiting.call, in_full: false }],
        )
    }

    /// Send a request, and behind it another one that waits. The first must end the BLPOP itself if there is
    /// nothing to wait for.
    pub(super) fn ask_and_wait(&mut self, first: Call, waiting: Waiting) -> Result<(), BackendError> {
        self.send_both(first, false, waiting)
    }

    fn send_both(&mut self, first: Call, in_full: bool, waiting: Waiting) -> Result<(), BackendError> {
        let whole = if in_full { first.packed_in_full() } else { None };
        let bytes = [whole.unwrap_or_else(|| first.packed()), waiting.packed()].concat();
        let behind = Expected::Reply { call: waiting.call.clone(), in_full: false };
        self.send(&bytes, [Expected::Reply { call: first, in_full }, Expected::WakeUp, behind])?;
        self.behind = Some(waiting);
        Ok(())
    }

    /// The replies that have not come yet are no longer wanted.
    pub(super) fn ignore_rest(&mut self) {
        for earlier in &mut self.expected {
            if matches!(earlier, Expected::Reply { .. }) {
                *earlier = Expected::Abandoned;
            }
        }
    }

    fn send(
        &mut self,
        bytes: &[u8],
        expected: impl IntoIterator<Item = Expected>,
    ) -> Result<(), BackendError> {
        if self.connection.is_none() {
            self.connection = Some(self.open_connection().map_err(|e| self.unreachable(&e))?);
        }
        self.ignore_rest();
        self.behind = None;
        if self.is_logging_in() {
            self.after_login.extend(bytes);
        } else if let Some(connection) = &mut self.connection {
            connection.send(bytes);
        }
        self.expected.extend(expected);
        self.progress_at = BootTime::now();
        Ok(())
    }

    /// Start connecting, if there is no connection. A failure is reported when something is asked.
    pub(super) fn connect(&mut self) {
        if self.connection.is_none() {
            self.connection = self.open_connection().ok();
        }
    }

    /// Drop the connection. What was sent on it may still be executed.
    pub(super) fn disconnect(&mut self) {
        // The server knows nothing of requests that still wait for the login, or never got through.
        let was_open = self.is_connected() && !self.is_logging_in();
        self.reached |= was_open;
        self.failed_connects += usize::from(self.connection.is_some() && !was_open);
        self.in_doubt |= was_open && self.has_unanswered_script();
        self.expected.clear();
        self.after_login.clear();
        self.connection = None;
    }

    /// Whether the server can be asked without starting a thread.
    pub(super) fn has_address(&self) -> bool {
        self.server.address().is_ok_and(|address| address.is_some())
    }

    pub(super) fn is_resolving(&self) -> bool {
        self.resolution.is_some()
    }

    /// Whether there is a connection, however far it is.
    pub(super) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    pub(super) fn progress_at(&self) -> BootTime {
        self.progress_at
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub(super) fn state(&self) -> State {
        let is_blocked = self.expected.iter().any(|expected| match expected {
            Expected::WakeUp | Expected::Reply { call: Call::BlockingPop { .. }, .. } => true,
            Expected::Reply { call: Call::Script { .. }, .. } | Expected::Login(_) | Expected::Abandoned => {
                false
            }
        });
        if !self.in_doubt && !self.reached && !self.is_connected() {
            State::Unreached
        } else if is_blocked {
            State::Blocked
        } else if self.is_connected() && self.expected.is_empty() {
            State::Idle
        } else {
            State::Silent
        }
    }

    pub(super) fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let resolving = || Some((self.resolution.as_ref()?.wake_fd(), PollFlags::POLLIN));
        self.connection.as_ref().and_then(Connection::interest).or_else(resolving)
    }

    /// The reply to the last request, if it has arrived.
    pub(super) fn reply<R: Reply>(&mut self) -> Option<Result<R, BackendError>> {
        let result = self.next_reply(R::answers)?;
        Some(result.and_then(|(call, value)| R::parse(&call, &value).map_err(|problem| self.error(problem))))
    }

    /// Read and drop the replies that have arrived and that no caller waits for.
    pub(super) fn discard_replies(&mut self) {
        while self.next_reply(|_| true).is_some() {}
    }

    /// The next reply to a request of this kind; replies to others are dropped.
    fn next_reply(
        &mut self,
        is_wanted: impl Fn(&Call) -> bool,
    ) -> Option<Result<(Call, Value), BackendError>> {
        if let Err(e) = self.finish_resolution() {
            self.disconnect();
            return Some(Err(self.error(Problem::UnknownHost(e.to_string()))));
        }
        let was_connected = self.is_connected();
        self.connection.as_mut()?.advance();
        if !was_connected && self.is_connected() {
            self.progress_at = BootTime::now();
        }
        loop {
            let bytes = match self.connection.as_mut()?.next_reply() {
                Ok(bytes) => bytes?,
                Err(e) => return Some(Err(self.broken(&e))),
            };
            let value = match redis::parse_redis_value(&bytes) {
                Ok(value) => value,
                Err(e) => {
                    self.disconnect();
                    return Some(Err(self.error(Problem::UnreadableReply(e.to_string()))));
                }
            };
            self.progress_at = BootTime::now();
            let outcome = match self.expected.pop_front() {
                Some(Expected::Abandoned) => Ok(None),
                Some(Expected::WakeUp) => self.on_wakeup(&value).map(|()| None),
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
        }
    }

    /// Connect, if the name was resolved meanwhile.
    fn finish_resolution(&mut self) -> io::Result<()> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let Some(found) = self.resolution.as_ref().and_then(Resolution::result) else { return Ok(()) };
        self.resolution = None;
        let mut addresses = found?;
        let first = self.failed_connects % addresses.len().max(1);
        addresses.rotate_left(first);
        connection.connect(addresses);
        Ok(())
    }

    /// After the last step the waiting requests are sent.
    fn on_login(&mut self, step: &'static str, value: &Value) -> Result<(), BackendError> {
        if let Value::ServerError(e) = value {
            self.disconnect();
            return Err(self.server_error(e, step));
        }
        if let (false, Some(connection)) = (self.is_logging_in(), &mut self.connection) {
            connection.send(&std::mem::take(&mut self.after_login));
        }
        Ok(())
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    fn on_wakeup(&mut self, value: &Value) -> Result<(), BackendError> {
        match value {
            Value::ServerError(e) => {
                let error = self.server_error(e, "BLPOP");
                // What was sent behind it is not worth waiting for.
                self.disconnect();
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// `None` if the script was unknown, and has been sent again as a whole.
    fn on_reply(
        &mut self,
        call: Call,
        in_full: bool,
        value: Value,
    ) -> Result<Option<(Call, Value)>, BackendError> {
        let behind = self.behind.take();
        let Value::ServerError(e) = value else { return Ok(Some((call, value))) };
        let whole = call.packed_in_full().filter(|_| e.code() == "NOSCRIPT" && !in_full);
        match (whole, behind, &mut self.connection) {
            // The BLPOP behind it is in the way, and nothing has been executed.
            (Some(_), Some(waiting), _) => {
                self.disconnect();
                self.send_both(call, true, waiting).map(|()| None)
            }
            (Some(bytes), None, Some(connection)) => {
                connection.send(&bytes);
                self.expected.push_back(Expected::Reply { call, in_full: true });
                Ok(None)
            }
            _ => Err(self.server_error(&e, "the lock script")),
        }
    }

    /// A server that rejects a connection (too many clients, protected mode) says so unasked. After anything else
    /// no reply could be trusted to belong to its request.
    fn on_unsolicited(&mut self, value: &Value) -> BackendError {
        self.disconnect();
        if let Value::ServerError(e) = value {
            return self.server_error(e, "connecting");
        }
        self.error(Problem::UnreadableReply("nothing was asked".into()))
    }

    fn open_connection(&mut self) -> io::Result<Connection> {
        let mut connection = Connection::default();
        for (step, bytes) in self.server.login() {
            connection.send(&bytes);
            self.expected.push_back(Expected::Login(step));
        }
        match (self.server.address()?, &self.server.target) {
            (Some(address), _) => connection.connect(vec![address]),
            (None, Target::Tcp { host, port }) if self.resolution.is_none() => {
                self.resolution = Some(resolve(host, *port)?);
            }
            (None, Target::Tcp { .. } | Target::Unix(_)) => {}
        }
        Ok(connection)
    }

    fn is_connected(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_open)
    }

    fn is_logging_in(&self) -> bool {
        matches!(self.expected.front(), Some(Expected::Login(_)))
    }

    /// A script of which we do not know whether it was, or will be, executed.
    fn has_unanswered_script(&self) -> bool {
        self.expected.iter().any(|expected| match expected {
            Expected::Reply { call: Call::Script { .. }, .. } | Expected::Abandoned => true,
            Expected::Reply { call: Call::BlockingPop { .. }, .. }
            | Expected::WakeUp
            | Expected::Login(_) => false,
        })
    }

    pub(super) fn timed_out(&self) -> BackendError {
        self.error(Problem::TimedOut)
    }

    pub(super) fn error(&self, problem: Problem) -> BackendError {
        BackendError::new(self.name(), problem)
    }

    fn server_error(&self, error: &redis::ServerError, during: &'static str) -> BackendError {
        self.error(Problem::Server(ServerError::new(error.code(), error.details(), during)))
    }

    fn broken(&mut self, error: &io::Error) -> BackendError {
        self.disconnect();
        self.unreachable(error)
    }

    fn unreachable(&self, error: &io::Error) -> BackendError {
        self.error(match (error.kind(), &self.server.target) {
            (io::ErrorKind::ConnectionRefused, _) => Problem::ConnectionRefused,
            (io::ErrorKind::NotFound, Target::Unix(_)) => Problem::NoSocket,
            (io::ErrorKind::PermissionDenied, _) => Problem::SocketPermission,
            _ => Problem::Connection(error.to_string()),
        })
    }
}
