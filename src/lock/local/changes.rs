//! Waking for a change of a lock file with which no byte is released: a newer request supersedes ours,
//! or a run with `--once` has succeeded.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::lock_file::LockFile;

pub(super) struct Changes(Inotify);

impl Changes {
    /// Watches from now on. To be called before the first check, so that no change is missed.
    pub(super) fn watch(files: &[LockFile]) -> io::Result<Self> {
        let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        for file in files {
            changes.add_watch(file.path(), AddWatchFlags::IN_MODIFY)?;
        }
        Ok(Self(changes))
    }

    /// Readable after a file has changed.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn discard(&self) {
        while self.0.read_events().is_ok_and(|events| !events.is_empty()) {}
    }
}
