//! A client process: the real code takes a lock, keeps it while a pretended command runs, and
//! releases it.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::BootTime;
use crate::exit::Exit;
use crate::lock::{
    self, BackendError, Blocked, Ended, Error, Extended, Grant, HolderInfo, Keys, Lock, Mode, Observer,
    Outcome, Prefer, RedisLock, Request, Server, Timing, WaitPolicy,
};
use crate::oracle::Held;
use crate::scheduler::{ClientWorld, lock as lock_shared};

/// What one process does.
#[derive(Clone, Debug)]
pub struct Run {
    pub servers: Vec<String>,
    pub key: String,
    pub ttl: Duration,
    pub node_timeout: Duration,
    pub quarantine: Duration,
    pub wait: WaitPolicy,
    pub is_shared: bool,
    /// How long its command takes.
    pub command: Duration,
}

/// Follows a wait in the simulation.
struct Watcher<'a>(&'a ClientWorld);

impl Observer for Watcher<'_> {
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.0.signal_fd()]
    }

    fn cancelled(&mut self) -> Option<Signal> {
        self.0.is_cancelled().then_some(Signal::SIGTERM)
    }

    fn waiting(&mut self, _: &Blocked, _: Duration) {}

    fn next_update_in(&self, _: Duration) -> Duration {
        Duration::from_secs(30)
    }

    fn on_unavailable(&mut self, error: &BackendError, _: Duration) {
        let now = lock_shared(self.0.shared()).now_us;
        let id = self.0.id();
        lock_shared(self.0.shared()).trace.note(now, || format!("client {id}: unavailable: {error:?}"));
    }
}

/// Between two attempts to renew while the servers fail: as keeper.rs.
const RETRY_FRACTION: u32 = 30;
const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

impl Run {
    fn request(&self) -> Request {
        Request {
            mode: if self.is_shared { Mode::Shared { group: Vec::new() } } else { Mode::Exclusive },
            prefer: Prefer::Fair,
            wait: self.wait,
            waits_for_backend: false,
            supersedes: false,
            min_hold: Duration::ZERO,
            history: 10,
            exit_if_held: 75,
            holder: HolderInfo::default(),
            ancestors: Vec::new(),
        }
    }

    pub fn run(&self, world: &Rc<ClientWorld>) {
        let servers: Vec<Server> =
            self.servers.iter().map(|url| Server::parse(url).expect("a URL")).collect();
        let keys = vec![Keys::new(&servers, "lock", self.key.as_bytes())];
        let timing =
            Timing { ttl: Some(self.ttl), node_timeout: self.node_timeout, quarantine: self.quarantine };
        let mut redis_lock = RedisLock::new(servers, keys, timing);
        let request = self.request();
        redis_lock.send_ahead(&request);
        let id = world.id();
        note(world, || format!("client {id} asks for {:?}", self));
        let result = lock::acquire(&mut redis_lock, &request, &mut Watcher(world));
        match result {
            Ok(grant) => self.hold(redis_lock, grant, world),
            Err(error) => note(world, || format!("client {id} gets nothing: {}", short(&error))),
        }
    }

    /// As keeper.rs: renew at a third of the lease, retry while it lasts.
    fn hold(&self, mut redis_lock: RedisLock, mut grant: Grant, world: &Rc<ClientWorld>) {
        let (id, how) = (world.id(), if self.is_shared { Held::Shared(Vec::new()) } else { Held::Exclusive });
        let until = deadline(&grant, world);
        {
            let mut shared = lock_shared(world.shared());
            let now = shared.now_us;
            shared.trace.note(now, || {
                format!("client {id} holds {} with {:?} until {until}", self.key, grant.fences)
            });
            shared.oracle.granted(id, &self.key, how, grant.fences[0], now, until);
        }
        let retry = (self.ttl / RETRY_FRACTION).clamp(RETRY_BOUNDS.0, RETRY_BOUNDS.1);
        let ends = BootTime::now() + self.command;
        let mut next = grant.lease.expect("a lease").refresh_at();
        let mut watcher = Watcher(world);
        let how = loop {
            if let lock::Wait::Cancelled(signal) = lock::sleep(next.min(ends), &mut watcher) {
                break Ended { how: Outcome::Released, exit: Some(Exit::Signal(signal as i32)) };
            }
            if grant.is_over() {
                break Ended { how: Outcome::Lost, exit: Some(Exit::Code(79)) };
            }
            if ends.has_passed() {
                break Ended { how: Outcome::Released, exit: Some(Exit::Code(0)) };
            }
            match redis_lock.extend(&grant) {
                Extended::Until(lease, votes) => {
                    (grant.lease, grant.votes) = (Some(lease), votes);
                    next = lease.refresh_at();
                    let until = deadline(&grant, world);
                    lock_shared(world.shared()).oracle.renewed(id, until);
                    note(world, || format!("client {id} renewed {} until {until}", self.key));
                    redis_lock.follow_up(&grant, world.signal_fd());
                }
                Extended::Unknown(error) => {
                    note(world, || format!("client {id} cannot renew: {error:?}"));
                    next = (BootTime::now() + retry).min(grant.lease.expect("a lease").deadline());
                }
                Extended::Lost(loss) => {
                    note(world, || format!("client {id} has lost {}: {loss:?}", self.key));
                    break Ended { how: Outcome::Lost, exit: Some(Exit::Code(79)) };
                }
            }
        };
        {
            let mut shared = lock_shared(world.shared());
            let now = shared.now_us;
            shared.oracle.ended(id, now);
        }
        note(world, || format!("client {id} releases {}", self.key));
        let released = redis_lock.release(&grant, &how, Duration::ZERO);
        note(world, || format!("client {id} released {}: {released:?}", self.key));
    }
}

fn short(error: &Error) -> String {
    let text = format!("{error:?}");
    text.chars().take(200).collect()
}

fn note(world: &ClientWorld, text: impl FnOnce() -> String) {
    let mut shared = lock_shared(world.shared());
    let now = shared.now_us;
    shared.trace.note(now, text);
}

/// When the lease is over, in true time.
fn deadline(grant: &Grant, world: &ClientWorld) -> u64 {
    world.true_moment(grant.lease.expect("a lease").deadline())
}
