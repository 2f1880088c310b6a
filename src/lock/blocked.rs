//! What is in the way of a request.

use std::time::Duration;

use super::{HolderInfo, Renewal};
use crate::world::{Rule, follows};

/// Why the lock is not ours yet.
#[derive(Clone, Debug)]
pub(crate) struct Blocked {
    /// Index of the requested key.
    pub key: usize,
    /// Number of waiters ahead of us; `None` if we did not queue.
    pub position: Option<usize>,
    /// Number of waiters for this key, including us if we have queued.
    pub queue_length: usize,
    pub by: Blocker,
}

#[derive(Clone, Debug)]
pub(crate) enum Blocker {
    /// Another run of redlock, or several that share the lock.
    Holder(Holding),
    /// A run that has ended and asked for a minimum hold.
    Reservation(Holding),
    /// A program other than redlock has put a value at the key.
    Foreign { expires_in: Option<Duration> },
    /// The lock is free, but others are ahead in the queue.
    Queue,
    /// These servers may have lost their data and do not vote for this long. Without them there is
    /// no majority.
    Quarantine(Vec<(String, Duration)>),
}

/// One of the holders that block a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holding {
    /// What a [`Breaker`](super::Breaker) knows it by.
    pub id: String,
    /// Empty if its record was lost.
    pub info: HolderInfo,
    /// Number of other holders.
    pub others: usize,
    pub held_for: Option<Duration>,
    /// `None` if it never expires or this is unknown.
    pub expires_in: Option<Duration>,
}

impl Blocked {
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.by, Blocker::Foreign { .. })
    }

    /// Whether a keeper may hold one of this many requested locks.
    pub(super) fn may_be_kept(&self, keys: usize) -> bool {
        let is_kept = |held: &Holding| held.others > 0 || matches!(held.info.renewal, Renewal::Keeper(_));
        keys > 1 || matches!(&self.by, Blocker::Holder(holding) if is_kept(holding))
    }

    /// The grant of the holder that a request with `--cancel-in-progress` stops: one that has agreed to
    /// it, and only for the next in the queue. A holder that was stopped in favour of another waiter
    /// would have been stopped in vain if ours gave up meanwhile.
    pub(crate) fn to_cancel(&self) -> Option<&Holding> {
        let Blocker::Holder(holding) = &self.by else { return None };
        let has_agreed = holding.info.cancellable || !follows(Rule::CancelAgreed);
        (has_agreed && self.position == Some(0)).then_some(holding)
    }

    /// When the lock may become free by itself, if known.
    pub(crate) fn expires_in(&self) -> Option<Duration> {
        match &self.by {
            Blocker::Holder(holding) | Blocker::Reservation(holding) => holding.expires_in,
            Blocker::Foreign { expires_in } => *expires_in,
            Blocker::Queue | Blocker::Quarantine(_) => None,
        }
    }
}
