//! The mark that a run with `--once` leaves in the lock file when it has succeeded. It lasts longer than
//! a boot, so its time is the wall clock's.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;

use super::HostLock;
use super::format::{DONE, LOG};
use super::lock_file::LockFile;
use super::record::Record;
use crate::clock::{BootTime, wall_clock_millis};
use crate::lock::done::mark_kept_for;
use crate::lock::{BackendError, Done, Ended, Error, Request};

/// Takes the place of the ticket in the record.
const MARK: u64 = 1;

impl LockFile {
    /// The run that has left a mark here. One from the future was left before the clock was set back.
    pub(super) fn done(&self) -> Option<Done> {
        let record = self.record_at(DONE, MARK)?;
        let ago = Duration::from_millis(wall_clock_millis().abs_diff(record.since_ms));
        Some(Done { by: record.info, ago })
    }

    fn write_done(&self, run: &Record) -> io::Result<()> {
        let mark =
            Record { since: BootTime::now(), since_ms: wall_clock_millis(), tenure: None, ..run.clone() };
        self.write_record(DONE, MARK, &mark)
    }

    /// Makes room for a mark; what is there stays. A file system without this operation may turn out
    /// to be full when the mark is written.
    fn reserve_done(&self) -> io::Result<()> {
        match posix_fallocate(self.locks().file(), DONE.cast_signed(), (LOG - DONE).cast_signed()) {
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn forget_done(&self) -> io::Result<()> {
        self.write_at(&0_u64.to_le_bytes(), DONE)
    }
}

impl HostLock {
    /// An error if a run with `--once` has succeeded in time, for all keys.
    pub(super) fn require_not_done(&self, request: &Request) -> Result<(), Error> {
        let Some(within) = request.once else { return Ok(()) };
        let mut marks = self.files.iter().map(|file| file.done().filter(|done| done.ago <= within));
        let Some(Some(first)) = marks.next() else { return Ok(()) };
        if marks.all(|mark| mark.is_some()) { Err(Error::Done(Box::new(first))) } else { Ok(()) }
    }

    /// A success that cannot be marked would be repeated, so this must be known before the command is
    /// started. To be called by the holder.
    pub(super) fn prepare_mark(&self, request: &Request) -> Result<(), BackendError> {
        let mut files = self.files.iter().filter(|_| request.once.is_some());
        files.try_for_each(|file| file.reserve_done().map_err(|e| file.io_error(&e)))
    }

    /// To be called before anything is unlocked, so that the next one finds it.
    pub(super) fn leave_mark(&self, ended: &Ended) -> io::Result<()> {
        let Some(request) = &self.last_request else { return Ok(()) };
        if mark_kept_for(request.once, ended).is_none() {
            return Ok(());
        }
        self.files.iter().try_for_each(|file| file.write_done(&request.record))
    }
}
