//! What is written in the lock file, and where: a header, the holders' records, the table of what stays taken.
//!
//! All of it is a convenience but for that table: who holds the lock is decided by the kernel's locks alone, so
//! nobody gets in beside a living process by truncating or rewriting the file.

use std::io;
use std::os::unix::fs::FileExt;

use super::file::LockFile;
use super::kept::{ENTRIES, ENTRY, Kept, boot};
use super::record::{RECORD, Record};
use crate::lock::BootTime;

const HEADER: usize = 32;
const RECORDS: u64 = 64;
const TABLE: u64 = HEADER as u64 + RECORDS * RECORD as u64;

/// Zeros if there is none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub next_ticket: u64,
    pub last_fence: u64,
    /// Until when something may stay taken though nobody holds it, in nanoseconds since some boot, and how
    /// many entries of the table to look at.
    pub kept_until: u64,
    pub kept: u64,
}

impl LockFile {
    pub fn header(&self) -> Header {
        let mut bytes = [0; HEADER];
        let read = read_at_most(self, &mut bytes, 0);
        let mut numbers = bytes[..read].chunks_exact(8).map(number);
        let mut next = || numbers.next().unwrap_or(0);
        Header { next_ticket: next(), last_fence: next(), kept_until: next(), kept: next() }
    }

    pub fn write_header(&self, header: &Header) -> io::Result<()> {
        let Header { next_ticket, last_fence, kept_until, kept } = *header;
        let bytes = [next_ticket, last_fence, kept_until, kept].map(u64::to_le_bytes).concat();
        self.ranges().file().write_all_at(&bytes, 0)
    }

    /// What the holder of this ticket has written, if it still stands there.
    pub fn record(&self, ticket: u64) -> Option<Record> {
        let mut bytes = [0; RECORD];
        self.ranges().file().read_exact_at(&mut bytes, record_place(ticket)).ok()?;
        Record::from_bytes(&bytes, ticket)
    }

    pub fn write_record(&self, ticket: u64, record: &Record) -> io::Result<()> {
        self.ranges().file().write_all_at(&record.to_bytes(ticket), record_place(ticket))
    }

    /// What stays taken by itself at this moment.
    pub fn kept(&self, header: &Header) -> Vec<Kept> {
        self.kept_entries(header).into_iter().flatten().collect()
    }

    /// The table, `None` where an entry is over, or of another boot, or nonsense.
    pub fn kept_entries(&self, header: &Header) -> Vec<Option<Kept>> {
        if BootTime::from_nanos(header.kept_until).has_passed() {
            return Vec::new();
        }
        let entries = usize::try_from(header.kept).unwrap_or(ENTRIES).min(ENTRIES);
        let mut bytes = vec![0; entries * ENTRY];
        let read = read_at_most(self, &mut bytes, TABLE);
        let boot = boot();
        let entries = bytes[..read].chunks_exact(ENTRY).map(|entry| Kept::from_bytes(entry, boot));
        entries.map(|kept| kept.filter(|kept| !kept.until.has_passed())).collect()
    }

    pub fn write_kept(&self, entry: usize, kept: &Kept) -> io::Result<()> {
        let place = TABLE + (entry * ENTRY) as u64;
        self.ranges().file().write_all_at(&kept.to_bytes(boot()), place)
    }
}

fn record_place(ticket: u64) -> u64 {
    HEADER as u64 + ticket % RECORDS * RECORD as u64
}

/// As much as there is.
fn read_at_most(file: &LockFile, bytes: &mut [u8], place: u64) -> usize {
    file.ranges().file().read_at(bytes, place).unwrap_or(0)
}

pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
