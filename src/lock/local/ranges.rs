//! Byte-range locks of one open file, as the kernel keeps them.
//!
//! Open file description locks: they belong to the open file, so threads and forked processes share
//! them, and they end when the last of those has closed it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

#[derive(Debug)]
pub struct Ranges(File);

impl Ranges {
    pub fn new(file: File) -> Self {
        Self(file)
    }

    pub fn file(&self) -> &File {
        &self.0
    }

    /// For another thread: the same open file, the same locks.
    pub fn clone_handle(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// False if somebody else has a lock in the way.
    pub fn try_lock(&self, range: Range<u64>, kind: Kind) -> io::Result<bool> {
        match fcntl(&self.0, FcntlArg::F_OFD_SETLK(&request(&range, kind))) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Blocks until nobody is in the way.
    pub fn lock(&self, range: Range<u64>, kind: Kind) -> io::Result<()> {
        loop {
            match fcntl(&self.0, FcntlArg::F_OFD_SETLKW(&request(&range, kind))) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub fn unlock(&self, range: Range<u64>) {
        let mut wanted = request(&range, Kind::Read);
        wanted.l_type = libc::F_UNLCK as libc::c_short;
        // It splits no lock of ours that we would keep, so it needs no memory and cannot fail.
        let _ = fcntl(&self.0, FcntlArg::F_OFD_SETLK(&wanted));
    }

    pub fn unlock_all(&self) {
        self.unlock(0..u64::MAX >> 1);
    }

    /// Somebody else's lock in this range, whichever the kernel finds first.
    pub fn any_locked_in(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let mut found = request(&range, Kind::Write);
        fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut found))?;
        if found.l_type == libc::F_UNLCK as libc::c_short {
            return Ok(None);
        }
        let start = found.l_start.cast_unsigned();
        // A length of zero reaches to the end.
        let length = match found.l_len.cast_unsigned() {
            0 => u64::MAX >> 1,
            length => length,
        };
        Ok(Some(start..start.saturating_add(length)))
    }

    /// All of somebody else's locks in this range, in order.
    pub fn locked_in(&self, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        let mut unknown = vec![range];
        while let Some(range) = unknown.pop() {
            if range.is_empty() {
                continue;
            }
            if let Some(locked) = self.any_locked_in(range.clone())? {
                unknown.push(range.start..locked.start.max(range.start));
                unknown.push(locked.end..range.end.max(locked.end));
                found.push(locked);
            }
        }
        found.sort_by_key(|range| range.start);
        Ok(found)
    }
}

impl AsRawFd for Ranges {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn request(range: &Range<u64>, kind: Kind) -> libc::flock {
    let lock = match kind {
        Kind::Read => libc::F_RDLCK,
        Kind::Write => libc::F_WRLCK,
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

    fn open(path: &std::path::Path) -> Ranges {
        Ranges::new(File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap())
    }

    #[test]
    fn every_lock_of_others_is_found_and_none_of_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let (a, b, c) = (open(&path), open(&path), open(&path));
        assert!(a.try_lock(0..4, Kind::Write).unwrap());
        assert!(b.try_lock(7..8, Kind::Write).unwrap());
        assert!(c.try_lock(9..10, Kind::Read).unwrap());
        assert_eq!(c.locked_in(0..20).unwrap(), [0..4, 7..8]);
        assert_eq!(a.locked_in(0..20).unwrap(), [7..8, 9..10]);
        assert_eq!(a.locked_in(0..9).unwrap(), vec![7..8; 1]);
        b.unlock_all();
        assert_eq!(a.any_locked_in(0..9).unwrap(), None);
        assert!(!b.try_lock(3..9, Kind::Read).unwrap());
        drop(a);
        assert!(b.try_lock(3..9, Kind::Read).unwrap());
    }
}
