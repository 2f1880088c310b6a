//! Counting votes: a pure function from the servers' replies to their meaning.

use std::time::Duration;

use super::longest_lease::LongestLease;
use super::reply::{AcquireReply, Bound, Granted, Quarantined, Refusal};
use crate::clock::BootTime;
use crate::lock::{BackendError, Blocked, Blocker, Problem, majority_of};
use crate::world::{Rule, follows};

/// A server that has kept its data for a shorter time than this may not know the longest quarantine
/// yet.
const YOUNG: Duration = Duration::from_mins(10);

/// A server's reply to an acquire request.
#[derive(Clone, Debug)]
pub(super) enum Vote {
    /// `sent_at`: when it was requested or last renewed.
    Yes {
        granted: Granted,
        sent_at: BootTime,
    },
    No(Box<Refusal>),
    Quarantined(Quarantined),
    Failed(BackendError),
}

impl Vote {
    /// What the server has reported.
    fn bound(&self) -> Option<&Bound> {
        match self {
            Self::Yes { granted, .. } => Some(&granted.memory.bound),
            Self::Quarantined(quarantined) => Some(&quarantined.bound),
            Self::No(refusal) => follows(Rule::RefusalsReport).then_some(&refusal.bound),
            Self::Failed(_) => None,
        }
    }
}

/// The result of all votes together.
#[derive(Debug)]
pub(super) enum Verdict {
    /// A majority of all configured servers voted for us.
    Won,
    /// The lock is held, and enough servers can vote for a majority to be possible later.
    Held(Box<Blocked>),
    /// Too many servers are quarantined: their names and remaining times, and the errors of those
    /// that failed.
    Quarantined(Vec<(String, Duration)>, Vec<BackendError>),
    /// Too many servers failed.
    Failed(BackendError),
}

/// The votes of one attempt, one entry for each configured server.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    names: Vec<String>,
    votes: Vec<Option<Vote>>,
    /// It applies to every vote.
    longest_lease: LongestLease,
    /// A vote showed that the set of servers is misconfigured.
    unfit: Option<BackendError>,
}

impl Tally {
    pub(super) fn new(names: Vec<String>, longest_lease: LongestLease) -> Self {
        let votes = vec![None; names.len()];
        Self { names, votes, longest_lease, unfit: None }
    }

    fn majority(&self) -> usize {
        majority_of(self.votes.len())
    }

    fn tolerated(&self) -> usize {
        self.votes.len() - self.majority()
    }

    pub(super) fn add(&mut self, at: usize, vote: Vote) {
        if let Some(bound) = vote.bound() {
            self.longest_lease.hear(bound);
        }
        if let Some(error) = self.unfitness(at, &vote) {
            self.unfit.get_or_insert(error);
        } else {
            self.votes[at] = Some(vote);
        }
    }

    /// Adds the reply of a server other than the gate to a request sent at this moment.
    pub(super) fn add_reply(
        &mut self,
        at: usize,
        sent_at: BootTime,
        reply: Result<AcquireReply, BackendError>,
    ) {
        let vote = match reply {
            Ok(AcquireReply::Granted(granted)) => Vote::Yes { granted, sent_at },
            Ok(AcquireReply::Quarantined(quarantined)) => Vote::Quarantined(quarantined),
            Ok(AcquireReply::Refused(refusal)) => Vote::No(refusal),
            // This server may know a newer request that the others have forgotten, or whose stamp is
            // from a clock that is ahead: it is outvoted like one that refuses.
            Ok(AcquireReply::Superseded(by)) => {
                let blocked = Blocked { key: by.key, position: None, queue_length: 0, by: Blocker::Queue };
                Vote::No(Box::new(Refusal::unexplained(blocked)))
            }
            Ok(AcquireReply::Nested | AcquireReply::Done(_)) => {
                Vote::Failed(BackendError::new(self.names[at].clone(), Problem::UnexpectedReply))
            }
            Err(error) => Vote::Failed(error),
        };
        self.add(at, vote);
    }

    /// Our vote at this server was renewed at this moment.
    pub(super) fn renew(&mut self, at: usize, moment: BootTime) {
        if let Some(Vote::Yes { sent_at, .. }) = &mut self.votes[at] {
            *sent_at = moment;
        }
    }

    /// Our vote at this server was lost.
    pub(super) fn remove(&mut self, at: usize) {
        self.votes[at] = None;
    }

    /// An error that makes the whole set of servers unusable, rather than one server.
    fn unfitness(&self, at: usize, vote: &Vote) -> Option<BackendError> {
        match vote {
            Vote::Failed(error) if error.problem.is_about_the_set() => Some(error.clone()),
            Vote::Yes { granted, .. } if !granted.run_id.is_empty() => {
                let other = self.votes.iter().enumerate().find_map(|(other, vote)| match vote {
                    Some(Vote::Yes { granted: theirs, .. }) if other != at => {
                        (theirs.run_id == granted.run_id).then_some(other)
                    }
                    _ => None,
                })?;
                let other = self.names[other].clone();
                Some(BackendError::new(self.names[at].clone(), Problem::ListedTwice { other }))
            }
            Vote::Yes { .. } | Vote::No(_) | Vote::Quarantined(_) | Vote::Failed(_) => None,
        }
    }

    pub(super) fn longest_lease(&self) -> &LongestLease {
        &self.longest_lease
    }

    pub(super) fn unfit(&self) -> Option<&BackendError> {
        self.unfit.as_ref()
    }

    /// How much longer a server that granted must keep its data before its vote counts.
    fn quarantine_left(&self, granted: &Granted) -> Duration {
        self.longest_lease.quarantine_left(granted.memory.known_for)
    }

    /// The votes that count: the servers and what they granted.
    pub(super) fn yes(&self) -> impl Iterator<Item = (usize, &Granted)> {
        self.votes.iter().enumerate().filter_map(|(at, vote)| match vote {
            Some(Vote::Yes { granted, .. }) if self.quarantine_left(granted).is_zero() => Some((at, granted)),
            Some(Vote::Yes { .. } | Vote::No(_) | Vote::Quarantined(_) | Vote::Failed(_)) | None => None,
        })
    }

    /// The servers that have granted, whether their votes count or not.
    pub(super) fn granted(&self) -> impl Iterator<Item = usize> {
        let votes = self.votes.iter().enumerate();
        votes.filter(|(_, vote)| matches!(vote, Some(Vote::Yes { .. }))).map(|(at, _)| at)
    }

    /// When the oldest of the votes that count was requested or last renewed.
    pub(super) fn lease_from(&self) -> Option<BootTime> {
        let sent_at = self.yes().filter_map(|(at, _)| match &self.votes[at] {
            Some(Vote::Yes { sent_at, .. }) => Some(*sent_at),
            Some(Vote::No(_) | Vote::Quarantined(_) | Vote::Failed(_)) | None => None,
        });
        sent_at.min()
    }

    /// The servers that have not acknowledged a lease of this length. Those that have voted, for us or
    /// not, have, unless they are too young to vouch for it.
    pub(super) fn unacknowledged(&self, ttl: Duration) -> Vec<String> {
        let has_heard = |vote: &Vote| {
            let can_vouch = matches!(vote, Vote::Yes { .. } | Vote::No(_));
            can_vouch && vote.bound().is_some_and(|bound| bound.longest >= ttl)
        };
        let votes = self.names.iter().zip(&self.votes);
        let unheard = votes.filter(|(_, vote)| !vote.as_ref().is_some_and(has_heard));
        unheard.map(|(name, _)| name.clone()).collect()
    }

    /// The servers that have not voted.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.votes.len()).filter(|&at| self.votes[at].is_none()).collect()
    }

    fn failures(&self) -> Vec<BackendError> {
        let errors = self.votes.iter().flatten().filter_map(|vote| match vote {
            Vote::Failed(error) => Some(error.clone()),
            Vote::Yes { .. } | Vote::No(_) | Vote::Quarantined(_) => None,
        });
        errors.collect()
    }

    /// The errors of the servers that cannot vote: those that failed, and those that are
    /// quarantined.
    pub(super) fn abstentions(&self) -> Vec<BackendError> {
        let in_quarantine = self.names.iter().zip(&self.votes).filter_map(|(name, vote)| {
            let left = match vote.as_ref()? {
                Vote::Quarantined(Quarantined { left, .. }) => *left,
                Vote::Yes { granted, .. } => self.quarantine_left(granted),
                Vote::No(_) | Vote::Failed(_) => Duration::ZERO,
            };
            (!left.is_zero()).then(|| BackendError::new(name.clone(), Problem::InQuarantine(left)))
        });
        self.failures().into_iter().chain(in_quarantine).collect()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.votes.iter().any(|vote| matches!(vote, Some(Vote::Failed(_))))
    }

    pub(super) fn has_quarantined(&self) -> bool {
        self.votes.iter().any(|vote| matches!(vote, Some(Vote::Quarantined(_))))
    }

    /// All errors as one, if they alone make a majority impossible.
    pub(super) fn too_many_failed(&self) -> Option<BackendError> {
        let errors = self.failures();
        let is_too_many = errors.len() > self.tolerated();
        is_too_many.then(|| BackendError::no_majority(errors, self.votes.len()))
    }

    pub(super) fn has_majority(&self) -> bool {
        self.yes().count() >= self.majority()
    }

    /// Whether the majority needs servers that may not know the longest bound. A server that has not
    /// voted yet may know it.
    pub(super) fn depends_on_young_servers(&self) -> bool {
        let is_old = |granted: &Granted| granted.memory.known_for >= YOUNG;
        self.votes.len() > 1 && self.yes().filter(|(_, granted)| is_old(granted)).count() < self.majority()
    }

    /// Whether too many servers did not vote for us.
    pub(super) fn cannot_win(&self) -> bool {
        let voted = self.votes.iter().flatten().count();
        voted - self.yes().count() > self.tolerated()
    }

    /// Whether there is no majority without this server.
    pub(super) fn needs(&self, at: usize) -> bool {
        let others = self.votes.iter().enumerate().filter(|(other, _)| *other != at);
        let without = others.filter(|(_, vote)| !matches!(vote, None | Some(Vote::Yes { .. })));
        without.count() >= self.tolerated()
    }

    /// Whether too many servers cannot vote at all: waiting for the others would not help.
    pub(super) fn cannot_be_completed(&self) -> bool {
        let cannot_vote = self.votes.iter().flatten().filter(|vote| match vote {
            Vote::Failed(_) | Vote::Quarantined(_) => true,
            Vote::Yes { granted, .. } => !self.quarantine_left(granted).is_zero(),
            Vote::No(_) => false,
        });
        cannot_vote.count() > self.tolerated()
    }

    /// `late` returns the error of a server that did not reply in time.
    pub(super) fn verdict(mut self, late: impl Fn(usize) -> BackendError) -> Verdict {
        if let Some(error) = self.unfit {
            return Verdict::Failed(error);
        }
        if self.has_majority() {
            return Verdict::Won;
        }
        // If the attempt was lost already, servers without a reply do not count as failed.
        if !self.cannot_win() {
            for at in self.missing() {
                self.votes[at] = Some(Vote::Failed(late(at)));
            }
        }
        let tolerated = self.tolerated();
        let (mut errors, mut quarantined, mut blocked) = (Vec::new(), Vec::new(), None);
        for (name, vote) in self.names.iter().zip(&self.votes) {
            match vote {
                Some(Vote::Failed(error)) => errors.push(error.clone()),
                Some(Vote::Quarantined(Quarantined { left, .. })) => quarantined.push((name.clone(), *left)),
                Some(Vote::No(refusal)) => blocked = Some(Box::new(refusal.blocked.clone())),
                Some(Vote::Yes { granted, .. }) => {
                    let left = self.quarantine_left(granted);
                    quarantined.extend((!left.is_zero()).then(|| (name.clone(), left)));
                }
                None => {}
            }
        }
        match blocked {
            Some(blocked) if errors.len() + quarantined.len() <= tolerated => Verdict::Held(blocked),
            // Without a refusal, the failures alone prevent a majority.
            _ if quarantined.is_empty() || errors.len() > tolerated => {
                Verdict::Failed(BackendError::no_majority(errors, self.names.len()))
            }
            _ => Verdict::Quarantined(quarantined, errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::redis::reply::Memory;
    use crate::lock::{Blocker, Fault, ServerError};

    fn known_for(id: &str, seconds: u64) -> Vote {
        let memory = Memory { known_for: Duration::from_secs(seconds), bound: Bound::default() };
        let granted = Granted { fences: vec![1], slots: Vec::new(), run_id: id.into(), stamp: 1, memory };
        Vote::Yes { granted, sent_at: BootTime::from_nanos(0) }
    }

    fn yes(id: &str) -> Vote {
        known_for(id, 3600)
    }

    fn no() -> Vote {
        let blocked = Blocked { key: 0, position: None, queue_length: 0, by: Blocker::Queue };
        Vote::No(Box::new(Refusal::unexplained(blocked)))
    }

    fn quarantined(longest: u64) -> Vote {
        let bound = Bound { longest: Duration::from_secs(longest), raised_ago: Duration::ZERO };
        Vote::Quarantined(Quarantined { left: Duration::from_secs(1), bound })
    }

    fn down() -> Vote {
        Vote::Failed(BackendError::new("n", Problem::ConnectionRefused))
    }

    fn refused() -> Vote {
        Vote::Failed(BackendError::new("n", Problem::Server(ServerError::new("NOAUTH", None, "AUTH"))))
    }

    fn tally(votes: Vec<Vote>, servers: usize) -> Tally {
        let mut tally = Tally::new((0..servers).map(|n| format!("n{n}")).collect(), LongestLease::default());
        for (at, vote) in votes.into_iter().enumerate() {
            tally.add(at, vote);
        }
        tally
    }

    fn verdict(votes: Vec<Vote>, servers: usize) -> Verdict {
        tally(votes, servers).verdict(|_| BackendError::new("n", Problem::TimedOut))
    }

    #[test]
    fn a_majority_counts_configured_servers_not_reachable_ones() {
        assert_eq!([1, 2, 3, 4, 5, 9].map(majority_of), [1, 2, 2, 3, 3, 5]);
        assert!(matches!(verdict(vec![yes("a"), yes("b")], 3), Verdict::Won));
        assert!(matches!(verdict(vec![yes("a"), yes("b")], 5), Verdict::Failed(_)));
    }

    #[test]
    fn a_majority_of_old_servers_does_not_depend_on_young_ones() {
        let with_quarantine = |votes: Vec<Vote>| {
            let mut tally = tally(votes, 3);
            tally.longest_lease = LongestLease::new(Duration::from_secs(2));
            tally
        };
        let (old, young) = (yes("a"), known_for("b", 60));
        assert!(with_quarantine(vec![old.clone(), young.clone()]).depends_on_young_servers());
        assert!(!with_quarantine(vec![old.clone(), young.clone(), yes("c")]).depends_on_young_servers());
        assert!(tally(vec![old, young], 3).depends_on_young_servers(), "even without a quarantine");
    }

    #[test]
    fn a_held_lock_and_failed_servers_are_different_verdicts() {
        assert!(matches!(verdict(vec![yes("a"), no(), no()], 3), Verdict::Held(_)));
        assert!(matches!(verdict(vec![yes("a"), down(), no()], 3), Verdict::Held(_)));
        assert!(matches!(verdict(vec![yes("a"), down(), down()], 3), Verdict::Failed(_)));
        assert!(matches!(verdict(vec![no(), down(), down()], 3), Verdict::Failed(_)));
        let quarantined = || quarantined(30);
        assert!(matches!(verdict(vec![yes("a"), quarantined(), down()], 3), Verdict::Quarantined(..)));
        assert!(matches!(verdict(vec![yes("a"), quarantined(), no()], 3), Verdict::Held(_)));
        assert!(matches!(verdict(vec![no(), quarantined(), down()], 3), Verdict::Quarantined(..)));
    }

    #[test]
    fn the_longest_reported_quarantine_applies_to_every_vote() {
        let votes = vec![known_for("a", 5), known_for("b", 5)];
        assert!(matches!(verdict(votes.clone(), 3), Verdict::Won), "no client has a quarantine");
        let reported = [votes, vec![quarantined(12)]].concat();
        let Verdict::Quarantined(servers, _) = verdict(reported, 3) else { panic!("two do not count") };
        assert_eq!(servers.len(), 3);
    }

    #[test]
    fn a_longer_bound_takes_only_servers_away_that_may_have_forgotten_it() {
        let raised = |ago| {
            let bound = Bound { longest: Duration::from_secs(120), raised_ago: Duration::from_secs(ago) };
            let mut vote = known_for("c", 3600);
            if let Vote::Yes { granted, .. } = &mut vote {
                granted.memory.bound = bound;
            }
            vote
        };
        let known = |seconds| vec![known_for("a", seconds), known_for("b", seconds)];
        let wins = |votes: Vec<Vote>| matches!(verdict(votes, 3), Verdict::Won);
        assert!(wins([known(60), vec![raised(50)]].concat()), "they were there when it was raised");
        assert!(!wins([known(40), vec![raised(50)]].concat()), "they may have forgotten it");
        assert!(wins([known(122), vec![raised(200)]].concat()), "they have outlasted it");
    }

    #[test]
    fn an_unfit_minority_counts_as_failed() {
        let replica = || Vote::Failed(BackendError::new("n", Problem::Replica));
        assert!(matches!(verdict(vec![yes("a"), yes("b"), replica()], 3), Verdict::Won));
        let fault = |votes| match verdict(votes, 3) {
            Verdict::Failed(error) => error.fault(),
            other => panic!("{other:?}"),
        };
        assert_eq!(fault(vec![yes("a"), down(), replica()]), Fault::Unfit, "without it there is no majority");
        assert_eq!(fault(vec![down(), down(), replica()]), Fault::Unavailable);
    }

    #[test]
    fn a_server_with_two_names_makes_the_set_unfit() {
        let tally = tally(vec![yes("a"), no(), yes("a")], 3);
        let unfit = tally.unfit().unwrap();
        assert!(matches!(&unfit.problem, Problem::ListedTwice { other } if other == "n0"));
        assert_eq!(unfit.at.as_deref(), Some("n2"));
    }

    #[test]
    fn refusals_determine_the_fault_only_if_they_prevent_a_majority() {
        let fault = |votes| match verdict(votes, 3) {
            Verdict::Failed(error) => error.fault(),
            other => panic!("{other:?}"),
        };
        assert_eq!(fault(vec![refused(), refused(), yes("a")]), Fault::Refused);
        assert_eq!(fault(vec![refused(), down(), yes("a")]), Fault::Unavailable);
    }
}
