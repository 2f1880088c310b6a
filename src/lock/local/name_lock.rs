//! A lock on the name of a lock file. The file's owner may rename or delete it while it is in use,
//! and a process that creates a new one would not see the locks on the old one. So each holder also
//! locks a byte of the directory, which the file's name determines. It locks it for reading, which
//! does not need the permission to write.
//!
//! A process that enters a file without other holders, and then finds the byte locked by another
//! process, leaves again: the holder has a file that lost its name. Two processes that enter
//! different files at the same moment may both leave, and retry.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use uuid::Uuid;

use super::byte_map::byte;
use super::lock_file::LockFile;
use super::ofd_lock::{LockKind, OfdLocks};
use crate::clock::BootTime;
use crate::lock::wait::backoff;
use crate::lock::{Holder, HolderInfo};

/// How long to wait before looking for a release of the name, of which the kernel notifies nobody.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct NameLock {
    directory: OfdLocks,
    offset: u64,
}

impl NameLock {
    /// `None` if the directory cannot be read: such a process relies on the lock file alone. So does
    /// one in a directory that others may read but not write: they could lock the name, but only the
    /// directory's owner can rename the file.
    pub(super) fn open(directory: &Path, file_name: &OsStr) -> Option<Self> {
        let directory = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(directory).ok()?;
        let mode = directory.metadata().ok()?.mode();
        if mode & 0o022 == 0 && mode & 0o044 != 0 {
            return None;
        }
        let (digest, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, file_name.as_bytes()).as_u64_pair();
        Some(Self { directory: OfdLocks::new(directory), offset: digest >> 2 })
    }

    /// A file system without such locks on directories is no reason to fail.
    pub(super) fn lock(&self) {
        let _ = self.directory.try_lock(byte(self.offset), LockKind::Read);
    }

    pub(super) fn unlock(&self) {
        self.directory.unlock(byte(self.offset));
    }

    /// By another process.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self.directory.conflict_in(byte(self.offset), LockKind::Write), Ok(Some(_)))
    }

    pub(super) fn shared_file(&self) -> Arc<File> {
        self.directory.shared_file()
    }
}

impl LockFile {
    /// Whether another process holds the lock with a file that was renamed or deleted. To be called
    /// if this file has no holder.
    pub(super) fn is_held_elsewhere(&self) -> bool {
        match self.name_lock() {
            Some(name) => name.is_locked(),
            None => is_held_without_file(self.path()),
        }
    }
}

/// The same, if there may be no file with this name.
pub(super) fn is_held_without_file(path: &Path) -> bool {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return false };
    NameLock::open(directory, name).is_some_and(|name| name.is_locked())
}

pub(super) fn next_look() -> BootTime {
    BootTime::now() + PAUSE + backoff(0)
}

/// A holder that cannot be found from the file with the lock's name.
pub(super) fn unseen_holder() -> Holder {
    Holder { id: "elsewhere".into(), info: unseen_info(), ..Holder::default() }
}

pub(super) fn unseen_info() -> HolderInfo {
    HolderInfo { label: "its lock file was renamed or deleted".into(), ..HolderInfo::default() }
}
