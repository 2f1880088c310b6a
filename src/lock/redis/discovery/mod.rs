//! Finding the server that a URL stands for: at its own address, where Sentinels say that the
//! master is, or where the nodes of a cluster say that the slot is.
//!
//! [`Discovery`] only says where to connect. The connection, and what is asked over it, is the
//! node's.

mod address;
mod cluster;
mod sentinel;
mod slot;
mod url;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;
use redis::ServerError;
use socket2::SockAddr;

use self::address::Lookup;
use self::cluster::Cluster;
use super::connection::{ConnectionError, Endpoint};
use super::server::{Server, Target};
use crate::clock::BootTime;
use crate::lock::{BackendError, Fault, Problem};

pub(super) use address::Address;
pub(super) use cluster::{Master, Redirection, masters};
pub(super) use sentinel::Sentinels;
pub(super) use slot::{slot_of, tag_in, tag_of};
pub(super) use url::Scheme;

#[derive(Debug)]
pub(super) struct Discovery {
    pub server: Server,
    route: Route,
    /// Kept when a connection is dropped, so that a name has one look-up at a time.
    lookup: Lookup,
    /// Connections that were never opened: the next one starts with another address of the host.
    pub failed_connects: usize,
}

#[derive(Debug)]
enum Route {
    Fixed,
    Sentinels {
        sentinels: Box<Sentinels>,
        /// The server that one of them named, and when.
        master: Option<(Address, BootTime)>,
    },
    Cluster(Cluster),
}

/// For this long the Sentinels are not asked whether the master is still the same.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

impl Discovery {
    pub(super) fn new(server: Server) -> Self {
        let sentinels = Sentinels::of(&server)
            .map(|sentinels| Route::Sentinels { sentinels: Box::new(sentinels), master: None });
        let cluster = || Cluster::of(&server).map(Route::Cluster);
        let route = sentinels.or_else(cluster).unwrap_or(Route::Fixed);
        Self { server, route, lookup: Lookup::default(), failed_connects: 0 }
    }

    /// Whether the URL itself is the address of the server.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self.route, Route::Fixed)
    }

    /// Start over. Where to connect, if that is known already; otherwise see
    /// [`Discovery::advance`].
    pub(super) fn start(&mut self) -> io::Result<Option<Endpoint>> {
        let address = match (&mut self.route, &self.server.target) {
            (Route::Sentinels { sentinels, master }, _) => {
                *master = None;
                sentinels.start();
                return Ok(None);
            }
            (Route::Cluster(cluster), _) => cluster.start(),
            (Route::Fixed, Target::Tcp(address)) => address.clone(),
            (Route::Fixed, Target::Unix(path)) => {
                return Ok(Some(self.endpoint("", vec![SockAddr::unix(path)?])));
            }
            (Route::Fixed, Target::Sentinel { .. } | Target::Cluster { .. }) => return Ok(None),
        };
        self.locate(&address)
    }

    /// Where to connect, once a Sentinel has replied or a name was resolved; or what went wrong
    /// there.
    pub(super) fn advance(&mut self) -> Option<Result<Endpoint, BackendError>> {
        if let Route::Sentinels { sentinels, master } = &mut self.route
            && let Some(reply) = sentinels.reply()
        {
            let address = match reply {
                Ok(address) => address,
                Err(problem) => return Some(Err(sentinels.error(problem))),
            };
            *master = Some((address.clone(), BootTime::now()));
            let found = self.locate(&address).map_err(|error| self.unreachable(error));
            if let Some(found) = found.transpose() {
                return Some(found);
            }
        }
        let (host, result) = self.lookup.result()?;
        Some(match result {
            Ok(mut addresses) => {
                let first = self.failed_connects % addresses.len().max(1);
                addresses.rotate_left(first);
                Ok(self.endpoint(&host, addresses))
            }
            Err(error) => Err(self.error(Problem::UnknownHost(error.to_string()))),
        })
    }

    /// Nothing could be asked where we were. Another endpoint, if it is known already, or why there
    /// is none.
    pub(super) fn pass_over(&mut self, mut why: BackendError) -> Result<Option<Endpoint>, BackendError> {
        loop {
            let address = match &mut self.route {
                Route::Fixed => return Err(why),
                Route::Sentinels { sentinels, master } => {
                    let named = master.take().map(|(address, _)| format!("master {address}"));
                    let has_next = sentinels.pass_over(BackendError { at: named.or(why.at), ..why });
                    return if has_next { Ok(None) } else { Err(sentinels.no_master()) };
                }
                // The other nodes would send us there again.
                Route::Cluster(cluster) if cluster.is_redirected() && is_misconfigured(&why) => {
                    return Err(why);
                }
                Route::Cluster(cluster) => cluster.pass_over().ok_or(why)?,
            };
            match self.locate(&address) {
                Ok(found) => return Ok(found),
                Err(error) => why = self.unreachable(error),
            }
        }
    }

    /// Whether there is another Sentinel or cluster node to try.
    pub(super) fn has_next(&self) -> bool {
        match &self.route {
            Route::Fixed => false,
            Route::Sentinels { sentinels, .. } => sentinels.has_next(),
            Route::Cluster(cluster) => cluster.has_next(),
        }
    }

    /// The server is what it should be, and has executed a request.
    pub(super) fn confirm(&mut self) {
        self.server.accepted();
        match &mut self.route {
            Route::Fixed => {}
            Route::Sentinels { sentinels, .. } => sentinels.confirm(),
            Route::Cluster(cluster) => cluster.confirm(),
        }
    }

    /// Whether a grant counts only if the Sentinels still call the server the master: for seconds
    /// after another server was promoted, the old master may not know of it. If so they are asked
    /// now; see [`Discovery::is_still_master`].
    pub(super) fn asks_for_master(&mut self) -> bool {
        match &mut self.route {
            Route::Sentinels { sentinels, master: Some((_, named_at)) }
                if named_at.elapsed() > TRUSTED_FOR =>
            {
                sentinels.start();
                true
            }
            Route::Fixed | Route::Sentinels { .. } | Route::Cluster(_) => false,
        }
    }

    /// How long one Sentinel may take to confirm the master, of the time for a step: a renewal must
    /// not wait for all that hang.
    pub(super) fn patience(&self, step_timeout: Duration) -> Duration {
        let Route::Sentinels { sentinels, .. } = &self.route else { return step_timeout };
        (step_timeout * 3 / 2 / sentinels.count()).min(step_timeout)
    }

    /// The Sentinel that was asked to confirm the master does not reply.
    pub(super) fn ask_next_sentinel(&mut self) {
        let why = self.silence();
        if let Route::Sentinels { sentinels, .. } = &mut self.route {
            sentinels.pass_over(why);
        }
    }

    pub(super) fn is_still_master(&mut self) -> Option<bool> {
        let Route::Sentinels { sentinels, master: Some((master, named_at)) } = &mut self.route else {
            return Some(true);
        };
        let is_master = sentinels.is_still_master(master)?;
        *named_at = BootTime::now();
        Some(is_master)
    }

    /// What a cluster node's error asks for; `None` if it is not the cluster's.
    pub(super) fn redirect(&mut self, error: &ServerError) -> Option<Redirection> {
        let Route::Cluster(cluster) = &mut self.route else { return None };
        cluster.redirect(error)
    }

    /// Whether BLPOP ends with this error because the slot has moved, or the node is no longer its
    /// master. The next request gets the precise error.
    pub(super) fn ends_blpop(&self, error: &ServerError) -> bool {
        let codes = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED"];
        matches!(self.route, Route::Cluster(_)) && codes.contains(&error.code())
    }

    /// The server that the name in the URL stands for at the moment.
    pub(super) fn present(&self) -> Option<&Address> {
        match &self.route {
            Route::Fixed => None,
            Route::Sentinels { master, .. } => master.as_ref().map(|(address, _)| address),
            Route::Cluster(cluster) => Some(cluster.present()),
        }
    }

    /// The URL, without its password.
    pub(super) fn name(&self) -> String {
        self.server.to_string()
    }

    pub(super) fn error(&self, problem: Problem) -> BackendError {
        let name = match self.present() {
            Some(address) => format!("{} ({address})", self.server),
            None => self.name(),
        };
        BackendError::new(name, self.server.judge(problem))
    }

    /// The error of a Sentinel, or of the server that it named, that did not reply in time.
    pub(super) fn silence(&self) -> BackendError {
        match &self.route {
            Route::Sentinels { sentinels, .. } if sentinels.is_asking() => sentinels.error(Problem::TimedOut),
            Route::Fixed | Route::Sentinels { .. } | Route::Cluster(_) => self.error(Problem::TimedOut),
        }
    }

    pub(super) fn is_resolving(&self) -> bool {
        let sentinel_resolves =
            matches!(&self.route, Route::Sentinels { sentinels, .. } if sentinels.is_resolving());
        self.lookup.is_running() || sentinel_resolves
    }

    pub(super) fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.route {
            Route::Sentinels { sentinels, .. } => self.lookup.poll_for().or_else(|| sentinels.poll_for()),
            Route::Fixed | Route::Cluster(_) => self.lookup.poll_for(),
        }
    }

    /// `None` while the host's name is being resolved.
    fn locate(&mut self, address: &Address) -> io::Result<Option<Endpoint>> {
        let found = self.lookup.start(address)?;
        Ok(found.map(|found| self.endpoint(&address.host, vec![found])))
    }

    fn endpoint(&self, host: &str, addresses: Vec<SockAddr>) -> Endpoint {
        Endpoint { addresses, security: self.server.security(host) }
    }

    fn unreachable(&self, error: io::Error) -> BackendError {
        self.error(ConnectionError::Io(error).problem())
    }
}
/// Whether the server's certificate, or ours, must be changed.
fn is_misconfigured(why: &BackendError) -> bool {
    matches!(&why.problem, Problem::Tls(problem) if problem.fault() != Fault::Unavailable)
}
