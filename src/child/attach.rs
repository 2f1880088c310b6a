//! Runs inside a command that use the lock of the outer run. They attach to its guardian, which
//! waits for them as for the command: otherwise a run that the command leaves in the background
//! would continue without a lock.
//!
//! The guardian has a pipe, and its command has the pipe's place in /proc in its environment. An
//! attached run has the pipe open for writing and locked for sharing (flock); it ends when the last
//! process that has it open exits, or detaches. The kernel opens the pipe for processes of this user
//! and for root only. Other users have nothing to connect to, so they cannot give the guardian any
//! work.
//!
//! A keeper (`redlock acquire`) has such a pipe, too. Its place begins with "k". Any process of its
//! user that knows the place may attach: a keeper stops no tree, so a run under its lock stops its
//! own command when the lock is lost.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::str::FromStr;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, getpid};

use super::proc_entry::is_ancestor;

/// Precedes the place of a keeper's pipe.
const KEEPER: &str = "k";

/// Where runs inside the command attach.
#[derive(Debug)]
pub(crate) struct AttachPoint {
    pipe: File,
    /// Until the command has exited, so that the pipe is not polled before: nothing happens there.
    writer: Option<PipeWriter>,
}

/// The place of a guardian's pipe, and the inode that distinguishes it from a later one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PipePlace {
    guardian: Pid,
    descriptor: RawFd,
    inode: u64,
}

impl fmt::Display for PipePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.guardian, self.descriptor, self.inode)
    }
}

impl FromStr for PipePlace {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or(());
        let (guardian, descriptor, inode) = (next()?, next()?, next()?);
        Ok(Self {
            guardian: Pid::from_raw(guardian.parse().map_err(drop)?),
            descriptor: descriptor.parse().map_err(drop)?,
            inode: inode.parse().map_err(drop)?,
        })
    }
}

impl AttachPoint {
    pub(crate) fn open() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { pipe: File::from(OwnedFd::from(reader)), writer: Some(writer) })
    }

    /// What a run needs to attach, if the guardian has this process ID.
    pub(super) fn id(&self, guardian: Pid) -> Option<String> {
        let inode = self.pipe.metadata().ok()?.ino();
        Some(PipePlace { guardian, descriptor: self.pipe.as_raw_fd(), inode }.to_string())
    }

    /// The same, if this process is a keeper.
    pub(crate) fn id_of_keeper(&self) -> Option<String> {
        Some(format!("{KEEPER}{}", self.id(getpid())?))
    }

    /// After the command has exited. True if no run is attached; from then on none can be. Else the
    /// pipe is readable when that may have changed.
    pub(crate) fn close(&mut self) -> bool {
        let is_first = self.writer.take().is_some();
        match self.pipe.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            // Where a pipe cannot be locked no run is attached.
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
        if is_first {
            let _ = fcntl(&self.pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        }
        while self.pipe.read(&mut [0; 16]).is_ok_and(|read| read > 0) {}
        // A run that detached before its byte was read.
        !matches!(self.pipe.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// The descriptor to wait for, once the point is closed.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.writer.is_none().then(|| self.pipe.as_fd())
    }
}

/// This process is attached to an outer run, which does not release its lock before this process
/// detaches or exits.
#[derive(Debug)]
pub(crate) struct Attachment {
    pipe: Arc<File>,
    to_keeper: bool,
}

impl Attachment {
    /// `None` if that run or keeper has ended, is being stopped, belongs to another user, or is not
    /// an outer run: a process that is not below its guardian would not be stopped with the tree.
    pub(crate) fn to(id: &str) -> Option<Self> {
        let keeper = id.strip_prefix(KEEPER);
        let PipePlace { guardian, descriptor, inode } = keeper.unwrap_or(id).parse().ok()?;
        let path = format!("/proc/{guardian}/fd/{descriptor}");
        // Another process may have that ID by now: do not open its files.
        std::fs::read_link(&path).ok().filter(|link| link.as_os_str() == &*format!("pipe:[{inode}]"))?;
        let pipe = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        let is_the_guardians =
            pipe.metadata().is_ok_and(|about| about.file_type().is_fifo() && about.ino() == inode);
        let is_outer = keeper.is_some() || is_ancestor(guardian);
        let is_attached = is_the_guardians && is_outer && lock(&pipe);
        is_attached.then(|| Self { pipe: Arc::new(pipe), to_keeper: keeper.is_some() })
    }

    /// A keeper does not stop our command when the lock is lost.
    pub(crate) fn is_to_keeper(&self) -> bool {
        self.to_keeper
    }

    /// Every process that needs the lock must keep this file open.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.pipe)
    }

    /// Detach every process that has the file open.
    pub(crate) fn detach(self) {
        let _ = self.pipe.unlock();
        // Wakes the guardian. If the pipe is full, it has not read an earlier byte.
        let _ = (&*self.pipe).write(&[0]);
    }
}

/// False if the point is closed. One that was closed after the pipe was opened can be locked, but it
/// has no reader.
fn lock(pipe: &File) -> bool {
    let has_reader =
        || poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::empty())], PollTimeout::ZERO) == Ok(0);
    pipe.try_lock_shared().is_ok() && has_reader()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::getppid;

    /// The place of a point of this process, as if it were a guardian above us.
    fn id_of(point: &AttachPoint) -> PipePlace {
        point.id(nix::unistd::getpid()).unwrap().parse().unwrap()
    }

    #[test]
    fn a_place_reads_back_and_nothing_else_is_one() {
        let place = PipePlace { guardian: getppid(), descriptor: 5, inode: 7 };
        assert_eq!(place.to_string().parse(), Ok(place));
        for wrong in ["", "1", "1:2", "1:2:x", "x:2:3", "1:2:3:4"] {
            assert_eq!(wrong.parse::<PipePlace>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_point_that_was_closed_admits_no_run() {
        let mut point = AttachPoint::open().unwrap();
        let PipePlace { descriptor, inode, .. } = id_of(&point);
        let open = || {
            let path = format!("/proc/self/fd/{descriptor}");
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
        };
        assert_eq!(open().metadata().unwrap().ino(), inode);
        let runs = [open(), open()].map(|run| Attachment { pipe: Arc::new(run), to_keeper: false });
        assert!(runs.iter().all(|run| lock(&run.pipe)));
        assert!(!point.close() && point.wake_fd().is_some());
        let [first, second] = runs;
        drop(first);
        assert!(!point.close(), "one of two has ended");
        let inherited = second.file();
        second.detach();
        assert!(point.close(), "detached, although a process has the file open");
        drop(inherited);
        let late = open();
        assert!(!lock(&late), "the point has locked it");
        drop(point);
        assert!(!lock(&late), "nothing reads it");
    }
}
