//! The lock: take it, renew it, release it.
//!
//! This file is the vocabulary that servers (redis/) and this host (local/) share. The room knows
//! servers, files, leases and queues. It knows nothing of the command line, of the command that
//! runs under the lock, or of the terminal: the caller follows a wait through [`Observer`], and
//! errors are values without sentences.

mod blocked;
mod borrowed;
mod break_watch;
mod breaker;
pub(crate) mod checkup;
mod claim;
mod deadlock;
mod done;
mod ended;
mod error;
mod fields;
mod glob;
mod history;
mod holder;
mod lease;
mod local;
mod orphan;
mod problem;
mod redis;
mod retry;
mod status;
mod tls_problem;
mod unlocked;
mod usual;
mod wait;

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::BootTime;
use crate::world::{Rule, follows};

pub(crate) use blocked::{Blocked, Blocker, Holding};
pub(crate) use borrowed::BorrowedLock;
pub(crate) use break_watch::{BreakWatch, Notice};
pub(crate) use breaker::{BreakMode, Breaker, Freed, Notified, Reason, UnreachableHolder, cancel};
pub(crate) use claim::{AncestorLock, Claim};
pub(crate) use deadlock::{Deadlock, DeadlockStep};
pub(crate) use done::Done;
pub(crate) use ended::{Ended, Outcome};
pub(crate) use error::{BackendError, Error, Fault, Superseded};
pub(crate) use fields::Fields;
pub(crate) use history::{FinishedRun, History};
pub(crate) use holder::{Holder, HolderInfo, HolderKind, Renewal, VERSION, without_login};
pub(crate) use lease::Lease;
#[cfg(fuzzing)]
pub(crate) use local::fuzz as fuzz_local;
pub(crate) use local::{
    ControlFile, HolderProcesses, HostBearer, HostBreaker, HostHolder, HostLock, HostView, Mount, Signalled,
    Surroundings, default_directory, memory_file,
};
pub(crate) use orphan::ReleaseOrphan;
pub(crate) use problem::{FileProblem, Problem, ServerError, ServerErrorKind};
#[cfg(fuzzing)]
pub(crate) use redis::fuzz as fuzz_redis;
pub(crate) use redis::{
    BARE, Keys, PROTOCOL, Password, PemFile, RedisBearer, RedisBreaker, RedisLock, RedisView, Server, Timing,
    Tls, TlsFiles, USUAL_LEASE, between_trials, check_servers,
};
pub(crate) use retry::acquire;
pub(crate) use status::{
    Detail, Difference, Listing, ServerState, ServerStatus, State, Status, View, WaitProgress, WaiterStatus,
};
pub(crate) use tls_problem::{TlsProblem, TlsSetupProblem};
pub(crate) use unlocked::Unlocked;
pub(crate) use usual::{Usual, quantiles};
pub(crate) use wait::{Wait, sleep};

/// Most slots that a lock can have.
pub(crate) const MOST_SLOTS: u32 = 1024;

/// The name of the lock itself, on a server and as a file. An empty prefix makes it the bare key,
/// for programs that use no prefix.
pub(crate) fn lock_name(prefix: &str, key: &[u8]) -> Vec<u8> {
    match prefix {
        "" => key.to_vec(),
        prefix => [prefix.as_bytes(), b":", key].concat(),
    }
}

/// `servers`: the number of configured servers, never of the reachable ones.
pub(crate) fn majority_of(servers: usize) -> usize {
    servers / 2 + usize::from(follows(Rule::Majority))
}

/// The seam between the kinds of lock (servers, this host, none) and the commands that use them.
pub(crate) trait Lock: Send {
    /// Send the first request without waiting for the reply: the caller has work to do meanwhile.
    fn send_ahead(&mut self, _request: &Request) {}

    /// Take the lock, waiting as long as the request allows. On any error nothing is left behind,
    /// as far as the servers can be reached. Retries are up to [`acquire`].
    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error>;

    /// The locks of outer runs under which this request may run, one for each key. `None` unless
    /// outer runs hold all keys now, in modes that suffice.
    fn find_outer(
        &mut self,
        _request: &Request,
        _outer: &[AncestorLock],
        _observer: &mut dyn Observer,
    ) -> Result<Option<Vec<OuterLock>>, Error> {
        Ok(None)
    }

    /// Renew a grant. Never re-creates a lock.
    fn extend(&mut self, grant: &Grant) -> Extended;

    /// The same, but soon returns once `interrupt` is readable, although no server has replied.
    fn extend_unless(&mut self, grant: &Grant, _interrupt: BorrowedFd<'_>) -> Extended {
        self.extend(grant)
    }

    /// After a renewal: read replies that came too late for it, and repair servers that have lost
    /// the lock. Returns after a bounded time, or as soon as `interrupt` is readable.
    fn follow_up(&mut self, _grant: &Grant, _interrupt: BorrowedFd<'_>) {}

    /// Release a grant, only if it is still ours. How the run ended is written into the history.
    /// The lock stays taken until `min_hold` after the grant.
    fn release(&mut self, grant: &Grant, ended: &Ended, min_hold: Duration) -> Released;

    /// Record in the history that a request was refused without queueing. For a request that
    /// queued, [`Lock::acquire`] has recorded it when it left the queue.
    fn record_refusal(&mut self, _error: &Error, _started: BootTime) {}

    /// Notifies the holder of this grant when the lock is taken away, if the backend can.
    fn break_watch(&self, _grant: &Grant) -> Option<Box<dyn BreakWatch>> {
        None
    }

    /// From the next renewal on the lease is this long; `None` = forever.
    fn set_ttl(&mut self, _ttl: Option<Duration>) {}

    /// The number of attempts so far.
    fn attempts(&self) -> u32 {
        0
    }

    /// Release everything: a request in flight, a place in a queue, a grant. For a run whose
    /// command was not started, so without a minimum hold.
    fn abandon(&mut self) {}

    /// How the guardian releases what this process has, or waits for, if this process dies. To be
    /// called before the guardian is forked. `None` if the kernel does all of it.
    fn release_orphan(&self, _request: &Request) -> Option<ReleaseOrphan> {
        None
    }

    /// Files that keep the lock taken while any process has them open, at the end one lock file for
    /// each key; none for a lock on servers.
    fn files(&self) -> Vec<Arc<File>> {
        Vec::new()
    }

    /// The signal with which the lock interrupts system calls of its own threads. The process must
    /// have a handler for it, installed after the last fork: children must inherit the signal as we
    /// did.
    fn interrupt_signal(&self) -> Option<Signal> {
        None
    }
}

/// What a client can do with a grant that has its token but is not its holder. It may be on another
/// host. The seam for `redlock extend` and `redlock release`.
pub(crate) trait Bearer {
    /// Renew the lease, for a longer or shorter time. Never re-creates a lock.
    fn extend(&mut self) -> Extended;

    /// Release the lock, after the minimum hold that its grant asked for.
    fn release(&mut self) -> Released;

    /// The locks, by their number, that this released although others of the grant were lost.
    fn released(&self) -> Vec<usize> {
        Vec::new()
    }
}

/// A request for the lock.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub mode: Mode,
    pub prefer: Prefer,
    pub wait: WaitPolicy,
    /// Wait for a backend that cannot be used at the start, as for one that fails later.
    pub waits_for_backend: bool,
    /// The newest waiter with this option stays; older ones give up.
    pub supersedes: bool,
    /// Take no lock if a run with this option has succeeded within this time.
    pub once: Option<Duration>,
    /// The lock stays taken for at least this long, even if we are killed; may be zero.
    pub min_hold: Duration,
    /// Number of finished runs that the history keeps; zero records nothing.
    pub history: u32,
    /// The exit code of a run that does not get the lock, for the history.
    pub exit_if_held: u8,
    /// What waiters see of the holder.
    pub holder: HolderInfo,
    /// The locks of outer runs: waiting for one of them would deadlock.
    pub ancestors: Vec<AncestorLock>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Exclusive,
    /// Shared with others of the same group. An empty name is a group like any other.
    Shared { group: Vec<u8> },
    /// One of this many holders, each with a number of its own.
    Slot { of: u32 },
}

impl Mode {
    /// How the mode is written in keys, lock files and messages. Empty for an exclusive one.
    pub(crate) fn tag(&self) -> Vec<u8> {
        match self {
            Self::Exclusive => Vec::new(),
            Self::Shared { group } => [b"shared:", group.as_slice()].concat(),
            Self::Slot { of } => format!("slots:{of}").into_bytes(),
        }
    }

    /// The mode with this tag. `None` if it is no tag.
    pub(crate) fn from_tag(tag: &[u8]) -> Option<Self> {
        if tag.is_empty() {
            return Some(Self::Exclusive);
        }
        if let Some(group) = tag.strip_prefix(b"shared:") {
            return Some(Self::Shared { group: group.to_vec() });
        }
        let of = str::from_utf8(tag.strip_prefix(b"slots:")?).ok()?.parse().ok()?;
        Some(Self::Slot { of })
    }
}

/// The order of the queue. Each request's own choice governs how it queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefer {
    /// First in, first out.
    Fair,
    /// An exclusive request goes ahead of every waiter without this preference.
    Writers,
    /// A shared request joins current readers of its group, even if writers are waiting.
    Readers,
}

/// What to do while the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// One attempt, without queueing.
    No,
    /// Queue; `None` waits forever.
    Queue { at_most: Option<Duration> },
    /// Attempts without queueing: `count` after the first, about `interval` apart (half to one and
    /// a half).
    Retry { count: u32, interval: Duration, at_most: Option<Duration> },
}

impl WaitPolicy {
    pub(crate) fn queues(self) -> bool {
        matches!(self, Self::Queue { .. })
    }

    /// When a request that does not retry gives up, if ever.
    pub(crate) fn gives_up_at(self, started: BootTime) -> Option<BootTime> {
        match self {
            Self::No | Self::Retry { .. } => Some(started),
            Self::Queue { at_most } => at_most.map(|at_most| started + at_most),
        }
    }
}

/// A lock of an outer run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OuterLock {
    pub claim: Claim,
    pub fence: u64,
    /// Zero if it has none.
    pub slot: u32,
    /// How long it is held at least, if no outer run's guardian stops us in time. `None` for the
    /// lock of a run, and if it never ends.
    pub lease: Option<Lease>,
}

/// The lock is ours, until the lease's deadline or, without a lease, while this process lives.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub claim: Claim,
    /// What runs inside the command know of the lock.
    pub ancestor_locks: Vec<AncestorLock>,
    /// Fencing tokens, one for each key, larger than those of all earlier grants of the key.
    pub fences: Vec<u64>,
    /// Our slots, one for each key; empty unless the mode is [`Mode::Slot`].
    pub slots: Vec<u32>,
    /// `None` if the lock does not expire.
    pub lease: Option<Lease>,
    /// When the request that won was sent.
    pub taken_at: BootTime,
    pub waited: Duration,
    pub votes: Votes,
    /// The claims of the outer runs under whose locks we run, one for each key; empty for a lock of
    /// our own.
    pub outer: Vec<Claim>,
}

/// How the servers voted for a grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Votes {
    /// Number of configured servers; zero for a lock on this host.
    pub servers: usize,
    /// Number of votes when they became a majority; later replies are not counted.
    pub voted: usize,
    /// The errors of servers that could not vote.
    pub failures: Vec<BackendError>,
}

impl Grant {
    /// False with `--on-unavailable run`, when no lock could be taken.
    pub(crate) fn is_locked(&self) -> bool {
        !self.fences.is_empty()
    }

    /// Another client may hold the lock by now.
    pub(crate) fn is_over(&self) -> bool {
        self.lease.is_some_and(|lease| lease.deadline().has_passed())
    }
}

/// Follows a wait, and decides whether it continues.
pub(crate) trait Observer {
    /// Descriptors that become readable when [`Observer::cancelled`] must be called.
    fn wake_on(&self) -> Vec<BorrowedFd<'_>>;
    /// The signal that ends the wait, if one has arrived.
    fn cancelled(&mut self) -> Option<Signal>;
    /// The lock is taken. Called after each attempt.
    fn waiting(&mut self, blocked: &Blocked, waited: Duration);
    /// After a wait of this length: when to call [`Observer::waiting`] again, if nothing happens.
    fn next_update_in(&self, waited: Duration) -> Duration;
    /// When to call [`Observer::tick`], if nothing happens before.
    fn next_tick(&self) -> Option<BootTime> {
        None
    }
    /// Time has passed.
    fn tick(&mut self) {}
    /// The thread sleeps now, until something happens.
    fn falls_asleep(&self) {}
    /// Locks that keepers hold for an ancestor of this process. Called when the request is blocked
    /// for the first time.
    fn kept_for_ancestors(&mut self) -> Vec<AncestorLock> {
        Vec::new()
    }
    /// The servers fail. We have waited for this long and keep trying.
    fn on_unavailable(&mut self, error: &BackendError, waited: Duration);
}

#[derive(Debug)]
pub(crate) enum Extended {
    /// A majority has agreed to this lease.
    Until(Lease, Votes),
    /// The lock is certainly no longer ours.
    Lost(Loss),
    /// Not known. The current lease remains valid until its deadline, unless a shorter one was requested.
    Unknown(BackendError),
}

#[derive(Debug)]
pub(crate) enum Released {
    /// With the errors of servers that could not be reached.
    Done(Vec<BackendError>),
    /// It was no longer ours.
    Lost(Loss),
    /// It is free, but what was to stay in the lock file could not be written: the mark of success, or
    /// the end of a minimum hold.
    Incomplete(BackendError),
    /// It will expire by itself.
    Unknown(BackendError),
}

impl Released {
    /// `None` if unknown.
    pub(crate) fn is_done(&self) -> Option<bool> {
        match self {
            Self::Done(_) | Self::Incomplete(_) => Some(true),
            Self::Lost(_) => Some(false),
            Self::Unknown(_) => None,
        }
    }
}

/// Ordered by how much a loss says: of several reports the largest counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    /// The lock is free: expired, deleted, flushed or evicted.
    Expired,
    /// On this host: the name of the lock file leads to another file, or to none.
    FileReplaced,
    /// Another client holds it.
    Foreign,
    /// `redlock release` released it with its token.
    Released { by: Box<HolderInfo> },
    /// A newer run with `--cancel-in-progress` has asked for it.
    Superseded { by: Box<HolderInfo> },
    /// `redlock break` took it away. On a server the marked claim may still be there: see
    /// [`BreakWatch`].
    Broken { by: Box<HolderInfo> },
}
