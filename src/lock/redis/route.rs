//! How a server is reached: at its own address, or where Sentinels or the nodes of a cluster say.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;
use redis::ServerError;

use super::address::Address;
use super::cluster::{Cluster, Redirection};
use super::sentinel::Sentinels;
use super::server::Server;
use crate::clock::BootTime;
use crate::lock::{BackendError, Problem};

#[derive(Debug)]
pub(super) enum Route {
    Fixed,
    Sentinels {
        sentinels: Box<Sentinels>,
        /// Named by one of them, and when.
        master: Option<(Address, BootTime)>,
    },
    Cluster(Cluster),
}

/// For this long no Sentinel is asked whether the master is still the same.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

impl Route {
    pub(super) fn to(server: &Server) -> Self {
        let by_sentinels =
            || Some(Self::Sentinels { sentinels: Box::new(Sentinels::of(server)?), master: None });
        by_sentinels().or_else(|| Cluster::of(server).map(Self::Cluster)).unwrap_or(Self::Fixed)
    }

    pub(super) fn is_fixed(&self) -> bool {
        matches!(self, Self::Fixed)
    }

    /// Begin anew. The address to connect to, if it is known already.
    pub(super) fn start(&mut self) -> Option<Address> {
        match self {
            Self::Fixed => None,
            Self::Sentinels { sentinels, master } => {
                *master = None;
                sentinels.start();
                None
            }
            Self::Cluster(cluster) => Some(cluster.start()),
        }
    }

    /// Nothing could be asked where we were. Another way, with its address if that is known already; or why there is
    /// none.
    pub(super) fn pass_over(
        &mut self,
        name: String,
        why: BackendError,
    ) -> Result<Option<Address>, BackendError> {
        match self {
            Self::Fixed => Err(why),
            Self::Sentinels { sentinels, master } => {
                let named = master.take().map(|(address, _)| format!("master {address}"));
                let why = BackendError { at: named.or(why.at), ..why };
                if sentinels.pass_over(why) { Ok(None) } else { Err(sentinels.no_master(name)) }
            }
            Self::Cluster(cluster) => cluster.pass_over().map(Some).ok_or(why),
        }
    }

    pub(super) fn has_next(&self) -> bool {
        match self {
            Self::Fixed => false,
            Self::Sentinels { sentinels, .. } => sentinels.has_next(),
            Self::Cluster(cluster) => cluster.has_next(),
        }
    }

    /// Where a Sentinel says that the master is, when it has said so.
    pub(super) fn answer(&mut self) -> Option<Result<Address, BackendError>> {
        let Self::Sentinels { sentinels, master } = self else { return None };
        Some(match sentinels.answer()? {
            Ok(address) => {
                *master = Some((address.clone(), BootTime::now()));
                Ok(address)
            }
            Err(problem) => Err(sentinels.error(problem)),
        })
    }

    /// Whether what the server grants counts only if its Sentinels still call it the master: for seconds after another one
    /// was promoted it may not know of it. Then they are asked; see [`Route::verdict`].
    pub(super) fn must_be_asked(&mut self) -> bool {
        match self {
            Self::Sentinels { sentinels, master: Some((_, named_at)) }
                if named_at.elapsed() > TRUSTED_FOR =>
            {
                sentinels.ask_again();
                true
            }
            Self::Fixed | Self::Sentinels { .. } | Self::Cluster(_) => false,
        }
    }

    /// While they are asked again, what each of them has of the time for a step: a renewal must not wait for all that hang.
    pub(super) fn patience(&self, step_timeout: Duration) -> Duration {
        let Self::Sentinels { sentinels, .. } = self else { return step_timeout };
        (step_timeout * 3 / 2 / sentinels.count()).min(step_timeout)
    }

    /// While they are asked again: this one does not answer.
    pub(super) fn ask_next(&mut self, why: BackendError) {
        if let Self::Sentinels { sentinels, .. } = self {
            sentinels.pass_over(why);
        }
    }

    /// Whether the server is still the master, when that is known.
    pub(super) fn verdict(&mut self) -> Option<bool> {
        let Self::Sentinels { sentinels, master: Some((master, named_at)) } = self else { return Some(true) };
        let is_master = sentinels.verdict(master)?;
        *named_at = BootTime::now();
        Some(is_master)
    }

    /// For a Sentinel that does not answer, or the server that it named.
    pub(super) fn error(&self, name: String, problem: Problem) -> BackendError {
        match self {
            Self::Sentinels { sentinels, .. } if sentinels.is_asking() => sentinels.error(problem),
            Self::Fixed | Self::Sentinels { .. } | Self::Cluster(_) => BackendError::new(name, problem),
        }
    }

    /// The server is what it should be, and has been asked.
    pub(super) fn confirm(&mut self) {
        match self {
            Self::Fixed => {}
            Self::Sentinels { sentinels, .. } => sentinels.confirm(),
            Self::Cluster(cluster) => cluster.confirm(),
        }
    }

    pub(super) fn redirect(&mut self, error: &ServerError) -> Option<Redirection> {
        let Self::Cluster(cluster) = self else { return None };
        cluster.redirect(error)
    }

    /// Whether BLPOP ends with this error because the slot has moved, or the node is no longer its master. What is asked
    /// next is told more.
    pub(super) fn ends_blpop(&self, error: &ServerError) -> bool {
        let codes = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED"];
        matches!(self, Self::Cluster(_)) && codes.contains(&error.code())
    }

    /// The server behind the name in the URL.
    pub(super) fn present(&self) -> Option<&Address> {
        match self {
            Self::Fixed => None,
            Self::Sentinels { master, .. } => master.as_ref().map(|(address, _)| address),
            Self::Cluster(cluster) => Some(cluster.present()),
        }
    }

    pub(super) fn is_resolving(&self) -> bool {
        matches!(self, Self::Sentinels { sentinels, .. } if sentinels.is_resolving())
    }

    pub(super) fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let Self::Sentinels { sentinels, .. } = self else { return None };
        sentinels.poll_for()
    }
}
