//! The refresh thread: keeps the lease alive while the command runs.
//!
//! It renews at a third of the lease, retries on errors while the lease lasts, and reports each
//! step as an event. It stops nothing: the guardian makes sure that the command does not outlive
//! the lease. It receives each new deadline from here and acts on the last one.
//!
//! The thread starts when the first renewal is due: most commands end before that, and a lock
//! without a lease never needs it.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::clock::BootTime;
use crate::fault;
use crate::lock::{BackendError, Extended, Grant, Lease, Lock, Loss};

/// Time between the starts of two attempts to renew while the servers fail: a fraction of the lease,
/// within bounds. An attempt that takes longer is followed by the next one at once: only an attempt
/// notices that a silent line is back.
const RETRY_FRACTION: u32 = 30;
const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

#[derive(Debug)]
pub(crate) enum KeeperEvent {
    Refreshed(Grant),
    /// Not renewed. The lease is still valid, and the keeper tries again.
    Failed(BackendError, Option<Lease>),
    /// The lock is certainly no longer ours.
    Lost(Loss),
    /// The lease ended before it could be renewed.
    Overdue,
}

/// The lock and its grant: the refresh thread has them until the caller takes them back.
struct Owned {
    lock: Box<dyn Lock>,
    grant: Grant,
}

struct SharedGrant {
    /// `None` after [`Keeper::finish`]: the thread then ends.
    owned: Mutex<Option<Owned>>,
    taken_back: Condvar,
    /// Readable when the caller wants the lock back.
    interrupt: PipeReader,
    interrupter: PipeWriter,
}

impl SharedGrant {
    /// A panic ends the whole program, so no thread ever sees a poisoned value.
    fn owned(&self) -> MutexGuard<'_, Option<Owned>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Keeper {
    events: Receiver<KeeperEvent>,
    wake_fd: PipeReader,
    /// The thread runs a clone.
    refresher: Refresher,
    starts_at: Option<BootTime>,
}

/// The descriptors of a keeper, allocated before there is a lock to keep.
pub(crate) struct KeeperPipes {
    wake: (PipeReader, PipeWriter),
    interrupt: (PipeReader, PipeWriter),
}

impl KeeperPipes {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { wake: io::pipe()?, interrupt: io::pipe()? })
    }
}

impl Keeper {
    /// `renewed` is called in the thread with every new grant, before the event.
    pub(crate) fn new(
        pipes: KeeperPipes,
        lock: Box<dyn Lock>,
        grant: Grant,
        ttl: Duration,
        renewed: impl Fn(&Grant) + Send + Sync + 'static,
    ) -> Self {
        let KeeperPipes { wake: (wake_fd, waker), interrupt: (interrupt, interrupter) } = pipes;
        let (sender, events) = channel();
        let starts_at = grant.lease.map(|lease| lease.refresh_at());
        let owned = Mutex::new(Some(Owned { lock, grant }));
        let refresher = Refresher {
            shared: Arc::new(SharedGrant { owned, taken_back: Condvar::new(), interrupt, interrupter }),
            sender,
            waker: Arc::new(waker),
            renewed: Arc::new(renewed),
            retry_interval: (ttl / RETRY_FRACTION).clamp(RETRY_BOUNDS.0, RETRY_BOUNDS.1),
        };
        Self { events, wake_fd, refresher, starts_at }
    }

    /// When to call [`Keeper::start`]; `None` if it was called or is never needed.
    pub(crate) fn starts_at(&self) -> Option<BootTime> {
        self.starts_at
    }

    /// If no thread can be started now, try again a little later.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.starts_at = Some(BootTime::now() + self.refresher.retry_interval);
        let refresher = self.refresher.clone();
        thread::Builder::new().name("keeper".into()).spawn(move || refresher.run())?;
        self.starts_at = None;
        Ok(())
    }

    /// Readable when there are events or a renewal is complete.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    /// Call this when [`Keeper::wake_fd`] is readable.
    pub(crate) fn take_events(&mut self) -> Vec<KeeperEvent> {
        let _ = self.wake_fd.read(&mut [0; 64]);
        self.events.try_iter().collect()
    }

    /// Stop renewing and take the lock back. Waits for a renewal in progress (a moment longer, if no
    /// server replies), so that none can follow the release.
    pub(crate) fn finish(self) -> (Box<dyn Lock>, Grant) {
        let shared = &self.refresher.shared;
        let _ = (&shared.interrupter).write(&[1]);
        let owned = shared.owned().take().expect("only finish() takes the lock out, and only once");
        shared.taken_back.notify_one();
        (owned.lock, owned.grant)
    }
}

#[derive(Clone)]
struct Refresher {
    shared: Arc<SharedGrant>,
    sender: Sender<KeeperEvent>,
    waker: Arc<PipeWriter>,
    renewed: Arc<dyn Fn(&Grant) + Send + Sync>,
    retry_interval: Duration,
}

impl Refresher {
    fn run(self) {
        let mut owned = self.shared.owned();
        let mut next = BootTime::now();
        loop {
            owned = self
                .shared
                .taken_back
                .wait_timeout_while(owned, next.remaining(), |owned| owned.is_some())
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            let Some(Owned { lock, grant }) = &mut *owned else { return };
            fault::panic_if_requested("keeper");
            // After a suspend or a stop the clock counts, not the servers: a lease that has ended
            // is never renewed.
            if grant.is_over() {
                return self.send(KeeperEvent::Overdue);
            }
            let started = BootTime::now();
            match lock.extend_unless(grant, self.shared.interrupt.as_fd()) {
                Extended::Until(lease, votes) => {
                    (grant.lease, grant.votes) = (Some(lease), votes);
                    (self.renewed)(grant);
                    next = lease.refresh_at();
                    self.send(KeeperEvent::Refreshed(grant.clone()));
                    lock.follow_up(grant, self.shared.interrupt.as_fd());
                    // The caller releases memory when it has nothing to do: let it do so now.
                    self.wake();
                }
                Extended::Unknown(error) => {
                    // The caller may want the lock back, and can have it in the meantime.
                    let soon = BootTime::now() + RETRY_BOUNDS.0;
                    next = soon.max(started + self.retry_interval);
                    if let Some(lease) = grant.lease {
                        next = next.min(lease.deadline());
                    }
                    self.send(KeeperEvent::Failed(error, grant.lease));
                }
                Extended::Lost(loss) => return self.send(KeeperEvent::Lost(loss)),
            }
        }
    }

    /// The receiver is gone only if the program is about to exit.
    fn send(&self, event: KeeperEvent) {
        let _ = self.sender.send(event);
        self.wake();
    }

    fn wake(&self) {
        let _ = (&*self.waker).write(&[1]);
    }
}
