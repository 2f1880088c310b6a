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
    raised: BTreeMap<Duration, LongBound>,
}

/// A bound that is longer than usual.
#[derive(Clone, Copy, Debug)]
struct LongBound {
    /// Since when there may be leases that need it.
    since: BootTime,
    /// When a server last reported it.
    reported: BootTime,
}

impl LongBound {
    /// Servers forget a bound when the leases that need it have expired: include/marker.lua.
    fn is_in_force(&self, longest: Duration) -> bool {
        self.reported.elapsed() <= longest * 5 / 4 + SLACK
    }
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
            let now = BootTime::now();
            self.add_raised(bound.longest, LongBound { since: now.minus(bound.raised_ago), reported: now });
        } else {
            self.quarantine = self.quarantine.max(bound.longest);
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.quarantine = self.quarantine.max(other.quarantine);
        let in_force = other.raised.iter().filter(|(longest, raised)| raised.is_in_force(**longest));
        in_force.for_each(|(&longest, &raised)| self.add_raised(longest, raised));
    }

    fn add_raised(&mut self, longest: Duration, raised: LongBound) {
        let known = self.raised.entry(longest).or_insert(raised);
        known.since = known.since.min(raised.since);
        known.reported = known.reported.max(raised.reported);
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
        let of_raised = self.raised.iter().map(|(&longest, raised)| left(longest, raised.since.elapsed()));
        of_raised.fold(left(self.quarantine, Duration::ZERO), Duration::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_no_server_has_reported_for_its_length_is_forgotten() {
        // The clock begins when the machine does.
        let longest = Duration::from_millis(100);
        let known = |reported: BootTime| {
            let mut heard = LongestLease::default();
            heard.add_raised(longest, LongBound { since: reported, reported });
            let mut known = LongestLease::default();
            known.add(&heard);
            known
        };
        assert!(known(BootTime::now().minus(SLACK * 2)).is_zero());
        assert_eq!(known(BootTime::now()).quarantine_left(Duration::ZERO), longest + SLACK);
    }
}
