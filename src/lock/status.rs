//! The state of a lock as `redlock status` shows it: its holders, its waiters, and each server's
//! view. Reading it changes nothing: no key appears, no lease is renewed, no waiter is woken.

use std::time::{Duration, SystemTime};

use super::{BackendError, Done, History, Holder, HolderInfo, Mode, Usual, majority_of};
use crate::clock::BootTime;

/// Read-only access to locks: the seam between the backends (servers, this host) and the commands
/// that show locks.
pub(crate) trait View {
    /// Describes one lock in full.
    fn status(&mut self, key: &[u8]) -> Result<Status, BackendError>;

    /// All locks that are taken and whose keys match this pattern in the server's syntax: `*`, `?`,
    /// `[a-z]`, and a backslash to escape any of them.
    fn list(&mut self, pattern: Option<&[u8]>, detail: Detail) -> Result<Listing, BackendError>;

    /// The runs of one lock: the finished ones that are remembered and ended after this moment, and
    /// the present ones.
    fn history(&mut self, key: &[u8], since: Option<SystemTime>) -> Result<History, BackendError>;

    /// Whether the holder with this token is among those of the status.
    fn is_owner(&mut self, status: &Status, token: &str) -> Result<bool, BackendError> {
        let owns = |holder: &Holder| holder.token.as_deref() == Some(token) && !holder.has_ended();
        Ok(status.holders.iter().any(owns))
    }

    /// The matching keys whose finished runs are remembered, in any order.
    fn logged_keys(&mut self, pattern: Option<&[u8]>) -> Result<Vec<Vec<u8>>, BackendError>;

    /// Blocks until the lock is free and has no waiters, or until this moment; `None` is forever.
    /// Takes nothing, and does not poll. Returns the last status, whichever it is. The observer is
    /// called at the start, and whenever something may have changed.
    fn wait_until_free(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(WaitProgress<'_>),
    ) -> Result<Status, BackendError>;
}

/// What an observer sees while it waits for a free lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitProgress<'a> {
    /// Held, or has waiters.
    Taken(&'a Status),
    /// The lock cannot be inspected now; this may pass.
    Failing(&'a BackendError),
}

/// How much of each lock a list needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The holders, and the number of waiters.
    Summary,
    Full,
}

#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub locks: Vec<Status>,
    /// Empty on this host.
    pub servers: Vec<ServerStatus>,
    /// Masters of a cluster that could not be queried: no other server knows their locks.
    pub missing: Vec<BackendError>,
    /// Why no majority of the servers has replied. The list has the locks that the others know.
    pub undecided: Option<BackendError>,
}

#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub key: Vec<u8>,
    pub state: State,
    /// The key has a value of another type, which is not a lock of any program.
    pub is_wrong_type: bool,
    /// The longest holder first. A foreign lock has one holder, of which only the expiry is known.
    pub holders: Vec<Holder>,
    /// Number of holders, of which not all may be described.
    pub holder_count: usize,
    /// In order: the next one first.
    pub waiters: Vec<WaiterStatus>,
    /// Number of waiters, of which not all may be described.
    pub waiter_count: usize,
    /// Empty on this host.
    pub servers: Vec<ServerStatus>,
    /// Why it is unknown whether the lock is free (too few servers vote), or which client holds it
    /// (too few servers reply). No client can take it now.
    pub undecided: Option<BackendError>,
    /// The last run with --once that has succeeded, while its mark is kept.
    pub done: Option<Done>,
    /// How long it is usually held; only with full detail.
    pub usual: Option<Usual>,
}

impl Status {
    /// The status of a lock that was never used.
    pub(crate) fn free(key: Vec<u8>) -> Self {
        Self {
            key,
            state: State::Free,
            is_wrong_type: false,
            holders: Vec::new(),
            holder_count: 0,
            waiters: Vec::new(),
            waiter_count: 0,
            servers: Vec::new(),
            undecided: None,
            done: None,
            usual: None,
        }
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.state != State::Free
    }

    /// Why no majority of the servers has replied. Then the status has only what the others know.
    pub(crate) fn lacks_majority(&self) -> Option<&BackendError> {
        let reply_count = self.reply_count();
        self.undecided.as_ref().filter(|_| reply_count < majority_of(self.servers.len()))
    }

    /// The number of servers that have replied.
    pub(crate) fn reply_count(&self) -> usize {
        let has_replied = |server: &&ServerStatus| !matches!(server.state, ServerState::Fails(_));
        self.servers.iter().filter(has_replied).count()
    }

    /// The lock has no holder and no waiter.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_taken() && self.waiter_count == 0 && self.undecided.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Held,
    Shared,
    Slots {
        of: u32,
    },
    /// All its holders have ended, and a minimum hold is not over.
    Kept,
    /// A program other than redlock holds it.
    Foreign,
}

#[derive(Clone, Debug)]
pub(crate) struct WaiterStatus {
    /// Empty if unknown.
    pub info: HolderInfo,
    pub mode: Mode,
    /// Starts at 1.
    pub position: usize,
    pub waited: Option<Duration>,
}

/// One of the configured servers.
#[derive(Clone, Debug)]
pub(crate) struct ServerStatus {
    pub name: String,
    pub state: ServerState,
    /// Whether it agrees with the majority about the lock; `None` if its reply does not count, or
    /// if this is not about a single lock.
    pub vote: Option<bool>,
    /// How it disagrees.
    pub differs: Option<Difference>,
    pub rtt: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) enum ServerState {
    Serves,
    /// It replies, but holds no locks.
    Replica,
    /// It replies, but does not vote for this long.
    Quarantined(Duration),
    Fails(BackendError),
}

/// A server's view of a lock where it differs from the majority's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    Free,
    /// Held by another client, or by clients that the majority does not count.
    HeldBy(HolderInfo),
    Foreign,
}
