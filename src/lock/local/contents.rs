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
        let place = record_places(ticket).find(|place| self.owner_of_record(*place) == ticket)?;
        let mut bytes = [0; RECORD];
        self.ranges().file().read_exact_at(&mut bytes, place).ok()?;
        Record::from_bytes(&bytes, ticket)
    }

    /// Over nobody's who is still there, as long as there is room.
    pub fn write_record(
        &self,
        ticket: u64,
        record: &Record,
        is_there: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let free = record_places(ticket).find(|place| !is_there(self.owner_of_record(*place)));
        let place = free.or_else(|| record_places(ticket).next()).unwrap_or(HEADER as u64);
        self.ranges().file().write_all_at(&record.to_bytes(ticket), place)
    }

    /// The ticket whose record is at this place; zero if there is none.
    fn owner_of_record(&self, place: u64) -> u64 {
        let mut ticket = [0; 8];
        read_at_most(self, &mut ticket, place);
        number(&ticket)
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

/// Where a ticket's record may be: first its own place, then the others.
fn record_places(ticket: u64) -> impl Iterator<Item = u64> {
    (0..RECORDS).map(move |next| HEADER as u64 + (ticket + next) % RECORDS * RECORD as u64)
}

/// As much as there is.
fn read_at_most(file: &LockFile, bytes: &mut [u8], place: u64) -> usize {
    file.ranges().file().read_at(bytes, place).unwrap_or(0)
}

pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
