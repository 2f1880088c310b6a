//! Decisions about one lock file, made under its mutex: whether a request may enter, where it
//! queues, what it reserves.
//!
//! While the mutex is held no participant can be added; participants can only disappear.

use std::io;
use std::iter::once;
use std::ops::Range;
use std::thread;
use std::time::{Duration, SystemTime};

use super::byte_map::{ALL_PARTICIPANTS, QueueLane, TICKETS_END, UsageMode, byte, token_byte};
use super::format::{Header, WAITERS_START};
use super::history::killed;
use super::lock_file::LockFile;
use super::mutex;
use super::ofd_lock::{LockKind, OfdLocks};
use super::record::{Record, Tenure};
use super::request::{LocalMode, LocalRequest};
use super::reservation::{Reservation, ReservationKind, slot_for};
use crate::clock::{BootTime, wall_clock_millis};
use crate::lock::{BackendError, Error, FileProblem, Mode, Observer};

/// A year. Tokens are milliseconds, and grants never come faster than one per millisecond for long.
const FAR_FUTURE_MS: u64 = 365 * 24 * 3600 * 1000;

/// A byte that stays locked for longer than this is locked by a foreign program.
const LONGEST_COLLISION: Duration = Duration::from_millis(500);

/// What blocks a request: it checks again when one of these bytes is released, or at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Blockers {
    pub offsets: Vec<u64>,
    pub until: Option<BootTime>,
}

impl Blockers {
    fn byte(offset: u64) -> Self {
        Self { offsets: vec![offset], until: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The request may enter; in a lock with slots, with this one.
    Free(u32),
    Blocked(Blockers),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub ticket: u64,
    pub fence: u64,
    pub slot: u32,
}

/// Holds the mutex of the file until it is dropped.
pub(super) struct Admission<'a> {
    file: &'a LockFile,
    header: Header,
    reservations: Vec<Reservation>,
    /// No other process holds or waits.
    is_alone: bool,
    file_length: u64,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        mutex::unlock(self.file);
    }
}

impl<'a> Admission<'a> {
    pub(super) fn begin(file: &'a LockFile) -> Result<Self, BackendError> {
        mutex::lock(file)?;
        Self::with_mutex(file)
    }

    /// Stops waiting for the mutex when the observer gives up.
    pub(super) fn begin_observed(file: &'a LockFile, observer: &mut dyn Observer) -> Result<Self, Error> {
        mutex::lock_observed(file, observer)?;
        Ok(Self::with_mutex(file)?)
    }

    /// `None` if the mutex is busy, or the file cannot be used.
    pub(super) fn try_begin(file: &'a LockFile) -> Option<Self> {
        mutex::try_lock(file).ok()?.then(|| Self::with_mutex(file).ok())?
    }

    fn with_mutex(file: &'a LockFile) -> Result<Self, BackendError> {
        // Created before anything can fail: dropping it unlocks the mutex.
        let mut admission = Self {
            file,
            header: Header::default(),
            reservations: Vec::new(),
            is_alone: false,
            file_length: 0,
        };
        let metadata = file.locks().file().metadata().map_err(|e| file.io_error(&e))?;
        // Other processes would not see our locks on it.
        if !file.is_in_place() {
            return Err(file.error(FileProblem::DeletedInUse));
        }
        admission.file_length = metadata.len();
        admission.header = file.header();
        admission.reservations = file.reservations(&admission.header);
        let others = file.locks().writer_in(ALL_PARTICIPANTS).map_err(|e| file.io_error(&e))?;
        admission.is_alone = others.is_none();
        Ok(admission)
    }

    fn locks(&self) -> &OfdLocks {
        self.file.locks()
    }

    fn io_error(&self, error: &io::Error) -> BackendError {
        self.file.io_error(error)
    }

    /// Decides whether this request may enter. `ticket` is ours, if we have queued.
    pub(super) fn check(
        &self,
        request: &LocalRequest,
        ticket: Option<u64>,
    ) -> Result<Decision, BackendError> {
        if self.is_alone && self.reservations.is_empty() {
            return Ok(Decision::Free(0));
        }
        let fail = |e: io::Error| self.io_error(&e);
        if ticket.is_none() {
            self.require_same_usage(request.usage)?;
        }
        let waits_its_turn = !self.may_join(request).map_err(fail)?;
        if waits_its_turn && let Some(offset) = self.waiter_ahead(request, ticket).map_err(fail)? {
            return Ok(Decision::Blocked(Blockers::byte(offset)));
        }
        match request.mode {
            LocalMode::Slot => self.check_slots(request.usage),
            LocalMode::Exclusive | LocalMode::Shared(_) => self.check_holders(request).map_err(fail),
        }
    }

    /// A process that uses the key with another number of slots would have to leave first, even if
    /// it only waits. That may never happen, so it is an error.
    fn require_same_usage(&self, usage: UsageMode) -> Result<(), BackendError> {
        let mut other = self
            .reservations
            .iter()
            .map(|reservation| reservation.kind.usage())
            .find(|other| *other != usage);
        for range in usage.others() {
            if let Some(offset) = self.locks().writer_in(range).map_err(|e| self.io_error(&e))? {
                other = Some(UsageMode::at(offset));
            }
        }
        other.map_or(Ok(()), |other| Err(self.file.error(FileProblem::OtherSlots(other.slot_count()))))
    }

    /// A reader that prefers readers joins holders of its group, ahead of the queue.
    fn may_join(&self, request: &LocalRequest) -> io::Result<bool> {
        let LocalMode::Shared(group) = request.mode else { return Ok(false) };
        let is_reserved =
            || self.reservations.iter().any(|reservation| reservation.kind == ReservationKind::Shared(group));
        Ok(request.joins && (self.group_holds(request)? || is_reserved()))
    }

    /// Other readers of our group hold the lock.
    fn group_holds(&self, request: &LocalRequest) -> io::Result<bool> {
        let LocalMode::Shared(group) = request.mode else { return Ok(false) };
        Ok(self.locks().conflict_in(byte(group.offset()), LockKind::Write)?.is_some())
    }

    /// The waiter to wait for: the one directly ahead of us, so that each one that enters wakes one
    /// other. A reader that may join others must check whenever a reader may have entered, so it
    /// waits for the first in the queue.
    fn waiter_ahead(&self, request: &LocalRequest, ticket: Option<u64>) -> io::Result<Option<u64>> {
        let lane = request.usage.lane(request.lane);
        let earlier = lane.start..ticket.map_or(lane.end, |ticket| lane.start + ticket);
        let ahead = if request.joins {
            self.locks().first_writer_in(earlier)?
        } else {
            self.locks().last_writer_in(earlier)?
        };
        match ahead {
            None if request.lane == QueueLane::Fair => {
                self.locks().writer_in(request.usage.lane(QueueLane::Preferred))
            }
            ahead => Ok(ahead),
        }
    }

    fn check_holders(&self, request: &LocalRequest) -> io::Result<Decision> {
        // The order matters: if no reader of our group holds the lock now, any holder found
        // afterwards belongs to another group, or is exclusive.
        let conflicting =
            if self.group_holds(request)? { request.usage.owners() } else { request.usage.holders() };
        if let Some(offset) = self.locks().writer_in(conflicting)? {
            return Ok(Decision::Blocked(Blockers::byte(offset)));
        }
        let conflicts = |reservation: &&Reservation| {
            reservation.kind != request.reserves(0) || request.mode == LocalMode::Exclusive
        };
        Ok(match self.reservations.iter().filter(conflicts).map(|reservation| reservation.until).max() {
            None => Decision::Free(0),
            until => Decision::Blocked(Blockers { offsets: Vec::new(), until }),
        })
    }

    fn check_slots(&self, usage: UsageMode) -> Result<Decision, BackendError> {
        let writers = |range| self.locks().all_writers_in(range).map_err(|e| self.io_error(&e));
        // A holder that leaves between the two looks costs one more round.
        for _ in 0..=usage.slots() {
            let taken = writers(usage.all_slots())?;
            let is_reserved = |number| {
                let kind = ReservationKind::Slot(usage, number);
                self.reservations.iter().any(|reservation| reservation.kind == kind)
            };
            let is_free =
                |number: &u32| taken.binary_search(&usage.slot(*number)).is_err() && !is_reserved(*number);
            if let Some(number) = (0..usage.slots()).find(is_free) {
                return Ok(Decision::Free(number));
            }
            let offsets = writers(usage.owners())?;
            if offsets.len() >= taken.len() {
                let until = self.reservations.iter().map(|reservation| reservation.until).min();
                return Ok(Decision::Blocked(Blockers { offsets, until }));
            }
        }
        Err(self.file.error(FileProblem::ForeignLocks))
    }

    /// Join the end of the queue. Returns our ticket.
    pub(super) fn queue(&mut self, request: &LocalRequest, record: &Record) -> Result<u64, BackendError> {
        let ticket = self.next_ticket(request.usage)?;
        // Before the byte is locked, so that no process sees a waiter without its record. Only
        // people read it, so errors are ignored.
        let is_present = |other| self.is_locked(other, request.usage.lanes());
        let _ = self.file.write_waiter_record(ticket, record, is_present);
        self.lock_byte(request.usage.ticket(request.lane, ticket), LockKind::Write)?;
        self.file.write_header(&self.header).map_err(|e| self.io_error(&e))?;
        Ok(ticket)
    }

    /// A ticket larger than all tickets in use. The header is not enough: the file may have been
    /// truncated while in use.
    fn next_ticket(&mut self, usage: UsageMode) -> Result<u64, BackendError> {
        let mut ticket = self.header.next_ticket;
        if ticket == 0 || ticket >= TICKETS_END / 2 {
            ticket = 1;
        }
        for range in
            usage.lanes().into_iter().chain([usage.owners(), usage.sharers()]).filter(|_| !self.is_alone)
        {
            let in_use = |ticket| self.locks().conflict_in(range.start + ticket..range.end, LockKind::Write);
            while let Some(locked) = in_use(ticket).map_err(|e| self.io_error(&e))? {
                ticket = locked.end - range.start;
            }
        }
        self.header.next_ticket = ticket + 1;
        if ticket < TICKETS_END { Ok(ticket) } else { Err(self.file.error(FileProblem::ForeignLocks)) }
    }

    /// After a truncation tickets are reused. A waiter that slept until the previous owner of a
    /// ticket left locks its byte briefly, so a conflict is retried for a while.
    fn lock_byte(&self, offset: u64, kind: LockKind) -> Result<(), BackendError> {
        let give_up_at = BootTime::now() + LONGEST_COLLISION;
        loop {
            match self.locks().try_lock(byte(offset), kind) {
                Ok(true) => return Ok(()),
                Ok(false) if give_up_at.has_passed() => {
                    return Err(self.file.error(FileProblem::ForeignLocks));
                }
                Ok(false) => thread::sleep(LONGEST_COLLISION / 1000),
                Err(e) => return Err(self.io_error(&e)),
            }
        }
    }

    /// Become a holder, and no longer a waiter. `record` is the waiter's. `None` if another process
    /// holds the lock with a file that has lost its name.
    pub(super) fn admit(
        &mut self,
        request: &LocalRequest,
        queued: Option<u64>,
        slot: u32,
        record: &Record,
    ) -> Result<Option<Admitted>, BackendError> {
        let ticket = match queued {
            Some(ticket) => ticket,
            None => self.next_ticket(request.usage)?,
        };
        let is_first = self.is_first_holder(request).map_err(|e| self.io_error(&e))?;
        self.lock_marks(request, ticket, slot, &record.claim)?;
        if let Some(name) = self.file.name_lock() {
            // First lock, then look: of two processes with different files at least one sees the other.
            name.lock();
            if is_first && name.is_locked() {
                name.unlock();
                let marks = Self::marks(request, ticket, slot, &record.claim);
                marks.for_each(|(mark, _)| self.locks().unlock(byte(mark)));
                return Ok(None);
            }
        }
        let fence = self.next_fence();
        self.write_fence(fence).map_err(|e| self.io_error(&e))?;
        let since = BootTime::now();
        let tenure = Some(Tenure { fence, slot, waited: since.since(record.since), until: None });
        let record = Record { since, since_ms: wall_clock_millis(), tenure, ..record.clone() };
        self.write_record(request.usage, ticket, &record, queued.is_some());
        if let Some(ticket) = queued {
            self.locks().unlock(byte(request.usage.ticket(request.lane, ticket)));
        }
        Ok(Some(Admitted { ticket, fence, slot }))
    }

    /// Whether no other process holds the lock with this file.
    fn is_first_holder(&self, request: &LocalRequest) -> io::Result<bool> {
        let may_share = request.mode != LocalMode::Exclusive && !self.is_alone;
        Ok(!may_share || self.locks().writer_in(request.usage.holders())?.is_none())
    }

    fn lock_marks(
        &self,
        request: &LocalRequest,
        ticket: u64,
        slot: u32,
        claim: &str,
    ) -> Result<(), BackendError> {
        Self::marks(request, ticket, slot, claim).try_for_each(|(mark, kind)| self.lock_byte(mark, kind))
    }

    /// The bytes that a holder locks. Any user can lock the one of its token before it, as the record
    /// of a waiter shows the claim; such a holder could not be found by its token.
    fn marks(
        request: &LocalRequest,
        ticket: u64,
        slot: u32,
        claim: &str,
    ) -> impl Iterator<Item = (u64, LockKind)> + use<> {
        let usage = request.usage;
        let owner = (usage.owners().start + ticket, LockKind::Write);
        let (mark, second) = match request.mode {
            LocalMode::Exclusive => (owner, None),
            LocalMode::Shared(group) => {
                ((usage.sharers().start + ticket, LockKind::Write), Some((group.offset(), LockKind::Read)))
            }
            LocalMode::Slot => (owner, Some((usage.slot(slot), LockKind::Write))),
        };
        once(mark).chain(second).chain(once((token_byte(claim), LockKind::Write)))
    }

    fn write_fence(&mut self, fence: u64) -> io::Result<()> {
        self.header.last_fence = fence;
        // Expired reservations need not be read again.
        if self.reservations.is_empty() {
            (self.header.reserved_until, self.header.reservations) = (0, 0);
        }
        self.file.write_header(&self.header)
    }

    /// Write our record for others. It decides nothing, so errors are ignored.
    fn write_record(&self, usage: UsageMode, ticket: u64, record: &Record, has_waited: bool) {
        let is_reserved = |other| self.reservations.iter().any(|reservation| reservation.ticket == other);
        let is_present =
            |other| is_reserved(other) || self.is_locked(other, [usage.owners(), usage.sharers()]);
        let (offset, earlier) = self.file.place_for_record(ticket, is_present);
        if let Some((other, earlier)) = earlier.filter(|(_, earlier)| earlier.is_open()) {
            // We waited for its end, since it was the only holder.
            let ended = (has_waited && earlier.mode == Mode::Exclusive).then(SystemTime::now);
            let _ = self.file.log_if_missing(other, &killed(&earlier, ended));
        }
        let _ = self.file.write_record(offset, ticket, record);
        if self.is_alone && self.file_length > WAITERS_START {
            let _ = self.locks().file().set_len(WAITERS_START);
        }
    }

    /// For a run that neither queued nor entered, but must appear in the history.
    pub(super) fn draw_ticket(&mut self, request: &LocalRequest) -> Result<u64, BackendError> {
        let ticket = self.next_ticket(request.usage)?;
        self.file.write_header(&self.header).map_err(|e| self.io_error(&e))?;
        Ok(ticket)
    }

    /// Whether another process has locked the byte of this ticket in one of the ranges. An error
    /// counts as yes.
    fn is_locked(&self, ticket: u64, ranges: [Range<u64>; 2]) -> bool {
        let is_ticket = !self.is_alone && ticket != 0 && ticket < TICKETS_END;
        let is_locked =
            |range: Range<u64>| !matches!(self.locks().writer_in(byte(range.start + ticket)), Ok(None));
        is_ticket && ranges.into_iter().any(is_locked)
    }

    fn next_fence(&self) -> u64 {
        let last = self.header.last_fence;
        let now = wall_clock_millis();
        // A token from the far future was not written by redlock.
        if last > now.saturating_add(FAR_FUTURE_MS) { now } else { now.max(last + 1) }
    }

    /// End the reservation of the holder with this ticket.
    pub(super) fn end_reservation(&mut self, ticket: u64) -> Result<(), BackendError> {
        let reservation = self.reservations.iter().find(|reservation| reservation.ticket == ticket);
        match reservation {
            Some(reservation) => self.reserve(Reservation { until: BootTime::now(), ..*reservation }),
            None => Ok(()),
        }
    }

    /// Write a reservation, or end it if its time has passed.
    pub(super) fn reserve(&mut self, reservation: Reservation) -> Result<(), BackendError> {
        let table = self.file.reservation_table(&self.header);
        let Some((entry, reservation)) = slot_for(&table, reservation) else { return Ok(()) };
        let others = table.iter().enumerate().filter(|(at, _)| *at != entry);
        let others = others.filter_map(|(_, other)| Some(other.as_ref()?.until.as_nanos())).max();
        self.header.reservations = table.len().max(entry + 1) as u64;
        self.header.reserved_until = others.unwrap_or(0).max(reservation.until.as_nanos());
        let written = self.file.write_reservation(entry, &reservation);
        written.and_then(|()| self.file.write_header(&self.header)).map_err(|e| self.io_error(&e))
    }
}
