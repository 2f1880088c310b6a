//! Taking a lock away from its holders. The seam between servers and this host for `redlock break`.

use super::{BackendError, Holder};
use crate::clock::BootTime;

pub(crate) trait Breaker {
    /// All holders, now. Nothing is changed.
    fn holders(&mut self) -> Result<Vec<Holder>, BackendError>;

    /// Tell these holders to give the lock back. May be repeated. An error if too few servers can be reached to make a
    /// difference; then nothing is changed, as far as possible.
    fn tell(&mut self, holders: &[Holder], how: How) -> Result<Told, BackendError>;

    /// Sleep until the holders that were told may have changed, at the latest until this moment.
    fn wait(&mut self, until: BootTime);

    /// Whether the lock can be taken away from a holder that goes on.
    fn frees_at_once(&self) -> bool;
}

/// What came of telling holders.
#[derive(Debug)]
pub(crate) struct Told {
    /// Those that cannot be told while others can.
    pub untold: Vec<Untold>,
    pub freed: Freed,
}

/// Whether the lock is free, whatever the holders do.
#[derive(Debug)]
pub(crate) enum Freed {
    Yes,
    /// That was not asked for, or cannot be had here.
    No,
    /// Too few servers have done it: why. The holders cannot renew the lock any more, and are told.
    OnlyTold(BackendError),
    /// Too few servers have said that they have done it: why.
    Unknown(BackendError),
}

/// A holder that cannot be told, and why.
#[derive(Debug)]
pub(crate) struct Untold {
    pub id: String,
    pub error: BackendError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The holder stops its command and gives the lock back; or its lease is over.
    Gently,
    /// The lock is free at once, and the holder finds out; or where that cannot be, its command is killed.
    AtOnce,
}
