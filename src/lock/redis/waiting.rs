//! A waiter between two attempts: it sleeps in the gate's queue, or pauses.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::RedisLock;
use super::reply::Woken;
use super::round::{Received, Round, Watch};
use super::script::{Call, WAITER_RENEWAL};
use crate::clock::BootTime;
use crate::lock::wait::{Wait, backoff, sleep};
use crate::lock::{Blocked, Observer};

/// Servers check the timeouts of blocked clients ten times a second.
pub(super) const BLPOP_SLACK: Duration = Duration::from_millis(300);

/// How long a waiter gives each waiter ahead of it to turn to the next server, for at most this many of them.
const TURN: Duration = Duration::from_millis(20);
const MOST_TURNS: u32 = 50;

/// The state of one wait, from the first attempt to the grant or the end of patience.
pub(super) struct Progress {
    pub started: BootTime,
    pub gives_up_at: Option<BootTime>,
    /// A server has replied. Servers that fail before that are an error at once; servers that fail later may
    /// come back.
    pub was_answered: bool,
    pub failures_in_a_row: u32,
}

impl Progress {
    pub(super) fn is_over(&self) -> bool {
        self.gives_up_at.is_some_and(BootTime::has_passed)
    }
}

impl RedisLock {
    /// Sleep until it may be our turn: a wake-up, the holder's expiry, or the next renewal of our place.
    pub(super) fn wait_for_wakeup(
        &mut self,
        blocked: &Blocked,
        gives_up_at: Option<BootTime>,
        observer: &mut dyn Observer,
    ) -> Result<Received<Woken>, Signal> {
        let mut at_most = WAITER_RENEWAL;
        if let (Some(0), Some(expiry)) = (blocked.position, blocked.expires_in()) {
            at_most = at_most.min(expiry + Duration::from_millis(1));
        }
        if let Some(gives_up_at) = gives_up_at {
            at_most = at_most.min(gives_up_at.remaining());
        }
        // Zero would mean "forever" to the server.
        let at_most = at_most.max(Duration::from_millis(1));
        let list = self.requests.notify_list(self.waiter);
        let until = BootTime::now() + at_most + BLPOP_SLACK + self.servers.node_timeout;
        let call = Call::BlockingPop { list, at_most };
        let mut round = Round::default();
        round.ask(&mut self.servers, self.gate, call, Some(until));
        round.only_reply(&mut self.servers, Watch::Observer(observer))
    }

    /// The gate is gone for all its waiters, but not all notice it at the same time: those behind let those ahead
    /// turn to the next server first.
    pub(super) fn yield_to_those_ahead(&self, blocked: &Blocked, is_silent: bool) -> Option<Duration> {
        let ahead = blocked.position.filter(|&ahead| ahead > 0 && self.servers.len() > 1)?;
        let in_turn = TURN * u32::try_from(ahead).unwrap_or(u32::MAX).min(MOST_TURNS);
        // The others notice a silent server only at their next renewal.
        Some(if is_silent { WAITER_RENEWAL + in_turn } else { in_turn })
    }

    /// A waiter needs one connection; the next in line opens those to the other servers.
    pub(super) fn connect_ahead(&mut self, we_are_next: bool) {
        for at in self.servers.all_but(self.gate) {
            let member = &mut self.servers[at];
            if we_are_next && !member.is_avoided() {
                member.node.connect();
            } else {
                member.node.disconnect();
            }
        }
    }
}

/// A pause that grows with each failure in a row, and differs between waiters; or as long as is given.
pub(super) fn pause(progress: &Progress, exactly: Option<Duration>, observer: &mut dyn Observer) -> Wait {
    let until = BootTime::now() + exactly.unwrap_or_else(|| backoff(progress.failures_in_a_row));
    sleep(progress.gives_up_at.map_or(until, |gives_up_at| until.min(gives_up_at)), observer)
}
