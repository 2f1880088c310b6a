//! What a lock looks like from outside: who holds it, who waits for it, what each server says. Looking changes
//! nothing: no key appears, no lease is renewed, no waiter is woken.

use std::time::{Duration, SystemTime};

use super::{BackendError, History, Holder, HolderInfo, Mode, majority_of};
use crate::clock::BootTime;

/// The seam for looking, between the places where locks are (servers, this host) and the commands that show them.
pub(crate) trait View {
    /// One lock, in full.
    fn status(&mut self, key: &[u8]) -> Result<Status, BackendError>;

    /// All locks that are taken and whose keys match this pattern, which is a server's: `*`, `?`, `[a-z]`, and a
    /// backslash before any of them.
    fn list(&mut self, pattern: Option<&[u8]>, detail: Detail) -> Result<Listing, BackendError>;

    /// The runs of one lock: those that ended after this moment, as far as they are remembered, and those of now.
    fn history(&mut self, key: &[u8], since: Option<SystemTime>) -> Result<History, BackendError>;

    /// Blocks until the lock is free and no client waits for it, or until this moment; `None` is forever. Takes nothing,
    /// and does not poll. Returns the status at the end, whichever it is. The observer is called with what is seen until
    /// then: at the start, and whenever something may have changed.
    fn wait_until_free(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(Seen<'_>),
    ) -> Result<Status, BackendError>;
}

/// What is seen while a lock is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen<'a> {
    /// Held, or about to be.
    Taken(&'a Status),
    /// It cannot be looked at now; this may pass.
    Failing(&'a BackendError),
}

/// How much of each lock a list needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The holders, and how many wait.
    Summary,
    Full,
}

#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub locks: Vec<Status>,
    /// Empty on this host.
    pub servers: Vec<ServerStatus>,
    /// What could not be asked, and has locks that no other server knows: masters of a cluster.
    pub missing: Vec<BackendError>,
    /// A majority of the servers does not answer: why. These are the locks that the others know.
    pub undecided: Option<BackendError>,
}

#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub key: Vec<u8>,
    pub state: State,
    /// What is there is no lock at all, of any program: another type of value.
    pub is_wrong_type: bool,
    /// The one that has held it longest first. A foreign lock has one of which only the expiry is known.
    pub holders: Vec<Holder>,
    /// How many hold it, though not all may be described.
    pub holder_count: usize,
    /// The next one first.
    pub waiters: Vec<WaiterStatus>,
    /// How many wait for it, though not all may be described.
    pub waiter_count: usize,
    /// Empty on this host.
    pub servers: Vec<ServerStatus>,
    /// Too few servers vote to tell whether it is free, or too few answer to tell who holds it: why. No client can take it
    /// now.
    pub undecided: Option<BackendError>,
}

impl Status {
    /// Of a lock that nobody has ever used.
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
        }
    }

    /// Some client has it.
    pub(crate) fn is_taken(&self) -> bool {
        self.state != State::Free
    }

    /// A majority of the servers does not answer: why. Then all that is known is what the others say.
    pub(crate) fn lacks_majority(&self) -> Option<&BackendError> {
        let answering = self.answering();
        self.undecided.as_ref().filter(|_| answering < majority_of(self.servers.len()))
    }

    /// How many servers.
    pub(crate) fn answering(&self) -> usize {
        let answers = |server: &&ServerStatus| !matches!(server.state, ServerState::Fails(_));
        self.servers.iter().filter(answers).count()
    }

    /// No client has it or waits for it.
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
    /// Empty if it is not known.
    pub info: HolderInfo,
    pub mode: Mode,
    /// From 1.
    pub position: usize,
    pub waited: Option<Duration>,
}

/// One of the configured servers.
#[derive(Clone, Debug)]
pub(crate) struct ServerStatus {
    pub name: String,
    pub state: ServerState,
    /// Whether it says the same of the lock as all servers together; `None` if it says nothing that counts, or if
    /// no single lock is looked at.
    pub vote: Option<bool>,
    /// What it says, if that is something else.
    pub differs: Option<Difference>,
    pub rtt: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) enum ServerState {
    Serves,
    /// It answers, but holds no locks.
    Replica,
    /// It answers, but does not vote for this long.
    Quarantined(Duration),
    Fails(BackendError),
}

/// What a server says of a lock that is not what the majority says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    Free,
    /// Held by another client, or by clients that the majority does not count.
    HeldBy(HolderInfo),
    Foreign,
}
