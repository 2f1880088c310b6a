//! What can be done with a grant by a client that has its token and is not its holder: it may be on another host, hours
//! later. The seam between servers and this host for `redlock extend` and `redlock release`.

use super::{Extended, Released};

pub(crate) trait Bearer {
    /// Set the lease anew, longer or shorter. Never re-creates a lock.
    fn extend(&mut self) -> Extended;

    /// Give the lock back, with the minimum hold that its grant was asked for with.
    fn release(&mut self) -> Released;
}
