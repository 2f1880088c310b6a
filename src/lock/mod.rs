//! The lock: take it, renew it, give it back.
//!
//! This room knows servers, leases and queues. It knows nothing of the command line, of the command
//! that runs under the lock, or of the terminal: whoever waits is told through [`Observer`].

mod answer;
mod claim;
mod fault;
mod later;
mod lease;
mod link;
mod local;
mod names;
mod node;
mod quorum;
mod resolve;
mod retries;
mod unlocked;
mod wait;
mod who;

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

pub use claim::{Claim, Held, OnHost, WaiterId};
pub use fault::{Fault, NodeError};
pub use lease::{BootTime, Lease};
pub use local::{HostLock, Mount, NUDGE, default_folder};
pub use names::Names;
pub use node::Server;
pub use quorum::{Quorum, Timing};
pub use retries::Retries;
pub use unlocked::Unlocked;
pub use wait::sleep;
pub use who::Who;

/// The seam between the two kinds of lock (servers, this host) and everyone who uses them.
pub trait Lock: Send {
    /// Ask, and do not wait for the answer: there are other things to do meanwhile.
    fn begin(&mut self, request: &Request);

    /// Take the lock, waiting as long as the request allows. On any error nothing is left behind, as
    /// far as the servers can be reached.
    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error>;

    /// Renew a grant. Never makes a lock anew.
    fn extend(&mut self, grant: &Grant) -> Extended;

    /// Give a grant back, only if it is still ours. It stays taken until so long after the grant, by itself.
    fn release(&mut self, grant: &Grant, min_hold: Duration) -> Released;

    /// What keeps the lock taken for as long as any process has it open, if the lock is of that kind.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    pub mode: Mode,
    pub prefer: Prefer,
    pub patience: Patience,
    /// How long the lock is to stay taken at least, also if we are killed; zero if that does not matter.
    pub min_hold: Duration,
    /// What others are told about the holder.
    pub who: Who,
    /// Held by the processes that we run under: to wait for one of them is to wait for ever.
    pub ancestors: Vec<Held>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    /// Together with others of the same group. An empty name is a group like any other.
    Shared {
        group: Vec<u8>,
    },
    /// One of so many holders, each with a number of its own.
    Slot {
        of: u32,
    },
}

/// Of one lock.
pub const MOST_SLOTS: u32 = 1024;

/// Who waits for whom. Each request's own choice governs how it queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// Whoever came first.
    Fair,
    /// An exclusive request goes before all that wait without this wish.
    Writers,
    /// A shared request enters while others of its group hold the lock, whoever waits.
    Readers,
}

/// How long to wait for a lock that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// One attempt, without queueing.
    None,
    AtMost(Duration),
    Forever,
}

impl Patience {
    /// When it is over, if ever.
    pub fn ends(self, started: BootTime) -> Option<BootTime> {
        match self {
            Self::None => Some(started),
            Self::AtMost(patience) => Some(started + patience),
            Self::Forever => None,
        }
    }
}

/// The lock is ours: until the lease's deadline, or for as long as we live.
#[derive(Clone, Debug)]
pub struct Grant {
    pub claim: Claim,
    /// What those who run under it are told.
    pub held_as: Vec<Held>,
    /// Fencing tokens, one for each key: larger than that of every earlier grant of the key.
    pub fences: Vec<u64>,
    /// Our number among the holders, one for each key; empty unless slots were asked for.
    pub slots: Vec<u32>,
    /// `None` if the lock does not expire.
    pub lease: Option<Lease>,
    /// When the request that won was sent.
    pub taken_at: BootTime,
    pub waited: Duration,
}

impl Grant {
    /// Whether there is a lock behind it.
    pub fn is_real(&self) -> bool {
        !self.fences.is_empty()
    }

    /// Somebody else may hold the lock by now.
    pub fn is_over(&self) -> bool {
        self.lease.is_some_and(|lease| lease.deadline().has_passed())
    }
}

/// Why the lock is not ours yet.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// Which of the keys asked for.
    pub key: usize,
    /// How many waiters are before us; `None` if we did not queue.
    pub place: Option<usize>,
    /// The holder's claim, or the value that a program other than redlock has put there. `None` if the
    /// lock is free but others wait for it.
    pub holder: Option<Vec<u8>>,
    /// What the holder told of itself. `None` for other programs.
    pub who: Option<Who>,
    /// How many hold it together with that one.
    pub others: usize,
    /// Its command has ended; the lock stays taken for a while as it was asked to.
    pub ended: bool,
    pub held_for: Option<Duration>,
    /// `None` if the holder's lock never expires.
    pub expires_in: Option<Duration>,
    /// Servers without which there is no majority and which do not vote yet, and for how long.
    pub sitting_out: Vec<(String, Duration)>,
}

impl Busy {
    /// Held by something that is not redlock.
    pub fn is_foreign(&self) -> bool {
        self.holder.is_some() && self.who.is_none()
    }
}

/// Told of the wait, and asked whether to go on with it.
pub trait Observer {
    /// Descriptors that become readable when [`Observer::cancelled`] is to be asked.
    fn wake_on(&self) -> Vec<BorrowedFd<'_>>;
    fn cancelled(&mut self) -> bool;
    /// Somebody else has the lock. Called each time we ask.
    fn waiting(&mut self, busy: &Busy, waited: Duration);
    /// After having waited so long: when to be told again, if nothing happens.
    fn next_word(&self, waited: Duration) -> Duration;
    /// The servers are gone while we wait; we keep trying.
    fn trouble(&mut self, error: &NodeError);
}

#[derive(Debug)]
pub enum Error {
    /// Somebody else holds the lock, and our patience is over.
    Held(Box<Busy>),
    /// The holder is a process that we run under.
    Nested,
    /// The observer said so.
    Cancelled,
    /// The servers could not be asked.
    Node(NodeError),
}

#[derive(Debug)]
pub enum Extended {
    Until(Lease),
    /// A clear answer: the lock is no longer ours.
    Lost(Loss),
    /// No clear answer. The lease we have still holds until its deadline.
    Unknown(NodeError),
}

#[derive(Debug)]
pub enum Released {
    Done,
    /// It was no longer ours.
    Lost(Loss),
    /// It will expire by itself.
    Unknown(NodeError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Nobody holds it: expired, deleted, flushed or evicted.
    Expired,
    /// Somebody else holds it.
    Foreign,
}
