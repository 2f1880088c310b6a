//! Why a lock could not be taken, kept apart by cause: the exit code, the sentence for people and the
//! fields for machines are all made from the same value.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::Blocked;
use super::local::FileProblem;
use super::redis::{ServerError, majority_of};

#[derive(Debug)]
pub enum Error {
    /// The lock is taken, and the time to wait for it is over.
    Held(Box<Blocked>),
    /// The holder is a run that this process runs under: waiting for it would deadlock.
    Nested,
    /// The observer was told to stop by this signal.
    Cancelled(Signal),
    /// The servers, or the lock file, cannot be used.
    Backend(BackendError),
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// What a problem means for the user; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Cannot be reached, or cannot serve now.
    Unavailable,
    /// Refuses us.
    Refused,
    /// Will never be able to hold this lock as it is set up.
    Unfit,
}

/// A problem, and the server or the lock file that has it.
#[derive(Clone, Debug)]
pub struct BackendError {
    /// `None` for a problem of all servers together.
    pub at: Option<String>,
    pub problem: Problem,
}

impl BackendError {
    pub fn new(at: impl Into<String>, problem: Problem) -> Self {
        Self { at: Some(at.into()), problem }
    }

    /// The failures of several servers, which together leave no majority. Of one server alone, its own.
    pub fn no_majority(mut causes: Vec<BackendError>, servers: usize) -> Self {
        match (causes.pop(), servers) {
            (Some(only), 1) => only,
            (last, _) => {
                causes.extend(last);
                Self { at: None, problem: Problem::NoMajority { servers, causes } }
            }
        }
    }

    pub fn fault(&self) -> Fault {
        self.problem.fault()
    }
}

#[derive(Clone, Debug)]
pub enum Problem {
    /// Too few of the configured servers can vote.
    NoMajority {
        servers: usize,
        causes: Vec<BackendError>,
    },
    /// Too few servers can vote because these may have lost their data, and have to sit out this long.
    Quarantined {
        servers: usize,
        quarantined: Vec<(String, Duration)>,
        causes: Vec<BackendError>,
    },
    ConnectionRefused,
    /// There is no such unix socket.
    NoSocket,
    SocketPermission,
    /// Any other error of the connection.
    Connection(String),
    TimedOut,
    /// Bytes that are not the Redis protocol.
    UnreadableReply(String),
    /// The protocol, but nothing that our scripts reply.
    UnexpectedReply,
    /// The reply belongs to an earlier request of ours.
    StaleReply,
    /// The server's own error.
    Server(ServerError),
    Replica,
    /// The same server by another name, socket or database; that name, if it is known.
    ListedTwice {
        other: Option<String>,
    },
    /// The key is held as a lock over this many servers.
    OtherServerCount(usize),
    /// The key is held with this many slots; 0 = without.
    OtherSlots(u32),
    /// The lease was over when the grant arrived.
    GrantedTooLate,
    /// The grant has no lease that could be renewed.
    NoLease,
    /// A lock file cannot be used.
    File(FileProblem),
}

impl Problem {
    pub fn fault(&self) -> Fault {
        match self {
            // Refused only if the servers that refused us are too many by themselves.
            Self::NoMajority { servers, causes } => {
                let refused = causes.iter().filter(|cause| cause.fault() == Fault::Refused).count();
                if refused > servers - majority_of(*servers) { Fault::Refused } else { Fault::Unavailable }
            }
            Self::Quarantined { .. }
            | Self::ConnectionRefused
            | Self::NoSocket
            | Self::SocketPermission
            | Self::Connection(_)
            | Self::TimedOut
            | Self::UnreadableReply(_)
            | Self::StaleReply
            | Self::GrantedTooLate => Fault::Unavailable,
            Self::UnexpectedReply
            | Self::Replica
            | Self::ListedTwice { .. }
            | Self::OtherServerCount(_)
            | Self::OtherSlots(_)
            | Self::NoLease => Fault::Unfit,
            Self::Server(error) => error.kind.fault(),
            Self::File(problem) => problem.fault(),
        }
    }
}
