//! The lock on this host: no server, no lease. The kernel frees what a dead process held.
//!
//! A waiter and a holder show that they are there by a lock on a byte of their own in the lock file
//! (byte_map.rs). Who may enter is decided from these locks alone, under a short mutex (admission.rs), never
//! from the file's contents. A process that may not enter sleeps until one that is in the way has left
//! (release_watch.rs), and checks again.

/// The way in for fuzz/, which sees what this room sees.
#[cfg(fuzzing)]
#[path = "../../../fuzz/src/local.rs"]
pub(crate) mod fuzz;

mod admission;
mod byte_map;
mod format;
mod inspect;
mod lock_file;
mod mutex;
mod newest;
mod ofd_lock;
mod release_watch;
mod request;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::signal::Signal;

use admission::{Admission, Admitted, Blockers, Decision};
use byte_map::{TICKETS_END, UsageMode, byte};
use format::{HolderRecord, Reservation};
use inspect::inspect;
use lock_file::LockFile;
use newest::Contender;
use ofd_lock::Kind;
use release_watch::{INTERRUPT, ReleaseWatch};
use request::{LocalMode, LocalRequest};

pub(crate) use lock_file::{Mount, default_directory};

use super::claim::{HostTicket, WaiterId};
use super::wait::{Wait, backoff, is_readable, sleep, wait};
use super::{
    AncestorLock, BackendError, Claim, Error, Extended, Grant, LastResort, Lock, Mode, Observer, OuterLock,
    Problem, Released, Request, Votes,
};
use crate::clock::BootTime;

pub(crate) struct HostLock {
    /// One for each key, in the order given.
    files: Arc<Vec<LockFile>>,
    /// The order in which every process takes several of them, so that no two wait for each other.
    order: Vec<usize>,
    claim: Claim,
    reserved: Arc<Mutex<Option<Reserved>>>,
}

/// The reservations made for the minimum hold, and that hold.
#[derive(Clone)]
struct Reserved {
    min_hold: Duration,
    /// One for each file.
    reservations: Vec<Reservation>,
}

impl Reserved {
    fn write(&self, files: &[LockFile], until: BootTime) -> Result<(), Error> {
        for (file, reservation) in files.iter().zip(&self.reservations) {
            Admission::begin(file, None)?.reserve(Reservation { until, ..*reservation })?;
        }
        Ok(())
    }
}

impl HostLock {
    /// Open, or create, the lock files. Before the guardian is forked: it must hold the lock as well, so that
    /// a killed redlock does not free it under a living command.
    pub(crate) fn open(directory: &Path, names: &[Vec<u8>]) -> Result<Self, BackendError> {
        let files = names.iter().map(|name| LockFile::open(directory, name)).collect::<Result<_, _>>()?;
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|&key| &names[key]);
        let claim = Claim { waiter: WaiterId::random(), attempt: 0 };
        Ok(Self { files: Arc::new(files), order, claim, reserved: Arc::default() })
    }

    /// Where the locks are, in the order of the keys.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.files.iter().map(|file| file.path().display().to_string()).collect()
    }

    /// How the directory is mounted: the kernel's locks do not reach over a network.
    pub(crate) fn mount(&self) -> Mount {
        self.files[0].mount()
    }

    /// Lock files that cannot be used are waited for, if the request asks for it.
    fn enter_patiently(&self, waiter: &mut Waiter<'_>) -> Result<Vec<Admitted>, Error> {
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
            self.unlock_all();
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
        if self.would_wait_for_ancestor(waiter)? {
            return Err(Error::Nested);
        }
        let mut admitted = vec![None; self.files.len()];
        for &key in &self.order {
            admitted[key] = Some(self.enter(key, waiter)?);
        }
        Ok(admitted.into_iter().flatten().collect())
    }

    fn enter(&self, key: usize, waiter: &mut Waiter<'_>) -> Result<Admitted, Error> {
        let (file, local) = (&self.files[key], waiter.local);
        let mut queued: Option<(u64, ReleaseWatch)> = None;
        loop {
            let ticket = queued.as_ref().map(|(ticket, _)| *ticket);
            let mut admission = Admission::begin(file, Some(&mut *waiter.observer))?;
            if let Some(contender) = &waiter.contender {
                contender.check(&self.files)?;
            }
            let blockers = match admission.check(&local, ticket)? {
                Decision::Free(slot) => {
                    waiter.become_newest(file)?;
                    let record = self.record(waiter.request);
                    return Ok(admission.admit(&local, ticket, slot, &record)?);
                }
                Decision::Blocked(blockers) => blockers,
            };
            if queued.is_none() {
                if ancestor_holds(file, &local, waiter.request) {
                    return Err(Error::Nested);
                }
                // A process that does not wait must not be in the way of others.
                if !waiter.request.wait.queues() {
                    drop(admission);
                    return Err(Error::Held(Box::new(inspect(file, key, &local, None))));
                }
                waiter.become_newest(file)?;
                let ticket = admission.queue(&local)?;
                let release_watch = ReleaseWatch::new(file.locks()).map_err(|e| file.io_error(&e))?;
                queued = Some((ticket, release_watch));
                drop(admission);
                waiter.report(file, key, ticket);
            } else {
                drop(admission);
            }
            if let Some((ticket, release_watch)) = &mut queued {
                waiter.sleep(file, key, *ticket, release_watch, &blockers)?;
            }
        }
    }

    /// Whether one of the keys would have to wait for a run that this process runs under. Checked for all keys
    /// before the first is waited for.
    fn would_wait_for_ancestor(&self, waiter: &mut Waiter<'_>) -> Result<bool, Error> {
        let (local, request) = (waiter.local, waiter.request);
        for file in self.files.iter().filter(|file| ancestor_holds(file, &local, request)) {
            let admission = Admission::begin(file, Some(&mut *waiter.observer))?;
            if let Decision::Blocked(_) = admission.check(&local, None)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn record(&self, request: &Request) -> HolderRecord {
        let (claim, since) = (self.claim.to_string(), BootTime::now());
        HolderRecord { claim, since, info: request.holder.clone() }
    }

    /// If the request supersedes others. It arrives now.
    fn contender(&self, request: &Request, arrival: BootTime) -> Result<Option<Contender>, Error> {
        if !request.supersedes {
            return Ok(None);
        }
        let record = HolderRecord { since: arrival, ..self.record(request) };
        let contender = Contender::new(record, &self.files);
        Ok(Some(contender.map_err(|e| self.files[0].io_error(&e))?))
    }

    /// Reserve the locks for the minimum hold, so that it holds even if we are killed.
    fn reserve(
        &self,
        local: &LocalRequest,
        admitted: &[Admitted],
        from: BootTime,
        min_hold: Duration,
    ) -> Result<(), Error> {
        let until = from + min_hold;
        let reservation = |admitted: &Admitted| Reservation {
            kind: local.reserves(admitted.slot),
            until,
            ticket: admitted.ticket,
        };
        let reserved = Reserved { min_hold, reservations: admitted.iter().map(reservation).collect() };
        *self.reserved() = Some(reserved.clone());
        reserved.write(&self.files, until).inspect_err(|_| drop(reserved.write(&self.files, from)))
    }

    /// At the release, if the minimum hold is now another one than was reserved.
    fn adjust_reservations(&self, from: BootTime, min_hold: Duration) -> Result<(), Error> {
        let reserved = self.reserved().clone();
        match reserved.filter(|reserved| reserved.min_hold != min_hold) {
            Some(reserved) => reserved.write(&self.files, from + min_hold),
            None => Ok(()),
        }
    }

    fn reserved(&self) -> MutexGuard<'_, Option<Reserved>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unlock_all(&self) {
        self.files.iter().for_each(|file| file.locks().unlock_all());
    }

    fn ancestor_lock(&self, key: usize, admitted: &Admitted) -> AncestorLock {
        let (device, inode) = self.files[key].identity();
        let Admitted { ticket, fence, slot } = *admitted;
        let host_ticket = Some(HostTicket { device, inode, ticket, fence, slot });
        AncestorLock { claim: self.claim, host_ticket, attach_id: None }
    }
}

/// The ticket of this lock, if it is on this file.
fn ticket_on<'a>(file: &LockFile, lock: &'a AncestorLock) -> Option<&'a HostTicket> {
    let ticket = lock.host_ticket.as_ref()?;
    let is_here = (ticket.device, ticket.inode) == file.identity() && ticket.ticket < TICKETS_END;
    is_here.then_some(ticket)
}

/// Whether the holder with this ticket has all that the request asks for, and if so, whether in the same mode
/// (`true`) or exclusively.
fn suffices(file: &LockFile, request: &LocalRequest, ticket: u64) -> Option<bool> {
    let holds = |marks: Range<u64>| matches!(file.locks().writer_in(byte(marks.start + ticket)), Ok(Some(_)));
    if holds(UsageMode::PLAIN.owners()) {
        return Some(false);
    }
    let is_same = match request.mode {
        LocalMode::Exclusive => false,
        LocalMode::Slot => holds(request.usage.owners()),
        // Readers of different groups never hold it at the same time.
        LocalMode::Shared(group) => {
            let readers = file.locks().conflict_in(byte(group.offset()), Kind::Write);
            holds(request.usage.sharers()) && matches!(readers, Ok(Some(_)))
        }
    };
    is_same.then_some(true)
}

/// Whether a run that this process runs under is still a holder. By its ticket, as the kernel knows it: the
/// record in the file may have been overwritten since.
fn ancestor_holds(file: &LockFile, local: &LocalRequest, request: &Request) -> bool {
    let mut tickets = request.ancestors.iter().filter_map(|lock| ticket_on(file, lock));
    tickets.any(|HostTicket { ticket, .. }| {
        let marks = [local.usage.owners(), local.usage.sharers()].map(|marks| marks.start + ticket);
        marks.iter().any(|mark| matches!(file.locks().writer_in(byte(*mark)), Ok(Some(_))))
    })
}

/// A request on its way, and the observer of its wait.
struct Waiter<'a> {
    local: LocalRequest,
    request: &'a Request,
    started: BootTime,
    /// If the request supersedes others.
    contender: Option<Contender>,
    observer: &'a mut dyn Observer,
}

impl Waiter<'_> {
    /// Until there is a reason to check again.
    fn sleep(
        &mut self,
        file: &LockFile,
        key: usize,
        ticket: u64,
        release_watch: &mut ReleaseWatch,
        blockers: &Blockers,
    ) -> Result<(), Error> {
        for offset in &blockers.offsets {
            release_watch.watch(*offset).map_err(|e| file.io_error(&e))?;
        }
        let gives_up_at = self.request.wait.gives_up_at(self.started);
        loop {
            let next_update = BootTime::now() + self.observer.next_update_in(self.started.elapsed());
            if gives_up_at.is_some_and(BootTime::has_passed) {
                return Err(Error::Held(Box::new(inspect(file, key, &self.local, Some(ticket)))));
            }
            let until = [gives_up_at, blockers.until].into_iter().flatten().fold(next_update, BootTime::min);
            let changes = self.contender.as_ref().map(Contender::wake_fd);
            let watched: Vec<_> = [release_watch.wake_fd()]
                .into_iter()
                .chain(changes)
                .map(|fd| (fd, PollFlags::POLLIN))
                .collect();
            match wait(&watched, until, Some(&mut *self.observer)) {
                Wait::Ready => {
                    self.contender.iter().for_each(Contender::discard_changes);
                    if is_readable(release_watch.wake_fd()) {
                        release_watch.take_releases().map_err(|e| file.io_error(&e))?;
                    }
                    return Ok(());
                }
                Wait::Cancelled(signal) => return Err(Error::Cancelled(signal)),
                Wait::Over if blockers.until.is_some_and(BootTime::has_passed) => return Ok(()),
                Wait::Over if next_update.has_passed() => self.report(file, key, ticket),
                Wait::Over => {}
            }
        }
    }

    /// Under the mutex.
    fn become_newest(&self, file: &LockFile) -> Result<(), Error> {
        let written = self.contender.as_ref().map_or(Ok(()), |contender| contender.become_newest(file));
        written.map_err(|e| file.io_error(&e).into())
    }

    fn report(&mut self, file: &LockFile, key: usize, ticket: u64) {
        let blocked = inspect(file, key, &self.local, Some(ticket));
        self.observer.waiting(&blocked, self.started.elapsed());
    }
}

impl Lock for HostLock {
    /// The kernel answers at once.
    fn send_ahead(&mut self, _request: &Request) {}

    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        let local = LocalRequest::new(request);
        self.claim.attempt += 1;
        *self.reserved() = None;
        let contender = self.contender(request, started)?;
        let mut waiter = Waiter { local, request, started, contender, observer };
        let admitted = self.enter_patiently(&mut waiter).inspect_err(|_| self.unlock_all())?;
        let now = BootTime::now();
        if !request.min_hold.is_zero() {
            self.reserve(&local, &admitted, now, request.min_hold).inspect_err(|_| self.unlock_all())?;
        }
        let slots: Vec<u32> = admitted.iter().map(|admitted| admitted.slot).collect();
        let ancestor_locks = admitted.iter().enumerate();
        Ok(Grant {
            claim: self.claim,
            ancestor_locks: ancestor_locks.map(|(key, admitted)| self.ancestor_lock(key, admitted)).collect(),
            fences: admitted.iter().map(|admitted| admitted.fence).collect(),
            slots: if matches!(request.mode, Mode::Slot { .. }) { slots } else { Vec::new() },
            lease: None,
            taken_at: now,
            waited: now.since(started),
            votes: Votes::default(),
            outer: Vec::new(),
        })
    }

    /// By the kernel's locks alone. The runs are attached to, so their marks stay.
    fn find_outer(
        &mut self,
        request: &Request,
        outer: &[AncestorLock],
        _observer: &mut dyn Observer,
    ) -> Result<Option<Vec<OuterLock>>, Error> {
        let local = LocalRequest::new(request);
        let lock_on = |file: &LockFile| {
            let mut nearest_first = outer.iter().rev();
            nearest_first.find_map(|lock| {
                let ticket = ticket_on(file, lock)?;
                let slot = suffices(file, &local, ticket.ticket)?.then_some(ticket.slot);
                Some(OuterLock { claim: lock.claim, fence: ticket.fence, slot: slot.unwrap_or(0) })
            })
        };
        Ok(self.files.iter().map(lock_on).collect())
    }

    fn attempts(&self) -> u32 {
        self.claim.attempt
    }

    /// There is no lease to renew.
    fn extend(&mut self, _grant: &Grant) -> Extended {
        Extended::Unknown(BackendError { at: None, problem: Problem::NoLease })
    }

    fn release(&mut self, grant: &Grant, min_hold: Duration) -> Released {
        let adjusted = self.adjust_reservations(grant.taken_at, min_hold);
        self.unlock_all();
        match adjusted {
            Err(Error::Backend(error)) => Released::Unknown(error),
            // Without an observer nothing else can come of it.
            Ok(()) | Err(Error::Held(_) | Error::Nested | Error::Superseded(_) | Error::Cancelled(_)) => {
                Released::Done(Vec::new())
            }
        }
    }

    fn abandon(&mut self) {
        let _ = self.adjust_reservations(BootTime::now(), Duration::ZERO);
        self.unlock_all();
    }

    /// The kernel frees everything but a reservation.
    fn last_resort(&self, request: &Request) -> Option<LastResort> {
        let (files, reserved) = (Arc::clone(&self.files), Arc::clone(&self.reserved));
        Some(LastResort::new(request.min_hold, move |min_hold| {
            let reserved = reserved.try_lock().ok().and_then(|reserved| reserved.clone());
            if let Some(reserved) = reserved.filter(|_| min_hold.is_zero()) {
                let _ = reserved.write(&files, BootTime::now());
            }
        }))
    }

    fn files(&self) -> Vec<Arc<File>> {
        self.files.iter().map(|file| file.locks().shared_file()).collect()
    }

    fn interrupt_signal(&self) -> Option<Signal> {
        Some(INTERRUPT)
    }
}
