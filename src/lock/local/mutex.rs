//! The mutex of a lock file, held for a few system calls to make a decision.

use std::thread;
use std::time::Duration;

use super::byte_map::MUTEX_BYTE;
use super::lock_file::LockFile;
use super::ofd_lock::LockKind;
use crate::clock::BootTime;
use crate::lock::wait::{Wait, sleep};
use crate::lock::{BackendError, Error, FileProblem, Observer};

/// Other processes hold the mutex for a few system calls. A process that holds it for longer is
/// stopped, or is not redlock.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often to yield the processor to the process that holds the mutex: nearly always enough.
const YIELDS: u32 = 64;
/// After the yields: the process that holds the mutex is waiting itself, for a processor or a disk.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

pub(super) fn lock(file: &LockFile) -> Result<(), BackendError> {
    lock_with(file, || {
        thread::sleep(RETRY_INTERVAL);
        Ok(())
    })
}

/// Stops waiting when the observer gives up.
pub(super) fn lock_observed(file: &LockFile, observer: &mut dyn Observer) -> Result<(), Error> {
    lock_with(file, || match sleep(BootTime::now() + RETRY_INTERVAL, observer) {
        Wait::Cancelled(signal) => Err(Error::Cancelled(signal)),
        Wait::Ready | Wait::Over => Ok(()),
    })
}

fn lock_with<E: From<BackendError>>(
    file: &LockFile,
    mut pause: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    if try_lock(file)? {
        return Ok(());
    }
    let gives_up_at = BootTime::now() + TIMEOUT;
    while !gives_up_at.has_passed() {
        if try_once(file)? {
            return Ok(());
        }
        pause()?;
    }
    Err(file.error(FileProblem::MutexLocked).into())
}

/// False if the mutex does not become free soon.
pub(super) fn try_lock(file: &LockFile) -> Result<bool, BackendError> {
    for _ in 0..YIELDS {
        if try_once(file)? {
            return Ok(true);
        }
        thread::yield_now();
    }
    Ok(false)
}

fn try_once(file: &LockFile) -> Result<bool, BackendError> {
    file.locks().try_lock(MUTEX_BYTE, LockKind::Write).map_err(|e| file.io_error(&e))
}

pub(super) fn unlock(file: &LockFile) {
    file.locks().unlock(MUTEX_BYTE);
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::super::tests::{LockDirectory, NoObserver};
    use super::*;

    #[test]
    fn a_cancelled_wait_for_the_mutex_leaves_it_alone() {
        let directory = LockDirectory::new();
        let (ours, theirs) = (directory.observer_handle(), directory.observer_handle());
        assert!(theirs.locks().try_lock(MUTEX_BYTE, LockKind::Write).unwrap());
        let cancelled = lock_observed(&ours, &mut NoObserver::cancelled());
        assert!(matches!(cancelled, Err(Error::Cancelled(Signal::SIGINT))));
        unlock(&theirs);
        assert_eq!(theirs.locks().conflict_in(MUTEX_BYTE, LockKind::Write).unwrap(), None);
    }

    #[test]
    fn the_mutex_is_taken_as_soon_as_it_is_free() {
        let directory = LockDirectory::new();
        let (ours, theirs) = (directory.observer_handle(), directory.observer_handle());
        assert!(theirs.locks().try_lock(MUTEX_BYTE, LockKind::Write).unwrap());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock(&ours).is_ok());
            unlock(&theirs);
            assert!(waiter.join().unwrap());
        });
        assert!(theirs.locks().conflict_in(MUTEX_BYTE, LockKind::Write).unwrap().is_some());
    }
}
