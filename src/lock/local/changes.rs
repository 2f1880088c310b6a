//! Waking for a change of a lock file with which no byte is released: a newer request supersedes ours,
//! or a run with `--once` has succeeded.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::lock_file::LockFile;

/// `None` if there is no inotify instance: a user has 128 by default.
pub(super) struct Changes(Option<Inotify>);

impl Changes {
    /// Watches from now on. To be called before the first check, so that no change is missed.
    pub(super) fn watch(files: &[LockFile]) -> Self {
        let watch = || {
            let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            for file in files {
                changes.add_watch(file.path(), AddWatchFlags::IN_MODIFY)?;
            }
            Ok::<_, nix::Error>(changes)
        };
        Self(watch().ok())
    }

    /// Readable after a file has changed. `None` if it must be looked at again and again.
    pub(super) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn discard(&self) {
        let Some(changes) = &self.0 else { return };
        while changes.read_events().is_ok_and(|events| !events.is_empty()) {}
    }
}
