//! Finished runs: what a run leaves behind for `redlock history`.

use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::{Error, HolderInfo, HolderStatus, Mode, State, Status};

/// How a run ended, as the one who gives the lock back knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub how: HowEnded,
    /// With which code redlock exits, if that is known already.
    pub exit: Option<i32>,
    /// Of which signal redlock dies.
    pub signal: Option<i32>,
    /// The lock stays taken until this long after the grant; may be zero.
    pub min_hold: Duration,
}

impl Ending {
    pub(crate) fn new(how: HowEnded) -> Self {
        Self { how, exit: None, signal: None, min_hold: Duration::ZERO }
    }

    /// Of a run that did not get the lock. `None` if that is no matter of the lock: the servers failed, or the run
    /// would have waited for itself.
    pub(crate) fn of_refusal(error: &Error, exit_if_held: u8) -> Option<Self> {
        let refused = |how| Some(Self { exit: Some(exit_if_held.into()), ..Self::new(how) });
        match error {
            Error::Held(_) => refused(HowEnded::GaveUp),
            Error::Superseded(superseded) => {
                refused(HowEnded::Superseded { by: Box::new(superseded.by.clone()) })
            }
            Error::Cancelled(signal) => Some(Self::cancelled(*signal)),
            Error::Nested | Error::Backend(_) => None,
        }
    }

    /// By this signal, before the command was started.
    pub(crate) fn cancelled(signal: Signal) -> Self {
        Self { signal: Some(signal as i32), ..Self::new(HowEnded::Cancelled) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HowEnded {
    /// The command ended, and the lock was given back.
    Released,
    /// The lock was taken, but the command could not be started.
    NotStarted,
    /// The lock was lost while the command ran.
    Lost,
    /// The lock was never given back: its holder was killed, or cut off.
    Expired,
    Broken {
        by: Box<HolderInfo>,
    },
    /// The command was stopped by --max-hold.
    MaxHold,
    /// The lock was held for longer than the run would wait.
    GaveUp,
    Superseded {
        by: Box<HolderInfo>,
    },
    /// By a signal, before the command was started.
    Cancelled,
}

impl HowEnded {
    /// As it is stored.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::NotStarted => "not_started",
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Broken { .. } => "broken",
            Self::MaxHold => "max_hold",
            Self::GaveUp => "gave_up",
            Self::Superseded { .. } => "superseded",
            Self::Cancelled => "cancelled",
        }
    }

    /// From its name; `by` is who broke or superseded the run. `None` for a name of a newer version.
    pub(crate) fn from_name(name: &[u8], by: HolderInfo) -> Option<Self> {
        let by = Box::new(by);
        let all = [
            Self::Released,
            Self::NotStarted,
            Self::Lost,
            Self::Expired,
            Self::Broken { by: by.clone() },
            Self::MaxHold,
            Self::GaveUp,
            Self::Superseded { by },
            Self::Cancelled,
        ];
        all.into_iter().find(|how| how.name().as_bytes() == name)
    }

    /// Who took the lock, or the place in the queue, away.
    pub(crate) fn by(&self) -> Option<&HolderInfo> {
        match self {
            Self::Broken { by } | Self::Superseded { by } => Some(by),
            Self::Released
            | Self::NotStarted
            | Self::Lost
            | Self::Expired
            | Self::MaxHold
            | Self::GaveUp
            | Self::Cancelled => None,
        }
    }
}

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
        runs.sort_by_key(|run| run.ended);
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
    pub ended: SystemTime,
    pub waited: Option<Duration>,
    /// `None` if it never had the lock, too.
    pub held: Option<Duration>,
    pub info: HolderInfo,
    pub mode: Mode,
    pub slot: Option<u32>,
    /// The claim, as REDLOCK_TOKEN has it.
    pub token: String,
    pub fence: Option<u64>,
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    pub how: HowEnded,
}

impl FinishedRun {
    pub(crate) fn waiter(&self) -> &str {
        waiter_of(&self.token)
    }

    /// Smaller for what is to be believed: a run that was only seen to be gone may have told itself how it ended, and one
    /// that says so twice has lost the lock only the second time.
    pub(crate) fn credibility(&self) -> (bool, SystemTime) {
        (self.how == HowEnded::Expired, self.ended)
    }

    /// Whether it has had the lock for its command.
    pub(crate) fn had_lock(&self) -> bool {
        !matches!(self.how, HowEnded::GaveUp | HowEnded::Superseded { .. } | HowEnded::Cancelled)
    }

    /// It has had the lock, and its command did not end well, or not by itself. A lock that was given back by its token had
    /// no command, and no exit code.
    pub(crate) fn has_failed(&self) -> bool {
        let is_zero = self.exit.is_none_or(|code| code == 0);
        let ended_well = self.how == HowEnded::Released && self.signal.is_none() && is_zero;
        self.had_lock() && !ended_well
    }

    /// When it got the lock, or gave up.
    pub(crate) fn began(&self) -> SystemTime {
        self.ended.checked_sub(self.held.unwrap_or_default()).unwrap_or(self.ended)
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
    pub fn run(token: &str, ended: u64, how: HowEnded) -> FinishedRun {
        FinishedRun {
            ended: UNIX_EPOCH + Duration::from_secs(ended),
            waited: None,
            held: None,
            info: HolderInfo::default(),
            mode: Mode::Exclusive,
            slot: None,
            token: token.into(),
            fence: None,
            exit: None,
            signal: None,
            how,
        }
    }

    #[test]
    fn a_run_that_several_servers_tell_of_is_one_and_its_own_word_counts() {
        let runs = vec![
            run("b.1", 9, HowEnded::Expired),
            run("a.1", 7, HowEnded::Released),
            run("b.2", 10, HowEnded::Lost),
            run("", 1, HowEnded::Expired),
            run("a.1", 8, HowEnded::Released),
            run("", 2, HowEnded::Expired),
        ];
        let history = History::new(runs, Status::free(b"k".to_vec()));
        let ended: Vec<_> = history.runs.iter().map(|run| (run.token.as_str(), run.how.name())).collect();
        assert_eq!(ended, [("", "expired"), ("", "expired"), ("a.1", "released"), ("b.2", "lost")]);
    }

    #[test]
    fn a_holder_that_has_ended_meanwhile_is_not_running() {
        let holder = |token: &str| HolderStatus { token: Some(token.into()), ..HolderStatus::default() };
        let kept = HolderStatus { has_ended: true, ..holder("c.1") };
        let mut status = Status::free(b"k".to_vec());
        status.holders = vec![holder("a.1"), holder("b.1"), kept];
        let history = History::new(vec![run("a.2", 7, HowEnded::Released)], status);
        let running: Vec<_> = history.running().filter_map(|holder| holder.token.as_deref()).collect();
        assert_eq!(running, ["b.1"]);
    }

    #[test]
    fn only_a_run_that_had_the_lock_can_fail() {
        let exit = |code| FinishedRun { exit: Some(code), ..run("a.1", 1, HowEnded::Released) };
        assert!(!exit(0).has_failed() && exit(1).has_failed());
        assert!(!run("a.1", 1, HowEnded::Released).has_failed(), "by its token");
        assert!(run("a.1", 1, HowEnded::Expired).has_failed());
        assert!(!run("a.1", 1, HowEnded::GaveUp).has_failed());
    }
}
