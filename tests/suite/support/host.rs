//! A directory for locks of this host, and the kernel's locks on the lock file in it.

use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Job, Run, wait_until};

/// The waiters' bytes, one for each ticket, in all lanes; the holders' marks follow them.
const WAITERS: Range<u64> = 1..1 << 61;

/// The byte of the mutex under which a participant enters.
pub const MUTEX_BYTE: u64 = 1 << 62;

/// The byte of the last ticket that a request without options can draw.
pub const LAST_TICKET: u64 = (1 << 49) + (1 << 40) - 1;

pub struct Host {
    directory: TempDir,
}

impl Host {
    /// A directory of our own.
    pub fn new() -> Host {
        Host::with_mode(0o700)
    }

    /// A directory with this mode, such as 0o1777.
    pub fn with_mode(mode: u32) -> Host {
        let host = Host { directory: tempfile::tempdir().expect("a temporary directory") };
        fs::set_permissions(host.path(), Permissions::from_mode(mode)).expect("chmod");
        host
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A file beside the lock files.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// `redlock run --local --local-dir DIR --key k`
    pub fn run(&self) -> Run {
        self.run_on("k")
    }

    /// The same with another key.
    pub fn run_on(&self, key: impl AsRef<std::ffi::OsStr>) -> Run {
        Run::bare().args(&["run", "--local", "--local-dir"]).arg(self.path()).arg("--key").arg(key)
    }

    /// `redlock COMMAND --local-dir DIR`, for commands that inspect locks.
    pub fn subcommand(&self, command: &str) -> Run {
        Run::bare().args(&[command, "--local-dir"]).arg(self.path())
    }

    /// The one lock file that was made so far.
    #[track_caller]
    pub fn file(&self) -> PathBuf {
        let mut files = lock_files(self.path());
        assert_eq!(files.len(), 1, "lock files: {files:?}");
        files.remove(0)
    }

    /// The lock file of a key, whether it exists or not.
    pub fn file_of(&self, key: &str) -> PathBuf {
        self.beside(&format!("redlock-lock%3A{key}"))
    }

    /// Whether one attempt finds the key "k" free.
    #[track_caller]
    pub fn is_free(&self) -> bool {
        self.run().try_acquire()
    }

    /// No byte is locked in any of the lock files.
    #[track_caller]
    pub fn assert_nothing_is_locked(&self) {
        let locked: Vec<PathBuf> =
            lock_files(self.path()).into_iter().filter(|file| is_locked(file)).collect();
        assert_eq!(locked, Vec::<PathBuf>::new(), "a byte is still locked");
    }

    /// Waits until `n` waiters have drawn their tickets: in the only lock file, or in that of "k".
    #[track_caller]
    pub fn queued(&self, n: usize) {
        let file = match &lock_files(self.path())[..] {
            [file] => file.clone(),
            _ => self.beside("redlock-lock%3Ak"),
        };
        wait_until(&format!("{n} waiters in the queue"), || tickets_waiting(&file) == n);
    }

    /// Starts a run and waits until it is in the queue at this position.
    #[track_caller]
    pub fn waiter(&self, run: Run, position: usize) -> Job {
        let job = run.spawn();
        self.queued(position);
        job
    }

    /// The same, with a command that appends this word to the file "order".
    #[track_caller]
    pub fn noting_waiter(&self, word: &str, position: usize) -> Job {
        self.waiter(self.run().dir(self.path()).sh(&format!("echo {word} >> order")), position)
    }

    /// The words in the file "order".
    pub fn order(&self) -> Vec<String> {
        super::lines_of(&self.beside("order"))
    }
}

/// The lock files in a directory.
pub fn lock_files(directory: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(directory).expect("the directory").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("redlock-")).collect()
}

/// The number of waiters' bytes that are locked in the file.
pub fn tickets_waiting(file: &Path) -> usize {
    let inode = format!(":{}", fs::metadata(file).expect("the lock file").ino());
    let locks = fs::read_to_string("/proc/locks").expect("/proc/locks");
    let is_ticket = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "OFDLCK", _, _, _, of, start, _] = words[..] else { return false };
        of.ends_with(&inode) && start.parse().is_ok_and(|start| WAITERS.contains(&start))
    };
    locks.lines().filter(is_ticket).count()
}

/// Whether any byte of this file is locked.
pub fn is_locked(file: &Path) -> bool {
    let inode = format!(":{}", fs::metadata(file).expect("the lock file").ino());
    let locks = fs::read_to_string("/proc/locks").expect("/proc/locks");
    locks.lines().any(|line| line.split_whitespace().any(|word| word.ends_with(&inode)))
}
