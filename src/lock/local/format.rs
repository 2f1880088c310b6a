//! What is written in the lock file, and where: a header, the holders' records, the table of reservations, the record
//! of the newest superseding request.
//!
//! All of it is a convenience except that table: who holds the lock is decided by the kernel's locks alone, so
//! truncating or rewriting the file lets no process in beside a living one.

use std::io;
use std::os::unix::fs::FileExt;

use uuid::Uuid;

use super::byte_map::{ReaderGroup, UsageMode};
use super::lock_file::LockFile;
use crate::clock::BootTime;
use crate::lock::{HolderInfo, MOST_SLOTS};

pub(super) const HEADER: usize = 32;
const RECORDS: u64 = 64;
pub(super) const TABLE: u64 = HEADER as u64 + RECORDS * RECORD as u64;

/// Behind the table: the newest of the requests that supersede each other.
const NEWEST: u64 = TABLE + (ENTRIES * ENTRY) as u64;

/// Zeros if there is none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub next_ticket: u64,
    pub last_fence: u64,
    /// When the last reservation ends, in nanoseconds since some boot, and how many entries the table has.
    pub reserved_until: u64,
    pub reservations: u64,
}

impl LockFile {
    pub(super) fn header(&self) -> Header {
        let mut bytes = [0; HEADER];
        let read = read_at_most(self, &mut bytes, 0);
        let mut numbers = bytes[..read].chunks_exact(8).map(number);
        let mut next = || numbers.next().unwrap_or(0);
        Header { next_ticket: next(), last_fence: next(), reserved_until: next(), reservations: next() }
    }

    pub(super) fn write_header(&self, header: &Header) -> io::Result<()> {
        let Header { next_ticket, last_fence, reserved_until, reservations } = *header;
        let bytes = [next_ticket, last_fence, reserved_until, reservations].map(u64::to_le_bytes).concat();
        self.locks().file().write_all_at(&bytes, 0)
    }

    /// The record of the holder with this ticket, if it was not overwritten.
    pub(super) fn record(&self, ticket: u64) -> Option<HolderRecord> {
        let offset = record_offsets(ticket).find(|offset| self.owner_of_record(*offset) == ticket)?;
        let mut bytes = [0; RECORD];
        self.locks().file().read_exact_at(&mut bytes, offset).ok()?;
        HolderRecord::from_bytes(&bytes, ticket)
    }

    /// Overwrites no record of a present holder, as long as there is room.
    pub(super) fn write_record(
        &self,
        ticket: u64,
        record: &HolderRecord,
        is_present: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let free = record_offsets(ticket).find(|offset| !is_present(self.owner_of_record(*offset)));
        let offset = free.or_else(|| record_offsets(ticket).next()).unwrap_or(HEADER as u64);
        self.locks().file().write_all_at(&record.to_bytes(ticket), offset)
    }

    /// The ticket whose record is at this offset; zero if there is none.
    fn owner_of_record(&self, offset: u64) -> u64 {
        let mut ticket = [0; 8];
        read_at_most(self, &mut ticket, offset);
        number(&ticket)
    }

    /// Of this boot.
    pub(super) fn newest(&self) -> Option<HolderRecord> {
        let mut bytes = [0; RECORD];
        self.locks().file().read_exact_at(&mut bytes, NEWEST).ok()?;
        HolderRecord::from_bytes(&bytes, boot_id())
    }

    /// Its `since` is the moment of its arrival; the boot takes the ticket's place.
    pub(super) fn write_newest(&self, record: &HolderRecord) -> io::Result<()> {
        self.locks().file().write_all_at(&record.to_bytes(boot_id()), NEWEST)
    }

    /// The reservations that are in force.
    pub(super) fn reservations(&self, header: &Header) -> Vec<Reservation> {
        self.reservation_table(header).into_iter().flatten().collect()
    }

    /// The table, `None` where an entry is over, or of another boot, or nonsense.
    pub(super) fn reservation_table(&self, header: &Header) -> Vec<Option<Reservation>> {
        if BootTime::from_nanos(header.reserved_until).has_passed() {
            return Vec::new();
        }
        let entries = usize::try_from(header.reservations).unwrap_or(ENTRIES).min(ENTRIES);
        let mut bytes = vec![0; entries * ENTRY];
        let read = read_at_most(self, &mut bytes, TABLE);
        let boot_id = boot_id();
        let entries = bytes[..read].chunks_exact(ENTRY).map(|entry| Reservation::from_bytes(entry, boot_id));
        entries.map(|entry| entry.filter(|reservation| !reservation.until.has_passed())).collect()
    }

    pub(super) fn write_reservation(&self, entry: usize, reservation: &Reservation) -> io::Result<()> {
        let offset = TABLE + (entry * ENTRY) as u64;
        self.locks().file().write_all_at(&reservation.to_bytes(boot_id()), offset)
    }
}

/// Where a ticket's record may be: first its own offset, then the others.
fn record_offsets(ticket: u64) -> impl Iterator<Item = u64> {
    (0..RECORDS).map(move |next| HEADER as u64 + (ticket % RECORDS + next) % RECORDS * RECORD as u64)
}

/// Returns how many bytes there were.
fn read_at_most(file: &LockFile, bytes: &mut [u8], offset: u64) -> usize {
    file.locks().file().read_at(bytes, offset).unwrap_or(0)
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Size of a holder record.
pub(super) const RECORD: usize = 1024;

/// What a holder writes about itself, for waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HolderRecord {
    pub claim: String,
    pub since: BootTime,
    pub info: HolderInfo,
}

impl HolderRecord {
    pub(super) fn to_bytes(&self, ticket: u64) -> [u8; RECORD] {
        let since = self.since.as_nanos().to_string();
        let mut text = vec![self.claim.as_str(), &since];
        for (name, value) in self.info.fields() {
            text.extend([name, value]);
        }
        let text = text.iter().flat_map(|part| part.bytes().filter(|&b| b != 0).chain([0]));
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&ticket.to_le_bytes());
        for (offset, byte) in bytes[8..].iter_mut().zip(text) {
            *offset = byte;
        }
        bytes
    }

    /// `None` if it is another ticket's, or no record at all.
    pub(super) fn from_bytes(bytes: &[u8; RECORD], ticket: u64) -> Option<Self> {
        let (owner, text) = bytes.split_at(8);
        let mut parts = text.split(|&b| b == 0).map(<[u8]>::to_vec);
        let claim = String::from_utf8(parts.next()?).ok()?;
        let since = String::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let fields: Vec<Vec<u8>> = parts.collect();
        (owner == ticket.to_le_bytes()).then(|| Self {
            claim,
            since: BootTime::from_nanos(since),
            info: HolderInfo::from_fields(&fields),
        })
    }
}

/// Size of an entry in the table of reservations.
pub(super) const ENTRY: usize = 32;
/// As many as there can be slots.
pub(super) const ENTRIES: usize = MOST_SLOTS as usize;

const EXCLUSIVE: u64 = 1 << 60;
const SHARED: u64 = 2 << 60;
const SLOT: u64 = 3 << 60;

/// A lock that stays taken after its holder has left: until a moment on the boot-time clock, and never beyond a
/// reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub kind: ReservationKind,
    pub until: BootTime,
    /// The holder's; zero if several holders share the entry.
    pub ticket: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReservationKind {
    Exclusive,
    Shared(ReaderGroup),
    Slot(UsageMode, u32),
}

impl Reservation {
    pub(super) fn to_bytes(self, boot_id: u64) -> [u8; ENTRY] {
        let kind = match self.kind {
            ReservationKind::Exclusive => EXCLUSIVE,
            ReservationKind::Shared(group) => SHARED | group.digest(),
            ReservationKind::Slot(usage, number) => SLOT | u64::from(usage.slots()) << 32 | u64::from(number),
        };
        let mut bytes = [0; ENTRY];
        for (offset, number) in
            bytes.chunks_exact_mut(8).zip([self.until.as_nanos(), boot_id, self.ticket, kind])
        {
            offset.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None` if it is of another boot, or nonsense.
    pub(super) fn from_bytes(bytes: &[u8], boot_id: u64) -> Option<Self> {
        let mut numbers = bytes.chunks_exact(8).map(number);
        let [until, of_boot, ticket, kind] = [(); 4].map(|()| numbers.next().unwrap_or(0));
        let kind = match kind & 0xf << 60 {
            EXCLUSIVE => ReservationKind::Exclusive,
            SHARED => ReservationKind::Shared(ReaderGroup::from_digest(kind)),
            SLOT => {
                let [of, number] = [kind >> 32 & 0xffff, kind & 0xffff_ffff].map(u32::try_from);
                let usage = UsageMode::slots_of(of.ok()?);
                ReservationKind::Slot(usage, number.ok()? % usage.slots())
            }
            _ => return None,
        };
        (of_boot == boot_id).then_some(Self { kind, until: BootTime::from_nanos(until), ticket })
    }
}

impl ReservationKind {
    pub(super) fn usage(self) -> UsageMode {
        match self {
            Self::Exclusive | Self::Shared(_) => UsageMode::PLAIN,
            Self::Slot(usage, _) => usage,
        }
    }
}

/// Which entry of the table takes this reservation, and what to write there. `None` for one that is over and
/// has no entry.
pub(super) fn slot_for(
    table: &[Option<Reservation>],
    reservation: Reservation,
) -> Option<(usize, Reservation)> {
    let same_ticket = |old: &Option<Reservation>| old.is_some_and(|old| old.ticket == reservation.ticket);
    if let Some(entry) = table.iter().position(same_ticket) {
        return Some((entry, reservation));
    }
    if reservation.until.has_passed() {
        return None;
    }
    let free = table.iter().position(Option::is_none);
    let next = || (table.len() < ENTRIES).then_some(table.len());
    if let Some(entry) = free.or_else(next) {
        return Some((entry, reservation));
    }
    // So many can only be readers: two of them share an entry, which neither can end early.
    let until = table[0].map_or(reservation.until, |old| old.until.max(reservation.until));
    Some((0, Reservation { until, ticket: 0, ..reservation }))
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
    use proptest::prelude::*;

    #[test]
    fn a_record_is_its_tickets() {
        let info = HolderInfo { host: "web1".into(), label: "x\0y".into(), ..HolderInfo::default() };
        let record = HolderRecord { claim: "c.1".into(), since: BootTime::from_nanos(42), info };
        let bytes = record.to_bytes(7);
        assert_eq!(HolderRecord::from_bytes(&bytes, 7).unwrap().info.host, "web1");
        assert_eq!(HolderRecord::from_bytes(&bytes, 8), None);
        assert_eq!(HolderRecord::from_bytes(&[0; RECORD], 0), None);
    }

    proptest! {
        #[test]
        fn no_bytes_can_upset_a_record(bytes: Vec<u8>) {
            let mut record = [0; RECORD];
            record.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            let _ = HolderRecord::from_bytes(&record, 0);
        }
    }

    #[test]
    fn an_entry_reads_back_in_the_same_boot_only() {
        let slots = UsageMode::slots_of(1024);
        for kind in [
            ReservationKind::Exclusive,
            ReservationKind::Shared(ReaderGroup::named(b"")),
            ReservationKind::Slot(slots, 1023),
        ] {
            let reservation = Reservation { kind, until: BootTime::from_nanos(42), ticket: 7 };
            assert_eq!(Reservation::from_bytes(&reservation.to_bytes(5), 5), Some(reservation));
            assert_eq!(Reservation::from_bytes(&reservation.to_bytes(5), 6), None);
        }
        assert_eq!(Reservation::from_bytes(&[0; ENTRY], 0), None);
    }

    #[test]
    fn a_reservation_has_one_entry_and_readers_without_room_share_one() {
        let soon = BootTime::now() + std::time::Duration::from_secs(60);
        let kind = ReservationKind::Shared(ReaderGroup::named(b""));
        let of = |ticket| Reservation { kind, until: soon, ticket };
        let over = Reservation { until: BootTime::from_nanos(1), ..of(7) };
        assert_eq!(slot_for(&[], of(7)), Some((0, of(7))));
        assert_eq!(slot_for(&[Some(of(3)), None], of(7)), Some((1, of(7))));
        assert_eq!(slot_for(&[Some(of(3)), Some(of(7))], over), Some((1, over)));
        assert_eq!(slot_for(&[Some(of(3))], over), None);
        let full: Vec<Option<Reservation>> = (1..=ENTRIES as u64).map(|ticket| Some(of(ticket))).collect();
        assert_eq!(slot_for(&full, of(9999)), Some((0, of(0))));
    }

    proptest! {
        #[test]
        fn no_bytes_can_upset_an_entry(bytes: [u8; ENTRY]) {
            let boot_id = number(&bytes[8..16]);
            if let Some(Reservation { kind: ReservationKind::Slot(usage, number), .. }) = Reservation::from_bytes(&bytes, boot_id) {
                prop_assert!(number < usage.slots());
            }
        }
    }
}
