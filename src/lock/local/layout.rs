//! Which byte of the lock file means what. The bytes are never written: only the kernel's locks on them count.
//!
//!     0 ..           tickets of those who wait: for each family two lanes, the preferred one first
//!     1 << 61 ..     marks of those who hold: for each family its holders, then its slots
//!     1 << 62        the short lock under which everything is decided
//!     3 << 61 ..     reader groups
//!
//! A ticket, a mark and a slot are locked for writing by the one whose presence they show. Whoever waits for
//! somebody to go asks for a read lock on his byte. So those who look (with the eyes of a reader) see who is
//! there and never who waits for him, and those who wait never stand in each other's way.

use std::ops::Range;

use uuid::Uuid;

use crate::lock::MOST_SLOTS;

/// So many bits are a family's, both among the tickets and among the marks.
const FAMILY: u32 = 50;
const LANE: u64 = 1 << 49;
const SHARED_MARKS: u64 = 1 << 41;
const SLOTS: u64 = 1 << 42;
const MARKS: u64 = 1 << 61;
const GROUPS: u64 = 3 << 61;
const GROUP_BITS: u32 = 60;

/// Tickets are numbers below this, and above zero.
pub const TICKETS_END: u64 = 1 << 40;

/// All tickets and all marks.
pub const EVERYBODY: Range<u64> = 0..1 << 62;
pub const COUNTER: Range<u64> = byte(1 << 62);

pub const fn byte(place: u64) -> Range<u64> {
    place..place + 1
}

/// Those who agree how a key is used: with so many slots, or (zero) plain and shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Preferred,
    Fair,
}

impl Family {
    pub const PLAIN: Self = Self(0);

    pub fn of_slots(of: u32) -> Self {
        Self(of.clamp(2, MOST_SLOTS))
    }

    /// How many may hold at once.
    pub fn slots(self) -> u32 {
        self.0.max(1)
    }

    fn start(self) -> u64 {
        u64::from(self.0) << FAMILY
    }

    pub fn lane(self, lane: Lane) -> Range<u64> {
        let start = self.start() + if lane == Lane::Fair { LANE } else { 0 };
        start..start + TICKETS_END
    }

    pub fn ticket(self, lane: Lane, ticket: u64) -> u64 {
        self.lane(lane).start + ticket
    }

    /// The marks of all who hold, in whatever mode.
    pub fn holders(self) -> Range<u64> {
        self.holding(0).start..self.holding(SHARED_MARKS).end
    }

    pub fn sharers(self) -> Range<u64> {
        self.holding(SHARED_MARKS)
    }

    /// Those who hold alone, or a slot each.
    pub fn owners(self) -> Range<u64> {
        self.holding(0)
    }

    fn holding(self, part: u64) -> Range<u64> {
        let start = MARKS + self.start() + part;
        start..start + TICKETS_END
    }

    /// Whose mark it is.
    pub fn ticket_of_mark(self, place: u64) -> u64 {
        place.saturating_sub(self.holders().start) & (SHARED_MARKS - 1)
    }

    pub fn slot(self, number: u32) -> u64 {
        MARKS + self.start() + SLOTS + u64::from(number)
    }

    pub fn all_slots(self) -> Range<u64> {
        self.slot(0)..self.slot(self.slots())
    }

    /// Where the tickets and the marks of all other families are.
    pub fn others(self) -> [Range<u64>; 4] {
        let (this, next) = (self.start(), self.start() + (1 << FAMILY));
        let end = u64::from(MOST_SLOTS + 1) << FAMILY;
        [0..this, next..end, MARKS..MARKS + this, MARKS + next..MARKS + end]
    }

    /// Whose byte it is.
    pub fn at(place: u64) -> Self {
        Self(u32::try_from((place % MARKS) >> FAMILY).unwrap_or(0))
    }
}

/// A reader group, by a digest of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u64);

impl Group {
    pub fn named(name: &[u8]) -> Self {
        let (high, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, name).as_u64_pair();
        Self::from_digest(high)
    }

    /// Any number is some group.
    pub fn from_digest(digest: u64) -> Self {
        Self(digest & ((1 << GROUP_BITS) - 1))
    }

    pub fn digest(self) -> u64 {
        self.0
    }

    /// Locked for reading by each of its sharers who holds.
    pub fn place(self) -> u64 {
        GROUPS + self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(family: Family) -> Vec<Range<u64>> {
        let lanes = [Lane::Preferred, Lane::Fair].map(|lane| family.lane(lane));
        lanes.into_iter().chain([family.owners(), family.sharers(), family.all_slots()]).collect()
    }

    #[test]
    fn nothing_overlaps() {
        let mut all: Vec<Range<u64>> =
            [0, 2, 3, 1023, 1024].map(Family).into_iter().flat_map(regions).collect();
        assert!(all.iter().all(|range| range.end <= EVERYBODY.end));
        all.push(COUNTER);
        all.push(byte(Group(0).place()));
        all.push(byte(Group::from_digest(u64::MAX).place()));
        all.sort_by_key(|range| range.start);
        assert!(all.is_sorted_by(|a, b| a.end <= b.start), "{all:?}");
        assert!(all.last().unwrap().end < u64::MAX >> 1, "the kernel knows the place");
    }

    #[test]
    fn a_place_tells_its_family_and_ticket() {
        for family in [Family::PLAIN, Family::of_slots(2), Family::of_slots(1024)] {
            for range in regions(family) {
                assert_eq!((Family::at(range.start), Family::at(range.end - 1)), (family, family));
                assert!(
                    family.others().iter().all(|other| other.end <= range.start || other.start >= range.end)
                );
            }
            for marks in [family.owners(), family.sharers()] {
                assert_eq!(family.ticket_of_mark(marks.start + 7), 7);
                assert_eq!(family.ticket_of_mark(marks.end - 1), TICKETS_END - 1);
            }
        }
    }

    #[test]
    fn an_empty_name_is_a_group_like_any_other() {
        assert_ne!(Group::named(b""), Group::named(b"a"));
        assert_eq!(Group::named(b"a"), Group::from_digest(Group::named(b"a").digest()));
    }
}
