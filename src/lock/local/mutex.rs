//! The short lock under which everything about a lock file is decided.

use std::thread;
use std::time::Duration;

use super::byte_map::MUTEX_BYTE;
use super::lock_file::LockFile;
use super::ofd_lock::Kind;
use crate::clock::BootTime;
use crate::lock::wait::{Wait, sleep};
use crate::lock::{BackendError, Error, FileProblem, Observer};

/// Other processes hold the mutex for a few system calls. One that holds it longer is stopped, or not redlock.
const TIMEOUT: Duration = Duration::from_secs(5);
/// So often the processor is offered to the process that holds it; that is nearly always enough.
const YIELDS: u32 = 64;
/// After that the process that holds it is waiting itself, for a processor or a disk.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Alone with the file until [`unlock`].
pub(super) fn lock(file: &LockFile, observer: Option<&mut (dyn Observer + '_)>) -> Result<(), Error> {
    if try_lock(file)? {
        return Ok(());
    }
    let gives_up_at = BootTime::now() + TIMEOUT;
    let mut observer = observer;
    while !gives_up_at.has_passed() {
        if try_once(file)? {
            return Ok(());
        }
        match &mut observer {
            Some(observer) => {
                if let Wait::Cancelled(signal) = sleep(BootTime::now() + RETRY_INTERVAL, *observer) {
                    return Err(Error::Cancelled(signal));
                }
            }
            None => thread::sleep(RETRY_INTERVAL),
        }
    }
    Err(file.error(FileProblem::WholeFileLocked).into())
}

/// False if it does not become free soon.
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
    file.locks().try_lock(MUTEX_BYTE, Kind::Write).map_err(|e| file.io_error(&e))
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
        assert!(theirs.locks().try_lock(MUTEX_BYTE, Kind::Write).unwrap());
        let cancelled = lock(&ours, Some(&mut NoObserver::cancelled()));
        assert!(matches!(cancelled, Err(Error::Cancelled(Signal::SIGINT))));
        unlock(&theirs);
        assert_eq!(theirs.locks().conflict_in(MUTEX_BYTE, Kind::Write).unwrap(), None);
    }

    #[test]
    fn the_mutex_is_taken_as_soon_as_it_is_free() {
        let directory = LockDirectory::new();
        let (ours, theirs) = (directory.observer_handle(), directory.observer_handle());
        assert!(theirs.locks().try_lock(MUTEX_BYTE, Kind::Write).unwrap());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock(&ours, None).is_ok());
            unlock(&theirs);
            assert!(waiter.join().unwrap());
        });
        assert!(theirs.locks().conflict_in(MUTEX_BYTE, Kind::Write).unwrap().is_some());
    }
}
