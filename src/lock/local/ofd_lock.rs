//! Kernel locks on byte ranges of one open file.
//!
//! Open file description locks belong to the open file: threads and forked processes share them,
//! and they end when the last of those closes the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::byte_map::END;
use crate::lock::MOST_SLOTS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockKind {
    Read,
    Write,
}

/// Clones share the open file and its locks.
#[derive(Clone, Debug)]
pub(super) struct OfdLocks(Arc<File>);

impl OfdLocks {
    pub(super) fn new(file: File) -> Self {
        Self(Arc::new(file))
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// The same open file, for a process that must keep it open.
    pub(super) fn shared_file(&self) -> Arc<File> {
        Arc::clone(&self.0)
    }

    /// False if another open file has a conflicting lock.
    pub(super) fn try_lock(&self, range: Range<u64>, kind: LockKind) -> io::Result<bool> {
        match fcntl(&*self.0, FcntlArg::F_OFD_SETLK(&request(&range, kind))) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Blocks until the range is locked, or until a signal arrives and `is_over` returns true.
    pub(super) fn lock_unless(
        &self,
        range: Range<u64>,
        kind: LockKind,
        is_over: impl Fn() -> bool,
    ) -> io::Result<()> {
        loop {
            match fcntl(&*self.0, FcntlArg::F_OFD_SETLKW(&request(&range, kind))) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) if !is_over() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the constants of flock are small")]
    pub(super) fn unlock(&self, range: Range<u64>) {
        let mut wanted = request(&range, LockKind::Read);
        wanted.l_type = libc::F_UNLCK as libc::c_short;
        // It never splits one of our locks, so the kernel needs no memory and it cannot fail.
        let _ = fcntl(&*self.0, FcntlArg::F_OFD_SETLK(&wanted));
    }

    pub(super) fn unlock_all(&self) {
        self.unlock(0..END);
    }

    /// A lock of another open file in this range that conflicts with this kind of lock, whichever
    /// the kernel finds first.
    pub(super) fn conflict_in(&self, range: Range<u64>, kind: LockKind) -> io::Result<Option<Range<u64>>> {
        let Some(found) = self.first_conflict(&range, kind)? else { return Ok(None) };
        let start = found.l_start.cast_unsigned();
        // A length of zero means up to the end.
        let length = match found.l_len.cast_unsigned() {
            0 => END,
            length => length,
        };
        Ok(Some(start.max(range.start)..start.saturating_add(length).min(range.end)))
    }

    /// The process that has such a lock, if the lock belongs to a process and not to an open file.
    pub(super) fn pid_of_conflict(&self, range: &Range<u64>, kind: LockKind) -> io::Result<Option<i32>> {
        Ok(self.first_conflict(range, kind)?.map(|found| found.l_pid).filter(|pid| *pid > 0))
    }

    #[allow(clippy::cast_possible_truncation, reason = "the constants of flock are small")]
    fn first_conflict(&self, range: &Range<u64>, kind: LockKind) -> io::Result<Option<libc::flock>> {
        if range.is_empty() {
            return Ok(None);
        }
        let mut found = request(range, kind);
        fcntl(&*self.0, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok((found.l_type != libc::F_UNLCK as libc::c_short).then_some(found))
    }

    /// A byte in this range that another process has locked for writing.
    pub(super) fn writer_in(&self, range: Range<u64>) -> io::Result<Option<u64>> {
        Ok(self.conflict_in(range, LockKind::Read)?.map(|locked| locked.start))
    }

    /// The last byte in this range that another process has locked for writing. Searches from the
    /// end, where it usually is.
    pub(super) fn last_writer_in(&self, range: Range<u64>) -> io::Result<Option<u64>> {
        let last_of =
            |range| Ok::<_, io::Error>(self.conflict_in(range, LockKind::Read)?.map(|found| found.end - 1));
        let Some(mut last) = last_of(range.clone())? else { return Ok(None) };
        let (mut end, mut width) = (range.end, 1);
        while end > last + 1 {
            let start = end.saturating_sub(width).max(last + 1);
            if let Some(found) = last_of(start..end)? {
                last = found;
            } else {
                (end, width) = (start, width.saturating_mul(2));
            }
        }
        Ok(Some(last))
    }

    /// The first byte in this range that another process has locked for writing.
    pub(super) fn first_writer_in(&self, range: Range<u64>) -> io::Result<Option<u64>> {
        let mut first = None;
        let mut end = range.end;
        while let Some(found) = self.writer_in(range.start..end)? {
            (first, end) = (Some(found), found);
        }
        Ok(first)
    }

    /// The starts of all write locks of other processes in this range, in order.
    pub(super) fn all_writers_in(&self, range: Range<u64>) -> io::Result<Vec<u64>> {
        Ok(self.all_conflicts_in(range, LockKind::Read)?.into_iter().map(|locked| locked.start).collect())
    }

    /// Other processes' locks in this range that conflict with this kind of lock, in order. Of
    /// overlapping locks, only one. Not more than a lock has slots: for each one the kernel walks
    /// through all of them, and any user of the directory can lock any number.
    pub(super) fn all_conflicts_in(&self, range: Range<u64>, kind: LockKind) -> io::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        let mut unknown = vec![range];
        while let Some(range) = unknown.pop().filter(|_| found.len() < MOST_SLOTS as usize) {
            if let Some(locked) = self.conflict_in(range.clone(), kind)? {
                unknown.push(locked.end..range.end);
                unknown.push(range.start..locked.start);
                found.push(locked);
            }
        }
        found.sort_unstable_by_key(|locked| locked.start);
        Ok(found)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the constants of flock are small")]
fn request(range: &Range<u64>, kind: LockKind) -> libc::flock {
    let lock = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
    };
    libc::flock {
        l_type: lock as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start.cast_signed(),
        l_len: (range.end - range.start).cast_signed(),
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> OfdLocks {
        OfdLocks::new(File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap())
    }

    #[test]
    fn write_locks_of_others_show_and_read_locks_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let (a, b, c) = (open(&path), open(&path), open(&path));
        assert!(a.try_lock(0..4, LockKind::Write).unwrap());
        assert!(b.try_lock(7..8, LockKind::Write).unwrap());
        assert!(b.try_lock(12..13, LockKind::Read).unwrap());
        assert!(c.try_lock(9..10, LockKind::Write).unwrap());
        assert_eq!(c.all_writers_in(0..20).unwrap(), [0, 7]);
        assert_eq!(a.all_writers_in(0..20).unwrap(), [7, 9]);
        assert_eq!(a.all_writers_in(0..9).unwrap(), [7]);
        assert_eq!(a.conflict_in(10..20, LockKind::Write).unwrap(), Some(12..13));
        b.unlock_all();
        assert_eq!(a.writer_in(0..9).unwrap(), None);
        assert!(!b.try_lock(3..9, LockKind::Read).unwrap());
        drop(a);
        assert!(b.try_lock(3..9, LockKind::Read).unwrap());
    }

    #[test]
    fn a_search_finds_the_first_and_the_last_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let observer = open(&path);
        let far = 1 << 50;
        assert_eq!(observer.last_writer_in(0..far).unwrap(), None);
        assert_eq!(observer.first_writer_in(0..far).unwrap(), None);
        let places = [500, 7, far / 2, 501, 9, 12, far - 1];
        let others: Vec<OfdLocks> = places.iter().map(|_| open(&path)).collect();
        for (other, &offset) in others.iter().zip(&places) {
            assert!(other.try_lock(offset..offset + 1, LockKind::Write).unwrap());
        }
        let last = |range: Range<u64>| observer.last_writer_in(range).unwrap();
        let first = |range: Range<u64>| observer.first_writer_in(range).unwrap();
        assert_eq!((first(0..far), last(0..far)), (Some(7), Some(far - 1)));
        assert_eq!((first(8..far - 1), last(8..far - 1)), (Some(9), Some(far / 2)));
        assert_eq!((first(10..13), last(0..12)), (Some(12), Some(9)));
        assert_eq!((last(0..501), last(0..502), last(8..9)), (Some(500), Some(501), None));
    }
}
