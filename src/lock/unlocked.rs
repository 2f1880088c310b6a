//! No lock: the command runs although none can be taken (`--on-unavailable run`).

use std::time::Duration;

use super::claim::WaiterId;
use super::{
    BackendError, Claim, Ended, Error, Extended, Grant, Lock, Observer, Problem, Released, Request, Votes,
};
use crate::clock::BootTime;

pub(crate) struct Unlocked;

impl Unlocked {
    /// A grant of nothing: no token, no lease.
    pub(crate) fn grant() -> Grant {
        Grant {
            claim: Claim { waiter: WaiterId::random(), attempt: 0 },
            ancestor_locks: Vec::new(),
            fences: Vec::new(),
            slots: Vec::new(),
            lease: None,
            taken_at: BootTime::now(),
            waited: Duration::ZERO,
            votes: Votes::default(),
            outer: Vec::new(),
        }
    }
}

impl Lock for Unlocked {
    fn acquire(&mut self, _request: &Request, _observer: &mut dyn Observer) -> Result<Grant, Error> {
        Ok(Self::grant())
    }

    fn extend(&mut self, _grant: &Grant) -> Extended {
        Extended::Unknown(BackendError { at: None, problem: Problem::NoLease })
    }

    fn release(&mut self, _grant: &Grant, _ended: &Ended, _min_hold: Duration) -> Released {
        Released::Done(Vec::new())
    }
}
