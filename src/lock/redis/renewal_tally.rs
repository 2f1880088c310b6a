//! Counting renewals: pure, like tally.rs.

use crate::clock::BootTime;
use crate::lock::{BackendError, Extended, Lease, Loss, Votes, majority_of};

/// Whether a server's renewal of our vote counts. A server that lost its data and was healed may
/// have voted for another client in between. That is harmless only if its earlier vote for us has
/// never expired.
pub(super) fn renewal_counts(vote_until: Option<BootTime>, is_quarantined: bool, now: BootTime) -> bool {
    !is_quarantined || vote_until.is_some_and(|until| now < until)
}

/// The servers' replies to a renewal.
#[derive(Debug, Default)]
pub(super) struct RenewalTally {
    /// The run ID of each server that renewed, and the lease of its vote. A server that is listed
    /// twice has one vote.
    ours: Vec<(Vec<u8>, Lease)>,
    lost: Vec<Loss>,
    errors: Vec<BackendError>,
}

impl RenewalTally {
    pub(super) fn add_ours(&mut self, run_id: Vec<u8>, vote: Lease) {
        match self.ours.iter_mut().find(|(known, _)| *known == run_id) {
            Some((_, latest)) if latest.deadline() >= vote.deadline() => {}
            Some((_, latest)) => *latest = vote,
            None => self.ours.push((run_id, vote)),
        }
    }

    pub(super) fn add_lost(&mut self, loss: Loss) {
        self.lost.push(loss);
    }

    pub(super) fn add_error(&mut self, error: BackendError) {
        self.errors.push(error);
    }

    /// The lease on which a majority agrees: of the votes with the latest deadlines, the one that
    /// ends first.
    pub(super) fn lease(&self, servers: usize) -> Option<Lease> {
        let mut votes: Vec<Lease> = self.ours.iter().map(|(_, vote)| *vote).collect();
        votes.sort_unstable_by_key(|vote| std::cmp::Reverse(vote.deadline()));
        votes.get(majority_of(servers) - 1).copied()
    }

    fn is_lost(&self, servers: usize) -> bool {
        self.lost.len() > servers - majority_of(servers)
    }

    /// Whether a majority has renewed until this deadline, or no longer can.
    pub(super) fn is_decided(&self, servers: usize, deadline: BootTime) -> bool {
        self.is_lost(servers) || self.lease(servers).is_some_and(|lease| lease.deadline() >= deadline)
    }

    /// `renewed` is the lease if it is longer than before; `late` are the errors of servers that
    /// have not replied; `otherwise` is the error if all have replied and none with an error.
    pub(super) fn verdict(
        self,
        servers: usize,
        renewed: Option<Lease>,
        late: Vec<BackendError>,
        otherwise: BackendError,
    ) -> Extended {
        match (renewed, self.lost.iter().max().cloned()) {
            (Some(lease), _) => {
                Extended::Until(lease, Votes { servers, voted: self.ours.len(), failures: self.errors })
            }
            (None, Some(loss)) if self.is_lost(servers) => Extended::Lost(loss),
            _ if self.errors.is_empty() && late.is_empty() => Extended::Unknown(otherwise),
            _ => Extended::Unknown(BackendError::no_majority([self.errors, late].concat(), servers)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Problem;
    use std::time::Duration;

    fn timed_out(server: &str) -> BackendError {
        BackendError::new(server, Problem::TimedOut)
    }

    #[test]
    fn a_healed_server_counts_while_its_last_vote_holds() {
        let at = |seconds: u64| BootTime::from_nanos(seconds * 1_000_000_000);
        assert!(renewal_counts(None, false, at(5)), "a server that has kept its data");
        assert!(renewal_counts(Some(at(6)), true, at(5)));
        assert!(!renewal_counts(Some(at(5)), true, at(5)));
        assert!(!renewal_counts(None, true, at(5)));
    }

    fn lease(sent_at: u64, ttl: u64) -> Lease {
        Lease::new(BootTime::from_nanos(sent_at * 1_000_000_000), Duration::from_secs(ttl))
    }

    #[test]
    fn a_renewal_needs_a_majority_of_different_servers() {
        let deadline = |tally: &RenewalTally| tally.lease(3).map(|lease| lease.deadline());
        let mut tally = RenewalTally::default();
        tally.add_ours(b"a".to_vec(), lease(9, 10));
        tally.add_ours(b"a".to_vec(), lease(9, 10));
        assert_eq!(deadline(&tally), None);
        tally.add_ours(b"b".to_vec(), lease(5, 10));
        assert_eq!(deadline(&tally), Some(lease(5, 10).deadline()), "a late reply counts from its own round");
        assert!(!tally.is_decided(3, lease(9, 10).deadline()));
        tally.add_ours(b"c".to_vec(), lease(9, 10));
        assert!(tally.is_decided(3, lease(9, 10).deadline()));
    }

    #[test]
    fn a_vote_counts_with_the_ttl_that_it_was_requested_with() {
        let mut tally = RenewalTally::default();
        tally.add_ours(b"a".to_vec(), lease(0, 5));
        tally.add_ours(b"b".to_vec(), lease(0, 5));
        tally.add_ours(b"c".to_vec(), lease(1, 60));
        assert_eq!(tally.lease(3).map(|lease| lease.deadline()), Some(lease(0, 5).deadline()));
    }

    #[test]
    fn a_majority_that_has_lost_the_lock_decides() {
        let mut tally = RenewalTally::default();
        tally.add_lost(Loss::Expired);
        assert!(!tally.is_decided(3, BootTime::now()));
        tally.add_lost(Loss::Foreign);
        assert!(matches!(tally.verdict(3, None, Vec::new(), timed_out("a")), Extended::Lost(Loss::Foreign)));
    }

    #[test]
    fn a_server_that_has_renewed_is_not_blamed() {
        let mut tally = RenewalTally::default();
        tally.add_ours(b"a".to_vec(), lease(0, 5));
        tally.add_error(timed_out("b"));
        let Extended::Unknown(error) = tally.verdict(3, None, vec![timed_out("c")], timed_out("a")) else {
            panic!("no majority has renewed")
        };
        let Problem::NoMajority { causes, .. } = &error.problem else { panic!("{error:?}") };
        let blamed: Vec<_> = causes.iter().map(|cause| cause.at.as_deref()).collect();
        assert_eq!(blamed, [Some("b"), Some("c")]);
    }
}
