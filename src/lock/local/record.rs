//! The records of holders and waiters in the lock file, for people. The kernel's locks alone show
//! whether a process holds the lock or waits for it.

use std::io;
use std::iter::once;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::format::{NEWEST, RECORDS, RECORDS_START, WAITER_RECORDS, WAITERS_START, boot_id, number};
use super::lock_file::LockFile;
use crate::clock::BootTime;
use crate::lock::{Fields, HolderInfo, Mode};

/// Size of a record.
pub(super) const RECORD: usize = 1024;

/// One holder, or one waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub claim: String,
    /// When it began to hold the lock, or to wait.
    pub since: BootTime,
    /// The same time in milliseconds on the wall clock, which survives a reboot. Zero if unknown,
    /// or if the run has ended.
    pub since_ms: u64,
    pub mode: Mode,
    pub info: HolderInfo,
    /// `None` for a waiter.
    pub tenure: Option<Tenure>,
}

/// The part of a record that only a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tenure {
    pub fence: u64,
    pub slot: u32,
    pub waited: Duration,
    /// When it will release the lock, if known.
    pub until: Option<BootTime>,
}

impl Record {
    /// Truncated if it does not fit.
    pub(super) fn to_bytes(&self, ticket: u64) -> [u8; RECORD] {
        let tenure = self.tenure.as_ref();
        let fields = Fields::default()
            .with("claim", self.claim.as_str())
            .with_number("since", Some(self.since.as_nanos()))
            .with_number("since_ms", Some(self.since_ms))
            .with("mode", self.mode.tag())
            .with_number("fence", tenure.map(|tenure| tenure.fence))
            .with_number("slot", tenure.map(|tenure| tenure.slot))
            .with_number("waited_ms", tenure.map(|tenure| tenure.waited.as_millis()))
            .with_number("until", tenure.and_then(|tenure| tenure.until).map(BootTime::as_nanos))
            .joined_with(self.info.fields());
        let text = fields.into_zero_terminated();
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&ticket.to_le_bytes());
        bytes[8..].iter_mut().zip(text).for_each(|(to, from)| *to = from);
        bytes
    }

    /// `None` if it belongs to another ticket, or is invalid.
    pub(super) fn from_bytes(bytes: &[u8; RECORD], ticket: u64) -> Option<Self> {
        let (owner, text) = bytes.split_at(8);
        if owner != ticket.to_le_bytes() {
            return None;
        }
        let fields = Fields::from_zero_terminated(text);
        let tenure = fields.parsed("fence").map(|fence| Tenure {
            fence,
            slot: fields.parsed("slot").unwrap_or(0),
            waited: fields.millis("waited_ms").unwrap_or_default(),
            until: fields.parsed("until").map(BootTime::from_nanos),
        });
        Some(Self {
            claim: fields.text("claim"),
            since: BootTime::from_nanos(fields.parsed("since")?),
            since_ms: fields.parsed("since_ms").unwrap_or(0),
            mode: Mode::from_tag(fields.get("mode"))?,
            info: HolderInfo::from_fields(&fields),
            tenure,
        })
    }

    /// Whether it belongs to a holder that has not recorded its end.
    pub(super) fn is_open(&self) -> bool {
        self.tenure.is_some() && self.since_ms != 0
    }
}

impl LockFile {
    /// The record of the holder with this ticket, if it was not overwritten.
    pub(super) fn record(&self, ticket: u64) -> Option<Record> {
        self.find_record(ticket).map(|(_, record)| record)
    }

    fn find_record(&self, ticket: u64) -> Option<(u64, Record)> {
        // A damaged one with this ticket must not hide it.
        let mut offsets = record_offsets(ticket).filter(|offset| self.number_at(*offset) == ticket);
        offsets.find_map(|offset| Some((offset, self.record_at(offset, ticket)?)))
    }

    /// Where to write a holder's record, and the earlier holder's record that is there. Does not
    /// choose the record of a present holder while there is room elsewhere.
    pub(super) fn place_for_record(
        &self,
        ticket: u64,
        is_present: impl Fn(u64) -> bool,
    ) -> (u64, Option<(u64, Record)>) {
        for offset in record_offsets(ticket) {
            let mut bytes = [0; RECORD];
            self.read_at_most(&mut bytes, offset);
            let owner = number(&bytes[..8]);
            if !is_present(owner) {
                return (offset, Record::from_bytes(&bytes, owner).map(|record| (owner, record)));
            }
        }
        (record_offsets(ticket).nth(1).unwrap_or(RECORDS_START), None)
    }

    pub(super) fn write_record(&self, offset: u64, ticket: u64, record: &Record) -> io::Result<()> {
        self.write_at(&record.to_bytes(ticket), offset)
    }

    /// Record when this holder will release the lock; `None` if unknown.
    pub(super) fn set_end(&self, ticket: u64, until: Option<BootTime>) {
        self.change_record(ticket, |record| Record {
            tenure: record.tenure.map(|tenure| Tenure { until, ..tenure }),
            ..record
        });
    }

    /// For a holder that ends without an entry in the history: it must not count as killed.
    pub(super) fn end_record(&self, ticket: u64) {
        self.change_record(ticket, |record| Record { since_ms: 0, ..record });
    }

    fn change_record(&self, ticket: u64, change: impl FnOnce(Record) -> Record) {
        if let Some((offset, record)) = self.find_record(ticket) {
            let _ = self.write_record(offset, ticket, &change(record));
        }
    }

    /// The tickets and records of all holders that have not recorded their end.
    pub(super) fn open_records(&self) -> Vec<(u64, Record)> {
        let mut bytes = vec![0; RECORDS * RECORD];
        let read = self.read_at_most(&mut bytes, RECORDS_START);
        let records = bytes[..read].as_chunks::<RECORD>().0.iter();
        let records = records.map(|bytes| (number(&bytes[..8]), bytes));
        let records = records.filter_map(|(owner, bytes)| Some((owner, Record::from_bytes(bytes, owner)?)));
        records.filter(|(owner, record)| *owner > 0 && record.is_open()).collect()
    }

    /// The record of the waiter with this ticket, if it has one.
    pub(super) fn waiter_record(&self, ticket: u64) -> Option<Record> {
        self.record_at(waiter_offset(ticket), ticket)
    }

    /// Does not overwrite the record of a waiter that is present, which is ahead of us.
    pub(super) fn write_waiter_record(
        &self,
        ticket: u64,
        record: &Record,
        is_present: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let offset = waiter_offset(ticket);
        if is_present(self.number_at(offset)) {
            return Ok(());
        }
        self.write_record(offset, ticket, record)
    }

    pub(super) fn record_at(&self, offset: u64, ticket: u64) -> Option<Record> {
        let mut bytes = [0; RECORD];
        self.locks().file().read_exact_at(&mut bytes, offset).ok()?;
        Record::from_bytes(&bytes, ticket)
    }

    /// The newest contender since the last reboot.
    pub(super) fn newest(&self) -> Option<Record> {
        self.record_at(NEWEST, boot_id())
    }

    /// `since` is its time of arrival. The boot id takes the place of the ticket.
    pub(super) fn write_newest(&self, record: &Record) -> io::Result<()> {
        self.write_record(NEWEST, boot_id(), record)
    }
}

/// Where a holder's record may be: at the first place, so that a lock with one holder at a time has
/// a small file, then at the ticket's own, then at the others.
fn record_offsets(ticket: u64) -> impl Iterator<Item = u64> {
    let count = RECORDS as u64;
    let places = once(0).chain((0..count).map(move |next| (ticket % count + next) % count));
    places.map(|place| RECORDS_START + place * RECORD as u64)
}

fn waiter_offset(ticket: u64) -> u64 {
    WAITERS_START + ticket % WAITER_RECORDS * RECORD as u64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A waiter's record.
    pub fn record(claim: &str, since: BootTime) -> Record {
        let (mode, info) = (Mode::Exclusive, HolderInfo::default());
        Record { claim: claim.into(), since, since_ms: 0, mode, info, tenure: None }
    }

    fn holder() -> Record {
        let info = HolderInfo { host: "web1".into(), label: "nightly".into(), ..HolderInfo::default() };
        let until = Some(BootTime::from_nanos(43));
        let tenure = Tenure { fence: u64::MAX, slot: 3, waited: Duration::from_millis(7), until };
        Record { since_ms: 1, info, tenure: Some(tenure), ..record("c.1", BootTime::from_nanos(42)) }
    }

    #[test]
    fn a_record_reads_back_with_its_own_ticket() {
        for mode in [Mode::Exclusive, Mode::Shared { group: b"\xff".to_vec() }, Mode::Slot { of: 7 }] {
            let record = Record { mode, ..holder() };
            let bytes = record.to_bytes(7);
            assert_eq!(Record::from_bytes(&bytes, 7), Some(record));
            assert_eq!(Record::from_bytes(&bytes, 8), None);
        }
        assert_eq!(Record::from_bytes(&[0; RECORD], 0), None);
    }

    #[test]
    fn separators_in_a_value_are_left_out() {
        let info = HolderInfo { label: "x\0host\0y".into(), host: "web1".into(), ..HolderInfo::default() };
        let read = Record::from_bytes(&Record { info, ..holder() }.to_bytes(7), 7).unwrap();
        assert_eq!((read.info.host.as_str(), read.info.label.as_str()), ("web1", "xhosty"));
    }

    #[test]
    fn a_record_without_a_fence_belongs_to_a_waiter() {
        let mut bytes = [0; RECORD];
        bytes[0] = 7;
        let text = b"claim\0c.1\0since\x0042\0host\0web1\0newer\0?\0";
        bytes[8..].iter_mut().zip(text).for_each(|(to, from)| *to = *from);
        let read = Record::from_bytes(&bytes, 7).unwrap();
        assert_eq!((read.info.host.as_str(), read.since_ms, read.tenure), ("web1", 0, None));
    }

    proptest! {
        #[test]
        fn reading_a_record_survives_any_bytes(bytes: Vec<u8>) {
            let mut record = [0; RECORD];
            record.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            let _ = Record::from_bytes(&record, number(&record[..8]));
        }
    }
}
