//! Takes and releases a lock on a file with a random name: can the directory be used, and does its
//! file system support kernel locks? The file is deleted afterwards.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::HostLock;
use crate::clock::BootTime;
use crate::lock::checkup::{HostTrial, Unobserved, trial_request};
use crate::lock::claim::WaiterId;
use crate::lock::{BackendError, Ended, Error, Lock, Outcome, Problem, WaitPolicy};

pub(crate) fn check_directory_for_locks(directory: &Path) -> Result<HostTrial, BackendError> {
    let name = format!("doctor-{}", WaiterId::random()).into_bytes();
    let started = BootTime::now();
    let mut lock = HostLock::open(directory, &[name])?;
    let mount = lock.mount();
    let result = lock.acquire(&trial_request(WaitPolicy::No), &mut Unobserved);
    let result = result.map(|grant| lock.release(&grant, &Ended::new(Outcome::Released), Duration::ZERO));
    for path in lock.paths() {
        let _ = fs::remove_file(path);
    }
    match result {
        Ok(_) => Ok(HostTrial { mount, took: started.elapsed() }),
        Err(Error::Backend(error)) => Err(error),
        // No other client knows the file.
        Err(Error::Held(_) | Error::Nested | Error::Superseded(_) | Error::Cancelled(_)) => {
            Err(BackendError::new(directory.display().to_string(), Problem::ClaimVanished))
        }
    }
}
