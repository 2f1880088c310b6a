//! The meaning of each byte of the lock file. These bytes are never written: only the kernel's
//! locks on them count.
//!
//!     0 ..           tickets of waiters: for each usage mode two lanes, the preferred one first
//!     1 << 61 ..     marks of holders: for each usage mode its holders, then its slots
//!     1 << 62        the mutex
//!     5 << 60 ..     tokens of holders
//!     3 << 61 ..     reader groups
//!
//! A process locks its ticket, its mark, its slot and its token for writing, to show that it is present. A
//! process that waits for another to leave requests a read lock on that byte. So a process that
//! looks for write locks sees who is present but not who waits for them, and waiters do not block
//! each other.

use std::ops::Range;

use uuid::Uuid;

use crate::lock::{MOST_SLOTS, Mode};

/// The width of one usage mode, among the tickets and among the marks.
const USAGE_BITS: u32 = 50;
const LANE: u64 = 1 << 49;
const SHARED_MARKS: u64 = 1 << 41;
const SLOTS: u64 = 1 << 42;
pub(super) const MARKS: u64 = 1 << 61;
/// After the last byte that has a meaning.
pub(super) const END: u64 = u64::MAX >> 1;
const TOKENS: u64 = 5 << 60;
const GROUPS: u64 = 3 << 61;
/// Of a reader group's name, or of a token.
const DIGEST_BITS: u32 = 60;

/// Tickets are above zero and below this.
pub(super) const TICKETS_END: u64 = 1 << 40;

/// All tickets and all marks.
pub(super) const ALL_PARTICIPANTS: Range<u64> = 0..1 << 62;
pub(super) const MUTEX_BYTE: Range<u64> = byte(1 << 62);

pub(super) const fn byte(offset: u64) -> Range<u64> {
    offset..offset + 1
}

/// Locked by the holder with this token, so that it can be found whatever is in the file.
pub(super) fn token_byte(token: &str) -> u64 {
    TOKENS + (digest(token.as_bytes()) & ((1 << DIGEST_BITS) - 1))
}

fn digest(name: &[u8]) -> u64 {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, name).as_u64_pair().0
}

/// How a key is used, on which all its users must agree: with this many slots, or, if zero,
/// exclusive and shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsageMode(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueLane {
    Preferred,
    Fair,
}

/// The meaning of a locked byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// With this ticket.
    Waiter(UsageMode, u64),
    /// An exclusive holder, or the holder of a slot.
    Owner(UsageMode, u64),
    Sharer(UsageMode, u64),
    /// A byte of redlock's whose process also shows by another byte.
    Other,
    /// A byte that redlock never locks.
    Foreign,
}

impl UsageMode {
    pub(super) const PLAIN: Self = Self(0);

    pub(super) fn slots_of(count: u32) -> Self {
        Self(count.clamp(2, MOST_SLOTS))
    }

    /// How many processes may hold the lock exclusively or with a slot at the same time.
    pub(super) fn slots(self) -> u32 {
        self.0.max(1)
    }

    /// The requested number of slots; zero if none.
    pub(super) fn slot_count(self) -> u32 {
        self.0
    }

    pub(super) fn mode(self) -> Mode {
        match self.0 {
            0 => Mode::Exclusive,
            of => Mode::Slot { of },
        }
    }

    fn start(self) -> u64 {
        u64::from(self.0) << USAGE_BITS
    }

    pub(super) fn lane(self, lane: QueueLane) -> Range<u64> {
        let start = self.start() + if lane == QueueLane::Fair { LANE } else { 0 };
        start..start + TICKETS_END
    }

    pub(super) fn lanes(self) -> [Range<u64>; 2] {
        [QueueLane::Preferred, QueueLane::Fair].map(|lane| self.lane(lane))
    }

    pub(super) fn ticket(self, lane: QueueLane, ticket: u64) -> u64 {
        self.lane(lane).start + ticket
    }

    /// The marks of all holders: owners, then sharers.
    pub(super) fn holders(self) -> Range<u64> {
        self.holding(0).start..self.holding(SHARED_MARKS).end
    }

    pub(super) fn sharers(self) -> Range<u64> {
        self.holding(SHARED_MARKS)
    }

    /// Exclusive holders, or holders of a slot.
    pub(super) fn owners(self) -> Range<u64> {
        self.holding(0)
    }

    fn holding(self, part: u64) -> Range<u64> {
        let start = MARKS + self.start() + part;
        start..start + TICKETS_END
    }

    /// The ticket of the holder whose mark this is.
    pub(super) fn ticket_of_mark(self, offset: u64) -> u64 {
        offset.saturating_sub(self.holders().start) & (SHARED_MARKS - 1)
    }

    pub(super) fn slot(self, number: u32) -> u64 {
        MARKS + self.start() + SLOTS + u64::from(number)
    }

    pub(super) fn all_slots(self) -> Range<u64> {
        self.slot(0)..self.slot(self.slots())
    }

    /// The tickets and the marks of all other usage modes.
    pub(super) fn others(self) -> [Range<u64>; 4] {
        let (this, next) = (self.start(), self.start() + (1 << USAGE_BITS));
        let end = u64::from(MOST_SLOTS + 1) << USAGE_BITS;
        [0..this, next..end, MARKS..MARKS + this, MARKS + next..MARKS + end]
    }

    /// The meaning of a write lock on this byte.
    pub(super) fn presence(offset: u64) -> Presence {
        let usage = Self::at(offset);
        let ticket_in = |range: Range<u64>| {
            let ticket = offset.checked_sub(range.start)?;
            range.contains(&offset).then_some(ticket).filter(|ticket| *ticket > 0)
        };
        let presences = [
            (usage.lane(QueueLane::Preferred), Presence::Waiter as fn(UsageMode, u64) -> Presence),
            (usage.lane(QueueLane::Fair), Presence::Waiter),
            (usage.owners(), Presence::Owner),
            (usage.sharers(), Presence::Sharer),
        ];
        let found = presences.into_iter().find_map(|(range, of)| Some(of(usage, ticket_in(range)?)));
        let is_slot = usage != Self::PLAIN && usage.all_slots().contains(&offset);
        match found {
            _ if offset >= TOKENS => Presence::Other,
            _ if usage.0 > MOST_SLOTS => Presence::Foreign,
            Some(presence) => presence,
            None if is_slot || MUTEX_BYTE.contains(&offset) => Presence::Other,
            None => Presence::Foreign,
        }
    }

    /// The usage mode that this byte belongs to.
    pub(super) fn at(offset: u64) -> Self {
        Self(u32::try_from((offset % MARKS) >> USAGE_BITS).unwrap_or(0))
    }
}

/// A reader group, by a digest of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReaderGroup(u64);

impl ReaderGroup {
    pub(super) fn named(name: &[u8]) -> Self {
        Self::from_digest(digest(name))
    }

    /// Every number is a valid digest.
    pub(super) fn from_digest(digest: u64) -> Self {
        Self(digest & ((1 << DIGEST_BITS) - 1))
    }

    pub(super) fn digest(self) -> u64 {
        self.0
    }

    /// Locked for reading by each holder of this group.
    pub(super) fn offset(self) -> u64 {
        GROUPS + self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(usage: UsageMode) -> Vec<Range<u64>> {
        usage.lanes().into_iter().chain([usage.owners(), usage.sharers(), usage.all_slots()]).collect()
    }

    #[test]
    fn regions_do_not_overlap() {
        let mut all: Vec<Range<u64>> =
            [0, 2, 3, 1023, 1024].map(UsageMode).into_iter().flat_map(regions).collect();
        assert!(all.iter().all(|range| range.end <= ALL_PARTICIPANTS.end));
        all.push(MUTEX_BYTE);
        all.push(TOKENS..TOKENS + (1 << DIGEST_BITS));
        all.push(byte(ReaderGroup(0).offset()));
        all.push(byte(ReaderGroup::from_digest(u64::MAX).offset()));
        all.sort_by_key(|range| range.start);
        assert!(all.is_sorted_by(|a, b| a.end <= b.start), "{all:?}");
        assert!(all.last().unwrap().end < u64::MAX >> 1, "the kernel accepts the offset");
    }

    #[test]
    fn an_offset_tells_its_usage_and_ticket() {
        for usage in [UsageMode::PLAIN, UsageMode::slots_of(2), UsageMode::slots_of(1024)] {
            for range in regions(usage) {
                assert_eq!((UsageMode::at(range.start), UsageMode::at(range.end - 1)), (usage, usage));
                assert!(
                    usage.others().iter().all(|other| other.end <= range.start || other.start >= range.end)
                );
            }
            for marks in [usage.owners(), usage.sharers()] {
                assert_eq!(usage.ticket_of_mark(marks.start + 7), 7);
                assert_eq!(usage.ticket_of_mark(marks.end - 1), TICKETS_END - 1);
            }
        }
    }

    #[test]
    fn a_locked_byte_shows_a_process() {
        for usage in [UsageMode::PLAIN, UsageMode::slots_of(2), UsageMode::slots_of(1024)] {
            for lane in [QueueLane::Preferred, QueueLane::Fair] {
                let ticket = usage.ticket(lane, 7);
                assert_eq!(UsageMode::presence(ticket), Presence::Waiter(usage, 7));
                assert_eq!(UsageMode::presence(ticket - 7), Presence::Foreign, "there is no ticket 0");
            }
            assert_eq!(UsageMode::presence(usage.owners().start + 7), Presence::Owner(usage, 7));
            assert_eq!(UsageMode::presence(usage.sharers().start + 7), Presence::Sharer(usage, 7));
            assert_eq!(UsageMode::presence(usage.lane(QueueLane::Fair).end), Presence::Foreign);
        }
        assert_eq!(UsageMode::presence(UsageMode::slots_of(3).slot(2)), Presence::Other);
        assert_eq!(UsageMode::presence(UsageMode::slots_of(3).slot(3)), Presence::Foreign);
        assert_eq!(UsageMode::presence(MUTEX_BYTE.start), Presence::Other);
        assert_eq!(UsageMode::presence(ReaderGroup::named(b"g").offset()), Presence::Other);
        assert_eq!(UsageMode::presence(token_byte("t")), Presence::Other);
        assert_eq!(UsageMode::presence(TOKENS - 1), Presence::Foreign);
        assert_eq!(UsageMode::presence(u64::from(MOST_SLOTS + 1) << USAGE_BITS), Presence::Foreign);
    }

    #[test]
    fn an_empty_name_is_a_group_like_any_other() {
        assert_ne!(ReaderGroup::named(b""), ReaderGroup::named(b"a"));
        assert_eq!(ReaderGroup::named(b"a"), ReaderGroup::from_digest(ReaderGroup::named(b"a").digest()));
    }
}
