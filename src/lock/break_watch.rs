//! How a holder learns what is done to its lock while it holds it: the lock is taken away (`redlock
//! break`), or its token is used (`redlock release`, `redlock extend`).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;

use super::Loss;
use crate::clock::BootTime;

/// Part of the holder's own poll loop: it starts no thread and never blocks.
pub(crate) trait BreakWatch {
    fn poll_for(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        Vec::new()
    }

    /// When to call [`BreakWatch::advance`], if no descriptor is ready before.
    fn next_moment(&self) -> Option<BootTime> {
        None
    }

    /// To be called when a descriptor is ready or the moment has come. Returns nothing after the
    /// grant has ended.
    fn advance(&mut self) -> Option<Notice> {
        None
    }

    /// A process on this host has sent a signal that carries this number.
    fn on_signal(&mut self, _number: u64) -> Option<Notice> {
        None
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The lock is taken away. On this host the holder has yet to release it. `at_once`: kill the
    /// command without notice.
    Lost { loss: Loss, at_once: bool },
    /// The lease was renewed with the token; `None` = forever.
    Extended { ttl: Option<Duration> },
}
