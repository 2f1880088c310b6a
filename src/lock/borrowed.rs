//! A lock under which a run may run because an outer run or `redlock acquire` holds it. This process
//! neither renews nor releases it, but must not outlive it: it asks, in time, until when it is held.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::PollFlags;

use super::checkup::Unobserved;
use super::wait::is_readable;
use super::{
    AncestorLock, BackendError, BreakWatch, Ended, Error, Extended, Grant, HolderInfo, Lease, Lock, Loss,
    Mode, Notice, Observer, OuterLock, Problem, Reason, Released, Request, Unlocked, Votes, WaitPolicy,
};

pub(crate) struct BorrowedLock {
    lock: Box<dyn Lock>,
    request: Request,
    outer: Vec<AncestorLock>,
    /// Pipes to the keepers that hold the locks.
    keepers: Vec<Arc<File>>,
}

impl BorrowedLock {
    /// `outer`: the locks of the outer runs that are used. `keepers`: pipes that the keepers among
    /// them read while they live.
    pub(crate) fn new(
        lock: Box<dyn Lock>,
        request: &Request,
        outer: Vec<AncestorLock>,
        keepers: Vec<Arc<File>>,
    ) -> Self {
        let request = Request { wait: WaitPolicy::No, waits_for_backend: false, ..request.clone() };
        Self { lock, request, outer, keepers }
    }
}

impl Grant {
    /// Under the locks of outer runs, one for each key, which they renew and release.
    pub(crate) fn under(outer: &[OuterLock], mode: &Mode) -> Self {
        let slots = outer.iter().map(|lock| lock.slot);
        let nothing = Unlocked::grant();
        Self {
            claim: outer.first().map_or(nothing.claim, |lock| lock.claim),
            fences: outer.iter().map(|lock| lock.fence).collect(),
            slots: if matches!(mode, Mode::Slot { .. }) { slots.collect() } else { Vec::new() },
            lease: OuterLock::first_to_end(outer),
            outer: outer.iter().map(|lock| lock.claim).collect(),
            ..nothing
        }
    }
}

impl OuterLock {
    pub(super) fn first_to_end(locks: &[Self]) -> Option<Lease> {
        locks.iter().filter_map(|lock| lock.lease).min_by_key(Lease::deadline)
    }
}

impl Lock for BorrowedLock {
    fn acquire(&mut self, _request: &Request, _observer: &mut dyn Observer) -> Result<Grant, Error> {
        Err(Error::Nested)
    }

    /// Another process renews it.
    fn extend(&mut self, _grant: &Grant) -> Extended {
        let no_lease = || Extended::Unknown(BackendError { at: None, problem: Problem::NoLease });
        match self.lock.find_outer(&self.request, &self.outer, &mut Unobserved) {
            Ok(Some(found)) => OuterLock::first_to_end(&found)
                .map_or_else(no_lease, |lease| Extended::Until(lease, Votes::default())),
            Ok(None) => Extended::Lost(Loss::Expired),
            Err(Error::Backend(error)) => Extended::Unknown(error),
            Err(_) => no_lease(),
        }
    }

    fn break_watch(&self, _grant: &Grant) -> Option<Box<dyn BreakWatch>> {
        let keepers = self.keepers.clone();
        (!keepers.is_empty()).then(|| Box::new(KeeperWatch { keepers }) as Box<dyn BreakWatch>)
    }

    fn release(&mut self, _grant: &Grant, _ended: &Ended, _min_hold: Duration) -> Released {
        Released::Done(Vec::new())
    }
}

/// Notices that a keeper has exited: the end of its pipe that it reads is closed.
struct KeeperWatch {
    keepers: Vec<Arc<File>>,
}

impl BreakWatch for KeeperWatch {
    fn poll_for(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.keepers.iter().map(|pipe| (pipe.as_fd(), PollFlags::empty())).collect()
    }

    fn advance(&mut self) -> Option<Notice> {
        let is_any_gone = self.keepers.iter().any(|pipe| is_readable(pipe.as_fd()));
        self.keepers.retain(|_| !is_any_gone);
        is_any_gone
            .then(|| Notice::Lost { loss: Reason::Released.loss(HolderInfo::default()), at_once: false })
    }
}
