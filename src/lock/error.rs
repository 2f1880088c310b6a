//! Why a lock could not be taken, kept apart by cause: the exit code, the sentence for people and the
//! fields for machines are all made from the same value.

use nix::sys::signal::Signal;

use super::problem::{FileProblem, Problem};
use super::{Blocked, HolderInfo};

#[derive(Debug)]
pub(crate) enum Error {
    /// The lock is taken, and the time to wait for it is over.
    Held(Box<Blocked>),
    /// The holder is a run that this process runs under: waiting for it would deadlock.
    Nested,
    /// A newer request has taken our place in the queue.
    Superseded(Box<Superseded>),
    /// The observer was told to stop by this signal.
    Cancelled(Signal),
    /// The servers, or the lock file, cannot be used.
    Backend(BackendError),
}

/// Which of the requested keys a newer request waits for, or holds, and who made it.
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

/// What a problem means for the user; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Cannot be reached, or cannot serve now.
    Unavailable,
    /// Refuses us.
    Refused,
    /// Will never be able to hold this lock as it is set up.
    Unfit,
}

/// A problem, and the server or the lock file that has it.
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

    /// The failures of several servers, which together leave no majority. Of one server alone, its own.
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

    /// That a token was used for some of its locks only, or for others, too, if this is what is wrong.
    pub(crate) fn other_lock_count(&self) -> Option<Self> {
        if let Problem::NoMajority { causes, .. } = &self.problem {
            return causes.iter().find_map(Self::other_lock_count);
        }
        let is_it = matches!(self.problem, Problem::OtherLockCount(_));
        is_it.then(|| Self { at: None, problem: self.problem.clone() })
    }

    /// Whether trying again may help. A lock file that was deleted is another one when it is there again.
    pub(crate) fn may_pass(&self) -> bool {
        let is_deleted = matches!(self.problem, Problem::File(FileProblem::DeletedInUse));
        self.fault() == Fault::Unavailable && !is_deleted
    }

    /// Whether the configuration has to be changed, rather than waited for.
    pub(crate) fn is_misconfiguration(&self) -> bool {
        self.fault() != Fault::Unavailable || matches!(self.problem, Problem::UnknownHost(_))
    }
}
