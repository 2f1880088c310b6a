//! No lock at all, for those who would rather run without one than not run.

use std::time::Duration;

use super::WaiterId;
use super::{BootTime, Claim, Error, Extended, Fault, Grant, Lock, NodeError, Observer, Released, Request};

pub struct Unlocked;

impl Unlocked {
    /// Of nothing: no token, no lease.
    pub fn grant() -> Grant {
        Grant {
            claim: Claim { waiter: WaiterId::random(), attempt: 0 },
            held_as: Vec::new(),
            fences: Vec::new(),
            slots: Vec::new(),
            lease: None,
            taken_at: BootTime::now(),
            waited: Duration::ZERO,
        }
    }
}

impl Lock for Unlocked {
    fn begin(&mut self, _request: &Request) {}

    fn acquire(&mut self, _request: &Request, _observer: &mut dyn Observer) -> Result<Grant, Error> {
        Ok(Self::grant())
    }

    fn extend(&mut self, _grant: &Grant) -> Extended {
        let text = "there is no lock to renew".into();
        Extended::Unknown(NodeError { fault: Fault::Unfit, node: String::new(), text })
    }

    fn release(&mut self, _grant: &Grant, _min_hold: Duration) -> Released {
        Released::Done
    }
}
