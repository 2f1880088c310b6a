//! One server: a connection, and a queue of the replies that are expected on it. discovery/ says
//! where to connect.
//!
//! A request is sent without waiting ([`Node::ask`]) and its reply is read later ([`Node::reply`]),
//! so that one thread can keep several servers busy.

mod redirects;
mod replies;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;
use redis::Value;

use self::redirects::{Delay, Postponed};
use super::connection::{CLOSED, Connection, ConnectionError, Endpoint, Stage};
use super::discovery::{Address, Discovery};
use super::script::Call;
use super::server::Server;
use crate::clock::BootTime;
use crate::lock::{BackendError, Problem, ServerError, TlsProblem};
use crate::world::{Rule, follows};

/// What a reply on the connection belongs to.
#[derive(Debug)]
enum Expected {
    Login(&'static str),
    Reply {
        call: Call,
        /// The script's text was sent, so it is known.
        in_full: bool,
    },
    /// The caller no longer waits for it.
    Abandoned,
}

/// How soon a server can be expected to reply to the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// No request of ours can have reached it.
    Unreached,
    /// Connected, and it has replied to every request.
    Idle,
    /// Blocked in BLPOP: it reads nothing that is sent after it.
    Blocked,
    /// It owes us a reply: it may be slow or stopped.
    Silent,
    /// The connection was lost, perhaps because it was idle. A new one can be opened.
    Closed,
}

/// Whether a server knows our scripts, as far as it has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScriptCache {
    Warm,
    /// It did not know one, and may not know the others.
    Cold,
}

#[derive(Debug)]
pub(super) struct Node {
    discovery: Discovery,
    connection: Option<Connection>,
    expected: VecDeque<Expected>,
    /// Requests that must not be sent before the login: they would be executed as another user, or
    /// in another database.
    after_login: Vec<u8>,
    /// A request was sent on a connection that is now closed; the server may still execute it.
    in_doubt: bool,
    /// An earlier connection was open.
    reached: bool,
    /// It has replied to something, on any connection.
    has_replied: bool,
    script_cache: ScriptCache,
    /// The last step of the connection: a request was sent, it was opened, a reply arrived. A line
    /// across an ocean needs several round trips to begin.
    progress_at: BootTime,
    /// The time between the last reply and the step before it.
    last_step: Duration,
    /// When the last request was made.
    asked_at: BootTime,
    /// How long one step of the search may take before another server is tried.
    step_timeout: Duration,
    postponed: Option<Postponed>,
    /// A reply that counts only if the server is still the master.
    unconfirmed: Option<(Call, Value)>,
    /// Why the cluster did not execute the last request at once.
    delay: Option<Delay>,
    connection_age: ConnectionAge,
}

/// When the connection was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionAge {
    /// For the last request.
    New,
    /// Before the last request was made. If the server has closed it, for being idle or by CLIENT
    /// KILL, the request is sent once more.
    Reused,
}

/// The server may have closed a connection that was idle for longer than this.
const IDLE: Duration = Duration::from_millis(100);

/// The fraction of the node timeout for one step, while there are other servers to try.
const STEPS_IN_TIMEOUT: u32 = 4;

impl Node {
    pub(super) fn new(server: Server, node_timeout: Duration) -> Self {
        Self {
            discovery: Discovery::new(server),
            connection: None,
            expected: VecDeque::new(),
            after_login: Vec::new(),
            in_doubt: false,
            reached: false,
            has_replied: false,
            script_cache: ScriptCache::Warm,
            progress_at: BootTime::now(),
            last_step: Duration::ZERO,
            asked_at: BootTime::now(),
            step_timeout: node_timeout / STEPS_IN_TIMEOUT,
            postponed: None,
            unconfirmed: None,
            delay: None,
            connection_age: ConnectionAge::New,
        }
    }

    pub(super) fn name(&self) -> String {
        self.discovery.name()
    }

    /// Send a request, connecting if necessary. The replies to earlier requests are no longer
    /// wanted, but the order is kept: what the server executes late, it executes before this.
    pub(super) fn ask(&mut self, call: Call) -> Result<(), BackendError> {
        // If no reply is read, then neither is one that says that the script is unknown. That may
        // happen after an unanswered request, and to a release, which waits for a majority only.
        let may_go_unread = self.in_doubt || self.has_unanswered_script();
        if call.is_in_full() || may_go_unread || self.script_cache == ScriptCache::Cold && call.is_release() {
            return self.ask_in_full(call);
        }
        self.send(&call.packed(), [Expected::Reply { call, in_full: false }])
    }

    fn ask_in_full(&mut self, call: Call) -> Result<(), BackendError> {
        self.send(&in_full(&call), [Expected::Reply { call, in_full: true }])
    }

    fn send(
        &mut self,
        bytes: &[u8],
        expected: impl IntoIterator<Item = Expected>,
    ) -> Result<(), BackendError> {
        (self.postponed, self.unconfirmed, self.delay) = (None, None, None);
        self.drop_closed_connection();
        let is_open = self.connection.is_some();
        self.connection_age = if is_open { ConnectionAge::Reused } else { ConnectionAge::New };
        if self.connection.is_none() {
            self.open_connection()?;
        }
        for earlier in &mut self.expected {
            if matches!(earlier, Expected::Reply { .. }) {
                *earlier = Expected::Abandoned;
            }
        }
        if !self.is_ready() {
            self.after_login.extend(bytes);
        } else if let Some(connection) = &mut self.connection {
            connection.send(bytes);
        }
        self.expected.extend(expected);
        self.progress_at = BootTime::now();
        self.asked_at = self.progress_at;
        Ok(())
    }

    /// Reads what has arrived on a connection that was not used for a while: the server may have
    /// closed it.
    fn drop_closed_connection(&mut self) {
        if self.progress_at.elapsed() > IDLE && follows(Rule::Resend) {
            self.connection_age = ConnectionAge::New;
            self.discard_replies();
        }
    }

    /// Sends the last request once more, over a new connection: the server has closed the old one,
    /// which was open before the request was made. Every request of ours can be executed twice.
    /// BLPOP ends without an element instead: the one that it slept for may be lost with the
    /// connection, so the caller has to ask what has changed.
    fn resend(&mut self) -> Option<Result<Option<(Call, Value)>, BackendError>> {
        let age = std::mem::replace(&mut self.connection_age, ConnectionAge::New);
        // Where another server may take this one's place, it must be found first.
        let is_fixed = self.discovery.is_fixed();
        let may_resend = is_fixed && age == ConnectionAge::Reused && follows(Rule::Resend);
        let last = self.expected.pop_back().filter(|_| may_resend);
        let Some(Expected::Reply { call, .. }) = last else { return None };
        self.in_doubt |= matches!(call, Call::Script { .. });
        self.disconnect();
        // A server that closes each connection at once must not be asked without a pause.
        let has_slept = matches!(call, Call::BlockingPop { .. }) && self.asked_at.elapsed() > IDLE;
        if has_slept && follows(Rule::WokenByEnd) {
            return Some(Ok(Some((call, Value::Nil))));
        }
        let asked_at = self.asked_at;
        let resent = self.ask_in_full(call);
        self.asked_at = asked_at;
        Some(resent.map(|()| None))
    }

    /// Whether the kernel has the last request, so that it is delivered even if we exit.
    pub(super) fn has_sent_all(&self) -> bool {
        let is_sent = self.connection.as_ref().is_none_or(Connection::has_sent_all);
        is_sent && self.after_login.is_empty()
    }

    /// Whether the last request was sent without the script's text, and is unanswered.
    pub(super) fn may_lack_script(&self) -> bool {
        matches!(self.expected.back(), Some(Expected::Reply { in_full: false, .. }))
    }

    /// Start connecting, if there is no connection. A failure is reported with the next request.
    pub(super) fn connect(&mut self) {
        if self.connection.is_none() && self.open_connection().is_err() {
            self.disconnect();
        }
    }

    /// Drop the connection. The server may still execute what it has received. A request that grants
    /// or renews is not delivered after this.
    pub(super) fn disconnect(&mut self) {
        if self.may_grant_late()
            && follows(Rule::Abort)
            && let Some(connection) = &self.connection
        {
            connection.abort();
        }
        self.hang_up();
    }

    /// Drop a connection that is not needed now. A release that was sent last must be delivered: a busy
    /// server would execute what is before it, and not the release itself, if the connection is reset
    /// before it replies.
    pub(super) fn put_away(&mut self) {
        match self.expected.back() {
            Some(Expected::Reply { call, .. }) if call.is_release() || !follows(Rule::AbortAside) => {
                self.hang_up();
            }
            Some(Expected::Reply { .. } | Expected::Login(_) | Expected::Abandoned) | None => {
                self.disconnect();
            }
        }
    }

    fn hang_up(&mut self) {
        // The server has not received requests that still wait for the login.
        let was_open = self.is_connected() && !self.is_logging_in();
        self.reached |= was_open;
        self.discovery.failed_connects += usize::from(self.connection.is_some() && !was_open);
        self.in_doubt |= was_open && self.has_unanswered_script();
        self.expected.clear();
        self.after_login.clear();
        (self.postponed, self.unconfirmed) = (None, None);
        self.connection = None;
    }

    /// Whether a request can be sent without starting a thread.
    pub(super) fn has_address(&self) -> bool {
        !self.discovery.server.needs_lookup()
    }

    pub(super) fn is_resolving(&self) -> bool {
        self.discovery.is_resolving()
    }

    /// The server that the name in the URL stands for at the moment.
    pub(super) fn present(&self) -> Option<&Address> {
        self.discovery.present()
    }

    /// Whether there is a connection, at any stage.
    pub(super) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// When the server's certificate expires, if there is a connection with TLS.
    pub(super) fn certificate_expires(&self) -> Option<SystemTime> {
        self.connection.as_ref()?.certificate_expires()
    }

    pub(super) fn progress_at(&self) -> BootTime {
        let is_stalled = self.delay.as_ref().is_some_and(|delay| delay.is_stalled);
        if is_stalled { self.asked_at } else { self.progress_at }
    }

    /// The round trip of the last reply, without the time to connect.
    pub(super) fn round_trip(&self) -> Duration {
        self.last_step
    }

    pub(super) fn has_replied(&self) -> bool {
        self.has_replied
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub(super) fn readiness(&self) -> Readiness {
        let is_blocked = self.expected.iter().any(|expected| match expected {
            Expected::Reply { call: Call::BlockingPop { .. }, .. } => true,
            Expected::Reply { call: Call::Script { .. } | Call::Command { .. }, .. }
            | Expected::Login(_)
            | Expected::Abandoned => false,
        });
        if !self.in_doubt && !self.reached && !self.is_connected() {
            Readiness::Unreached
        } else if is_blocked {
            Readiness::Blocked
        } else if self.is_connected() && self.expected.is_empty() {
            Readiness::Idle
        } else if self.connection.is_none() {
            Readiness::Closed
        } else {
            Readiness::Silent
        }
    }

    pub(super) fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        if self.unconfirmed.is_some() {
            return self.discovery.poll_for();
        }
        let connection = self.connection.as_ref().and_then(Connection::interest);
        connection.or_else(|| self.discovery.poll_for())
    }

    fn open_connection(&mut self) -> Result<(), BackendError> {
        let found =
            self.discovery.start().map_err(|error| self.error(ConnectionError::Io(error).problem()))?;
        self.connection = Some(self.connection_with_login());
        self.connect_to(found);
        Ok(())
    }

    /// `None` is a endpoint that is not known yet.
    fn connect_to(&mut self, endpoint: Option<Endpoint>) {
        if let (Some(connection), Some(endpoint)) = (&mut self.connection, endpoint) {
            connection.connect(endpoint);
        }
    }

    fn connection_with_login(&mut self) -> Connection {
        let mut connection = Connection::default();
        for (step, bytes) in self.discovery.server.login() {
            connection.send(&bytes);
            self.expected.push_back(Expected::Login(step));
        }
        connection
    }

    fn is_connected(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_open)
    }

    fn is_logging_in(&self) -> bool {
        matches!(self.expected.front(), Some(Expected::Login(_)))
    }

    /// Whether a script may have been executed, or may yet be, without our knowledge.
    fn has_unanswered_script(&self) -> bool {
        self.expected.iter().any(|expected| match expected {
            Expected::Reply { call: Call::Script { .. }, .. } | Expected::Abandoned => true,
            Expected::Reply { call: Call::BlockingPop { .. } | Call::Command { .. }, .. }
            | Expected::Login(_) => false,
        })
    }

    /// Whether a request that grants or renews is unanswered.
    fn may_grant_late(&self) -> bool {
        self.expected.iter().any(|expected| match expected {
            Expected::Reply { call, .. } => matches!(call, Call::Script { .. }) && !call.is_release(),
            Expected::Abandoned => true,
            Expected::Login(_) => false,
        })
    }

    pub(super) fn error(&self, problem: Problem) -> BackendError {
        self.discovery.error(problem)
    }

    pub(super) fn timed_out(&self) -> BackendError {
        if let Some(delay) = &self.delay {
            return delay.why.clone();
        }
        let stage = self.connection.as_ref().map(Connection::stage);
        let is_before_tls = stage == Some(Stage::Connected) && !self.has_replied;
        self.error(if is_before_tls { Problem::Tls(TlsProblem::NoAnswer) } else { Problem::TimedOut })
    }

    fn server_error(&self, error: &redis::ServerError, during: &'static str) -> BackendError {
        self.error(Problem::Server(ServerError::new(error.code(), error.details(), during)))
    }

    fn connection_error(&self, error: ConnectionError) -> BackendError {
        // The protocol and the certificate are right if the server has replied before.
        let is_plain_end = self.has_replied
            && matches!(error, ConnectionError::Unanswered | ConnectionError::ClosedWithTls(_));
        self.error(if is_plain_end { Problem::Connection(CLOSED.into()) } else { error.problem() })
    }
}

fn in_full(call: &Call) -> Vec<u8> {
    call.packed_in_full().unwrap_or_else(|| call.packed())
}
