//! A request in the lock file's terms.

use super::byte_map::{Lane, ReaderGroup, UsageMode};
use super::reservation::ReservationKind;
use crate::lock::{Mode, Prefer, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalRequest {
    pub usage: UsageMode,
    pub mode: LocalMode,
    /// The lane in which the request queues.
    pub lane: Lane,
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
        let prefers = |policy| request.prefer == policy;
        let plain =
            Self { usage: UsageMode::PLAIN, mode: LocalMode::Exclusive, lane: Lane::Fair, joins: false };
        match &request.mode {
            Mode::Shared { group } => {
                let mode = LocalMode::Shared(ReaderGroup::named(group));
                Self { mode, joins: prefers(Prefer::Readers), ..plain }
            }
            Mode::Slot { of: of @ 2.. } => {
                Self { usage: UsageMode::slots_of(*of), mode: LocalMode::Slot, ..plain }
            }
            // One slot is a lock.
            Mode::Exclusive | Mode::Slot { .. } if prefers(Prefer::Writers) => {
                Self { lane: Lane::Preferred, ..plain }
            }
            Mode::Exclusive | Mode::Slot { .. } => plain,
        }
    }

    /// What such a holder reserves, if it has this slot.
    pub(super) fn reserves(&self, slot: u32) -> ReservationKind {
        match self.mode {
            LocalMode::Exclusive => ReservationKind::Exclusive,
            LocalMode::Shared(group) => ReservationKind::Shared(group),
            LocalMode::Slot => ReservationKind::Slot(self.usage, slot),
        }
    }
}
