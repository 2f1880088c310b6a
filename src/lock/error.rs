//! Why a lock could not be taken. The exit code, the message and the JSON fields are made from the
//! same value.

use nix::sys::signal::Signal;

use super::problem::{FileProblem, Problem};
use super::{Blocked, Deadlock, Done, HolderInfo};

#[derive(Debug)]
pub(crate) enum Error {
    /// The lock is held, and the time to wait for it is over.
    Held(Box<Blocked>),
    /// An ancestor of this process holds the lock: waiting for it would deadlock.
    Nested,
    /// A run has done, a short time ago, what this one was asked for.
    Done(Box<Done>),
    /// A newer request has replaced ours in the queue.
    Superseded(Box<Superseded>),
    /// Nested runs wait for each other, and ours is the youngest.
    Deadlock(Box<Deadlock>),
    /// This signal ended the wait.
    Cancelled(Signal),
    /// The servers, or the lock file, cannot be used.
    Backend(BackendError),
}

/// The key that a newer request waits for or holds, and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superseded {
    pub key: usize,
    pub by: HolderInfo,
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// What a problem means for the user. Decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It cannot be reached, or cannot serve now.
    Unavailable,
    /// It refuses us.
    Refused,
    /// It can never hold this lock as it is configured.
    Unfit,
}

/// A problem of a server or a lock file.
#[derive(Clone, Debug)]
pub(crate) struct BackendError {
    /// `None` for a problem of all servers together.
    pub at: Option<String>,
    pub problem: Problem,
}

impl BackendError {
    pub(crate) fn new(at: impl Into<String>, problem: Problem) -> Self {
        Self { at: Some(at.into()), problem }
    }

    /// The failures of the servers that leave no majority. For a single server, its own failure.
    pub(crate) fn no_majority(mut causes: Vec<BackendError>, servers: usize) -> Self {
        match (causes.pop(), servers) {
            (Some(only), 1) => only,
            (last, _) => {
                causes.extend(last);
                Self { at: None, problem: Problem::NoMajority { servers, causes } }
            }
        }
    }

    pub(crate) fn fault(&self) -> Fault {
        self.problem.fault()
    }

    /// This error, or the cause within it, if the token was used with another set of locks.
    pub(crate) fn other_lock_count(&self) -> Option<Self> {
        if let Problem::NoMajority { causes, .. } = &self.problem {
            return causes.iter().find_map(Self::other_lock_count);
        }
        let is_it = matches!(self.problem, Problem::OtherLockCount(_));
        is_it.then(|| Self { at: None, problem: self.problem.clone() })
    }

    /// Whether a retry may help. A lock file that was deleted and re-created is another lock.
    pub(crate) fn may_pass(&self) -> bool {
        let is_deleted = matches!(self.problem, Problem::File(FileProblem::DeletedInUse));
        // A longer lease than the servers can acknowledge is refused at once.
        let is_too_long = matches!(self.problem, Problem::LongLease { .. });
        let fault = self.problem.fault_with(Some(Fault::Unavailable));
        fault == Fault::Unavailable && !is_deleted && !is_too_long
    }

    /// Whether the configuration must be changed: waiting does not help.
    pub(crate) fn is_misconfiguration(&self) -> bool {
        self.fault() != Fault::Unavailable || matches!(self.problem, Problem::UnknownHost(_))
    }
}
