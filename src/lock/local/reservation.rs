//! The table of reservations in the lock file: locks that stay taken after their holders have left.

use std::io;

use super::byte_map::{ReaderGroup, UsageMode};
use super::format::{Header, TABLE, boot_id, number};
use super::lock_file::LockFile;
use crate::clock::BootTime;
use crate::lock::MOST_SLOTS;

/// Size of an entry in the table of reservations.
pub(super) const ENTRY: usize = 32;
/// One for each slot that a lock can have.
pub(super) const ENTRIES: usize = MOST_SLOTS as usize;

const EXCLUSIVE: u64 = 1 << 60;
const SHARED: u64 = 2 << 60;
const SLOT: u64 = 3 << 60;

/// A lock that stays taken after its holder has left, at most until the next reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub kind: ReservationKind,
    pub until: BootTime,
    /// The holder's ticket; zero if several holders share the entry.
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
        let numbers = [self.until.as_nanos(), boot_id, self.ticket, kind];
        bytes.copy_from_slice(&numbers.map(u64::to_le_bytes).concat());
        bytes
    }

    /// `None` if it was made before the last reboot, or is invalid.
    pub(super) fn from_bytes(bytes: &[u8], boot_id: u64) -> Option<Self> {
        let mut numbers = bytes.chunks_exact(8).map(number);
        let [until, made_in, ticket, kind] = [(); 4].map(|()| numbers.next().unwrap_or(0));
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
        (made_in == boot_id).then_some(Self { kind, until: BootTime::from_nanos(until), ticket })
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

/// The index of the entry for this reservation, and what to write there. `None` if the reservation
/// has expired and has no entry.
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
    // Only readers can be this many: two of them share an entry, which neither can end early.
    let until = table[0].map_or(reservation.until, |old| old.until.max(reservation.until));
    Some((0, Reservation { until, ticket: 0, ..reservation }))
}

impl LockFile {
    /// The active reservations.
    pub(super) fn reservations(&self, header: &Header) -> Vec<Reservation> {
        self.reservation_table(header).into_iter().flatten().collect()
    }

    /// The table, with `None` for each entry that is not active.
    pub(super) fn reservation_table(&self, header: &Header) -> Vec<Option<Reservation>> {
        if BootTime::from_nanos(header.reserved_until).has_passed() {
            return Vec::new();
        }
        let entries = usize::try_from(header.reservations).unwrap_or(ENTRIES).min(ENTRIES);
        let mut bytes = vec![0; entries * ENTRY];
        let read = self.read_at_most(&mut bytes, TABLE);
        let boot_id = boot_id();
        let entries = bytes[..read].chunks_exact(ENTRY).map(|entry| Reservation::from_bytes(entry, boot_id));
        entries.map(|entry| entry.filter(|reservation| !reservation.until.has_passed())).collect()
    }

    pub(super) fn write_reservation(&self, entry: usize, reservation: &Reservation) -> io::Result<()> {
        self.write_at(&reservation.to_bytes(boot_id()), TABLE + (entry * ENTRY) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_reads_back_only_before_the_next_reboot() {
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
        fn reading_an_entry_survives_any_bytes(bytes: [u8; ENTRY]) {
            let boot_id = number(&bytes[8..16]);
            if let Some(Reservation { kind: ReservationKind::Slot(usage, number), .. }) = Reservation::from_bytes(&bytes, boot_id) {
                prop_assert!(number < usage.slots());
            }
        }
    }
}
