//! Where a service's master is. The Sentinels are asked in turn, each for a bounded time, until one
//! names a server that can be used. The server itself must then say that it is a master.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;

use nix::poll::PollFlags;
use redis::Value;

use super::Address;
use super::address::Lookup;
use crate::lock::redis::connection::{Connection, ConnectionError, Endpoint};
use crate::lock::redis::server::{Server, Target};
use crate::lock::redis::server_error::without_arguments;
use crate::lock::{BackendError, Problem};

#[derive(Debug)]
pub(in crate::lock::redis) struct Sentinels {
    addresses: Vec<Address>,
    service: String,
    /// How to log in to them, and whether with TLS.
    server: Server,
    /// The first to ask: it has named a usable master before.
    first: usize,
    /// How many were asked since then, the current one included.
    asked: usize,
    query: Option<Query>,
    /// What was wrong with those that were asked, and with the servers that they named.
    failures: Vec<BackendError>,
}

/// A question to one Sentinel.
#[derive(Debug, Default)]
struct Query {
    connection: Connection,
    lookup: Lookup,
    is_logging_in: bool,
}

impl Sentinels {
    pub(in crate::lock::redis) fn of(server: &Server) -> Option<Self> {
        let Target::Sentinel { sentinels, service } = &server.target else { return None };
        Some(Self {
            addresses: sentinels.clone(),
            service: service.clone(),
            server: server.clone(),
            first: 0,
            asked: 0,
            query: None,
            failures: Vec::new(),
        })
    }

    fn current(&self) -> usize {
        (self.first + self.asked.saturating_sub(1)) % self.addresses.len()
    }

    /// Ask, beginning with the Sentinel that was right the last time.
    pub(in crate::lock::redis) fn start(&mut self) {
        self.asked = 0;
        self.failures.clear();
        self.ask_next();
    }

    /// The current Sentinel, or the server that it named, was of no use. Whether there is another
    /// to ask.
    pub(super) fn pass_over(&mut self, why: BackendError) -> bool {
        self.query = None;
        // Usually all name the same server.
        let is_the_same = |other: &BackendError| {
            other.at == why.at && mem::discriminant(&other.problem) == mem::discriminant(&why.problem)
        };
        if !self.failures.iter().any(is_the_same) {
            self.failures.push(why);
        }
        self.ask_next()
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.addresses.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn has_next(&self) -> bool {
        self.asked < self.addresses.len()
    }

    /// Whether they still name this master, once one of them replies. Without any Sentinel there is
    /// no failover.
    pub(super) fn is_still_master(&mut self, master: &Address) -> Option<bool> {
        loop {
            if self.query.is_none() {
                return Some(true);
            }
            match self.reply()? {
                Ok(named) => return Some(named == *master),
                Err(problem) => {
                    let why = self.error(problem);
                    self.pass_over(why);
                }
            }
        }
    }

    /// The server that the current Sentinel named is a master.
    pub(super) fn confirm(&mut self) {
        self.first = self.current();
        self.asked = 1;
        self.failures.clear();
    }

    /// Why there is no master, after all have been asked.
    pub(super) fn no_master(&mut self) -> BackendError {
        // The first may be the one that hangs: begin with the next one.
        self.first = (self.first + 1) % self.addresses.len();
        BackendError::new(self.server.to_string(), Problem::NoMaster(mem::take(&mut self.failures)))
    }

    /// A problem of the current Sentinel.
    pub(super) fn error(&self, problem: Problem) -> BackendError {
        let name = format!("Sentinel {}", self.addresses[self.current()]);
        BackendError::new(name, self.server.judge(problem))
    }

    fn ask_next(&mut self) -> bool {
        while self.has_next() {
            self.asked += 1;
            match self.ask() {
                Ok(query) => {
                    self.query = Some(query);
                    return true;
                }
                Err(error) => self.failures.push(self.error(Problem::Connection(error.to_string()))),
            }
        }
        false
    }

    fn ask(&self) -> io::Result<Query> {
        let mut query = Query::default();
        if let Some(login) = self.server.sentinel_login() {
            query.connection.send(&login);
            query.is_logging_in = true;
        }
        let question =
            redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(&self.service).get_packed_command();
        query.connection.send(&question);
        let address = &self.addresses[self.current()];
        if let Some(found) = query.lookup.start(address)? {
            let security = self.server.security(&address.host);
            query.connection.connect(Endpoint { addresses: vec![found], security });
        }
        Ok(query)
    }

    pub(super) fn is_resolving(&self) -> bool {
        self.query.as_ref().is_some_and(|query| query.lookup.is_running())
    }

    pub(in crate::lock::redis) fn is_asking(&self) -> bool {
        self.query.is_some()
    }

    pub(in crate::lock::redis) fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let query = self.query.as_ref()?;
        query.connection.interest().or_else(|| query.lookup.poll_for())
    }

    /// The master that the current Sentinel names, once it has replied, or what is wrong with it.
    pub(in crate::lock::redis) fn reply(&mut self) -> Option<Result<Address, Problem>> {
        let reply = self.query.as_mut()?.reply(&self.server)?;
        self.query = None;
        Some(reply.map_err(|error| problem_of(error, &self.service)))
    }
}

enum SentinelError {
    Connection(ConnectionError),
    UnknownHost(io::Error),
    Reply(Value),
}

impl Query {
    fn reply(&mut self, server: &Server) -> Option<Result<Address, SentinelError>> {
        match self.lookup.result() {
            Some((host, Ok(addresses))) => {
                self.connection.connect(Endpoint { addresses, security: server.security(&host) });
            }
            Some((_, Err(error))) => return Some(Err(SentinelError::UnknownHost(error))),
            None => {}
        }
        self.connection.advance();
        loop {
            let bytes = match self.connection.next_reply() {
                Ok(bytes) => bytes?,
                Err(error) => return Some(Err(SentinelError::Connection(error))),
            };
            let value = redis::parse_redis_value(&bytes).unwrap_or(Value::Nil);
            let is_error = matches!(value, Value::ServerError(_));
            if !mem::take(&mut self.is_logging_in) || is_error {
                return Some(parse(&value).ok_or(SentinelError::Reply(value)));
            }
        }
    }
}

fn parse(value: &Value) -> Option<Address> {
    let Value::Array(fields) = value else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = fields.as_slice() else { return None };
    let host = String::from_utf8(host.clone()).ok()?;
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address { host, port })
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn problem_of(error: SentinelError, service: &str) -> Problem {
    match error {
        SentinelError::Connection(error) => error.problem(),
        SentinelError::UnknownHost(error) => Problem::UnknownHost(error.to_string()),
        SentinelError::Reply(Value::ServerError(error)) => {
            let details = without_arguments(error.details().unwrap_or_default());
            let reply = format!("{} {details}", error.code()).trim().to_owned();
            let is_refused = ["NOAUTH", "WRONGPASS", "NOPERM", "DENIED"].contains(&error.code())
                || reply.contains("without any password");
            if is_refused { Problem::SentinelLogin(reply) } else { Problem::NotASentinel(reply) }
        }
        SentinelError::Reply(Value::Nil) => Problem::UnknownService(service.to_owned()),
        SentinelError::Reply(_) => Problem::NotASentinel("another reply than a host and a port".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinels(hosts: &str) -> Sentinels {
        Sentinels::of(&Server::parse(&format!("redis+sentinel://{hosts}/main")).unwrap()).unwrap()
    }

    #[test]
    fn the_sentinel_that_was_right_is_asked_first_the_next_time() {
        // Nothing listens there.
        let mut all = sentinels("127.0.0.1:1,127.0.0.2:1,127.0.0.3:1");
        all.start();
        assert_eq!(all.current(), 0);
        let why = all.error(Problem::TimedOut);
        assert!(all.pass_over(why));
        assert_eq!(all.current(), 1);
        all.confirm();
        assert_eq!(all.current(), 1);
        all.start();
        assert_eq!(all.current(), 1);
        for is_left in [true, true, false] {
            let why = all.error(Problem::TimedOut);
            assert_eq!(all.pass_over(why), is_left);
        }
        let BackendError { problem: Problem::NoMaster(causes), .. } = all.no_master() else {
            panic!("no master")
        };
        assert_eq!(causes.len(), 3);
        assert_eq!(causes[0].at.as_deref(), Some("Sentinel 127.0.0.2:1"));
    }

    #[test]
    fn a_reply_names_a_host_and_a_port() {
        let text = |text: &str| Value::BulkString(text.into());
        let named = parse(&Value::Array(vec![text("10.0.0.1"), text("6379")]));
        assert_eq!(named, Some(Address { host: "10.0.0.1".into(), port: 6379 }));
        for wrong in
            [Value::Nil, Value::Array(vec![text("10.0.0.1")]), Value::Array(vec![text("h"), text("x")])]
        {
            assert_eq!(parse(&wrong), None, "{wrong:?}");
        }
    }
}
