//! The lock file: where it is, and who may open it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::stat::{Mode, umask};
use nix::sys::statfs::{FsType, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, fstatfs};
use uuid::Uuid;

use super::ofd_lock::OfdLocks;
use crate::lock::{BackendError, FileProblem, Problem};

/// Where all users of a host can share files; the first that exists.
const DIRECTORIES: [&str; 3] = ["/run/lock", "/dev/shm", "/tmp"];

/// Not in nix: the one that today's Windows shares are mounted as.
const SMB2_SUPER_MAGIC: FsType = FsType(0xfe53_4d42);
const LONGEST_NAME: usize = 200;

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
}

impl LockFile {
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    pub(super) fn open(directory: &Path, name: &[u8]) -> Result<Self, BackendError> {
        let path = directory.join(file_name(name));
        let fail = |problem| BackendError::new(path.display().to_string(), Problem::File(problem));
        let unusable = |problem| BackendError::new(directory.display().to_string(), Problem::File(problem));
        let about = fs::metadata(directory).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => unusable(FileProblem::NoDirectory),
            io::ErrorKind::PermissionDenied => unusable(FileProblem::CannotCreate),
            _ => unusable(FileProblem::Directory(e.to_string())),
        })?;
        if !about.is_dir() {
            return Err(unusable(FileProblem::NotADirectory));
        }
        if about.mode() & 0o1002 == 0o0002 {
            return Err(unusable(FileProblem::NotSticky));
        }
        // A user that may create files in the directory may use the locks in it.
        let file = open_or_make(&path, &about).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied if path.exists() => fail(FileProblem::OwnedByAnother),
            io::ErrorKind::PermissionDenied => unusable(FileProblem::CannotCreate),
            io::ErrorKind::ReadOnlyFilesystem => unusable(FileProblem::ReadOnly),
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
        Ok(Self { path, locks: OfdLocks::new(file), identity })
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
        match fstatfs(self.locks.file()) {
            Ok(about) if over_network.contains(&about.filesystem_type()) => Mount::OverNetwork,
            _ if self.is_private_to_service() => Mount::PrivateToService,
            _ => Mount::OnThisHost,
        }
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

    /// Its name was removed: other processes do not see our locks on it.
    pub(super) fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.locks.file().metadata()?.nlink() == 0)
    }

    pub(super) fn io_error(&self, error: &io::Error) -> BackendError {
        self.error(FileProblem::Io(error.to_string()))
    }

    pub(super) fn error(&self, problem: FileProblem) -> BackendError {
        BackendError::new(self.path.display().to_string(), Problem::File(problem))
    }
}

/// Never through a symbolic link, never truncating, never waiting for a pipe's other end. Asks to create
/// only where nothing is: Linux refuses that for another's file in a directory like /tmp.
fn open_or_make(path: &Path, directory: &Metadata) -> io::Result<File> {
    let mut existing = OpenOptions::new();
    existing.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
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

/// Readable, and different for different keys: harmless characters stand for themselves, all others as
/// %XX, and what would be too long for a file name as a digest.
fn file_name(name: &[u8]) -> String {
    let mut encoded = String::from("redlock-");
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"_-".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    if encoded.len() > LONGEST_NAME {
        encoded.truncate(LONGEST_NAME / 2);
        encoded.push_str(&format!("~{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, name)));
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_keys_become_harmless_names() {
        assert_eq!(file_name(b"lock:deploy"), "redlock-lock%3Adeploy");
        assert_eq!(file_name(b"../a b"), "redlock-%2E%2E%2Fa%20b");
        assert_ne!(file_name(&[b'x'; 400]), file_name(&[b'x'; 401]));
    }

    proptest! {
        #[test]
        fn every_key_has_a_short_plain_name(name: Vec<u8>) {
            let name = file_name(&name);
            prop_assert!(name.len() < 255 && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/'));
        }

        #[test]
        fn different_keys_have_different_files(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
        }
    }
}
