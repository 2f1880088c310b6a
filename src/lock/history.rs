//! Finished runs: what a run leaves behind for `redlock history`.

use std::time::{Duration, SystemTime};

use super::{Ended, HolderInfo, HolderStatus, Mode, Outcome, State, Status};

/// The runs of one lock.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Those that have ended, each once, the first to end first.
    pub runs: Vec<FinishedRun>,
    /// Those that are there now.
    pub status: Status,
}

impl History {
    /// `runs`: in any order. One that several servers tell of, or that ended while it was looked at, is one run.
    pub(crate) fn new(mut runs: Vec<FinishedRun>, status: Status) -> Self {
        runs.sort_by(|a, b| (a.waiter(), a.credibility()).cmp(&(b.waiter(), b.credibility())));
        runs.dedup_by(|later, first| !first.token.is_empty() && first.waiter() == later.waiter());
        runs.sort_by_key(|run| run.ended_at);
        Self { runs, status }
    }

    /// The holders whose runs have not ended, longest first. Not those of another program.
    pub(crate) fn running(&self) -> impl Iterator<Item = &HolderStatus> {
        let has_ended = |holder: &HolderStatus| {
            let token = holder.token.as_deref().map(waiter_of);
            holder.has_ended || self.runs.iter().any(|run| Some(run.waiter()) == token)
        };
        let is_ours = self.status.state != State::Foreign;
        self.status.holders.iter().filter(move |holder| is_ours && !has_ended(holder))
    }

    /// Only the last of those that have ended.
    pub(crate) fn keep_last(&mut self, most: usize) {
        self.runs.drain(..self.runs.len().saturating_sub(most));
    }
}

/// A token without the attempt: a run has one such name.
fn waiter_of(token: &str) -> &str {
    token.split('.').next().unwrap_or_default()
}

/// A run of one key that has ended. What is not known is `None`, or empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FinishedRun {
    pub ended_at: SystemTime,
    pub waited: Option<Duration>,
    /// `None` if it never had the lock, too.
    pub held: Option<Duration>,
    pub info: HolderInfo,
    pub mode: Mode,
    pub slot: Option<u32>,
    /// The claim, as REDLOCK_TOKEN has it.
    pub token: String,
    pub fence: Option<u64>,
    pub ended: Ended,
}

impl FinishedRun {
    pub(crate) fn waiter(&self) -> &str {
        waiter_of(&self.token)
    }

    /// Smaller for what is to be believed: a run that was only seen to be gone may have told itself how it ended, and one
    /// that says so twice has lost the lock only the second time.
    pub(crate) fn credibility(&self) -> (bool, SystemTime) {
        (self.ended.how == Outcome::Expired, self.ended_at)
    }

    /// When it got the lock, or gave up.
    pub(crate) fn began(&self) -> SystemTime {
        self.ended_at.checked_sub(self.held.unwrap_or_default()).unwrap_or(self.ended_at)
    }

    /// When it asked for the lock.
    pub(crate) fn asked(&self) -> SystemTime {
        let began = self.began();
        began.checked_sub(self.waited.unwrap_or_default()).unwrap_or(began)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    /// Of which nothing else is known. It ended so many seconds after 1970.
    pub fn run(token: &str, ended: u64, how: Outcome) -> FinishedRun {
        FinishedRun {
            ended_at: UNIX_EPOCH + Duration::from_secs(ended),
            waited: None,
            held: None,
            info: HolderInfo::default(),
            mode: Mode::Exclusive,
            slot: None,
            token: token.into(),
            fence: None,
            ended: Ended::new(how),
        }
    }

    #[test]
    fn a_run_that_several_servers_tell_of_is_one_and_its_own_word_counts() {
        let runs = vec![
            run("b.1", 9, Outcome::Expired),
            run("a.1", 7, Outcome::Released),
            run("b.2", 10, Outcome::Lost),
            run("", 1, Outcome::Expired),
            run("a.1", 8, Outcome::Released),
            run("", 2, Outcome::Expired),
        ];
        let history = History::new(runs, Status::free(b"k".to_vec()));
        let ended: Vec<_> =
            history.runs.iter().map(|run| (run.token.as_str(), run.ended.how.name())).collect();
        assert_eq!(ended, [("", "expired"), ("", "expired"), ("a.1", "released"), ("b.2", "lost")]);
    }

    #[test]
    fn a_holder_that_has_ended_meanwhile_is_not_running() {
        let holder = |token: &str| HolderStatus { token: Some(token.into()), ..HolderStatus::default() };
        let kept = HolderStatus { has_ended: true, ..holder("c.1") };
        let mut status = Status::free(b"k".to_vec());
        status.holders = vec![holder("a.1"), holder("b.1"), kept];
        let history = History::new(vec![run("a.2", 7, Outcome::Released)], status);
        let running: Vec<_> = history.running().filter_map(|holder| holder.token.as_deref()).collect();
        assert_eq!(running, ["b.1"]);
    }
}
