//! All servers together: how many can vote, and how many more may fail.

use super::server::Vote;
use super::{Judged, Level, What};
use crate::lock::checkup::ServersCheckup;
use crate::lock::majority_of;

/// Servers whose clocks differ by more than this disagree about the order of events.
pub(super) const CLOCK_TOLERANCE_MS: u64 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quorum {
    pub servers: usize,
    pub needed: usize,
    pub can_vote: usize,
    /// Those that no lock was ever taken on: they can vote when a quarantine is over that begins with the first use.
    pub unused: usize,
}

impl Quorum {
    /// How many more servers may fail.
    pub(crate) fn may_fail(self) -> usize {
        (self.can_vote + self.unused).saturating_sub(self.needed)
    }
}

/// `votes`: of each server of the check-up.
pub(super) fn judge(checkup: &ServersCheckup, votes: &[Vote]) -> (Vec<Judged>, Quorum) {
    let configured = checkup.configured;
    let of = |at: usize| {
        // All masters of a cluster must serve, since any of them may be a lock's.
        let members = checkup.servers.iter().zip(votes).filter(|(server, _)| server.configured == at);
        members.map(|(_, vote)| *vote).min().unwrap_or(Vote::Cannot)
    };
    let count = |wanted| (0..configured).filter(|&at| of(at) == wanted).count();
    let quorum = Quorum {
        servers: configured,
        needed: majority_of(configured),
        can_vote: count(Vote::Can),
        unused: count(Vote::AfterFirstUse),
    };
    let level = match quorum {
        Quorum { can_vote, unused, needed, .. } if can_vote + unused < needed => Level::Problem,
        Quorum { can_vote, servers, .. } if can_vote == servers => Level::Ok,
        _ => Level::Warning,
    };
    let mut judged = vec![(level, What::Quorum(quorum))];
    if configured.is_multiple_of(2) {
        judged.push((Level::Warning, What::EvenNumber(configured)));
    }
    let clocks = checkup.servers.iter().filter_map(|server| {
        let clock = server.found.as_ref().ok()?.clock.as_ref().ok()?;
        let uncertainty = i64::try_from(clock.uncertainty.as_millis()).unwrap_or(i64::MAX);
        Some((clock.ahead_ms, uncertainty))
    });
    let clocks: Vec<(i64, i64)> = clocks.collect();
    // The smallest difference that is possible.
    let latest = clocks.iter().map(|(ahead, uncertainty)| ahead - uncertainty).max().unwrap_or(0);
    let earliest = clocks.iter().map(|(ahead, uncertainty)| ahead + uncertainty).min().unwrap_or(0);
    let by_ms = u64::try_from(latest - earliest).unwrap_or(0);
    if configured > 1 && by_ms > CLOCK_TOLERANCE_MS {
        judged.push((Level::Warning, What::ClocksDiffer { by_ms }));
    }
    (judged, quorum)
}
