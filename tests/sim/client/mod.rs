//! The processes: the real code takes locks, keeps them, releases them, breaks them and looks at
//! them, as the commands do.

mod job;
mod nested;
mod others;

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;

use crate::clock::BootTime;
use crate::exit::Exit;
use crate::lock::{
    self, AncestorLock, BackendError, Bearer, Blocked, Blocker, BreakMode, Breaker, Claim, Ended, Error,
    Extended, Freed, Grant, HolderInfo, HolderKind, Keys, Lock, Loss, Mode, Notice, Observer, Outcome,
    Prefer, Reason, RedisBearer, RedisBreaker, RedisLock, RedisView, ReleaseOrphan, Renewal, Request, Server,
    Status, Timing, View, WaitPolicy,
};
use crate::oracle::Held;
use crate::scheduler::ClientWorld;
use crate::world;

pub use job::{Access, Inside, Job, Record, Run, Subject};
pub use others::plain_run;

/// Between two attempts to renew while the servers fail: as keeper.rs.
const RETRY_FRACTION: u32 = 30;
const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// What a watched process gets between the signal and the end of the lease: as background.rs.
const GRACE: Duration = Duration::from_secs(5);

/// Follows a wait in the simulation.
struct Watcher<'a> {
    world: &'a ClientWorld,
    /// For `--cancel-in-progress`.
    canceller: Option<Canceller<'a>>,
}

struct Canceller<'a> {
    client: &'a Client<'a>,
    keys: &'a [String],
    asked: Option<String>,
}

impl Observer for Watcher<'_> {
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.world.signal_fd()]
    }

    fn cancelled(&mut self) -> Option<Signal> {
        self.world.is_cancelled().then_some(Signal::SIGTERM)
    }

    /// As commands/cancel.rs, but without a thread.
    fn waiting(&mut self, blocked: &Blocked, _: Duration) {
        if let Blocker::Holder(holding) = &blocked.by
            && let Some(problem) = holding.info.protocol_problem()
        {
            let text = format!("host {} waits for such a holder: {}", self.world.site(), short(&problem));
            self.world.shared().borrow_mut().oracle.violation("protocol", text);
        }
        let (Some(canceller), Some(holding)) = (&mut self.canceller, blocked.to_cancel()) else { return };
        if canceller.asked.as_ref() == Some(&holding.id) {
            return;
        }
        let result = canceller.client.cancel(&canceller.keys[blocked.key], &holding.id);
        self.world.note(|| format!("asks {} to stop: {}", holding.id, short(&result)));
        if result.is_ok() {
            canceller.asked = Some(holding.id.clone());
        }
    }

    fn next_update_in(&self, _: Duration) -> Duration {
        Duration::from_secs(30)
    }

    fn on_unavailable(&mut self, error: &BackendError, _: Duration) {
        self.world.note(|| format!("unavailable: {}", short(error)));
    }
}

fn short(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").chars().take(240).collect()
}

/// One process, with the number of its actor.
pub struct Client<'a> {
    pub number: u64,
    pub access: &'a Access,
    pub world: &'a Rc<ClientWorld>,
}

impl Client<'_> {
    pub fn perform(&self, job: &Job) {
        match job {
            Job::Run(run) => {
                self.run(run);
                self.record(|record| record.is_over = true);
            }
            Job::Extend { of, keys } => self.extend(*of, keys),
            Job::Release { of, keys } => self.release(*of, keys),
            Job::Break { key, how } => self.break_lock(key, *how),
            Job::Audit { key } => self.audit(key),
        }
        let site = self.world.site();
        self.world.shared().borrow_mut().oracle.process_ended(site);
    }

    fn note(&self, text: impl FnOnce() -> String) {
        self.world.note(text);
    }

    fn record<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        let mut shared = self.world.shared().borrow_mut();
        change(shared.records.entry(self.number).or_default())
    }

    fn leaves(&self) {
        let now = self.world.shared().borrow().now_us;
        self.record(|record| record.leaves_at = Some(now));
    }

    fn servers(&self) -> Vec<Server> {
        self.access.urls.iter().map(|url| Server::parse(url).expect("a URL")).collect()
    }

    fn keys(&self, keys: &[String]) -> Vec<Keys> {
        let servers = self.servers();
        keys.iter().map(|key| Keys::new(&servers, "lock", key.as_bytes())).collect()
    }

    fn who(&self, renewal: Renewal) -> HolderInfo {
        let host = format!("host-{}", self.world.site());
        HolderInfo { host, renewal, protocol: Some(self.access.protocol), ..HolderInfo::default() }
    }

    fn request(&self, run: &Run) -> Request {
        let renewal = match run.subject {
            Subject::Command(_) | Subject::Nested(_) => Renewal::Run,
            Subject::Watched(_) => Renewal::Keeper(7),
            Subject::Token => Renewal::Nobody,
        };
        Request {
            mode: run.mode.clone(),
            prefer: run.prefer,
            wait: run.wait,
            waits_for_backend: false,
            supersedes: run.supersedes,
            once: run.once,
            min_hold: run.min_hold,
            history: 10,
            exit_if_held: 75,
            holder: HolderInfo { cancellable: run.cancels, ..self.who(renewal) },
            ancestors: Vec::new(),
        }
    }

    fn run(&self, run: &Run) {
        self.record(|record| record.subject = Some(run.subject));
        let Some(ancestors) = self.ancestors(run) else { return };
        let mut redis_lock = RedisLock::new(self.servers(), self.keys(&run.keys), self.access.timing);
        let (request, site) = (Request { ancestors, ..self.request(run) }, self.world.site());
        let held = match &run.mode {
            Mode::Exclusive => Held::Exclusive,
            Mode::Shared { group } => Held::Shared(group.clone()),
            Mode::Slot { of } => Held::Slot { of: *of, number: None },
        };
        self.note(|| format!("asks for {run:?}"));
        let queues = run.wait.queues();
        self.world.shared().borrow_mut().oracle.begins(site, &run.keys, held.clone(), queues, run.supersedes);
        if run.cancels {
            self.world.shared().borrow_mut().oracle.may_be_cancelled(site);
        }
        let now = self.world.shared().borrow().now_us;
        self.record(|record| record.started = now);
        redis_lock.send_ahead(&request);
        if !matches!(run.subject, Subject::Watched(_)) {
            let orphan = redis_lock.release_orphan(&request);
            self.record(|record| record.orphan = orphan);
        }
        let started = BootTime::now();
        let canceller = run.cancels.then(|| Canceller { client: self, keys: &run.keys, asked: None });
        let mut watcher = Watcher { world: self.world, canceller };
        let result = lock::acquire(&mut redis_lock, &request, &mut watcher);
        match result {
            Ok(grant) => {
                let hows = run.keys.iter().enumerate().map(|(at, _)| match &held {
                    Held::Slot { of, .. } => Held::Slot { of: *of, number: grant.slots.get(at).copied() },
                    other => other.clone(),
                });
                let (hows, until) = (hows.collect(), self.deadline(&grant));
                self.note(|| {
                    format!("holds {:?} with {:?} until {:.3}", run.keys, grant.fences, until as f64 / 1e6)
                });
                let asked = self.world.true_moment(grant.lease.expect("a lease").sent_at());
                {
                    let mut shared = self.world.shared().borrow_mut();
                    if let Some(once) = run.once {
                        shared.oracle.runs_once(site, &run.keys, once.as_micros() as u64);
                    }
                    shared.oracle.granted(site, hows, &grant.fences, asked, until);
                }
                let ends = self.world.true_moment(grant.lease.expect("a lease").end());
                self.record(|record| {
                    record.lease_ends = ends;
                    (record.claim, record.grant) = (Some(grant.claim), Some(grant.to_bytes()));
                    let keys: Vec<Vec<u8>> = run.keys.iter().map(|key| key.clone().into()).collect();
                    let ours = grant.ancestor_locks.iter().map(|lock| lock.clone().with_keys(&keys));
                    record.held = request.ancestors.iter().cloned().chain(ours).collect();
                });
                self.hold(run, redis_lock, grant);
            }
            Err(error) => self.refused(run, &error, started),
        }
    }

    /// The lock was not acquired.
    fn refused(&self, run: &Run, error: &Error, started: BootTime) {
        self.note(|| format!("gets nothing: {}", short(error)));
        self.record(|record| record.is_refused = true);
        let site = self.world.site();
        let waited = started.elapsed();
        let mut shared = self.world.shared().borrow_mut();
        match error {
            Error::Backend(error) => {
                shared.oracle.fails(site);
                // A lease that is longer than usual needs every server.
                let needs_all = matches!(error.problem, lock::Problem::LongLease { .. });
                if error.fault() == lock::Fault::Unavailable && !needs_all {
                    shared.oracle.unavailable(site, &short(error));
                }
            }
            Error::Superseded(_) => shared.oracle.superseded(site),
            Error::Done(_) => {
                let within = run.once.expect("only such a run").as_micros() as u64;
                shared.oracle.done_already(site, &run.keys, within);
            }
            Error::Deadlock(deadlock) => {
                let keys = deadlock.steps.iter().map(|step| String::from_utf8_lossy(&step.key).into());
                shared.oracle.gives_up(site, &keys.collect::<Vec<String>>());
            }
            Error::Held(_) | Error::Nested | Error::Cancelled(_) => {}
        }
        if let WaitPolicy::Queue { at_most: Some(at_most) } = run.wait
            && waited > at_most + self.access.timing.node_timeout + LATE_AFTER
        {
            let text = format!("host {site} waits for {waited:?} with a limit of {at_most:?}");
            shared.oracle.violation("late", text);
        }
    }

    /// When the lease is over, in true time.
    fn deadline(&self, grant: &Grant) -> u64 {
        self.world.true_moment(grant.lease.expect("a lease").deadline())
    }

    /// As commands/hold: renew at a third of the lease, retry while it lasts, listen for breaks.
    fn hold(&self, run: &Run, mut redis_lock: RedisLock, mut grant: Grant) {
        let (is_keeper, lives) = match run.subject {
            Subject::Command(lives) => (false, lives),
            Subject::Nested(_) => (false, Duration::ZERO),
            Subject::Watched(lives) => (true, lives),
            // The command prints the token and exits.
            Subject::Token => return,
        };
        let mut ends = BootTime::now() + lives;
        let mut watch = redis_lock.break_watch(&grant).expect("servers notify");
        let mut next = grant.lease.expect("a lease").refresh_at();
        let ended = loop {
            let signal_at = is_keeper.then(|| stop_at(&grant));
            if matches!(run.subject, Subject::Nested(_)) {
                ends = BootTime::now() + nested::LOOK_EVERY;
            }
            let until = [Some(next), Some(ends), watch.next_moment(), signal_at];
            self.sleep(&*watch, until.into_iter().flatten().min().expect("a moment"));
            if self.world.is_cancelled() {
                break Some(Ended { how: Outcome::Released, exit: Some(Exit::Signal(15)) });
            }
            let has_ended = match run.subject {
                Subject::Nested(inner) => self.is_over(inner),
                Subject::Command(_) | Subject::Watched(_) | Subject::Token => ends.has_passed(),
            };
            if has_ended {
                let exit = Some(Exit::Code(u8::from(run.fails)));
                break Some(Ended { how: Outcome::Released, exit });
            }
            if signal_at.is_some_and(BootTime::has_passed) || grant.is_over() {
                self.lost("the lease ended");
                break Some(Ended { how: Outcome::Lost, exit: Some(Exit::Code(79)) });
            }
            match watch.advance() {
                Some(Notice::Lost { loss: Loss::Broken { by }, .. }) => {
                    self.note(|| "the lock is broken".into());
                    break Some(Ended { how: Outcome::Broken { by }, exit: None });
                }
                // By another client, on the servers.
                Some(Notice::Lost { loss: Loss::Released { .. }, .. }) => break None,
                Some(Notice::Lost { loss, .. }) => break Some(self.ended_by(&loss)),
                Some(Notice::Extended { ttl }) if is_keeper => {
                    if let Some(loss) = self.adopt(ttl, &mut redis_lock, &mut grant) {
                        break Some(self.ended_by(&loss));
                    }
                    next = grant.lease.expect("a lease").refresh_at();
                }
                Some(Notice::Extended { .. }) | None => {}
            }
            if !next.has_passed() {
                continue;
            }
            let asked = self.asks_for_lease(self.ttl(&grant));
            let started = BootTime::now();
            match redis_lock.extend(&grant) {
                Extended::Until(lease, votes) => {
                    (grant.lease, grant.votes) = (Some(lease), votes);
                    self.renewed(&grant, asked);
                    next = lease.refresh_at();
                    redis_lock.follow_up(&grant, self.world.signal_fd());
                }
                Extended::Unknown(error) => {
                    self.note(|| format!("cannot renew: {}", short(&error)));
                    let retry = (self.ttl(&grant) / RETRY_FRACTION).clamp(RETRY_BOUNDS.0, RETRY_BOUNDS.1);
                    let soon = BootTime::now() + RETRY_BOUNDS.0;
                    next = soon.max(started + retry).min(grant.lease.expect("a lease").deadline());
                }
                Extended::Lost(loss) => break Some(self.ended_by(&loss)),
            }
        };
        drop(watch);
        let site = self.world.site();
        self.world.shared().borrow_mut().oracle.ended(site);
        self.leaves();
        let Some(ended) = ended else {
            if grant.taken_at.elapsed() >= run.min_hold {
                redis_lock.abandon();
            } else {
                self.record(|record| record.keeps_min_hold = true);
            }
            return;
        };
        let min_hold = if ended.how.keeps_min_hold() { run.min_hold } else { Duration::ZERO };
        self.record(|record| record.keeps_min_hold = !min_hold.is_zero());
        self.note(|| format!("releases {:?}", run.keys));
        let succeeds = run.once.is_some() && ended.exit == Some(Exit::Code(0)) && !run.fails;
        if succeeds {
            self.world.shared().borrow_mut().oracle.succeeds(site, &run.keys);
        }
        let released = redis_lock.release(&grant, &ended, min_hold);
        if succeeds && matches!(released, lock::Released::Done(_)) {
            self.world.shared().borrow_mut().oracle.success_is_confirmed(site);
        }
        self.note(|| format!("has released {:?}: {}", run.keys, short(&released)));
    }

    /// A lease that begins now: returns this moment.
    fn asks_for_lease(&self, ttl: Duration) -> u64 {
        let ends = self.world.true_moment(BootTime::now() + ttl);
        self.record(|record| record.lease_ends = record.lease_ends.max(ends));
        self.world.shared().borrow().now_us
    }

    fn ttl(&self, grant: &Grant) -> Duration {
        grant.lease.expect("a lease").ttl()
    }

    fn sleep(&self, watch: &dyn lock::BreakWatch, until: BootTime) {
        let watched = watch.poll_for();
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|&(fd, flags)| PollFd::new(fd, flags)).collect();
        fds.push(PollFd::new(self.world.signal_fd(), PollFlags::POLLIN));
        world::sleep(&mut fds, until);
    }

    fn renewed(&self, grant: &Grant, asked: u64) {
        let (site, until) = (self.world.site(), self.deadline(grant));
        self.world.shared().borrow_mut().oracle.renewed(site, asked, until);
        self.note(|| format!("renewed until {:.3}", until as f64 / 1e6));
    }

    fn lost(&self, why: &str) {
        let site = self.world.site();
        self.note(|| format!("has lost the lock: {why}"));
        self.world.shared().borrow_mut().oracle.lost(site, why);
    }

    fn ended_by(&self, loss: &Loss) -> Ended {
        let how = match loss {
            Loss::Broken { by } => Outcome::Broken { by: by.clone() },
            Loss::Superseded { by } => {
                self.note(|| "is superseded".into());
                let site = self.world.site();
                self.world.shared().borrow_mut().oracle.cancelled(site);
                Outcome::Replaced { by: by.clone() }
            }
            Loss::Released { .. } => Outcome::Released,
            Loss::Expired | Loss::FileReplaced | Loss::Foreign => {
                self.lost(&short(loss));
                Outcome::Lost
            }
        };
        Ended { how, exit: Some(Exit::Code(79)) }
    }

    /// A keeper continues with the lease of an extension: as background.rs.
    fn adopt(&self, ttl: Option<Duration>, redis_lock: &mut RedisLock, grant: &mut Grant) -> Option<Loss> {
        let own = self.access.timing.ttl.expect("a lease").max(self.ttl(grant));
        let ttl = ttl.map(|ttl| ttl.max(own));
        let asked = self.asks_for_lease(ttl.expect("a lease"));
        redis_lock.set_ttl(ttl);
        match redis_lock.extend(grant) {
            Extended::Until(lease, votes) => {
                (grant.lease, grant.votes) = (Some(lease), votes);
                self.renewed(grant, asked);
                None
            }
            Extended::Unknown(_) => None,
            Extended::Lost(loss) => Some(loss),
        }
    }

    fn cancel(&self, key: &str, id: &str) -> Result<(), BackendError> {
        let keys = self.keys(&[key.to_owned()]).remove(0);
        let breaker = RedisBreaker::new(self.servers(), keys, self.access.timing, self.who(Renewal::Run));
        lock::cancel(&mut breaker.with_reason(Reason::Superseded), id)
    }
}

/// How much later than its limit a wait may end: the release of a place.
const LATE_AFTER: Duration = Duration::from_secs(8);

/// When a keeper signals its process.
fn stop_at(grant: &Grant) -> BootTime {
    let lease = grant.lease.expect("a lease");
    lease.deadline().minus(GRACE.min(lease.ttl() / 3))
}
