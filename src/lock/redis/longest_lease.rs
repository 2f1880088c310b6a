//! How long a server must have kept its data before its vote counts: longer than any lease that it
//! may have forgotten.

use std::time::Duration;

use super::reply::Bound;
use super::script::USUAL_LEASE;
use crate::clock::BootTime;
use crate::world::{Rule, follows};

/// A server must have kept its data for this much longer than the lease.
const SLACK: Duration = Duration::from_secs(1);

/// The longest lease that any client may have, as far as is known here: our own quarantine, or what
/// a server has reported.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LongestLease {
    length: Duration,
    /// Since when there may be leases longer than usual. They are granted only after every server has
    /// acknowledged them, so a server that knows of none has forgotten none since then, unless it has
    /// lost its data since then.
    raised_at: Option<BootTime>,
}

impl LongestLease {
    pub(super) fn new(quarantine: Duration) -> Self {
        Self { length: quarantine, raised_at: None }
    }

    pub(super) fn is_zero(self) -> bool {
        self.length.is_zero()
    }

    /// A server reports this bound.
    pub(super) fn hear(&mut self, bound: &Bound) {
        let is_long = bound.longest > USUAL_LEASE && follows(Rule::RaisedBound);
        let raised_at = is_long.then(|| BootTime::now().minus(bound.raised_ago));
        self.add(Self { length: bound.longest, raised_at });
    }

    pub(super) fn add(&mut self, other: Self) {
        self.length = self.length.max(other.length);
        self.raised_at = self.raised_at.into_iter().chain(other.raised_at).min();
    }

    /// How much longer a server that has kept its data for this time must keep it.
    pub(super) fn quarantine_left(self, known_for: Duration) -> Duration {
        if self.length.is_zero() || !follows(Rule::Memory) {
            return Duration::ZERO;
        }
        let raised_ago = self.raised_at.map_or(Duration::ZERO, BootTime::elapsed);
        if known_for >= raised_ago.max(USUAL_LEASE) + SLACK {
            return Duration::ZERO;
        }
        (self.length + SLACK).saturating_sub(known_for)
    }
}
