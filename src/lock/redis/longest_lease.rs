//! How long a server must have kept its data before its vote counts: longer than any lease that it
//! may have forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use super::reply::Bound;
use super::script::USUAL_LEASE;
use crate::clock::BootTime;
use crate::world::{Rule, follows};

/// A server must have kept its data for this much longer than the lease.
const SLACK: Duration = Duration::from_secs(1);

/// The longest lease that any client may have, as far as is known here: our own quarantine, and what
/// servers have reported.
#[derive(Clone, Debug, Default)]
pub(super) struct LongestLease {
    /// Our own quarantine, or a usual bound that is longer.
    quarantine: Duration,
    /// The bounds that are longer than usual, and since when there may be leases that need them. These
    /// are granted only after every server has acknowledged them, so a server that knows of none has
    /// forgotten none, unless it has lost its data since then.
    raised: BTreeMap<Duration, BootTime>,
}

impl LongestLease {
    pub(super) fn new(quarantine: Duration) -> Self {
        Self { quarantine, raised: BTreeMap::new() }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.quarantine.is_zero() && self.raised.is_empty()
    }

    /// A server reports this bound.
    pub(super) fn hear(&mut self, bound: &Bound) {
        if bound.longest > USUAL_LEASE && follows(Rule::RaisedBound) {
            self.add_raised(bound.longest, BootTime::now().minus(bound.raised_ago));
        } else {
            self.quarantine = self.quarantine.max(bound.longest);
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.quarantine = self.quarantine.max(other.quarantine);
        other.raised.iter().for_each(|(&longest, &at)| self.add_raised(longest, at));
    }

    fn add_raised(&mut self, longest: Duration, at: BootTime) {
        let first = self.raised.entry(longest).or_insert(at);
        *first = at.min(*first);
    }

    /// How much longer a server that has kept its data for this time must keep it.
    pub(super) fn quarantine_left(&self, known_for: Duration) -> Duration {
        if self.is_zero() || !follows(Rule::Memory) {
            return Duration::ZERO;
        }
        let left = |longest: Duration, raised_ago: Duration| {
            let has_forgotten_none = known_for >= raised_ago.max(USUAL_LEASE) + SLACK;
            if has_forgotten_none { Duration::ZERO } else { (longest + SLACK).saturating_sub(known_for) }
        };
        let of_raised = self.raised.iter().map(|(&longest, at)| left(longest, at.elapsed()));
        of_raised.fold(left(self.quarantine, Duration::ZERO), Duration::max)
    }
}
