//! What can be wrong with servers and lock files, as values. The sentences are made in report/.

use std::time::Duration;

use super::error::{BackendError, Fault};
use super::majority_of;
use super::tls_problem::TlsProblem;

#[derive(Clone, Debug)]
pub(crate) enum Problem {
    /// Too few of the configured servers can vote.
    NoMajority {
        servers: usize,
        causes: Vec<BackendError>,
    },
    /// Too few servers can vote: these may have lost their data and are quarantined for this long.
    Quarantined {
        servers: usize,
        quarantined: Vec<(String, Duration)>,
        causes: Vec<BackendError>,
    },
    /// This server may have lost its data and does not vote for this long.
    InQuarantine(Duration),
    ConnectionRefused,
    /// There is no such unix socket.
    NoSocket,
    SocketPermission,
    /// The host name cannot be resolved, for this reason.
    UnknownHost(String),
    /// Another error of the connection.
    Connection(String),
    TimedOut,
    Tls(TlsProblem),
    /// The server closed a connection without TLS before its first reply.
    ClosedUnanswered,
    /// The reply is not Redis protocol.
    UnreadableReply(String),
    /// None of our scripts replies this.
    UnexpectedReply,
    /// The reply belongs to an earlier request of ours.
    StaleReply,
    /// The server replied with an error.
    Server(ServerError),
    Replica,
    /// The server was the master when it was found, but no longer is.
    NoLongerMaster,
    /// No Sentinel named a usable master. The problem of each Sentinel, or of the server it named.
    NoMaster(Vec<BackendError>),
    /// The Sentinel does not know this service.
    UnknownService(String),
    /// The Sentinel refused the login with this reply.
    SentinelLogin(String),
    /// A login that a server has accepted before is refused. It came from a file, and the file and
    /// the server cannot change at the same moment: a retry may help.
    LoginChanging(Box<Problem>),
    /// The reply is not a Sentinel's.
    NotASentinel(String),
    /// A lease that is longer than usual must be known to all servers, and these have not replied, or
    /// are quarantined.
    LongLease {
        servers: Vec<String>,
    },
    /// The same server is configured twice; its other name.
    ListedTwice {
        other: String,
    },
    /// The key is locked on this number of servers.
    OtherServerCount(usize),
    /// The token covers this number of locks.
    OtherLockCount(usize),
    /// The key is locked with this number of slots; 0 = without slots.
    OtherSlots(u32),
    /// The lease had expired when the grant arrived.
    GrantedTooLate,
    /// The grant has no lease to renew.
    NoLease,
    /// A claim that only this client knows disappeared before its lease expired.
    ClaimVanished,
    /// The holder's protocol and ours cannot share a lock. Its version is empty if it is unknown.
    OtherProtocol {
        protocol: u32,
        version: String,
    },
    /// A lock file cannot be used.
    File(FileProblem),
}

impl Problem {
    /// Whether the configured set of servers is wrong, rather than one server.
    pub(crate) fn is_about_the_set(&self) -> bool {
        matches!(
            self,
            Self::ListedTwice { .. }
                | Self::OtherServerCount(_)
                | Self::OtherSlots(_)
                | Self::OtherProtocol { .. }
                | Self::UnexpectedReply
        )
    }

    /// Whether a server has refused a request as older than what it knows of this waiter.
    pub(crate) fn is_stale(&self) -> bool {
        let causes = if let Self::NoMajority { causes, .. } = self { causes.as_slice() } else { &[] };
        matches!(self, Self::StaleReply) || causes.iter().any(|cause| cause.problem.is_stale())
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault_with(None)
    }

    /// `of_changing`: the fault of a login that is being changed, instead of its refusal.
    pub(super) fn fault_with(&self, of_changing: Option<Fault>) -> Fault {
        let fault_of = |cause: &BackendError| cause.problem.fault_with(of_changing);
        match self {
            Self::LoginChanging(refusal) => of_changing.unwrap_or_else(|| refusal.fault()),
            // Refused if the refusals alone prevent a majority; unfit if the other failures alone
            // do not.
            Self::NoMajority { servers, causes } => {
                let count = |fault| causes.iter().filter(|cause| fault_of(cause) == fault).count();
                let tolerated = servers - majority_of(*servers);
                if count(Fault::Refused) > tolerated {
                    Fault::Refused
                } else if count(Fault::Unfit) > 0 && causes.len() - count(Fault::Unfit) <= tolerated {
                    Fault::Unfit
                } else {
                    Fault::Unavailable
                }
            }
            // Refused or unfit only if all causes are: another Sentinel may still find the master.
            Self::NoMaster(causes) => {
                let all = |fault| causes.iter().all(|cause| fault_of(cause) == fault);
                let kind = [Fault::Refused, Fault::Unfit].into_iter().find(|fault| all(*fault));
                kind.filter(|_| !causes.is_empty()).unwrap_or(Fault::Unavailable)
            }
            Self::SentinelLogin(_) => Fault::Refused,
            Self::Quarantined { .. }
            | Self::LongLease { .. }
            | Self::NoLongerMaster
            | Self::InQuarantine(_)
            | Self::ConnectionRefused
            | Self::NoSocket
            | Self::SocketPermission
            | Self::UnknownHost(_)
            | Self::Connection(_)
            | Self::TimedOut
            | Self::ClosedUnanswered
            | Self::UnreadableReply(_)
            | Self::StaleReply
            | Self::GrantedTooLate => Fault::Unavailable,
            Self::UnexpectedReply
            | Self::Replica
            | Self::UnknownService(_)
            | Self::NotASentinel(_)
            | Self::ListedTwice { .. }
            | Self::OtherServerCount(_)
            | Self::OtherLockCount(_)
            | Self::OtherSlots(_)
            | Self::OtherProtocol { .. }
            | Self::NoLease
            | Self::ClaimVanished => Fault::Unfit,
            Self::Server(error) => error.kind.fault(),
            Self::Tls(problem) => problem.fault(),
            Self::File(problem) => problem.fault(),
        }
    }
}

/// An error reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerError {
    pub kind: ServerErrorKind,
    /// The reply, without the position in our script.
    pub reply: String,
    /// The request that it replies to.
    pub during: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerErrorKind {
    PasswordMissing,
    PasswordWrong,
    PermissionDenied,
    ProtectedMode,
    CommandMissing,
    ReadOnlyReplica,
    WrongType,
    ClusterNode,
    /// Configured as a cluster node, but it is a single server.
    NotACluster,
    OutOfMemory,
    Loading,
    BusyScript,
    CannotSave,
    TooFewReplicas,
    TooManyClients,
    CannotServe,
    Other,
}

impl ServerErrorKind {
    pub(crate) fn fault(self) -> Fault {
        match self {
            Self::PasswordMissing
            | Self::PasswordWrong
            | Self::PermissionDenied
            | Self::ProtectedMode
            | Self::CommandMissing => Fault::Refused,
            Self::ReadOnlyReplica | Self::WrongType | Self::ClusterNode | Self::NotACluster | Self::Other => {
                Fault::Unfit
            }
            Self::OutOfMemory
            | Self::Loading
            | Self::BusyScript
            | Self::CannotSave
            | Self::TooFewReplicas
            | Self::TooManyClients
            | Self::CannotServe => Fault::Unavailable,
        }
    }
}

/// What can be wrong with a lock file or its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileProblem {
    /// The directory cannot be used, for the system's reason.
    Directory(String),
    NoDirectory,
    /// The directory is on a file system that is read-only, at least for this process.
    ReadOnly,
    NotADirectory,
    /// Users may delete each other's files in the directory.
    NotSticky,
    /// The file belongs to another user.
    OwnedByAnother,
    CannotCreate,
    SymbolicLink,
    NotRegular,
    /// The file has several names, and not all users of the directory may write to it.
    Linked,
    /// Another error of a system call.
    Io(String),
    DeletedInUse,
    /// The lock is in use with this number of slots; 0 = without slots.
    OtherSlots(u32),
    FileSystemFull,
    /// Another program, or a redlock that is stopped, has locked the mutex.
    MutexLocked,
    /// Locked by a program other than redlock.
    ForeignLocks,
    /// We may not ask the process that holds the lock to release it.
    HolderOfAnotherUser,
    /// The process that holds the lock is not visible from here.
    HolderNotFound,
    /// The process that holds the lock has a file that was renamed or deleted.
    HolderElsewhere,
    /// The process that holds the lock is of a version that cannot be asked.
    HolderTooOld,
    /// The process that holds the lock was asked to release it, but has not; its PID, if known.
    HolderSilent {
        pid: Option<i32>,
    },
}

impl FileProblem {
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Io(_)
            | Self::DeletedInUse
            | Self::FileSystemFull
            | Self::MutexLocked
            | Self::ForeignLocks
            | Self::HolderSilent { .. } => Fault::Unavailable,
            Self::OwnedByAnother
            | Self::HolderOfAnotherUser
            | Self::HolderNotFound
            | Self::HolderElsewhere
            | Self::CannotCreate
            | Self::ReadOnly
            | Self::SymbolicLink
            | Self::Linked
            | Self::NotRegular => Fault::Refused,
            Self::Directory(_)
            | Self::NoDirectory
            | Self::NotADirectory
            | Self::NotSticky
            | Self::HolderTooOld
            | Self::OtherSlots(_) => Fault::Unfit,
        }
    }
}
