//! What can be wrong with a lock file or its directory.

use crate::lock::Fault;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileProblem {
    /// The directory cannot be used; the system's reason.
    Directory(String),
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
    /// The lock is in use with this many slots; 1 = without.
    OtherSlots(u32),
    /// Another program has locked the whole file.
    WholeFileLocked,
    /// Locked by a program other than redlock.
    ForeignLocks,
}

impl FileProblem {
    pub fn fault(&self) -> Fault {
        match self {
            Self::Io(_) | Self::DeletedInUse | Self::WholeFileLocked | Self::ForeignLocks => {
                Fault::Unavailable
            }
            Self::OwnedByAnother | Self::CannotCreate | Self::SymbolicLink | Self::NotRegular => {
                Fault::Refused
            }
            Self::Directory(_) | Self::NotADirectory | Self::NotSticky | Self::OtherSlots(_) => Fault::Unfit,
        }
    }
}
