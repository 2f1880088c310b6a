//! Entering: all files in one order, or none. A waiter sleeps until there is a reason to check again.

use nix::poll::PollFlags;

use super::HostLock;
use super::admission::{Admission, Admitted, Blockers, Decision};
use super::inspect::inspect;
use super::lock_file::LockFile;
use super::newest::Contender;
use super::outer::ancestor_holds;
use super::record::Record;
use super::release_watch::ReleaseWatch;
use super::request::LocalRequest;
use crate::clock::BootTime;
use crate::lock::wait::{Wait, backoff, is_readable, sleep, wait};
use crate::lock::{Error, Observer, Request};

impl HostLock {
    /// Lock files that cannot be used are waited for, if the request asks for it.
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
                    let admitted = admission.admit(&local, ticket, slot, &waiter.record)?;
                    waiter.tickets[key] = Some(admitted.ticket);
                    return Ok(admitted);
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
                let ticket = admission.queue(&local, &waiter.record)?;
                waiter.tickets[key] = Some(ticket);
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
}

/// A request on its way, and the observer of its wait.
pub(super) struct Waiter<'a> {
    pub local: LocalRequest,
    pub request: &'a Request,
    pub started: BootTime,
    pub record: Record,
    /// Those that were drawn, one for each key.
    pub tickets: Vec<Option<u64>>,
    /// If the request supersedes others.
    pub contender: Option<Contender>,
    pub observer: &'a mut dyn Observer,
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
