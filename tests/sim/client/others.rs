//! Processes that hold nothing themselves: `extend`, `release`, `break`, and `status` beside `run -n`.

use super::*;

impl Client<'_> {
    fn bearer(&self, of: u64, keys: &[String]) -> Option<RedisBearer> {
        let claim = self.record_of(of, |record| record.claim)?;
        let keys = self.keys(keys);
        Some(RedisBearer::new(self.servers(), keys, self.access.timing, claim, self.who(Renewal::Run)))
    }

    pub(super) fn record_of<T>(&self, of: u64, look: impl FnOnce(&Record) -> Option<T>) -> Option<T> {
        self.world.shared().borrow().records.get(&of).and_then(look)
    }

    fn subject_of(&self, of: u64) -> Option<Subject> {
        self.record_of(of, |record| record.subject)
    }

    pub(super) fn site_of(&self, of: u64) -> Option<usize> {
        self.world.shared().borrow().actors.get(&of).copied()
    }

    pub(super) fn extend(&self, of: u64, keys: &[String]) {
        let (Some(mut bearer), Some(site)) = (self.bearer(of, keys), self.site_of(of)) else { return };
        let asked = self.world.shared().borrow().now_us;
        // Only the owner of the token relies on this lease: runs and keepers have their own.
        let is_relied_on = self.subject_of(of) == Some(Subject::Token);
        if is_relied_on {
            let ttl = self.access.timing.ttl.expect("a lease");
            self.world.shared().borrow_mut().oracle.extension_begins(site, asked, ttl);
        }
        let extended = bearer.extend();
        self.note(|| format!("extends the lock of actor {of}: {}", short(&extended)));
        if let Extended::Until(lease, _) = extended
            && is_relied_on
        {
            let until = self.world.true_moment(lease.deadline());
            self.world.shared().borrow_mut().oracle.extension_ends(site, asked, until);
        }
    }

    pub(super) fn release(&self, of: u64, keys: &[String]) {
        let (Some(mut bearer), Some(site)) = (self.bearer(of, keys), self.site_of(of)) else { return };
        // The owner of the token does not need the lock any more. A run stops its command itself.
        if !matches!(self.subject_of(of), Some(Subject::Command(_))) {
            self.world.shared().borrow_mut().oracle.ended(site);
        }
        let started = self.world.shared().borrow().now_us;
        let released = bearer.release();
        self.note(|| format!("releases the lock of actor {of}: {}", short(&released)));
        if released.is_done() == Some(true) && self.subject_of(of) == Some(Subject::Token) {
            self.record(|record| record.released = Some((of, started)));
        }
    }

    /// As commands/break_lock.rs.
    pub(super) fn break_lock(&self, key: &str, how: BreakMode) {
        let keys = self.keys(&[key.to_owned()]).remove(0);
        let mut breaker = RedisBreaker::new(self.servers(), keys, self.access.timing, self.who(Renewal::Run));
        let Ok(holders) = breaker.holders() else { return };
        let meant: Vec<_> = holders.into_iter().filter(|held| held.kind != HolderKind::Foreign).collect();
        if meant.is_empty() {
            return;
        }
        let started = BootTime::now();
        if how == BreakMode::Immediate {
            self.world.shared().borrow_mut().oracle.excuse(Some(key));
        }
        let notified = breaker.notify(&meant, how);
        self.note(|| format!("breaks {key}: {}", short(&notified)));
        if !matches!(&notified, Ok(notified) if matches!(notified.freed, Freed::No)) {
            return;
        }
        let until = started + Duration::from_secs(30);
        while !until.has_passed() && !self.world.is_cancelled() {
            breaker.wait(until.min(BootTime::now() + Duration::from_secs(2)));
            let Ok(holders) = breaker.holders() else { continue };
            if !meant.iter().any(|held| holders.iter().any(|other| other.id == held.id)) {
                return;
            }
            let _ = breaker.notify(&meant, how);
        }
    }

    /// What status shows must be what a client gets.
    pub(super) fn audit(&self, key: &str) {
        let mut view = RedisView::new(self.servers(), "lock", self.access.timing.node_timeout);
        let (run, started) = (plain_run(key), BootTime::now());
        let before = view.status(key.as_bytes());
        let mut redis_lock = RedisLock::new(self.servers(), self.keys(&run.keys), self.access.timing);
        let request = self.request(&run);
        let result =
            lock::acquire(&mut redis_lock, &request, &mut Watcher { world: self.world, canceller: None });
        match &result {
            Err(Error::Held(blocked)) => {
                let after = view.status(key.as_bytes());
                // Another client may have come in between, or be collecting votes.
                let is_old = match &blocked.by {
                    Blocker::Holder(holding) => {
                        holding.held_for.is_none_or(|held| held > started.elapsed() + Duration::from_secs(1))
                    }
                    _ => false,
                };
                let says_free = |status: &Result<Status, _>| status.as_ref().is_ok_and(Status::is_idle);
                if is_old && says_free(&before) && says_free(&after) {
                    let text = format!("status shows {key} as free, run -n gets: {}", short(blocked));
                    self.world.shared().borrow_mut().oracle.unseen(self.world.site(), text);
                }
            }
            Ok(grant) => {
                let ended = Ended { how: Outcome::Released, exit: Some(Exit::Code(0)) };
                redis_lock.release(grant, &ended, Duration::ZERO);
            }
            Err(_) => {}
        }
        self.note(|| format!("audit of {key}: {} {}", short(&before), short(&result)));
    }
}

pub fn plain_run(key: &str) -> Run {
    Run {
        keys: vec![key.to_owned()],
        wait: WaitPolicy::No,
        mode: Mode::Exclusive,
        prefer: Prefer::Fair,
        supersedes: false,
        once: None,
        cancels: false,
        fails: false,
        min_hold: Duration::ZERO,
        subject: Subject::Command(Duration::from_millis(10)),
        inside: None,
    }
}
