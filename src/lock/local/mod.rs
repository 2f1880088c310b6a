//! The lock on this host: no server, no lease. The kernel frees what a dead process held.
//!
//! Each waiter and each holder locks a byte of its own in the lock file (byte_map.rs). These locks
//! alone decide who may enter, under a short mutex (admission.rs); the file's contents do not. A
//! process that may not enter sleeps until one that blocks it has left (release_watch.rs), and
//! checks again.

/// For fuzz/, with access to the private items of this module.
#[cfg(fuzzing)]
#[path = "../../../fuzz/src/local.rs"]
pub(crate) mod fuzz;

mod admission;
mod bearer;
mod break_request;
mod byte_map;
mod changes;
mod control;
mod deadlock;
mod done;
mod enter;
mod file_name;
mod format;
mod history;
mod lock_file;
mod mutex;
mod name_lock;
mod newest;
mod ofd_lock;
mod record;
mod release_watch;
mod request;
mod reservation;
#[cfg(test)]
mod tests;
mod view;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;

use admission::{Admission, Admitted};
use break_request::HostBreakWatch;
use changes::Changes;
use enter::{Waiter, outer_lock};
use history::LastRequest;
use lock_file::LockFile;
use newest::Contender;
use record::Record;
use release_watch::INTERRUPT;
use request::LocalRequest;
use reservation::Reservation;

pub(crate) use bearer::HostBearer;
pub(crate) use break_request::{HolderProcesses, HostBreaker, HostHolder, Signalled};
pub(crate) use control::{ControlFile, memory_file};
pub(crate) use deadlock::Surroundings;
pub(crate) use lock_file::{Mount, default_directory};
pub(crate) use view::HostView;

use super::claim::{HostTicket, WaiterId};
use super::{
    AncestorLock, BackendError, BreakWatch, Claim, Ended, Error, Extended, FileProblem, Grant, Lease, Lock,
    Loss, Mode, Observer, OuterLock, Problem, ReleaseOrphan, Released, Request, Votes,
};
use crate::clock::{BootTime, wall_clock_millis};

pub(crate) struct HostLock {
    /// One for each key, in the order given.
    files: Arc<Vec<LockFile>>,
    /// The order in which every process takes several locks, so that no two wait for each other.
    order: Vec<usize>,
    claim: Claim,
    reserved: Option<Reserved>,
    last_request: Option<LastRequest>,
    /// `None` for a grant that does not expire.
    ttl: Option<Duration>,
    /// Without them no deadlock is found.
    surroundings: Option<Surroundings>,
}

/// The reservations for a minimum hold.
struct Reserved {
    min_hold: Duration,
    /// One for each file.
    reservations: Vec<Reservation>,
}

impl Reserved {
    fn write(&self, files: &[LockFile], until: BootTime) -> Result<(), BackendError> {
        for (file, reservation) in files.iter().zip(&self.reservations) {
            Admission::begin(file)?.reserve(Reservation { until, ..*reservation })?;
        }
        Ok(())
    }
}

impl HostLock {
    /// Open or create the lock files. To be called before the guardian is forked: it must hold the
    /// lock as well, so that killing redlock does not free the lock under a living command.
    pub(crate) fn open(directory: &Path, names: &[Vec<u8>]) -> Result<Self, BackendError> {
        let files: Vec<LockFile> =
            names.iter().map(|name| LockFile::open(directory, name)).collect::<Result<_, _>>()?;
        // It would wait for itself.
        if let Some(file) = files.iter().find(|file| {
            files.iter().any(|other| other.identity() == file.identity() && other.path() != file.path())
        }) {
            return Err(file.error(FileProblem::Linked));
        }
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|&key| &names[key]);
        let claim = Claim { waiter: WaiterId::random(), attempt: 0 };
        Ok(Self {
            files: Arc::new(files),
            order,
            claim,
            reserved: None,
            last_request: None,
            ttl: None,
            surroundings: None,
        })
    }

    /// A waiter that holds other locks can find out whether it waits for itself.
    pub(crate) fn with_surroundings(self, surroundings: Surroundings) -> Self {
        Self { surroundings: Some(surroundings), ..self }
    }

    /// The paths of the lock files, in the order of the keys.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.files.iter().map(|file| file.path().display().to_string()).collect()
    }

    /// How the directory is mounted: kernel locks do not work across a network.
    pub(crate) fn mount(&self) -> Mount {
        self.files[0].mount()
    }

    /// The record of a request that arrives now.
    fn record(&self, request: &Request, arrival: BootTime) -> Record {
        Record {
            claim: self.claim.to_string(),
            since: arrival,
            since_ms: wall_clock_millis(),
            mode: request.mode.clone(),
            info: request.holder.clone(),
            tenure: None,
        }
    }

    /// `None` unless something in the files may make the request leave.
    fn changes(&self, request: &Request) -> Option<Changes> {
        (request.supersedes || request.once.is_some()).then(|| Changes::watch(&self.files))
    }

    /// Reserve the locks for the minimum hold, which lasts even if we are killed.
    fn reserve(
        &mut self,
        local: &LocalRequest,
        admitted: &[Admitted],
        from: BootTime,
        min_hold: Duration,
    ) -> Result<(), BackendError> {
        let until = from + min_hold;
        let reservation = |admitted: &Admitted| Reservation {
            kind: local.reserves(admitted.slot),
            until,
            ticket: admitted.ticket,
        };
        let reserved = Reserved { min_hold, reservations: admitted.iter().map(reservation).collect() };
        let written =
            reserved.write(&self.files, until).inspect_err(|_| drop(reserved.write(&self.files, from)));
        self.reserved = Some(reserved);
        written
    }

    /// If the minimum hold differs at the release from the one that was reserved.
    fn adjust_reservations(&self, from: BootTime, min_hold: Duration) -> Result<(), BackendError> {
        match self.reserved.as_ref().filter(|reserved| reserved.min_hold != min_hold) {
            Some(reserved) => reserved.write(&self.files, from + min_hold),
            None => Ok(()),
        }
    }

    fn unlock_all(&self) {
        self.files.iter().for_each(LockFile::unlock_all);
    }

    fn ancestor_lock(&self, key: usize, admitted: &Admitted) -> AncestorLock {
        let (device, inode) = self.files[key].identity();
        let Admitted { ticket, fence, slot } = *admitted;
        let host_ticket = Some(HostTicket { device, inode, ticket, fence, slot });
        AncestorLock { claim: self.claim, host_ticket, keys: Vec::new(), attach_id: None }
    }
}

impl Lock for HostLock {
    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        let local = LocalRequest::new(request);
        self.claim.attempt += 1;
        self.reserved = None;
        let record = self.record(request, started);
        let changes = self.changes(request);
        let contender = request.supersedes.then(|| Contender::new(record.clone()));
        self.last_request = Some(LastRequest {
            record: record.clone(),
            local,
            is_logged: request.history > 0,
            once: request.once,
            exit_if_held: request.exit_if_held,
            admitted: Vec::new(),
        });
        let tickets = vec![None; self.files.len()];
        let mut waiter = Waiter {
            local,
            request,
            ancestors: request.ancestors.clone(),
            knows_keepers: false,
            started,
            record,
            tickets,
            contender,
            changes,
            observer,
        };
        let entered = self.enter_patiently(&mut waiter);
        let tickets = waiter.tickets;
        let now = BootTime::now();
        let entered = entered.and_then(|admitted| {
            self.prepare_mark(request)?;
            if !request.min_hold.is_zero() {
                self.reserve(&local, &admitted, now, request.min_hold)?;
            }
            Ok(admitted)
        });
        let admitted = entered.inspect_err(|error| {
            if request.wait.queues() {
                self.log_refusal(&tickets, error, started);
            } else {
                // The caller will call `record_refusal`.
                self.end_records(&tickets);
            }
            self.unlock_all();
        })?;
        self.last_request.iter_mut().for_each(|request| request.admitted.clone_from(&admitted));
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

    /// Decided by the kernel's locks alone, which the outer runs keep.
    fn find_outer(
        &mut self,
        request: &Request,
        outer: &[AncestorLock],
        _observer: &mut dyn Observer,
    ) -> Result<Option<Vec<OuterLock>>, Error> {
        let local = LocalRequest::new(request);
        Ok(self.files.iter().map(|file| outer_lock(file, &local, outer)).collect())
    }

    fn break_watch(&self, _grant: &Grant) -> Option<Box<dyn BreakWatch>> {
        let is_cancellable =
            self.last_request.as_ref().is_some_and(|request| request.record.info.cancellable);
        Some(Box::new(HostBreakWatch { files: Arc::clone(&self.files), is_cancellable }))
    }

    fn attempts(&self) -> u32 {
        self.claim.attempt
    }

    fn set_ttl(&mut self, ttl: Option<Duration>) {
        self.ttl = ttl;
    }

    /// There is no lease to renew. The record shows when we will release the lock.
    fn extend(&mut self, _grant: &Grant) -> Extended {
        let now = BootTime::now();
        let admitted = self.last_request.iter().flat_map(|request| &request.admitted);
        for (file, admitted) in self.files.iter().zip(admitted) {
            file.set_end(admitted.ticket, self.ttl.map(|ttl| now + ttl));
        }
        match self.ttl {
            Some(ttl) => Extended::Until(Lease::new(now, ttl), Votes::default()),
            None => Extended::Unknown(BackendError { at: None, problem: Problem::NoLease }),
        }
    }

    fn release(&mut self, grant: &Grant, ended: &Ended, min_hold: Duration) -> Released {
        let adjusted = self.adjust_reservations(grant.taken_at, min_hold);
        self.log_release(grant, ended);
        let is_replaced = !self.files.iter().all(LockFile::is_in_place);
        let marked = if is_replaced { Ok(()) } else { self.leave_mark(ended) };
        self.unlock_all();
        if is_replaced {
            return Released::Lost(Loss::FileReplaced);
        }
        let marked = marked.map_err(|e| self.files[0].io_error(&e));
        adjusted.and(marked).map_or_else(Released::Incomplete, |()| Released::Done(Vec::new()))
    }

    fn record_refusal(&mut self, error: &Error, started: BootTime) {
        self.log_refusal(&vec![None; self.files.len()], error, started);
    }

    fn abandon(&mut self) {
        let _ = self.adjust_reservations(BootTime::now(), Duration::ZERO);
        self.unlock_all();
    }

    /// The kernel frees the lock. The history and the reservation remain to be written.
    fn release_orphan(&self, request: &Request) -> Option<ReleaseOrphan> {
        let (files, waiter, is_logged) = (Arc::clone(&self.files), self.claim.waiter, request.history > 0);
        Some(Box::new(move |_, has_run| history::end_orphan(&files, waiter, is_logged, has_run)))
    }

    fn files(&self) -> Vec<Arc<File>> {
        // The names first: a guardian that unlocks the files frees the lock with the last of them.
        let names = self.files.iter().filter_map(|file| Some(file.name_lock()?.shared_file()));
        names.chain(self.files.iter().map(|file| file.locks().shared_file())).collect()
    }

    fn interrupt_signal(&self) -> Option<Signal> {
        Some(INTERRUPT)
    }
}
