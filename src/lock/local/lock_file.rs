//! The lock file: where it is, and who may open it.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::stat::{Mode, umask};
use nix::sys::statfs::{FsType, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, Statfs, fstatfs};

use super::file_name;
use super::ofd_lock::OfdLocks;
use crate::lock::{BackendError, FileProblem, Problem};

/// Where all users of a host can share files; the first that exists.
const DIRECTORIES: [&str; 3] = ["/run/lock", "/dev/shm", "/tmp"];

/// Not in nix: the one that today's Windows shares are mounted as.
const SMB2_SUPER_MAGIC: FsType = FsType(0xfe53_4d42);

/// Kept free for lock files: each needs a page.
const ROOM_FOR_LOCKS: u64 = 1024 * 1024;

/// Never through a symbolic link, never waiting for a pipe's other end.
const SAFELY: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// How the directory of the lock file is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mount {
    OnThisHost,
    OverNetwork,
    /// systemd's PrivateTmp: only the processes of one service see it.
    PrivateToService,
}

/// A directory of the system in which every user may create files and none may delete another's.
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
    identity: (u64, u64),
    /// How the file system was when the file was opened; `None` if that is not known.
    file_system: Option<Statfs>,
}

impl LockFile {
    /// To take part: created if there is none.
    pub(super) fn open(directory: &Path, name: &[u8]) -> Result<Self, BackendError> {
        let path = directory.join(file_name::encode(name));
        let about = check_directory(directory)?;
        // A user that may create files in the directory may use the locks in it.
        let file = Self::opened(open_or_make(&path, &about), path, directory)?;
        file.keep_name(name);
        Ok(file)
    }

    /// To look only: nothing is created or written, and reading it is enough. `None` if there is no such file.
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
            _ => fail(FileProblem::Io(e.to_string())),
        })?;
        let about = file.metadata().map_err(|e| fail(FileProblem::Io(e.to_string())))?;
        if !about.is_file() || about.nlink() > 1 {
            return Err(fail(FileProblem::NotRegular));
        }
        let identity = (about.dev(), about.ino());
        let file_system = fstatfs(&file).ok();
        Ok(Self { path, locks: OfdLocks::new(file), identity, file_system })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn locks(&self) -> &OfdLocks {
        &self.locks
    }

    /// Tells it from every other file of this host.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    pub(super) fn mount(&self) -> Mount {
        let over_network = [NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, SMB2_SUPER_MAGIC];
        match &self.file_system {
            Some(about) if over_network.contains(&about.filesystem_type()) => Mount::OverNetwork,
            _ if self.is_private_to_service() => Mount::PrivateToService,
            _ => Mount::OnThisHost,
        }
    }

    /// Whether there is room for more than locks need. /run/lock has 5 MB on Debian, for all that is in it.
    pub(super) fn has_room(&self) -> bool {
        self.file_system.as_ref().is_none_or(|about| {
            let block = u64::try_from(about.block_size()).unwrap_or(0);
            about.blocks_available().saturating_mul(block) >= ROOM_FOR_LOCKS
        })
    }

    /// systemd mounts a directory of its own over /tmp and /var/tmp; its name is all that tells.
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
        self.error(FileProblem::Io(error.to_string()))
    }

    pub(super) fn error(&self, problem: FileProblem) -> BackendError {
        BackendError::new(self.path.display().to_string(), Problem::File(problem))
    }
}

/// The directory must be one in which no user can delete another's lock.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
pub(super) fn check_directory(directory: &Path) -> Result<Metadata, BackendError> {
    let about = fs::metadata(directory).map_err(|e| {
        let problem = match e.kind() {
            io::ErrorKind::NotFound => FileProblem::NoDirectory,
            io::ErrorKind::PermissionDenied => FileProblem::CannotCreate,
            _ => FileProblem::Directory(e.to_string()),
        };
        unusable(directory, problem)
    })?;
    if !about.is_dir() {
        return Err(unusable(directory, FileProblem::NotADirectory));
    }
    if about.mode() & 0o1002 == 0o0002 {
        return Err(unusable(directory, FileProblem::NotSticky));
    }
    Ok(about)
}

pub(super) fn unusable(directory: &Path, problem: FileProblem) -> BackendError {
    BackendError::new(directory.display().to_string(), Problem::File(problem))
}

/// Asks to create only where nothing is: Linux refuses that for another's file in a directory like /tmp.
fn open_or_make(path: &Path, directory: &Metadata) -> io::Result<File> {
    let mut existing = OpenOptions::new();
    existing.read(true).write(true).custom_flags(SAFELY);
    loop {
        match existing.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        // Whatever the umask says: other users are to use it too, and from the first moment.
        let usual = umask(Mode::empty());
        let made = existing.clone().create_new(true).mode(directory.mode() & 0o666).open(path);
        umask(usual);
        match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            Ok(file) => {
                // A directory's group is meant to share it; a user outside the group keeps the file.
                let _ = fchown(&file, None, Some(directory.gid()));
                return Ok(file);
            }
        }
    }
}
