//! The lock file: its directory, its permissions, its file system.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::sys::stat::{Mode, umask};
use nix::sys::statfs::{FsType, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, Statfs, fstatfs};

use super::file_name;
use super::name_lock::{Access, NameLock};
use super::ofd_lock::OfdLocks;
use crate::clock::BootTime;
use crate::lock::{BackendError, FileProblem, Problem};

/// Directories in which all users of a host can share files; the first suitable one is used.
/// Not /dev/shm, where logind deletes a user's files when the user logs out.
const DIRECTORIES: [&str; 3] = ["/run/lock", "/var/tmp", "/tmp"];

/// The type of Windows shares mounted by a current kernel. Not in nix.
const SMB2_SUPER_MAGIC: FsType = FsType(0xfe53_4d42);

/// Space kept free for lock files, which need a page each.
const ROOM_FOR_LOCKS: u64 = 1024 * 1024;

/// The file's owner may have taken a lease on it (fcntl), which the kernel ends after 45 s, or what
/// /proc/sys/fs/lease-break-time says.
const LONGEST_LEASE: Duration = Duration::from_mins(1);
const LEASE_PAUSE: Duration = Duration::from_millis(50);

/// Do not follow a symbolic link, and do not wait for the other end of a pipe.
pub(super) const SAFELY: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// How the directory of the lock file is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mount {
    OnThisHost,
    OverNetwork,
    /// systemd's PrivateTmp: visible to the processes of one service only.
    PrivateToService,
}

/// A system directory in which every user can create files and no user can delete another's.
pub(crate) fn default_directory() -> Option<PathBuf> {
    let is_shared = |path: &&&str| {
        fs::symlink_metadata(path).is_ok_and(|directory| {
            directory.is_dir() && directory.uid() == 0 && directory.mode() & 0o1002 == 0o1002
        })
    };
    DIRECTORIES.iter().find(is_shared).map(PathBuf::from)
}

pub(super) struct LockFile {
    path: PathBuf,
    locks: OfdLocks,
    /// For a process that takes part in the lock.
    name_lock: Option<NameLock>,
    identity: (u64, u64),
    /// Its state when the file was opened; `None` if unknown.
    file_system: Option<Statfs>,
}

impl LockFile {
    /// Open the file to take part in the lock. Created if missing.
    pub(super) fn open(directory: &Path, name: &[u8]) -> Result<Self, BackendError> {
        let path = directory.join(file_name::encode(name));
        let metadata = check_directory(directory)?;
        // Before the file: the kernel closes the descriptors of a dead process in their order, and a
        // process that waits for the file must then find the name free.
        let name_lock =
            path.file_name().and_then(|file_name| NameLock::open(directory, file_name, Access::Lock));
        let file = Self::opened(open_or_create(&path, &metadata), path, directory)?;
        file.keep_name(name);
        Ok(Self { name_lock, ..file })
    }

    /// Open the file read-only. `None` if there is no such file.
    pub(super) fn open_to_look(directory: &Path, file_name: &OsStr) -> Result<Option<Self>, BackendError> {
        let path = directory.join(file_name);
        match OpenOptions::new().read(true).custom_flags(SAFELY).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Self::opened(opened, path, directory).map(Some),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    fn opened(opened: io::Result<File>, path: PathBuf, directory: &Path) -> Result<Self, BackendError> {
        let fail = |problem| BackendError::new(path.display().to_string(), Problem::File(problem));
        let file = opened.map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied if path.exists() => fail(FileProblem::OwnedByAnother),
            io::ErrorKind::PermissionDenied => unusable(directory, FileProblem::CannotCreate),
            io::ErrorKind::ReadOnlyFilesystem => unusable(directory, FileProblem::ReadOnly),
            _ if e.raw_os_error() == Some(libc::ELOOP) => fail(FileProblem::SymbolicLink),
            _ if matches!(e.raw_os_error(), Some(libc::EISDIR | libc::ENXIO)) => {
                fail(FileProblem::NotRegular)
            }
            _ => fail(io_problem(&e)),
        })?;
        let metadata = file.metadata().map_err(|e| fail(io_problem(&e)))?;
        if !metadata.is_file() {
            return Err(fail(FileProblem::NotRegular));
        }
        if metadata.nlink() > 1 && !may_be_linked(&metadata, directory) {
            return Err(fail(FileProblem::Linked));
        }
        let identity = (metadata.dev(), metadata.ino());
        let file_system = fstatfs(&file).ok();
        Ok(Self { path, locks: OfdLocks::new(file), name_lock: None, identity, file_system })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn locks(&self) -> &OfdLocks {
        &self.locks
    }

    pub(super) fn name_lock(&self) -> Option<&NameLock> {
        self.name_lock.as_ref()
    }

    /// The name first: a process that is woken by the release of the file must find it free.
    pub(super) fn unlock_all(&self) {
        self.name_lock.iter().for_each(NameLock::unlock);
        self.locks.unlock_all();
    }

    /// Device and inode.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Whether its name still leads to it: the owner of a file may delete, rename or replace it, and
    /// other processes would not see our locks then.
    pub(super) fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }

    pub(super) fn mount(&self) -> Mount {
        let over_network = [NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, SMB2_SUPER_MAGIC];
        match &self.file_system {
            Some(file_system) if over_network.contains(&file_system.filesystem_type()) => Mount::OverNetwork,
            _ if self.is_private_to_service() => Mount::PrivateToService,
            _ => Mount::OnThisHost,
        }
    }

    /// Whether there is space for more than locks need. On Debian /run/lock has 5 MB in all.
    pub(super) fn has_room(&self) -> bool {
        self.file_system.as_ref().is_none_or(|file_system| {
            let block = u64::try_from(file_system.block_size()).unwrap_or(0);
            file_system.blocks_available().saturating_mul(block) >= ROOM_FOR_LOCKS
        })
    }

    /// systemd mounts a private directory over /tmp and /var/tmp; only its name shows that.
    fn is_private_to_service(&self) -> bool {
        if !self.path.starts_with("/tmp") && !self.path.starts_with("/var/tmp") {
            return false;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounts.lines().any(|line| {
            let mut fields = line.split(' ').skip(3);
            let (root, point) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
            root.contains("/systemd-private-") && self.path.starts_with(point)
        })
    }

    pub(super) fn io_error(&self, error: &io::Error) -> BackendError {
        self.error(io_problem(error))
    }

    pub(super) fn error(&self, problem: FileProblem) -> BackendError {
        BackendError::new(self.path.display().to_string(), Problem::File(problem))
    }
}

fn io_problem(error: &io::Error) -> FileProblem {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => FileProblem::FileSystemFull,
        _ => FileProblem::Io(error.to_string()),
    }
}

/// Whether a second name of the file does no harm. Any user who may write to a lock file can link it,
/// and must not lock others out by that. But a name in the directory may also be a link to a file
/// that has nothing to do with locks: it must not be written unless all users of the directory may.
fn may_be_linked(file: &Metadata, directory: &Path) -> bool {
    let writers = fs::metadata(directory).map_or(0, |directory| directory.mode() & 0o022);
    writers != 0 && file.mode() & writers == writers
}

/// Refuses a directory in which one user could delete another's lock file.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
pub(super) fn check_directory(directory: &Path) -> Result<Metadata, BackendError> {
    let metadata = fs::metadata(directory).map_err(|e| {
        let problem = match e.kind() {
            io::ErrorKind::NotFound => FileProblem::NoDirectory,
            io::ErrorKind::PermissionDenied => FileProblem::CannotCreate,
            _ => FileProblem::Directory(e.to_string()),
        };
        unusable(directory, problem)
    })?;
    if !metadata.is_dir() {
        return Err(unusable(directory, FileProblem::NotADirectory));
    }
    if metadata.mode() & 0o1002 == 0o0002 {
        return Err(unusable(directory, FileProblem::NotSticky));
    }
    Ok(metadata)
}

pub(super) fn unusable(directory: &Path, problem: FileProblem) -> BackendError {
    BackendError::new(directory.display().to_string(), Problem::File(problem))
}

/// O_CREAT is used only if the file does not exist: in a directory like /tmp Linux refuses it for
/// another user's file.
fn open_or_create(path: &Path, directory: &Metadata) -> io::Result<File> {
    let mut existing = OpenOptions::new();
    existing.read(true).write(true).custom_flags(SAFELY);
    // A user who can read a lock file can lock it.
    let writers = directory.mode() & 0o222;
    let gives_up_at = BootTime::now() + LONGEST_LEASE;
    loop {
        match existing.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !gives_up_at.has_passed() => {
                thread::sleep(LEASE_PAUSE);
                continue;
            }
            opened => return opened,
        }
        // Without the umask: other users must be able to use the file at once.
        let usual = umask(Mode::empty());
        let created = existing.clone().create_new(true).mode(writers | writers << 1).open(path);
        umask(usual);
        match created {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            Ok(file) => {
                // Share it with the directory's group. A user outside the group cannot, and keeps
                // the file.
                let _ = fchown(&file, None, Some(directory.gid()));
                return Ok(file);
            }
        }
    }
}
