//! Looking at the locks of this host. Reads only: no file is created or written, no byte is locked that another
//! process would see, and every user that may read a lock file may look at it.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;

use super::file_name;
use super::lock_file::{LockFile, check_directory, unusable};
use super::look::Present;
use super::release_watch::ReleaseWatch;
use super::run_log::killed;
use crate::clock::BootTime;
use crate::lock::wait::{Wait, wait};
use crate::lock::{
    BackendError, Detail, FileProblem, FinishedRun, History, Listing, Seen, State, Status, View, glob,
    lock_name,
};

/// How often a file is looked at that another program has locked for reading.
const FOREIGN_READER_PAUSE: Duration = Duration::from_secs(1);
/// As good as forever: then it is looked at again.
const FAR: Duration = Duration::from_hours(24);

/// The lock files in one directory.
pub(crate) struct HostView {
    directory: PathBuf,
    prefix: String,
}

impl HostView {
    pub(crate) fn new(directory: PathBuf, prefix: String) -> Self {
        Self { directory, prefix }
    }

    /// `None` if the lock was never used.
    fn open(&self, key: &[u8]) -> Result<Option<LockFile>, BackendError> {
        check_directory(&self.directory)?;
        let file_name = file_name::encode(&lock_name(&self.prefix, key));
        LockFile::open_to_look(&self.directory, OsStr::new(&file_name))
    }

    /// Blocks until nobody holds the lock or waits for it, or until this moment. Takes no part: it sleeps for one of the
    /// processes that are in the way to leave, and looks again. `seen` is called with what is seen until then.
    pub(crate) fn wait_until_idle(
        &self,
        key: &[u8],
        until: Option<BootTime>,
        seen: &mut dyn FnMut(&Status),
    ) -> Result<Status, BackendError> {
        loop {
            let Some(file) = self.open(key)? else { return Ok(Status::free(key.to_vec())) };
            let present = Present::look(&file).map_err(|e| file.io_error(&e))?;
            let status = present.status(&file, key.to_vec(), Detail::Full);
            if status.is_idle() || until.is_some_and(BootTime::has_passed) {
                return Ok(status);
            }
            seen(&status);
            sleep_until_change(&file, &present, until).map_err(|e| file.io_error(&e))?;
        }
    }

    /// The key, if the file is that of a lock with our prefix.
    fn key_of(&self, file: &LockFile) -> Option<Vec<u8>> {
        let name = file.name()?;
        name.strip_prefix(lock_name(&self.prefix, b"").as_slice()).map(<[u8]>::to_vec)
    }
}

impl View for HostView {
    fn wait_until_free(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(Seen<'_>),
    ) -> Result<Status, BackendError> {
        self.wait_until_idle(key, until, &mut |status| observer(Seen::Taken(status)))
    }

    fn status(&mut self, key: &[u8]) -> Result<Status, BackendError> {
        let Some(file) = self.open(key)? else { return Ok(Status::free(key.to_vec())) };
        let present = Present::look(&file).map_err(|e| file.io_error(&e))?;
        Ok(present.status(&file, key.to_vec(), Detail::Full))
    }

    fn history(&mut self, key: &[u8], since: Option<SystemTime>) -> Result<History, BackendError> {
        let Some(file) = self.open(key)? else {
            return Ok(History::new(Vec::new(), Status::free(key.to_vec())));
        };
        // The open ones first: one that ends in between is in the log as well, and one that is killed is in neither.
        let open = file.open_records();
        let present = Present::look(&file).map_err(|e| file.io_error(&e))?;
        let logged = file.logged_runs();
        let is_over = |ticket: &u64| {
            !present.holders.iter().any(|holder| holder.ticket == *ticket)
                && !logged.iter().any(|(logged, _)| logged == ticket)
        };
        // Killed, and no process has come since that would have written it down.
        let killed: Vec<FinishedRun> = open
            .iter()
            .filter(|(ticket, _)| is_over(ticket))
            .map(|(_, record)| killed(record, None))
            .collect();
        let runs = logged.iter().map(|(_, run)| run.clone()).chain(killed);
        let runs = runs.filter(|run| since.is_none_or(|since| run.ended_at >= since)).collect();
        Ok(History::new(runs, present.status(&file, key.to_vec(), Detail::Full)))
    }

    /// Files that cannot be read, or are none of ours, are passed over.
    fn list(&mut self, pattern: Option<&[u8]>, detail: Detail) -> Result<Listing, BackendError> {
        check_directory(&self.directory)?;
        let fail = |e: &io::Error| unusable(&self.directory, FileProblem::Directory(e.to_string()));
        let mut locks = Vec::new();
        for entry in self.directory.read_dir().map_err(|e| fail(&e))? {
            let file_name = entry.map_err(|e| fail(&e))?.file_name();
            if !file_name::may_be_ours(&file_name) {
                continue;
            }
            let Ok(Some(file)) = LockFile::open_to_look(&self.directory, &file_name) else { continue };
            let key = self.key_of(&file);
            let Some(key) = key.filter(|key| pattern.is_none_or(|pattern| glob::matches(pattern, key)))
            else {
                continue;
            };
            let Ok(present) = Present::look(&file) else { continue };
            if present.state() != State::Free {
                locks.push(present.status(&file, key, detail));
            }
        }
        Ok(Listing { locks, servers: Vec::new(), missing: Vec::new(), undecided: None })
    }
}

/// Until one that is in the way has left, or may have.
fn sleep_until_change(file: &LockFile, present: &Present, until: Option<BootTime>) -> io::Result<()> {
    let writer = present.foreign.filter(|foreign| foreign.is_writer).map(|foreign| foreign.offset);
    let holder = present.holders.first().map(|holder| holder.offset);
    let kept_until = present.kept.iter().map(|reservation| reservation.until).max();
    // A waiter unlocks its byte when it enters. While a minimum hold is not over it does not.
    let waiter = present.waiters.first().map(|waiter| waiter.offset).filter(|_| kept_until.is_none());
    // The kernel does not wake us when a lock for reading ends, unless we ask for one that others would see.
    let pause_until =
        present.foreign.filter(|foreign| !foreign.is_writer).map(|_| BootTime::now() + FOREIGN_READER_PAUSE);
    let until = [until, kept_until, pause_until].into_iter().flatten().min();
    let mut release_watch = ReleaseWatch::new(file.locks())?;
    if let Some(offset) = holder.or(writer).or(waiter) {
        release_watch.watch(offset)?;
    }
    let watched = [(release_watch.wake_fd(), PollFlags::POLLIN)];
    if wait(&watched, until.unwrap_or(BootTime::now() + FAR), None) == Wait::Ready {
        release_watch.take_releases()?;
    }
    Ok(())
}
