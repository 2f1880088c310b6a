//! What a lock file, and the kernel's locks on it, show to a process that takes no part. Without the mutex: nobody
//! waits for us, and what we see may be out of date when it is read.

use std::io;
use std::ops::Range;
use std::time::SystemTime;

use super::byte_map::{END, MARKS, Presence, UsageMode};
use super::lock_file::LockFile;
use super::ofd_lock::Kind;
use super::reservation::Reservation;
use crate::clock::BootTime;
use crate::lock::{Detail, Holder, HolderInfo, HolderKind, Mode, State, Status, WaiterStatus};

/// The processes that the kernel's locks show. The file's contents only say more about them.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// In the order of the queue.
    pub waiters: Vec<Participant>,
    pub holders: Vec<Participant>,
    /// A byte that another program has locked, if nobody holds the lock.
    pub foreign: Option<Foreign>,
    /// In force, of holders that have ended.
    pub kept: Vec<Reservation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Participant {
    pub usage: UsageMode,
    pub ticket: u64,
    pub is_sharer: bool,
    /// The byte that shows it.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    pub offset: u64,
    /// Whether it is locked for writing, or for reading only.
    pub is_writer: bool,
    /// `None` if the kernel does not tell.
    pub pid: Option<i32>,
}

impl Present {
    pub(super) fn look(file: &LockFile) -> io::Result<Self> {
        let mut present = Self::default();
        // The waiters first: one that becomes a holder in between is seen twice rather than not at all.
        present.add_writers(file, 0..MARKS)?;
        present.add_writers(file, MARKS..END)?;
        let Self { waiters, holders, foreign, kept } = &mut present;
        let holds = |ticket| holders.iter().any(|holder| holder.ticket == ticket);
        waiters.retain(|waiter| !holds(waiter.ticket));
        *kept = file.reservations(&file.header());
        kept.retain(|reservation| !holds(reservation.ticket));
        if !holders.is_empty() {
            *foreign = None;
        } else if foreign.is_none() {
            *foreign = foreign_reader(file)?;
        }
        Ok(present)
    }

    fn add_writers(&mut self, file: &LockFile, range: Range<u64>) -> io::Result<()> {
        for locked in file.locks().all_conflicts_in(range, Kind::Read)? {
            let offset = locked.start;
            // Each lock of ours is on one byte.
            let is_long = locked.end - locked.start > 1;
            let presence = if is_long { Presence::Foreign } else { UsageMode::presence(offset) };
            let of = |usage, ticket, is_sharer| Participant { usage, ticket, is_sharer, offset };
            match presence {
                Presence::Waiter(usage, ticket) => self.waiters.push(of(usage, ticket, false)),
                Presence::Owner(usage, ticket) => self.holders.push(of(usage, ticket, false)),
                Presence::Sharer(usage, ticket) => self.holders.push(of(usage, ticket, true)),
                Presence::Other => {}
                Presence::Foreign => {
                    let pid = file.locks().pid_of_conflict(&locked, Kind::Read)?;
                    self.foreign = Some(Foreign { offset, is_writer: true, pid });
                }
            }
        }
        Ok(())
    }

    pub(super) fn state(&self) -> State {
        match (self.holders.first(), &self.foreign) {
            (Some(holder), _) if holder.usage != UsageMode::PLAIN => {
                State::Slots { of: holder.usage.slots() }
            }
            (Some(holder), _) if holder.is_sharer => State::Shared,
            (Some(_), _) => State::Held,
            (None, _) if !self.kept.is_empty() => State::Kept,
            (None, Some(_)) => State::Foreign,
            (None, None) => State::Free,
        }
    }

    /// All holders, with the lock that shows each living one.
    pub(super) fn described_holders(&self, file: &LockFile) -> Vec<(Holder, Option<Participant>)> {
        let living =
            self.holders.iter().map(|holder| (described(file, holder.ticket, holder.usage), Some(*holder)));
        let kept = self.kept.iter().map(|reservation| Holder {
            kind: HolderKind::Reservation,
            expires_in: Some(reservation.until.remaining()),
            ..described(file, reservation.ticket, reservation.kind.usage())
        });
        let foreign = self.foreign.iter().filter(|_| self.holders.is_empty()).map(foreign_holder);
        living.chain(kept.chain(foreign).map(|holder| (holder, None))).collect()
    }

    pub(super) fn status(&self, file: &LockFile, key: Vec<u8>, detail: Detail) -> Status {
        let mut holders: Vec<Holder> =
            self.described_holders(file).into_iter().map(|(holder, _)| holder).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
        let waiters = match detail {
            Detail::Summary => Vec::new(),
            Detail::Full => {
                let described = self.waiters.iter().zip(1..);
                described.map(|(waiter, position)| waiter_status(file, waiter, position)).collect()
            }
        };
        Status {
            key,
            state: self.state(),
            is_wrong_type: false,
            holder_count: holders.len(),
            holders,
            waiters,
            waiter_count: self.waiters.len(),
            servers: Vec::new(),
            undecided: None,
        }
    }
}

/// A lock for reading is in the way of our locks, too. Ours are on one byte each.
fn foreign_reader(file: &LockFile) -> io::Result<Option<Foreign>> {
    let mut locks = file.locks().all_conflicts_in(0..END, Kind::Write)?.into_iter();
    let Some(locked) = locks.find(|locked| locked.end - locked.start > 1) else { return Ok(None) };
    let pid = file.locks().pid_of_conflict(&locked, Kind::Write)?;
    Ok(Some(Foreign { offset: locked.start, is_writer: false, pid }))
}

fn foreign_holder(foreign: &Foreign) -> Holder {
    let pid = foreign.pid.map_or_else(String::new, |pid| pid.to_string());
    let info = HolderInfo { pid, ..HolderInfo::default() };
    Holder { kind: HolderKind::Foreign, info, ..Holder::default() }
}

/// What `break` knows the holder with this ticket by. Without a record only the ticket is left.
pub(super) fn holder_id(file: &LockFile, ticket: u64) -> String {
    file.record(ticket).map_or_else(|| format!("ticket {ticket}"), |record| record.claim)
}

fn described(file: &LockFile, ticket: u64, usage: UsageMode) -> Holder {
    let Some(record) = file.record(ticket) else {
        return Holder { id: holder_id(file, ticket), mode: usage.mode(), ..Holder::default() };
    };
    let has_slot = usage != UsageMode::PLAIN;
    let held_for = record.since.elapsed();
    Holder {
        kind: HolderKind::Run,
        info: record.info,
        // One slot is a lock.
        mode: if has_slot || matches!(record.mode, Mode::Slot { .. }) { usage.mode() } else { record.mode },
        token: Some(record.claim.clone()).filter(|claim| !claim.is_empty()),
        id: record.claim,
        fence: record.tenure.map(|tenure| tenure.fence),
        slot: record.tenure.filter(|_| has_slot).map(|tenure| tenure.slot),
        since: SystemTime::now().checked_sub(held_for),
        waited: record.tenure.map(|tenure| tenure.waited),
        held_for: Some(held_for),
        expires_in: record.tenure.and_then(|tenure| tenure.until).map(BootTime::remaining),
        broken_by: None,
    }
}

fn waiter_status(file: &LockFile, waiter: &Participant, position: usize) -> WaiterStatus {
    let record = file.waiter_record(waiter.ticket);
    let waited = record.as_ref().map(|record| record.since.elapsed());
    let (info, mode) = record
        .map_or_else(|| (HolderInfo::default(), waiter.usage.mode()), |record| (record.info, record.mode));
    WaiterStatus { info, mode, position, waited }
}
