//! How a holder learns what is done to its lock while it holds it: it is taken away (`redlock break`), or its token is used
//! (`redlock release`, `redlock extend`).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;

use super::HolderInfo;
use crate::clock::BootTime;

/// Part of the holder's own poll: it starts no thread and never waits.
pub(crate) trait BreakWatch {
    fn poll_for(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// When [`BreakWatch::advance`] is to be called, if no descriptor is ready before.
    fn next_moment(&self) -> Option<BootTime>;

    /// To be called when a descriptor is ready, or the moment has come. Nothing follows the end of the grant.
    fn advance(&mut self) -> Option<Notice>;

    /// A process of this host asks for the lock, by a signal that carries this number.
    fn asked(&mut self, number: u64) -> Option<Notice>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Broken(Broken),
    /// It was given back with its token; or is to be, if the holder has to do that itself.
    Released {
        by: HolderInfo,
    },
    /// Its lease was set anew with its token; `None` = forever.
    Extended {
        ttl: Option<Duration>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub by: HolderInfo,
    /// The command is to be killed without notice.
    pub at_once: bool,
}
