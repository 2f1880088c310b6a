//! Alone with the lock file: check what is in the way, queue, enter.
//!
//! Under the mutex no participant can be added; participants may only disappear.

use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, SystemTime};

use super::byte_map::{ALL_PARTICIPANTS, Lane, TICKETS_END, UsageMode, byte};
use super::format::{Header, WAITERS_START};
use super::lock_file::LockFile;
use super::mutex;
use super::ofd_lock::{Kind, OfdLocks};
use super::record::{Record, Tenure};
use super::request::{LocalMode, LocalRequest};
use super::reservation::{Reservation, ReservationKind, slot_for};
use super::run_log::killed;
use crate::clock::{BootTime, wall_clock_millis};
use crate::lock::{BackendError, Error, FileProblem, Mode, Observer};

/// A year. Tokens are milliseconds, and more than one in each is not granted for long.
const FAR_FUTURE_MS: u64 = 365 * 24 * 3600 * 1000;

/// A byte that is locked for longer is not locked by redlock.
const A_MOMENT: Duration = Duration::from_millis(500);

/// What is in the way: check again when one of these bytes is released, or at this moment.
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
    /// Nothing is in the way; with slots, of this one.
    Free(u32),
    Blocked(Blockers),
}

/// What a holder has.
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
    /// Of the file.
    length: u64,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        mutex::unlock(self.file);
    }
}

impl<'a> Admission<'a> {
    pub(super) fn begin(
        file: &'a LockFile,
        observer: Option<&mut (dyn Observer + '_)>,
    ) -> Result<Self, Error> {
        mutex::lock(file, observer)?;
        Self::look(file)
    }

    /// `None` if the mutex is not free at once, or the file cannot be used.
    pub(super) fn try_begin(file: &'a LockFile) -> Option<Self> {
        mutex::try_lock(file).ok()?.then(|| Self::look(file).ok())?
    }

    /// With the mutex.
    fn look(file: &'a LockFile) -> Result<Self, Error> {
        // From here on dropping unlocks it.
        let mut admission =
            Self { file, header: Header::default(), reservations: Vec::new(), is_alone: false, length: 0 };
        let about = file.locks().file().metadata().map_err(|e| file.io_error(&e))?;
        // Its name was removed: other processes do not see our locks on it.
        if about.nlink() == 0 {
            return Err(file.error(FileProblem::DeletedInUse).into());
        }
        admission.length = about.len();
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

    /// Whether this request may enter. `ticket` is ours, if we have queued.
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

    /// A process that uses the key in another way, even a waiter, must leave first; that may be never, so it is
    /// an error.
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

    /// A reader that prefers readers joins holders of its group.
    fn may_join(&self, request: &LocalRequest) -> io::Result<bool> {
        let LocalMode::Shared(group) = request.mode else { return Ok(false) };
        let is_reserved =
            || self.reservations.iter().any(|reservation| reservation.kind == ReservationKind::Shared(group));
        Ok(request.joins && (self.group_holds(request)? || is_reserved()))
    }

    /// Other readers of our group hold the lock.
    fn group_holds(&self, request: &LocalRequest) -> io::Result<bool> {
        let LocalMode::Shared(group) = request.mode else { return Ok(false) };
        Ok(self.locks().conflict_in(byte(group.offset()), Kind::Write)?.is_some())
    }

    /// Of the waiters that enter before us, the one to wait for: the next ahead of us, so that each that enters
    /// wakes one. A reader that may join others has to check whenever one may have entered: that is the first.
    fn waiter_ahead(&self, request: &LocalRequest, ticket: Option<u64>) -> io::Result<Option<u64>> {
        let lane = request.usage.lane(request.lane);
        let earlier = lane.start..ticket.map_or(lane.end, |ticket| lane.start + ticket);
        let ahead = if request.joins {
            self.locks().first_writer_in(earlier)?
        } else {
            self.locks().last_writer_in(earlier)?
        };
        match ahead {
            None if request.lane == Lane::Fair => self.locks().writer_in(request.usage.lane(Lane::Preferred)),
            ahead => Ok(ahead),
        }
    }

    fn check_holders(&self, request: &LocalRequest) -> io::Result<Decision> {
        // In this order: if no reader of our group holds it now, any holder found afterwards is of another.
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
        // As many times as a holder may have left while we looked.
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
        self.lock_byte(request.usage.ticket(request.lane, ticket), Kind::Write)?;
        self.file.write_header(&self.header).map_err(|e| self.io_error(&e))?;
        // A waiter without a record is a waiter all the same.
        let _ = self.file.write_waiter_record(ticket, record, |other| self.waits(request.usage, other));
        Ok(ticket)
    }

    /// A ticket larger than all that are in use. The header is not enough: the file may have been truncated
    /// while in use.
    fn next_ticket(&mut self, usage: UsageMode) -> Result<u64, BackendError> {
        let mut ticket = self.header.next_ticket;
        if ticket == 0 || ticket >= TICKETS_END / 2 {
            ticket = 1;
        }
        let lanes = [Lane::Preferred, Lane::Fair].map(|lane| usage.lane(lane));
        for range in lanes.into_iter().chain([usage.owners(), usage.sharers()]).filter(|_| !self.is_alone) {
            let in_use = |ticket| self.locks().conflict_in(range.start + ticket..range.end, Kind::Write);
            while let Some(locked) = in_use(ticket).map_err(|e| self.io_error(&e))? {
                ticket = locked.end - range.start;
            }
        }
        self.header.next_ticket = ticket + 1;
        if ticket < TICKETS_END { Ok(ticket) } else { Err(self.file.error(FileProblem::ForeignLocks)) }
    }

    /// In a file that was truncated numbers are used again, and a waiter that slept until the last owner of one had left has
    /// its byte for a moment.
    fn lock_byte(&self, offset: u64, kind: Kind) -> Result<(), BackendError> {
        let give_up_at = BootTime::now() + A_MOMENT;
        loop {
            match self.locks().try_lock(byte(offset), kind) {
                Ok(true) => return Ok(()),
                Ok(false) if give_up_at.has_passed() => {
                    return Err(self.file.error(FileProblem::ForeignLocks));
                }
                Ok(false) => thread::sleep(A_MOMENT / 1000),
                Err(e) => return Err(self.io_error(&e)),
            }
        }
    }

    /// Nothing is in the way: become a holder, and no longer a waiter. `record`: as of a waiter.
    pub(super) fn admit(
        &mut self,
        request: &LocalRequest,
        queued: Option<u64>,
        slot: u32,
        record: &Record,
    ) -> Result<Admitted, BackendError> {
        let ticket = match queued {
            Some(ticket) => ticket,
            None => self.next_ticket(request.usage)?,
        };
        self.lock_marks(request, ticket, slot)?;
        let fence = self.next_fence();
        self.write_fence(fence).map_err(|e| self.io_error(&e))?;
        let since = BootTime::now();
        let tenure = Some(Tenure { fence, slot, waited: since.since(record.since), until: None });
        let record = Record { since, since_ms: wall_clock_millis(), tenure, ..record.clone() };
        self.tell(request.usage, ticket, &record, queued.is_some());
        if let Some(ticket) = queued {
            self.locks().unlock(byte(request.usage.ticket(request.lane, ticket)));
        }
        Ok(Admitted { ticket, fence, slot })
    }

    fn lock_marks(&self, request: &LocalRequest, ticket: u64, slot: u32) -> Result<(), BackendError> {
        let usage = request.usage;
        match request.mode {
            LocalMode::Exclusive => self.lock_byte(usage.owners().start + ticket, Kind::Write),
            LocalMode::Shared(group) => {
                self.lock_byte(usage.sharers().start + ticket, Kind::Write)?;
                self.lock_byte(group.offset(), Kind::Read)
            }
            LocalMode::Slot => {
                self.lock_byte(usage.owners().start + ticket, Kind::Write)?;
                self.lock_byte(usage.slot(slot), Kind::Write)
            }
        }
    }

    fn write_fence(&mut self, fence: u64) -> io::Result<()> {
        self.header.last_fence = fence;
        // Reservations that are over need not be read again.
        if self.reservations.is_empty() {
            (self.header.reserved_until, self.header.reservations) = (0, 0);
        }
        self.file.write_header(&self.header)
    }

    /// Leave our record for others. It decides nothing, so we hold the lock without it as well.
    fn tell(&self, usage: UsageMode, ticket: u64, record: &Record, has_waited: bool) {
        let is_reserved = |other| self.reservations.iter().any(|reservation| reservation.ticket == other);
        let is_present = |other| is_reserved(other) || self.holds(usage, other);
        let (offset, earlier) = self.file.place_for_record(ticket, is_present);
        if let Some((other, earlier)) = earlier.filter(|(_, earlier)| earlier.is_open()) {
            // What a waiter has waited for was the only holder's end.
            let ended = (has_waited && earlier.mode == Mode::Exclusive).then(SystemTime::now);
            let _ = self.file.log_if_missing(other, &killed(&earlier, ended));
        }
        let _ = self.file.write_record(offset, ticket, record);
        if self.is_alone && self.length > WAITERS_START {
            let _ = self.locks().file().set_len(WAITERS_START);
        }
    }

    /// For a run that neither queues nor enters, but is to stand in the history.
    pub(super) fn draw_ticket(&mut self, request: &LocalRequest) -> Result<u64, BackendError> {
        let ticket = self.next_ticket(request.usage)?;
        self.file.write_header(&self.header).map_err(|e| self.io_error(&e))?;
        Ok(ticket)
    }

    /// Whether another process holds with this ticket.
    fn holds(&self, usage: UsageMode, ticket: u64) -> bool {
        self.is_locked(ticket, [usage.owners(), usage.sharers()])
    }

    /// Whether another process waits with this ticket.
    fn waits(&self, usage: UsageMode, ticket: u64) -> bool {
        self.is_locked(ticket, [Lane::Preferred, Lane::Fair].map(|lane| usage.lane(lane)))
    }

    /// A look that fails is as good as a yes.
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

    /// Enter a reservation, or end it if its moment has passed.
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
