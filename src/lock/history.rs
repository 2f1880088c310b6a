//! Finished runs, as `redlock history` shows them.

use std::time::{Duration, SystemTime};

use super::{Ended, Holder, HolderInfo, Mode, State, Status};

/// The runs of one lock.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Finished runs, each once, in the order in which they ended.
    pub runs: Vec<FinishedRun>,
    /// The runs that hold the lock or wait for it now.
    pub status: Status,
}

impl History {
    /// `runs`: in any order. A run that several servers report, or that ended during the look, is
    /// kept once.
    pub(crate) fn new(mut runs: Vec<FinishedRun>, status: Status) -> Self {
        runs.sort_by(|a, b| (a.waiter(), a.credibility()).cmp(&(b.waiter(), b.credibility())));
        runs.dedup_by(|later, first| !first.token.is_empty() && first.waiter() == later.waiter());
        runs.sort_by_key(|run| run.ended_at);
        Self { runs, status }
    }

    /// The holders whose runs have not ended, longest first. A foreign lock has none.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Holder> {
        let has_ended = |holder: &Holder| {
            let token = holder.token.as_deref().map(waiter_of);
            holder.has_ended() || self.runs.iter().any(|run| Some(run.waiter()) == token)
        };
        let is_ours = self.status.state != State::Foreign;
        self.status.holders.iter().filter(move |holder| is_ours && !has_ended(holder))
    }

    /// Drop all runs but those that have failed.
    pub(crate) fn keep_failed(&mut self) {
        self.runs.retain(|run| run.ended.has_failed());
        self.status = Status::free(std::mem::take(&mut self.status.key));
    }
}

/// The token without the attempt, which identifies the run.
fn waiter_of(token: &str) -> &str {
    token.split('.').next().unwrap_or_default()
}

/// A finished run of one key. Unknown fields are `None` or empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FinishedRun {
    pub ended_at: SystemTime,
    pub waited: Option<Duration>,
    /// Also `None` if it never had the lock.
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

    /// Smaller is more credible. A run that others saw expire may have recorded its own end; if it
    /// did so twice, the first record is right: the second found the lock gone because of the
    /// first.
    pub(crate) fn credibility(&self) -> (bool, SystemTime) {
        (self.ended.how.is_expiry(), self.ended_at)
    }

    /// When it got the lock or, if it never did, when it gave up.
    pub(crate) fn began(&self) -> SystemTime {
        self.ended_at.checked_sub(self.held.unwrap_or_default()).unwrap_or(self.ended_at)
    }

    /// When it requested the lock.
    pub(crate) fn requested(&self) -> SystemTime {
        let began = self.began();
        began.checked_sub(self.waited.unwrap_or_default()).unwrap_or(began)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lock::HolderKind;
    use crate::lock::Outcome;
    use std::time::UNIX_EPOCH;

    /// A run with all other fields unknown. `ended`: in seconds after 1970.
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
    fn a_run_that_several_servers_report_is_one_and_its_own_record_counts() {
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
    fn a_holder_that_ended_during_the_look_is_not_running() {
        let holder = |token: &str| Holder { token: Some(token.into()), ..Holder::default() };
        let kept = Holder { kind: HolderKind::Reservation, ..holder("c.1") };
        let mut status = Status::free(b"k".to_vec());
        status.holders = vec![holder("a.1"), holder("b.1"), kept];
        let history = History::new(vec![run("a.2", 7, Outcome::Released)], status);
        let running: Vec<_> = history.running().filter_map(|holder| holder.token.as_deref()).collect();
        assert_eq!(running, ["b.1"]);
    }
}
