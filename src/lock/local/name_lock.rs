//! A lock on the name of a lock file. The file's owner may rename or delete it while it is in use,
//! and a process that creates a new one would not see the locks on the old one. So each holder also
//! locks a byte of the directory, which the file's name determines. It locks it for reading, which
//! does not need the permission to write. In a directory that others can read but not write, they
//! could lock that byte as well: there a hidden file takes the directory's place.
//!
//! A process that enters a file without other holders, and then finds the byte locked by another
//! process, leaves again: the holder has a file that lost its name. Two processes that enter
//! different files at the same moment may both leave, and retry.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use uuid::Uuid;

use super::byte_map::byte;
use super::lock_file::{LockFile, SAFELY};
use super::ofd_lock::{LockKind, OfdLocks};
use crate::clock::BootTime;
use crate::lock::wait::backoff;
use crate::lock::{Holder, HolderInfo};

/// How long to wait before looking for a release of the name, which the kernel does not report.
const PAUSE: Duration = Duration::from_millis(100);

/// The file that is locked instead of the directory. Its name is no lock file's.
const NAMES: &str = ".redlock-names";

/// Whether a command that only looks opens the names.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Access {
    Lock,
    Look,
}

pub(super) struct NameLock {
    names: OfdLocks,
    offset: u64,
}

impl NameLock {
    /// `None` if the names cannot be read: such a process relies on the lock file alone.
    pub(super) fn open(directory: &Path, file_name: &OsStr, access: Access) -> Option<Self> {
        let mut names = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(directory).ok()?;
        let metadata = names.metadata().ok()?;
        let (readers, writers) = (metadata.mode() & 0o044, metadata.mode() & 0o022);
        if writers == 0 && readers != 0 {
            names = open_names(&directory.join(NAMES), &metadata, access).ok()?;
        }
        let (digest, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, file_name.as_bytes()).as_u64_pair();
        Some(Self { names: OfdLocks::new(names), offset: digest >> 2 })
    }

    /// A file system without such locks on directories is no reason to fail.
    pub(super) fn lock(&self) {
        let _ = self.names.try_lock(byte(self.offset), LockKind::Read);
    }

    pub(super) fn unlock(&self) {
        self.names.unlock(byte(self.offset));
    }

    /// By another process.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self.names.conflict_in(byte(self.offset), LockKind::Write), Ok(Some(_)))
    }

    pub(super) fn shared_file(&self) -> Arc<File> {
        self.names.shared_file()
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
    NameLock::open(directory, name, Access::Look).is_some_and(|name| name.is_locked())
}

/// Only the directory's owner can open it, and root.
fn open_names(path: &Path, directory: &Metadata, access: Access) -> io::Result<File> {
    let mut existing = OpenOptions::new();
    existing.read(true).custom_flags(SAFELY);
    match existing.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && access == Access::Lock => {}
        opened => return opened,
    }
    match existing.clone().write(true).create_new(true).mode(0o600).open(path) {
        // A file that was there may be any file: only a new one is given to the directory's owner.
        Ok(created) => {
            let _ = fchown(&created, Some(directory.uid()), Some(directory.gid()));
            Ok(created)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => existing.open(path),
        Err(e) => Err(e),
    }
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
