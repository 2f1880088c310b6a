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
    /// The run ID of each server that renewed, and the start of its vote. A server that is listed
    /// twice has one vote.
    ours: Vec<(Vec<u8>, BootTime)>,
    lost: Vec<Loss>,
    errors: Vec<BackendError>,
}

impl RenewalTally {
    pub(super) fn add_ours(&mut self, run_id: Vec<u8>, sent_at: BootTime) {
        match self.ours.iter_mut().find(|(known, _)| *known == run_id) {
            Some((_, latest)) => *latest = (*latest).max(sent_at),
            None => self.ours.push((run_id, sent_at)),
        }
    }

    pub(super) fn add_lost(&mut self, loss: Loss) {
        self.lost.push(loss);
    }

    pub(super) fn add_error(&mut self, error: BackendError) {
        self.errors.push(error);
    }

    /// The latest moment from which the votes of a majority hold.
    pub(super) fn renewed_from(&self, servers: usize) -> Option<BootTime> {
        let mut moments: Vec<BootTime> = self.ours.iter().map(|(_, sent_at)| *sent_at).collect();
        moments.sort_unstable_by(|a, b| b.cmp(a));
        moments.get(majority_of(servers) - 1).copied()
    }

    fn is_lost(&self, servers: usize) -> bool {
        self.lost.len() > servers - majority_of(servers)
    }

    /// Whether a majority has renewed from this moment on, or no longer can.
    pub(super) fn is_decided(&self, servers: usize, sent_at: BootTime) -> bool {
        self.is_lost(servers) || self.renewed_from(servers).is_some_and(|from| from >= sent_at)
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

    #[test]
    fn a_renewal_needs_a_majority_of_different_servers() {
        let at = |seconds: u64| BootTime::from_nanos(seconds * 1_000_000_000);
        let mut tally = RenewalTally::default();
        tally.add_ours(b"a".to_vec(), at(9));
        tally.add_ours(b"a".to_vec(), at(9));
        assert_eq!(tally.renewed_from(3), None);
        tally.add_ours(b"b".to_vec(), at(5));
        assert_eq!(tally.renewed_from(3), Some(at(5)), "a late reply counts from its own round");
        assert!(!tally.is_decided(3, at(9)));
        tally.add_ours(b"c".to_vec(), at(9));
        assert!(tally.is_decided(3, at(9)));
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
        tally.add_ours(b"a".to_vec(), BootTime::now());
        tally.add_error(timed_out("b"));
        let Extended::Unknown(error) = tally.verdict(3, None, vec![timed_out("c")], timed_out("a")) else {
            panic!("no majority has renewed")
        };
        let Problem::NoMajority { causes, .. } = &error.problem else { panic!("{error:?}") };
        let blamed: Vec<_> = causes.iter().map(|cause| cause.at.as_deref()).collect();
        assert_eq!(blamed, [Some("b"), Some("c")]);
    }
}
