//! What is asked for, in the file's own terms.

use super::kept::What;
use super::layout::{Family, Group, Lane};
use crate::lock::{Mode, Prefer, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub family: Family,
    pub want: Want,
    /// In which we queue.
    pub lane: Lane,
    /// Goes in where others of its group are, whoever waits.
    pub joins: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    Alone,
    Group(Group),
    Slot,
}

impl Asked {
    pub fn of(request: &Request) -> Self {
        let prefers = |what| request.prefer == what;
        let plain = Self { family: Family::PLAIN, want: Want::Alone, lane: Lane::Fair, joins: false };
        match &request.mode {
            Mode::Shared { group } => {
                Self { want: Want::Group(Group::named(group)), joins: prefers(Prefer::Readers), ..plain }
            }
            Mode::Slot { of: of @ 2.. } => Self { family: Family::of_slots(*of), want: Want::Slot, ..plain },
            // One at a time is what a lock is.
            Mode::Exclusive | Mode::Slot { .. } if prefers(Prefer::Writers) => {
                Self { lane: Lane::Preferred, ..plain }
            }
            Mode::Exclusive | Mode::Slot { .. } => plain,
        }
    }

    /// What such a holder keeps, if it has this slot.
    pub fn keeps(&self, slot: u32) -> What {
        match self.want {
            Want::Alone => What::Alone,
            Want::Group(group) => What::Group(group),
            Want::Slot => What::Slot(self.family, slot),
        }
    }
}
