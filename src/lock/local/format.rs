//! The layout of the lock file. Its parts are far apart, but the file is sparse: parts that were
//! never written take no space.
//!
//! All of it is for people except the table of reservations: the kernel's locks alone decide who
//! holds the lock, so truncating or rewriting the file lets no process in beside a living one.

use std::io;
use std::os::unix::fs::FileExt;

use uuid::Uuid;

use super::lock_file::LockFile;
use super::record::RECORD;
use super::reservation::{ENTRIES, ENTRY};

pub(super) const HEADER: usize = 32;

/// Number of holders' records.
pub(super) const RECORDS: usize = 64;
pub(super) const RECORDS_START: u64 = HEADER as u64;

/// The table of reservations.
pub(super) const TABLE: u64 = RECORDS_START + (RECORDS * RECORD) as u64;

/// The record of the newest request among those that supersede each other.
pub(super) const NEWEST: u64 = TABLE + (ENTRIES * ENTRY) as u64;

/// The record of a process that asks a holder to release the lock.
pub(super) const BREAK_REQUEST: u64 = NEWEST + RECORD as u64;

/// The mark of the last run with --once that has succeeded.
pub(super) const DONE: u64 = BREAK_REQUEST + RECORD as u64;

/// The history.
pub(super) const LOG: u64 = 25 * PAGE;
pub(super) const LOGGED_RUNS: usize = 256;

/// The lock's name, if it is too long for a file name.
pub(super) const NAME: u64 = 45 * PAGE;
pub(super) const LONGEST_KEPT_NAME: usize = 4088;

/// The waiters' records, at the end: they are truncated when the queue is empty.
pub(super) const WAITERS_START: u64 = 46 * PAGE;
pub(super) const WAITER_RECORDS: u64 = 128;

const PAGE: u64 = 4096;

/// All zero in a new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub next_ticket: u64,
    pub last_fence: u64,
    /// When the last reservation ends, in nanoseconds since a boot, perhaps an earlier one.
    pub reserved_until: u64,
    /// Number of entries in the table of reservations.
    pub reservations: u64,
}

impl LockFile {
    pub(super) fn header(&self) -> Header {
        let mut bytes = [0; HEADER];
        let read = self.read_at_most(&mut bytes, 0);
        let mut numbers = bytes[..read].chunks_exact(8).map(number);
        let mut next = || numbers.next().unwrap_or(0);
        Header { next_ticket: next(), last_fence: next(), reserved_until: next(), reservations: next() }
    }

    pub(super) fn write_header(&self, header: &Header) -> io::Result<()> {
        let Header { next_ticket, last_fence, reserved_until, reservations } = *header;
        let bytes = [next_ticket, last_fence, reserved_until, reservations].map(u64::to_le_bytes).concat();
        self.write_at(&bytes, 0)
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.locks().file().write_all_at(bytes, offset)
    }

    /// Returns the number of bytes read; zero on an error.
    pub(super) fn read_at_most(&self, bytes: &mut [u8], offset: u64) -> usize {
        self.locks().file().read_at(bytes, offset).unwrap_or(0)
    }

    /// Zero if there is none.
    pub(super) fn number_at(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read_at_most(&mut bytes, offset);
        number(&bytes)
    }
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Identifies the current boot.
pub(super) fn boot_id() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let (high, low) = Uuid::try_parse(text.trim()).unwrap_or_default().as_u64_pair();
    high ^ low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::local::history::LOGGED_RUN;

    #[test]
    fn the_parts_do_not_overlap() {
        assert!(DONE + RECORD as u64 <= LOG);
        assert!(LOG + (LOGGED_RUNS * LOGGED_RUN) as u64 <= NAME);
        assert!(NAME + 8 + LONGEST_KEPT_NAME as u64 <= WAITERS_START);
    }
}
