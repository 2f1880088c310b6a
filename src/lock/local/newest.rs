//! Among the waiters that supersede each other only the newest stays. Each file has the record of
//! the newest one, by its time of arrival on the boot-time clock, which all processes of this host
//! share.
//!
//! No byte is released when a newer waiter arrives, so an older waiter would not wake. It therefore
//! also watches the files (changes.rs), and checks whether the record is still its own.

use std::io;

use super::lock_file::LockFile;
use super::record::Record;
use crate::clock::BootTime;
use crate::lock::{Error, Superseded};

/// A request that supersedes older ones, and is superseded by newer ones.
pub(super) struct Contender {
    record: Record,
}

impl Contender {
    /// `record` is ours, with the time of our arrival.
    pub(super) fn new(record: Record) -> Self {
        Self { record }
    }

    /// An error if a newer contender has arrived, for any of the keys.
    pub(super) fn check(&self, files: &[LockFile]) -> Result<(), Error> {
        for (key, file) in files.iter().enumerate() {
            if let Some(newest) = file.newest().filter(|newest| self.is_older_than(newest)) {
                return Err(Error::Superseded(Box::new(Superseded { key, by: newest.info })));
            }
        }
        Ok(())
    }

    fn is_older_than(&self, newest: &Record) -> bool {
        let order = |record: &Record| (record.since, record.claim.clone());
        // A record from the future was not written by redlock.
        order(newest) > order(&self.record) && newest.since <= BootTime::now()
    }

    /// To be called under the mutex, after [`Contender::check`], before we queue or enter.
    pub(super) fn become_newest(&self, file: &LockFile) -> io::Result<()> {
        let is_ours = file.newest().is_some_and(|newest| newest.claim == self.record.claim);
        if is_ours { Ok(()) } else { file.write_newest(&self.record) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::changes::Changes;
    use super::super::tests::LockDirectory;
    use super::*;
    use crate::lock::local::record::tests::record;
    use crate::lock::wait::is_readable;

    #[test]
    fn only_the_newest_contender_stays_in_any_order_of_checks() {
        let directory = LockDirectory::new();
        let files = [directory.observer_handle()];
        let now = BootTime::now();
        // The second and the third arrived in the same nanosecond.
        let ages = [3, 1, 1, 2].map(Duration::from_secs);
        let names = ["a", "b", "c", "d"];
        let contenders: Vec<Contender> =
            names.iter().zip(ages).map(|(name, age)| Contender::new(record(name, now.minus(age)))).collect();
        for contender in contenders.iter().chain(&contenders).chain(contenders.iter().rev()) {
            if contender.check(&files).is_ok() {
                contender.become_newest(&files[0]).unwrap();
            }
        }
        let staying = contenders.iter().filter(|contender| contender.check(&files).is_ok());
        assert_eq!(staying.map(|contender| contender.record.claim.as_str()).collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn a_newer_record_supersedes_unless_it_is_from_the_future() {
        let directory = LockDirectory::new();
        let files = [directory.observer_handle()];
        let (ours, changes) = (Contender::new(record("a", BootTime::now())), Changes::watch(&files));
        let is_woken = || is_readable(changes.wake_fd().expect("inotify"));
        files[0].write_newest(&record("b", BootTime::now() + Duration::from_secs(60))).unwrap();
        assert!(is_woken());
        assert!(ours.check(&files).is_ok());
        changes.discard();
        assert!(!is_woken());
        files[0].write_newest(&record("c", BootTime::now())).unwrap();
        assert!(is_woken());
        assert!(matches!(ours.check(&files), Err(Error::Superseded(_))));
    }
}
