//! Entering: all files in one order, or none. A waiter sleeps until there is a reason to check
//! again.

use std::convert::Infallible;
use std::ops::Range;
use std::slice;

use nix::poll::PollFlags;

use super::HostLock;
use super::admission::{Admission, Admitted, Blockers, Decision};
use super::byte_map::{QueueLane, TICKETS_END, UsageMode, byte};
use super::changes::Changes;
use super::lock_file::LockFile;
use super::name_lock::{next_look, unseen_info};
use super::newest::Contender;
use super::ofd_lock::LockKind;
use super::record::Record;
use super::release_watch::{LOOK_INTERVAL, ReleaseWatch};
use super::request::{LocalMode, LocalRequest};
use crate::clock::BootTime;
use crate::lock::claim::HostTicket;
use crate::lock::deadlock::DeadlockSearch;
use crate::lock::wait::{Wait, backoff, is_readable, sleep, wait};
use crate::lock::{
    AncestorLock, BackendError, Blocked, Blocker, Error, Holding, Lease, Observer, OuterLock, Problem,
    Request,
};

impl HostLock {
    /// Enters all files. If the request asks for it, waits for files that cannot be used.
    pub(super) fn enter_patiently(&self, waiter: &mut Waiter<'_>) -> Result<Vec<Admitted>, Error> {
        let gives_up_at = waiter.request.wait.gives_up_at(waiter.started);
        let mut failures = 0;
        loop {
            let error = match self.enter_all(waiter) {
                Err(Error::Backend(error)) if waiter.request.waits_for_backend && error.may_pass() => error,
                result => return result,
            };
            if gives_up_at.is_some_and(BootTime::has_passed) {
                return Err(error.into());
            }
            self.end_records(&waiter.tickets);
            self.unlock_all();
            waiter.tickets.fill(None);
            waiter.observer.on_unavailable(&error, waiter.started.elapsed());
            let until = BootTime::now() + backoff(failures);
            failures += 1;
            if let Wait::Cancelled(signal) =
                sleep(gives_up_at.map_or(until, |gives_up_at| until.min(gives_up_at)), waiter.observer)
            {
                return Err(Error::Cancelled(signal));
            }
        }
    }

    fn enter_all(&self, waiter: &mut Waiter<'_>) -> Result<Vec<Admitted>, Error> {
        self.check_ancestors(waiter)?;
        let mut admitted = vec![None; self.files.len()];
        for &key in &self.order {
            admitted[key] = Some(self.enter(key, waiter)?);
        }
        Ok(admitted.into_iter().flatten().collect())
    }

    fn enter(&self, key: usize, waiter: &mut Waiter<'_>) -> Result<Admitted, Error> {
        let (file, local) = (&self.files[key], waiter.local);
        let mut queued: Option<(u64, ReleaseWatch)> = None;
        let mut search = None;
        loop {
            let ticket = queued.as_ref().map(|(ticket, _)| *ticket);
            let mut admission = Admission::begin_observed(file, waiter.observer)?;
            self.require_not_done(waiter.request)?;
            if let Some(contender) = &waiter.contender {
                contender.check(&self.files)?;
            }
            let blockers = match admission.check(&local, ticket)? {
                Decision::Free(slot) => {
                    waiter.become_newest(file)?;
                    if let Some(admitted) = admission.admit(&local, ticket, slot, &waiter.record)? {
                        waiter.tickets[key] = Some(admitted.ticket);
                        return Ok(admitted);
                    }
                    Blockers { offsets: Vec::new(), until: Some(next_look()) }
                }
                Decision::Blocked(blockers) => blockers,
            };
            if queued.is_none() {
                if ancestor_holds(file, &local, &waiter.ancestors) {
                    return Err(Error::Nested);
                }
                if inspect(file, key, &local, None).may_be_kept(self.files.len())
                    && !std::mem::replace(&mut waiter.knows_keepers, true)
                {
                    drop(admission);
                    waiter.ancestors.extend(waiter.observer.kept_for_ancestors());
                    self.check_ancestors(waiter)?;
                    continue;
                }
                // A process that does not wait must not block others.
                if !waiter.request.wait.queues() {
                    drop(admission);
                    return Err(held(inspect(file, key, &local, None)));
                }
                waiter.become_newest(file)?;
                let ticket = admission.queue(&local, &waiter.record)?;
                waiter.tickets[key] = Some(ticket);
                let release_watch = ReleaseWatch::new(file.locks()).map_err(|e| file.io_error(&e))?;
                queued = Some((ticket, release_watch));
                drop(admission);
                search = self.surroundings.as_ref().and_then(|around| {
                    around.search((&self.files, &waiter.tickets), key, self.claim, &waiter.ancestors)
                });
                waiter.report(file, key, ticket)?;
            } else {
                drop(admission);
                // We may be the first now, whom the holder must make way for.
                if let Some((ticket, _)) = queued.as_ref().filter(|_| waiter.contender.is_some()) {
                    waiter.report(file, key, *ticket)?;
                }
            }
            if let Some((ticket, release_watch)) = &mut queued {
                let look = search.as_ref().map(DeadlockSearch::next_look);
                waiter.sleep(file, key, *ticket, release_watch, &blockers, look)?;
            }
            if let (Some(search), Some(around)) = (&mut search, &self.surroundings) {
                let found = search.look(|keys| Ok::<_, Infallible>(around.read(keys)));
                if let Ok(Some(deadlock)) = found {
                    return Err(Error::Deadlock(Box::new(deadlock)));
                }
            }
        }
    }

    /// An error if one of the keys would have to wait for an outer run of this process. Checked for
    /// all keys before the first wait.
    fn check_ancestors(&self, waiter: &mut Waiter<'_>) -> Result<(), Error> {
        let (local, ancestors) = (waiter.local, &waiter.ancestors);
        for file in self.files.iter().filter(|file| ancestor_holds(file, &local, ancestors)) {
            let admission = Admission::begin_observed(file, waiter.observer)?;
            if let Decision::Blocked(_) = admission.check(&local, None)? {
                return Err(Error::Nested);
            }
        }
        Ok(())
    }
}

/// A request in progress, and the observer of its wait.
pub(super) struct Waiter<'a> {
    pub local: LocalRequest,
    pub request: &'a Request,
    /// The locks of outer runs.
    pub ancestors: Vec<AncestorLock>,
    /// The observer was asked for keepers above this process.
    pub knows_keepers: bool,
    pub started: BootTime,
    pub record: Record,
    /// The tickets drawn so far, one for each key.
    pub tickets: Vec<Option<u64>>,
    /// `None` unless the request supersedes others.
    pub contender: Option<Contender>,
    /// Of the files, if they may make the request leave.
    pub changes: Option<Changes>,
    pub observer: &'a mut dyn Observer,
}

impl Waiter<'_> {
    /// Sleeps until there is a reason to check again.
    fn sleep(
        &mut self,
        file: &LockFile,
        key: usize,
        ticket: u64,
        release_watch: &mut ReleaseWatch,
        blockers: &Blockers,
        look_at: Option<BootTime>,
    ) -> Result<(), Error> {
        blockers.offsets.iter().for_each(|offset| release_watch.watch(*offset));
        let is_notified = self.changes.as_ref().is_none_or(|changes| changes.wake_fd().is_some());
        let next_look = (!is_notified).then(|| BootTime::now() + LOOK_INTERVAL);
        let look_at = [look_at, next_look, release_watch.next_look()].into_iter().flatten().min();
        let gives_up_at = self.request.wait.gives_up_at(self.started);
        loop {
            let next_update = BootTime::now() + self.observer.next_update_in(self.started.elapsed());
            if gives_up_at.is_some_and(BootTime::has_passed) {
                return Err(held(inspect(file, key, &self.local, Some(ticket))));
            }
            let until =
                [gives_up_at, blockers.until, look_at].into_iter().flatten().fold(next_update, BootTime::min);
            let changes = self.changes.as_ref().and_then(Changes::wake_fd);
            let wake_fds = [release_watch.wake_fd()].into_iter().chain(changes);
            let watched: Vec<_> = wake_fds.map(|fd| (fd, PollFlags::POLLIN)).collect();
            match wait(&watched, until, Some(&mut *self.observer)) {
                Wait::Ready => {
                    self.changes.iter().for_each(Changes::discard);
                    if is_readable(release_watch.wake_fd()) {
                        release_watch.take_releases().map_err(|e| file.io_error(&e))?;
                    }
                    return Ok(());
                }
                Wait::Cancelled(signal) => return Err(Error::Cancelled(signal)),
                Wait::Over if blockers.until.is_some_and(BootTime::has_passed) => return Ok(()),
                Wait::Over if look_at.is_some_and(BootTime::has_passed) => return Ok(()),
                Wait::Over if next_update.has_passed() => self.report(file, key, ticket)?,
                Wait::Over => {}
            }
        }
    }

    /// To be called under the mutex.
    fn become_newest(&self, file: &LockFile) -> Result<(), Error> {
        let written = self.contender.as_ref().map_or(Ok(()), |contender| contender.become_newest(file));
        written.map_err(|e| file.io_error(&e).into())
    }

    /// An error if waiting would not help.
    fn report(&mut self, file: &LockFile, key: usize, ticket: u64) -> Result<(), Error> {
        let blocked = inspect(file, key, &self.local, Some(ticket));
        // The holder may have come after us, ahead of the queue: then we are about to leave.
        if self.contender.as_ref().is_some_and(|contender| contender.check(slice::from_ref(file)).is_err()) {
            return Ok(());
        }
        if let Some(problem) = protocol_problem(&blocked) {
            return Err(BackendError { at: None, problem }.into());
        }
        self.observer.waiting(&blocked, self.started.elapsed());
        Ok(())
    }
}

fn protocol_problem(blocked: &Blocked) -> Option<Problem> {
    match &blocked.by {
        Blocker::Holder(holding) => holding.info.protocol_problem(),
        Blocker::Queue | Blocker::Foreign { .. } | Blocker::Reservation(_) | Blocker::Quarantine(_) => None,
    }
}

/// The error of a request that does not wait, or no longer.
fn held(blocked: Blocked) -> Error {
    match protocol_problem(&blocked) {
        Some(problem) => BackendError { at: None, problem }.into(),
        None => Error::Held(Box::new(blocked)),
    }
}

/// What blocks this request, for people. Read without the mutex, so it may already be out of date.
/// `ticket` is ours, if we have queued.
pub(super) fn inspect(file: &LockFile, key: usize, request: &LocalRequest, ticket: Option<u64>) -> Blocked {
    let count = |range| file.locks().all_writers_in(range).map_or(0, |waiters| waiters.len());
    let [preferred, fair] = request.usage.lanes();
    let position = ticket.map(|ticket| match request.lane {
        QueueLane::Preferred => count(preferred.start..preferred.start + ticket),
        QueueLane::Fair => count(preferred.clone()) + count(fair.start..fair.start + ticket),
    });
    // The kernel does not show us our own lock.
    let queue_length = count(preferred) + count(fair) + usize::from(ticket.is_some());
    Blocked { key, position, queue_length, by: blocker(file, request) }
}

fn blocker(file: &LockFile, request: &LocalRequest) -> Blocker {
    let marks = file.locks().all_writers_in(request.usage.holders()).unwrap_or_default();
    let mut living: Vec<u64> = marks.into_iter().map(|mark| request.usage.ticket_of_mark(mark)).collect();
    living.sort_unstable();
    let mut reserved = file.reservations(&file.header());
    if let LocalMode::Shared(_) = request.mode {
        reserved.retain(|reservation| reservation.kind != request.reserves(0));
    }
    reserved.retain(|reservation| !living.contains(&reservation.ticket));
    // One free slot is enough; any other request needs all reservations to be over.
    let ends = reserved.iter().map(|reservation| reservation.until);
    let reserved_until = if request.mode == LocalMode::Slot { ends.min() } else { ends.max() };
    let has_living = !living.is_empty();
    let tickets: Vec<u64> =
        living.into_iter().chain(reserved.iter().map(|reservation| reservation.ticket)).collect();
    if tickets.is_empty() && file.is_held_elsewhere() {
        return Blocker::Holder(Holding { info: unseen_info(), ..Holding::default() });
    }
    if tickets.is_empty() {
        return Blocker::Queue;
    }
    let record = tickets.iter().find_map(|ticket| file.record(*ticket));
    let ends = record.as_ref().filter(|_| has_living).and_then(|record| record.tenure?.until);
    let holding = Holding {
        id: record.as_ref().map(|record| record.claim.clone()).unwrap_or_default(),
        held_for: record.as_ref().map(|record| BootTime::now().since(record.since)),
        info: record.map(|record| record.info).unwrap_or_default(),
        others: tickets.len() - 1,
        expires_in: ends.or(reserved_until.filter(|_| !has_living)).map(BootTime::remaining),
    };
    if has_living { Blocker::Holder(holding) } else { Blocker::Reservation(holding) }
}

/// The nearest of these outer locks under which the request may run.
pub(super) fn outer_lock(
    file: &LockFile,
    request: &LocalRequest,
    outer: &[AncestorLock],
) -> Option<OuterLock> {
    outer.iter().rev().find_map(|lock| {
        let ticket = ticket_on(file, lock)?;
        let slot = match sufficient_hold(file, request, ticket.ticket)? {
            SufficientHold::Exclusive => 0,
            SufficientHold::SameMode => ticket.slot,
        };
        // A run has no end of its own here. A keeper without a watched process has.
        let ends = file.record(ticket.ticket).and_then(|record| record.tenure?.until);
        let lease = ends.map(|ends| Lease::new(BootTime::now(), ends.remaining()));
        Some(OuterLock { claim: lock.claim, fence: ticket.fence, slot, lease })
    })
}

/// Whether an outer run of this process is still a holder. The kernel's locks decide: the record of
/// its ticket may have been overwritten since.
fn ancestor_holds(file: &LockFile, local: &LocalRequest, ancestors: &[AncestorLock]) -> bool {
    let mut tickets = ancestors.iter().filter_map(|lock| ticket_on(file, lock));
    let marks = [local.usage.owners(), local.usage.sharers()];
    tickets.any(|HostTicket { ticket, .. }| marks.iter().any(|marks| is_marked(file, marks, *ticket)))
}

/// The ticket of this lock, if it is on this file.
fn ticket_on<'a>(file: &LockFile, lock: &'a AncestorLock) -> Option<&'a HostTicket> {
    let ticket = lock.host_ticket.as_ref()?;
    let is_here = (ticket.device, ticket.inode) == file.identity() && ticket.ticket < TICKETS_END;
    is_here.then_some(ticket)
}

enum SufficientHold {
    Exclusive,
    SameMode,
}

/// How the holder with this ticket holds all that the request asks for; `None` if it does not.
fn sufficient_hold(file: &LockFile, request: &LocalRequest, ticket: u64) -> Option<SufficientHold> {
    if is_marked(file, &UsageMode::PLAIN.owners(), ticket) {
        return Some(SufficientHold::Exclusive);
    }
    let is_same = match request.mode {
        LocalMode::Exclusive => false,
        LocalMode::Slot => is_marked(file, &request.usage.owners(), ticket),
        // Readers of different groups never hold the lock at the same time.
        LocalMode::Shared(group) => {
            let readers = file.locks().conflict_in(byte(group.offset()), LockKind::Write);
            is_marked(file, &request.usage.sharers(), ticket) && matches!(readers, Ok(Some(_)))
        }
    };
    is_same.then_some(SufficientHold::SameMode)
}

fn is_marked(file: &LockFile, marks: &Range<u64>, ticket: u64) -> bool {
    matches!(file.locks().writer_in(byte(marks.start + ticket)), Ok(Some(_)))
}
