//! A request in the terms of a lock file.

use super::byte_map::{QueueLane, ReaderGroup, UsageMode};
use super::reservation::ReservationKind;
use crate::lock::{Mode, Prefer, Request};

/// A request in the lock file's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalRequest {
    pub usage: UsageMode,
    pub mode: LocalMode,
    /// The lane in which the request queues.
    pub lane: QueueLane,
    /// Joins holders of its reader group, even if others wait.
    pub joins: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocalMode {
    Exclusive,
    Shared(ReaderGroup),
    Slot,
}

impl LocalRequest {
    pub(super) fn new(request: &Request) -> Self {
        let plain =
            Self { usage: UsageMode::PLAIN, mode: LocalMode::Exclusive, lane: QueueLane::Fair, joins: false };
        match &request.mode {
            Mode::Shared { group } => {
                let mode = LocalMode::Shared(ReaderGroup::named(group));
                Self { mode, joins: request.prefer == Prefer::Readers, ..plain }
            }
            Mode::Slot { of: of @ 2.. } => {
                Self { usage: UsageMode::slots_of(*of), mode: LocalMode::Slot, ..plain }
            }
            // A lock with one slot is an exclusive lock.
            Mode::Exclusive | Mode::Slot { .. } if request.prefer == Prefer::Writers => {
                Self { lane: QueueLane::Preferred, ..plain }
            }
            Mode::Exclusive | Mode::Slot { .. } => plain,
        }
    }

    /// What the holder reserves, if it has this slot.
    pub(super) fn reserves(&self, slot: u32) -> ReservationKind {
        match self.mode {
            LocalMode::Exclusive => ReservationKind::Exclusive,
            LocalMode::Shared(group) => ReservationKind::Shared(group),
            LocalMode::Slot => ReservationKind::Slot(self.usage, slot),
        }
    }
}
