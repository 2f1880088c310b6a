//! What stays taken for a while though nobody holds it any more: until a moment on the boot-time clock, and
//! never beyond a reboot.

use std::fs;

use uuid::Uuid;

use super::contents::number;
use super::layout::{Family, Group};
use crate::lock::{BootTime, MOST_SLOTS};

pub const ENTRY: usize = 32;
/// As many as there can be slots.
pub const ENTRIES: usize = MOST_SLOTS as usize;

const ALONE: u64 = 1 << 60;
const GROUP: u64 = 2 << 60;
const SLOT: u64 = 3 << 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub what: What,
    pub until: BootTime,
    /// Whose hold it was; zero if it is that of several.
    pub ticket: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Alone,
    Group(Group),
    Slot(Family, u32),
}

impl Kept {
    pub fn to_bytes(self, boot: u64) -> [u8; ENTRY] {
        let what = match self.what {
            What::Alone => ALONE,
            What::Group(group) => GROUP | group.digest(),
            What::Slot(family, number) => SLOT | u64::from(family.slots()) << 32 | u64::from(number),
        };
        let mut bytes = [0; ENTRY];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.until.as_nanos(), boot, self.ticket, what])
        {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None` if it is of another boot, or nonsense.
    pub fn from_bytes(bytes: &[u8], boot: u64) -> Option<Self> {
        let mut numbers = bytes.chunks_exact(8).map(number);
        let [until, of_boot, ticket, what] = [(); 4].map(|()| numbers.next().unwrap_or(0));
        let what = match what & 0xf << 60 {
            ALONE => What::Alone,
            GROUP => What::Group(Group::from_digest(what)),
            SLOT => {
                let family = Family::of_slots((what >> 32) as u32 & 0xffff);
                What::Slot(family, what as u32 % family.slots())
            }
            _ => return None,
        };
        (of_boot == boot).then_some(Self { what, until: BootTime::from_nanos(until), ticket })
    }
}

impl What {
    pub fn family(self) -> Family {
        match self {
            Self::Alone | Self::Group(_) => Family::PLAIN,
            Self::Slot(family, _) => family,
        }
    }
}

/// Which boot this is.
pub fn boot() -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let (high, low) = Uuid::try_parse(text.trim()).unwrap_or_default().as_u64_pair();
    high ^ low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_reads_back_in_the_same_boot_only() {
        let slots = Family::of_slots(1024);
        for what in [What::Alone, What::Group(Group::named(b"")), What::Slot(slots, 1023)] {
            let kept = Kept { what, until: BootTime::from_nanos(42), ticket: 7 };
            assert_eq!(Kept::from_bytes(&kept.to_bytes(5), 5), Some(kept));
            assert_eq!(Kept::from_bytes(&kept.to_bytes(5), 6), None);
        }
        assert_eq!(Kept::from_bytes(&[0; ENTRY], 0), None);
    }

    proptest! {
        #[test]
        fn no_bytes_can_upset_an_entry(bytes: [u8; ENTRY]) {
            let boot = number(&bytes[8..16]);
            if let Some(Kept { what: What::Slot(family, number), .. }) = Kept::from_bytes(&bytes, boot) {
                prop_assert!(number < family.slots());
            }
        }
    }
}
