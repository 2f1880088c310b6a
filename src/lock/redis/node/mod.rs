//! One server: connect, log in, match replies to requests.
//!
//! A request is sent without waiting ([`Node::ask`]) and its reply is read later ([`Node::reply`]), so
//! that one thread can have several servers at work.

mod errors;
mod replies;
mod routing;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;
use redis::Value;

use self::routing::{Delay, Postponed};
use super::address::Address;
use super::connection::Connection;
use super::lookup::Lookup;
use super::route::Route;
use super::script::Call;
use super::server::{Server, Target};
use crate::clock::BootTime;
use crate::lock::BackendError;

/// What the next reply on the connection belongs to.
#[derive(Debug)]
enum Expected {
    Login(&'static str),
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

/// What a server knows of our scripts, as far as it has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScriptCache {
    Warm,
    /// It did not know one: it may not know the others either.
    Cold,
}

#[derive(Debug)]
pub(super) struct Node {
    server: Server,
    connection: Option<Connection>,
    /// Of the server's name. Kept when a connection is given up, so that there is one at a time.
    lookup: Lookup,
    route: Route,
    expected: VecDeque<Expected>,
    /// Requests that are not sent before we are logged in: they would be executed as another user, or in
    /// another database.
    after_login: Vec<u8>,
    /// A request was sent on a connection that is now closed; the server may still execute it.
    in_doubt: bool,
    /// An earlier connection was open.
    reached: bool,
    /// It has answered something, on whichever connection.
    has_answered: bool,
    script_cache: ScriptCache,
    /// How many connections never were: the next one starts with another of the host's addresses.
    failed_connects: usize,
    /// When the connection last came a step further: a request was sent, it was opened, a reply arrived. A line
    /// across an ocean needs several round trips to begin.
    progress_at: BootTime,
    /// How long the last reply took, from the step before it.
    last_step: Duration,
    /// When the last request was made.
    asked_at: BootTime,
    /// What a server that is looked for may take for a step before another one is tried.
    step_timeout: Duration,
    postponed: Option<Postponed>,
    /// A reply that counts only if the server is still the master.
    unconfirmed: Option<(Call, Value)>,
    /// Why the cluster did not execute the last request at once.
    delay: Option<Delay>,
}

/// As long as there are others, a server that is looked for has this part of the node timeout for a step.
const STEPS_IN_TIMEOUT: u32 = 4;

impl Node {
    pub(super) fn new(server: Server, node_timeout: Duration) -> Self {
        Self {
            route: Route::to(&server),
            server,
            connection: None,
            lookup: Lookup::default(),
            expected: VecDeque::new(),
            after_login: Vec::new(),
            in_doubt: false,
            reached: false,
            has_answered: false,
            script_cache: ScriptCache::Warm,
            failed_connects: 0,
            progress_at: BootTime::now(),
            last_step: Duration::ZERO,
            asked_at: BootTime::now(),
            step_timeout: node_timeout / STEPS_IN_TIMEOUT,
            postponed: None,
            unconfirmed: None,
            delay: None,
        }
    }

    pub(super) fn name(&self) -> String {
        self.server.to_string()
    }

    /// Send a request, behind whatever is still in flight on the connection, connecting if need be. The reply
    /// to an earlier request is then no longer wanted, but the order is kept: what the server executes late
    /// it executes before this.
    pub(super) fn ask(&mut self, call: Call) -> Result<(), BackendError> {
        // Behind an unanswered request the reply may go unread, even one that says that the script is unknown. So may that to a
        // release, which is not waited for longer than a majority takes: a server that is new gets all of it.
        let may_go_unread = self.in_doubt || self.has_unanswered_script();
        if may_go_unread || self.script_cache == ScriptCache::Cold && call.is_release() {
            return self.ask_in_full(call);
        }
        self.send(&call.packed(), [Expected::Reply { call, in_full: false }])
    }

    /// The same with the script's whole text: one round trip, whether the server knows the script or not.
    pub(super) fn ask_in_full(&mut self, call: Call) -> Result<(), BackendError> {
        let bytes = call.packed_in_full().unwrap_or_else(|| call.packed());
        self.send(&bytes, [Expected::Reply { call, in_full: true }])
    }

    fn send(
        &mut self,
        bytes: &[u8],
        expected: impl IntoIterator<Item = Expected>,
    ) -> Result<(), BackendError> {
        (self.postponed, self.unconfirmed, self.delay) = (None, None, None);
        if self.connection.is_none() {
            self.open_connection().map_err(|e| self.unreachable(&e))?;
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

    /// Start connecting, if there is no connection. A failure is reported when something is asked.
    pub(super) fn connect(&mut self) {
        if self.connection.is_none() && self.open_connection().is_err() {
            self.disconnect();
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
        (self.postponed, self.unconfirmed) = (None, None);
        self.connection = None;
    }

    /// Whether the server can be asked without starting a thread.
    pub(super) fn has_address(&self) -> bool {
        self.server.address().is_ok_and(|address| address.is_some())
    }

    pub(super) fn is_resolving(&self) -> bool {
        self.lookup.is_running() || self.route.is_resolving()
    }

    /// Whether there is a connection, however far it is.
    pub(super) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// When the certificate of a server with TLS expires, if there is a connection.
    pub(super) fn certificate_expires(&self) -> Option<SystemTime> {
        self.connection.as_ref()?.certificate_expires()
    }

    pub(super) fn progress_at(&self) -> BootTime {
        let is_stalled = self.delay.as_ref().is_some_and(|delay| delay.is_stalled);
        if is_stalled { self.asked_at } else { self.progress_at }
    }

    /// The round trip of the last reply, without what the connection took to begin.
    pub(super) fn round_trip(&self) -> Duration {
        self.last_step
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub(super) fn state(&self) -> State {
        let is_blocked = self.expected.iter().any(|expected| match expected {
            Expected::Reply { call: Call::BlockingPop { .. }, .. } => true,
            Expected::Reply { call: Call::Script { .. } | Call::Command { .. }, .. }
            | Expected::Login(_)
            | Expected::Abandoned => false,
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
        if self.unconfirmed.is_some() {
            return self.route.poll_for();
        }
        let connection = self.connection.as_ref().and_then(Connection::interest);
        let resolving = || Some((self.lookup.wake_fd()?, PollFlags::POLLIN));
        connection.or_else(resolving).or_else(|| self.route.poll_for())
    }

    fn open_connection(&mut self) -> io::Result<()> {
        let mut connection = self.connection_with_login();
        let address = match (&self.server.target, self.route.start()) {
            (Target::Tcp { host, port }, _) => Some(Address { host: host.clone(), port: *port }),
            (_, found) => found,
        };
        let address = match address {
            Some(address) => {
                connection.set_security(self.server.security(&address.host));
                self.lookup.start(&address)
            }
            // A path needs no look-up; Sentinels are asked first.
            None if self.route.is_fixed() => self.server.address(),
            None => Ok(None),
        };
        if let Some(address) = address.inspect_err(|_| self.expected.clear())? {
            connection.connect(vec![address]);
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn connection_with_login(&mut self) -> Connection {
        let mut connection = Connection::default();
        for (step, bytes) in self.server.login() {
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

    /// A script of which we do not know whether it was, or will be, executed.
    fn has_unanswered_script(&self) -> bool {
        self.expected.iter().any(|expected| match expected {
            Expected::Reply { call: Call::Script { .. }, .. } | Expected::Abandoned => true,
            Expected::Reply { call: Call::BlockingPop { .. } | Call::Command { .. }, .. }
            | Expected::Login(_) => false,
        })
    }
}
