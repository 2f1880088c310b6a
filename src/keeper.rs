//! The refresh thread: keeps the lease alive while the command runs.
//!
//! It renews at a third of the lease, retries on errors as long as the lease lasts, and tells what
//! happened. It stops nobody: that the command does not outlive the lease is the guardian's business,
//! which learns each new deadline from here and needs no word from us to act on the last one.
//!
//! The thread is started when the first renewal is due: most commands end before that, and a lock
//! without a lease never needs it.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::lock::{BootTime, Extended, Grant, Lease, Lock, Loss, NodeError};

/// Between two attempts to renew while the servers fail: a fraction of the lease, within bounds.
const RETRY_FRACTION: u32 = 30;
const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// What the keeper has to tell.
#[derive(Debug)]
pub enum News {
    Refreshed(Grant),
    /// Could not renew; the lease still holds, and the keeper goes on trying.
    Trouble(NodeError, Option<Lease>),
    /// A clear answer: the lock is gone.
    Lost(Loss),
    /// The lease is over without one.
    Overdue,
}

/// The lock and its grant, passed between the refresh thread and whoever ends it.
struct Held {
    lock: Box<dyn Lock>,
    grant: Grant,
}

struct Shared {
    /// `None` once the lock was taken back: the thread then ends.
    held: Mutex<Option<Held>>,
    ended: Condvar,
}

impl Shared {
    /// A panic ends the whole program, so nobody goes on after one to see what it left.
    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Keeper {
    shared: Arc<Shared>,
    news: Receiver<News>,
    bell: PipeReader,
    /// Until its thread has taken it.
    refresher: Arc<Mutex<Option<Refresher>>>,
    due: Option<BootTime>,
    retry: Duration,
    /// Keeps the bell from ringing for ever when the thread has ended.
    _ring: PipeWriter,
}

impl Keeper {
    /// `renewed` is called with every new grant, before anyone else hears of it.
    pub fn new(
        lock: Box<dyn Lock>,
        grant: Grant,
        ttl: Duration,
        renewed: impl FnMut(&Grant) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (bell, ring) = std::io::pipe()?;
        let (tell, news) = channel();
        let due = grant.lease.map(|lease| lease.refresh_at());
        let shared = Arc::new(Shared { held: Mutex::new(Some(Held { lock, grant })), ended: Condvar::new() });
        let retry = (ttl / RETRY_FRACTION).clamp(RETRY_BOUNDS.0, RETRY_BOUNDS.1);
        let refresher = Refresher {
            shared: Arc::clone(&shared),
            tell,
            ring: ring.try_clone()?,
            renewed: Box::new(renewed),
            retry,
        };
        let refresher = Arc::new(Mutex::new(Some(refresher)));
        Ok(Self { shared, news, bell, refresher, due, retry, _ring: ring })
    }

    /// When [`Keeper::start`] must be called; `None` if that is done, or never needed.
    pub fn due(&self) -> Option<BootTime> {
        self.due
    }

    /// If no thread can be had now, it is due again a little later.
    pub fn start(&mut self) -> std::io::Result<()> {
        self.due = Some(BootTime::now() + self.retry);
        let refresher = Arc::clone(&self.refresher);
        let run = move || {
            let refresher = refresher.lock().unwrap_or_else(PoisonError::into_inner).take();
            refresher.into_iter().for_each(Refresher::run);
        };
        thread::Builder::new().name("keeper".into()).spawn(run)?;
        self.due = None;
        Ok(())
    }

    /// When the lease ends, as far as we know before the first renewal.
    pub fn deadline(&self) -> Option<BootTime> {
        self.shared.held().as_ref()?.grant.lease.map(|lease| lease.deadline())
    }

    /// Readable when there is news.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// To be called when the bell has rung.
    pub fn news(&mut self) -> Vec<News> {
        let _ = self.bell.read(&mut [0; 64]);
        self.news.try_iter().collect()
    }

    /// End the refreshing and take the lock back. A renewal under way is waited for (at most a node
    /// timeout), so that none can follow the release.
    pub fn finish(self) -> (Box<dyn Lock>, Grant) {
        let held = self.shared.held().take().expect("only finish() takes the lock out, and only once");
        self.shared.ended.notify_one();
        (held.lock, held.grant)
    }
}

struct Refresher {
    shared: Arc<Shared>,
    tell: Sender<News>,
    ring: PipeWriter,
    renewed: Box<dyn FnMut(&Grant) + Send>,
    retry: Duration,
}

impl Refresher {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut held = shared.held();
        let mut next = BootTime::now();
        loop {
            held = shared
                .ended
                .wait_timeout_while(held, next.remaining(), |held| held.is_some())
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            let Some(Held { lock, grant }) = &mut *held else { return };
            #[cfg(debug_assertions)]
            panic_if_asked();
            // After a suspend, or a stop, the clock comes before the servers: a lease that is over is
            // not renewed, whatever they would say.
            if grant.is_over() {
                return self.tell(News::Overdue);
            }
            match lock.extend(grant) {
                Extended::Until(lease) => {
                    grant.lease = Some(lease);
                    (self.renewed)(grant);
                    next = lease.refresh_at();
                    self.tell(News::Refreshed(grant.clone()));
                }
                Extended::Unknown(error) => {
                    next = BootTime::now() + self.retry;
                    if let Some(lease) = grant.lease {
                        next = next.min(lease.deadline());
                    }
                    self.tell(News::Trouble(error, grant.lease));
                }
                Extended::Lost(loss) => return self.tell(News::Lost(loss)),
            }
        }
    }

    /// Nobody listens any more only when the program is about to end.
    fn tell(&mut self, news: News) {
        let _ = self.tell.send(news);
        let _ = self.ring.write(&[1]);
    }
}

/// Lets a test see what a broken refresh thread does to the command. Not in release builds.
#[cfg(debug_assertions)]
fn panic_if_asked() {
    if std::env::var_os("REDLOCK_TEST_PANIC").is_some_and(|what| what == "keeper") {
        panic!("asked to");
    }
}
