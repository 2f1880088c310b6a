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
    /// Too few servers can vote because these may have lost their data, and are quarantined for this long.
    Quarantined {
        servers: usize,
        quarantined: Vec<(String, Duration)>,
        causes: Vec<BackendError>,
    },
    /// This server may have lost its data, and does not vote for this long.
    InQuarantine(Duration),
    ConnectionRefused,
    /// There is no such unix socket.
    NoSocket,
    SocketPermission,
    /// The host's name has no address; the resolver's reason.
    UnknownHost(String),
    /// Any other error of the connection.
    Connection(String),
    TimedOut,
    Tls(TlsProblem),
    /// The server ended a connection without TLS before it had answered anything.
    ClosedUnanswered,
    /// Bytes that are not the Redis protocol.
    UnreadableReply(String),
    /// The protocol, but nothing that our scripts reply.
    UnexpectedReply,
    /// The reply belongs to an earlier request of ours.
    StaleReply,
    /// The server's own error.
    Server(ServerError),
    Replica,
    /// The server was a master when it was found, and is one no longer.
    NoLongerMaster,
    /// No Sentinel has named a master that can be used; what was wrong with each, or with the server it named.
    NoMaster(Vec<BackendError>),
    /// The Sentinel knows no service of this name.
    UnknownService(String),
    /// The Sentinel did not let us in; its reply.
    SentinelLogin(String),
    /// It is no Sentinel; its reply.
    NotASentinel(String),
    /// The same server by another name, socket or database; that name, if it is known.
    ListedTwice {
        other: Option<String>,
    },
    /// The key is held as a lock over this many servers.
    OtherServerCount(usize),
    /// The token is of this many locks.
    OtherLockCount(usize),
    /// The key is held with this many slots; 0 = without.
    OtherSlots(u32),
    /// The lease was over when the grant arrived.
    GrantedTooLate,
    /// The grant has no lease that could be renewed.
    NoLease,
    /// A claim that no other client knows was gone before its lease was over.
    ClaimVanished,
    /// A lock file cannot be used.
    File(FileProblem),
}

impl Problem {
    /// Whether it shows that the set of servers is not what it is said to be, rather than that one of them cannot
    /// be used.
    pub(crate) fn is_about_the_set(&self) -> bool {
        matches!(
            self,
            Self::ListedTwice { .. }
                | Self::OtherServerCount(_)
                | Self::OtherSlots(_)
                | Self::UnexpectedReply
        )
    }

    pub(crate) fn fault(&self) -> Fault {
        match self {
            // Refused only if the servers that refused us are too many by themselves; unfit only if the others
            // that fail are not.
            Self::NoMajority { servers, causes } => {
                let count = |fault| causes.iter().filter(|cause| cause.fault() == fault).count();
                let tolerated = servers - majority_of(*servers);
                if count(Fault::Refused) > tolerated {
                    Fault::Refused
                } else if count(Fault::Unfit) > 0 && causes.len() - count(Fault::Unfit) <= tolerated {
                    Fault::Unfit
                } else {
                    Fault::Unavailable
                }
            }
            // Refused or unfit only if all of them say so: another one may come back, or learn where the master is.
            Self::NoMaster(causes) => {
                let all = |fault| causes.iter().all(|cause| cause.fault() == fault);
                let kind = [Fault::Refused, Fault::Unfit].into_iter().find(|fault| all(*fault));
                kind.filter(|_| !causes.is_empty()).unwrap_or(Fault::Unavailable)
            }
            Self::SentinelLogin(_) => Fault::Refused,
            Self::Quarantined { .. }
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
    /// The reply itself, without the position in our script.
    pub reply: String,
    /// What was asked when it came.
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
    /// It was addressed as a node of a cluster, and is a server of its own.
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
    /// The directory cannot be used; the system's reason.
    Directory(String),
    NoDirectory,
    /// The directory is on a file system that is mounted read-only, for this process at least.
    ReadOnly,
    NotADirectory,
    /// Every user may delete other users' files in the directory.
    NotSticky,
    /// The file belongs to another user.
    OwnedByAnother,
    CannotCreate,
    SymbolicLink,
    /// Not a regular file, or one with several links.
    NotRegular,
    /// Any other error of a system call.
    Io(String),
    DeletedInUse,
    /// The lock is in use with this many slots; 0 = without.
    OtherSlots(u32),
    /// Another program has locked the whole file.
    WholeFileLocked,
    /// Locked by a program other than redlock.
    ForeignLocks,
    /// The process that holds the lock may not be asked by us to give it back.
    HolderOfAnotherUser,
    /// The process that holds the lock is not to be seen from here.
    HolderNotFound,
    /// The process that holds the lock cannot be asked by this version.
    HolderTooOld,
    /// The process that holds the lock was asked, and has not done it; its number, if it is known.
    HolderSilent {
        pid: Option<i32>,
        is_keeper: bool,
    },
}

impl FileProblem {
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Io(_)
            | Self::DeletedInUse
            | Self::WholeFileLocked
            | Self::ForeignLocks
            | Self::HolderSilent { .. } => Fault::Unavailable,
            Self::OwnedByAnother
            | Self::HolderOfAnotherUser
            | Self::HolderNotFound
            | Self::CannotCreate
            | Self::ReadOnly
            | Self::SymbolicLink
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
