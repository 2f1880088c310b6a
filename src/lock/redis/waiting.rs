//! A waiter between two attempts: it gives up, sleeps in the gate's queue, or pauses.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::RedisLock;
use super::reply::Woken;
use super::round::{Round, RoundReply, Watch};
use super::script::{Call, WAITER_RENEWAL};
use crate::clock::BootTime;
use crate::lock::deadlock::DeadlockSearch;
use crate::lock::wait::{Wait, backoff, sleep};
use crate::lock::{BackendError, Blocked, Blocker, Error, Observer, Problem};
use crate::world::{Rule, follows};

/// How much longer than requested BLPOP may take: servers check the timeouts of blocked clients ten
/// times a second.
pub(super) const BLPOP_SLACK: Duration = Duration::from_millis(300);

/// The time that a waiter allows each waiter ahead of it, up to this number, to move to the next
/// server.
const TURN: Duration = Duration::from_millis(20);
const MOST_TURNS: u32 = 50;

/// How long after the end of the wait a reply may take, or two round trips: a last request is sent at
/// the end. With several servers the gate may be silent, and another one gets that request.
const AFTER_WAIT: Duration = Duration::from_millis(500);
const AFTER_WAIT_OF_SEVERAL: Duration = Duration::from_millis(250);

/// The state of one wait, from the first attempt until the grant or until the waiter gives up.
pub(super) struct Progress {
    pub started: BootTime,
    pub gives_up_at: Option<BootTime>,
    /// A server has replied. A failure before that is an error at once; servers that fail later
    /// may come back.
    pub had_reply: bool,
    pub failures_in_a_row: u32,
    /// There are several servers.
    pub has_several: bool,
    /// The observer was asked for keepers above this process.
    pub knows_keepers: bool,
    /// `None` if we hold nothing.
    pub deadlock: Option<DeadlockSearch>,
}

impl Progress {
    pub(super) fn is_over(&self) -> bool {
        self.gives_up_at.is_some_and(BootTime::has_passed)
    }

    /// When to stop waiting for a reply to a request that is sent now. In the first attempt a server
    /// has the node timeout, however short the wait is.
    pub(super) fn replies_by(&self, round_trip: Duration) -> Option<BootTime> {
        let is_first = !self.had_reply && self.failures_in_a_row == 0;
        let ends_at = self.gives_up_at.filter(|_| !is_first)?;
        Some(ends_at.max(BootTime::now()) + self.after_wait().max(round_trip * 2))
    }

    /// Whether two servers have been silent after the end of the wait.
    pub(super) fn is_exhausted(&self) -> bool {
        self.gives_up_at.is_some_and(|at| (at + self.after_wait() * 2).has_passed())
    }

    fn after_wait(&self) -> Duration {
        if self.has_several { AFTER_WAIT_OF_SEVERAL } else { AFTER_WAIT }
    }
}

/// When a waiter makes its next attempt.
pub(super) enum NextAttempt {
    AtOnce,
    /// After exactly this time, or after one that grows with each failure in a row.
    AfterPause(Option<Duration>),
}

impl RedisLock {
    /// The gate has queued us, or refused a request that does not queue.
    pub(super) fn after_queueing(
        &mut self,
        blocked: Box<Blocked>,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<NextAttempt, Error> {
        (progress.had_reply, progress.failures_in_a_row) = (true, 0);
        if blocked.may_be_kept(self.requests.key_count())
            && !std::mem::replace(&mut progress.knows_keepers, true)
        {
            let kept = observer.kept_for_ancestors();
            if !kept.is_empty() {
                self.terms.add_ancestors(&kept);
                return Ok(NextAttempt::AtOnce);
            }
        }
        if progress.is_over() {
            return Err(Error::Held(blocked));
        }
        observer.waiting(&blocked, progress.started.elapsed());
        if let Some(search) = &mut progress.deadlock
            && let Some(deadlock) = self.look_for_deadlock(search, observer).map_err(Error::Cancelled)?
        {
            return Err(Error::Deadlock(Box::new(deadlock)));
        }
        self.connect_ahead(blocked.position == Some(0));
        let woken = self.wait_for_wakeup(&blocked, progress, observer);
        let RoundReply { reply, is_late, .. } = woken.map_err(Error::Cancelled)?;
        let Err(error) = reply else { return Ok(NextAttempt::AtOnce) };
        // With several servers, the next attempt skips this one.
        let ends = if is_late { progress.is_over() } else { !error.may_pass() };
        if self.servers.len() == 1 && ends {
            return Err(error.into());
        }
        // The last attempt begins with another server.
        if is_late && progress.is_over() {
            self.servers[self.gate].avoid();
        }
        let pause_for = self.yield_to_those_ahead(&blocked, is_late);
        observer.on_unavailable(&error, progress.started.elapsed());
        self.servers[self.gate].node.disconnect();
        Ok(NextAttempt::AfterPause(pause_for))
    }

    /// The gate voted for us, but too many other servers did not.
    pub(super) fn after_defeat(
        &mut self,
        blocked: Box<Blocked>,
        follow: Option<usize>,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<NextAttempt, Error> {
        progress.had_reply = true;
        if progress.is_over() {
            return Err(Error::Held(blocked));
        }
        self.release_votes();
        observer.waiting(&blocked, progress.started.elapsed());
        self.follow = follow;
        self.lowest_slots.clear();
        Ok(if follow.is_some() { NextAttempt::AtOnce } else { NextAttempt::AfterPause(None) })
    }

    /// Too many servers are quarantined.
    pub(super) fn after_quarantine(
        &mut self,
        quarantined: Vec<(String, Duration)>,
        causes: Vec<BackendError>,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<NextAttempt, Error> {
        if progress.is_over() {
            let servers = self.servers.len();
            let problem = Problem::Quarantined { servers, quarantined, causes };
            return Err(BackendError { at: None, problem }.into());
        }
        self.release_votes();
        progress.had_reply = true;
        let shortest = quarantined.iter().map(|(_, left)| *left).min();
        let by = Blocker::Quarantine(quarantined);
        let blocked = Blocked { key: 0, position: None, queue_length: 0, by };
        observer.waiting(&blocked, progress.started.elapsed());
        Ok(NextAttempt::AfterPause(shortest.map(|left| left.min(WAITER_RENEWAL))))
    }

    /// Too many servers failed.
    pub(super) fn after_failure(
        &mut self,
        error: BackendError,
        waits_for_backend: bool,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<NextAttempt, Error> {
        let may_recover = progress.had_reply || waits_for_backend;
        if !may_recover || !error.may_pass() || progress.is_over() {
            return Err(error.into());
        }
        // The servers may have been slow for a moment. Those behind us in the queue would pass while
        // we release the gate's vote and pause, so the next attempt takes it over.
        if progress.failures_in_a_row == 0 && !error.problem.is_stale() && follows(Rule::SecondChance) {
            (progress.failures_in_a_row, self.leaves_votes) = (1, true);
            return Ok(NextAttempt::AtOnce);
        }
        if error.problem.is_stale() {
            // Our votes were broken before they were a grant, and what that left refuses this waiter.
            self.stop_waiting(None);
            self.become_another_waiter();
        } else {
            self.release_votes();
        }
        observer.on_unavailable(&error, progress.started.elapsed());
        self.servers[self.gate].node.disconnect();
        Ok(NextAttempt::AfterPause(None))
    }

    /// Sleeps until it may be our turn: a wake-up, the holder's expiry, or the next renewal of our
    /// place.
    fn wait_for_wakeup(
        &mut self,
        blocked: &Blocked,
        progress: &Progress,
        observer: &mut dyn Observer,
    ) -> Result<RoundReply<Woken>, Signal> {
        let mut at_most = WAITER_RENEWAL;
        if let (Some(0), Some(expiry)) = (blocked.position, blocked.expires_in()) {
            at_most = at_most.min(expiry + Duration::from_millis(1));
        }
        if let Some(search) = &progress.deadlock {
            at_most = at_most.min(search.next_look().remaining());
        }
        if let Some(gives_up_at) = progress.gives_up_at {
            at_most = at_most.min(gives_up_at.remaining());
        }
        // Zero means "forever" to the server.
        let at_most = at_most.max(Duration::from_millis(1));
        let list = self.requests.notify_list(self.waiter);
        let until = BootTime::now() + at_most + BLPOP_SLACK + self.servers.node_timeout;
        let call = Call::BlockingPop { list, at_most };
        let mut round = Round::default();
        round.send(&mut self.servers, self.gate, call, Some(until));
        let replies_by = progress.replies_by(self.servers[self.gate].node.round_trip());
        round.only_reply(&mut self.servers, replies_by, Watch::Observer(observer))
    }

    /// All waiters lose the gate, but not all notice it at the same time: each lets those ahead of
    /// it move to the next server first.
    fn yield_to_those_ahead(&self, blocked: &Blocked, is_silent: bool) -> Option<Duration> {
        let ahead = blocked.position.filter(|&ahead| ahead > 0 && self.servers.len() > 1)?;
        let in_turn = TURN * u32::try_from(ahead).unwrap_or(u32::MAX).min(MOST_TURNS);
        // The others notice a silent server only at their next renewal.
        Some(if is_silent { WAITER_RENEWAL + in_turn } else { in_turn })
    }

    /// A waiter needs one connection; the next in line also opens those to the other servers.
    fn connect_ahead(&mut self, we_are_next: bool) {
        for at in self.servers.all_but(self.gate) {
            let member = &mut self.servers[at];
            if we_are_next && !member.is_avoided() {
                member.node.connect();
            } else {
                member.node.put_away();
            }
        }
    }
}

/// Pauses for exactly this time, or for one that grows with each failure in a row and differs
/// between waiters.
pub(super) fn pause(progress: &Progress, exactly: Option<Duration>, observer: &mut dyn Observer) -> Wait {
    let until = BootTime::now() + exactly.unwrap_or_else(|| backoff(progress.failures_in_a_row));
    sleep(progress.gives_up_at.map_or(until, |gives_up_at| until.min(gives_up_at)), observer)
}
