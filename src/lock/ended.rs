//! How a run ended: one value for the exit, the last event and the history.

use nix::sys::signal::Signal;

use super::{Error, HolderInfo, Renewal};
use crate::exit::Exit;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub how: Outcome,
    /// `None` if redlock goes on, or its exit is not known.
    pub exit: Option<Exit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The command ended, or the lock was no longer needed.
    Released,
    /// The lock was taken, but the command could not be started.
    NotStarted,
    /// The lock was lost while the command ran.
    Lost,
    /// The lease ended and the lock was never released: its holder was cut off, or killed together
    /// with its guardian.
    Expired,
    /// The lease that nobody was to renew ended, as its holder had planned.
    Elapsed,
    /// redlock died while the command ran. Its guardian stopped the command and released the lock.
    Killed,
    Broken {
        by: Box<HolderInfo>,
    },
    /// The command was stopped by --max-hold.
    MaxHold,
    /// The lock was held for longer than the run was willing to wait.
    GaveUp,
    Superseded {
        by: Box<HolderInfo>,
    },
    /// A newer run with --cancel-in-progress had the command stopped.
    Replaced {
        by: Box<HolderInfo>,
    },
    /// Another run with --once had succeeded.
    Done {
        by: Box<HolderInfo>,
    },
    /// A signal came before the command was started.
    Cancelled,
    /// The lock was taken and its token printed. Not in the history, as the lock is still held.
    Acquired,
    /// The servers could not be reached. Not in the history.
    Unavailable,
    /// By a server, the file system or redlock's own checks. Not in the history.
    Refused,
}

/// What is known of every run with a certain outcome.
struct Facts {
    /// As it is stored.
    name: &'static str,
    /// As `--events` and `--json` call it.
    event: &'static str,
    /// As people read it.
    words: &'static str,
    had_lock: bool,
    /// The run, or its guardian, released whatever it had.
    is_clean: bool,
}

impl Outcome {
    fn facts(&self) -> Facts {
        let (name, event, words, had_lock, is_clean) = match self {
            Self::Released => ("released", "ran", "released", true, true),
            Self::NotStarted => ("not_started", "not_started", "not started", true, true),
            Self::Lost => ("lost", "lost", "lost", true, false),
            Self::Expired => ("expired", "expired", "expired", true, false),
            Self::Elapsed => ("elapsed", "expired", "expired", true, false),
            Self::Killed => ("killed", "killed", "killed", true, true),
            Self::Broken { .. } => ("broken", "lost", "broken", true, false),
            Self::MaxHold => ("max_hold", "max_hold", "max-hold", true, true),
            Self::GaveUp => ("gave_up", "held", "gave up", false, false),
            Self::Superseded { .. } => ("superseded", "superseded", "superseded", false, false),
            Self::Replaced { .. } => ("replaced", "superseded", "superseded", true, true),
            Self::Done { .. } => ("done", "done", "done already", false, true),
            Self::Cancelled => ("cancelled", "cancelled", "cancelled", false, true),
            Self::Acquired => ("acquired", "acquired", "acquired", true, false),
            Self::Unavailable => ("unavailable", "unavailable", "unavailable", false, false),
            Self::Refused => ("refused", "refused", "refused", false, false),
        };
        Facts { name, event, words, had_lock, is_clean }
    }

    /// Parse a stored name; `by` broke or superseded the run. `None` for a name of a newer version.
    fn from_name(name: &[u8], by: HolderInfo) -> Option<Self> {
        let by = Box::new(by);
        let all = [
            Self::Released,
            Self::NotStarted,
            Self::Lost,
            Self::Expired,
            Self::Elapsed,
            Self::Killed,
            Self::Broken { by: by.clone() },
            Self::MaxHold,
            Self::GaveUp,
            Self::Superseded { by: by.clone() },
            Self::Replaced { by: by.clone() },
            Self::Done { by },
            Self::Cancelled,
        ];
        all.into_iter().find(|how| how.name().as_bytes() == name)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.facts().name
    }

    pub(crate) fn event(&self) -> &'static str {
        self.facts().event
    }

    pub(crate) fn words(&self) -> &'static str {
        self.facts().words
    }

    pub(crate) fn had_lock(&self) -> bool {
        self.facts().had_lock
    }

    /// Whether the run, or its guardian, released the lock, if it had it.
    pub(crate) fn is_clean(&self) -> bool {
        self.facts().is_clean
    }

    /// The end of a lease that `renewal` kept alive.
    pub(crate) fn expired(renewal: Renewal) -> Self {
        if renewal == Renewal::Nobody { Self::Elapsed } else { Self::Expired }
    }

    /// The lease ended without a release.
    pub(crate) fn is_expiry(&self) -> bool {
        matches!(self, Self::Expired | Self::Elapsed)
    }

    /// A command that never ran may run again at once, and a broken lock must become free.
    pub(crate) fn keeps_min_hold(&self) -> bool {
        self.had_lock() && !matches!(self, Self::NotStarted | Self::Broken { .. } | Self::Replaced { .. })
    }

    /// The run that took the lock, or the place in the queue, away, or made this run unnecessary.
    pub(crate) fn by(&self) -> Option<&HolderInfo> {
        match self {
            Self::Broken { by } | Self::Superseded { by } | Self::Replaced { by } | Self::Done { by } => {
                Some(by)
            }
            Self::Released
            | Self::NotStarted
            | Self::Lost
            | Self::Expired
            | Self::Elapsed
            | Self::Killed
            | Self::MaxHold
            | Self::GaveUp
            | Self::Cancelled
            | Self::Acquired
            | Self::Unavailable
            | Self::Refused => None,
        }
    }
}

impl Ended {
    pub(crate) fn new(how: Outcome) -> Self {
        Self { how, exit: None }
    }

    /// A signal came before the command was started.
    pub(crate) fn cancelled(signal: Signal) -> Self {
        Self { how: Outcome::Cancelled, exit: Some(Exit::Signal(signal as i32)) }
    }

    /// A run that did not get the lock. `None` if the lock is not the reason: the servers failed,
    /// or the run would have waited for itself.
    pub(crate) fn not_acquired(error: &Error, exit_if_held: u8) -> Option<Self> {
        let refused = |how| Some(Self { how, exit: Some(Exit::Code(exit_if_held)) });
        match error {
            Error::Held(_) | Error::Deadlock(_) => refused(Outcome::GaveUp),
            Error::Superseded(superseded) => {
                refused(Outcome::Superseded { by: Box::new(superseded.by.clone()) })
            }
            Error::Done(done) => {
                Some(Self { how: Outcome::Done { by: Box::new(done.by.clone()) }, exit: Some(Exit::Code(0)) })
            }
            Error::Cancelled(signal) => Some(Self::cancelled(*signal)),
            Error::Nested | Error::Backend(_) => None,
        }
    }

    /// From what is stored.
    pub(crate) fn parse(name: &[u8], code: Option<u8>, signal: Option<i32>, by: HolderInfo) -> Option<Self> {
        let exit = signal.map(Exit::Signal).or(code.map(Exit::Code));
        Some(Self { how: Outcome::from_name(name, by)?, exit })
    }

    pub(crate) fn code(&self) -> Option<u8> {
        self.exit.and_then(Exit::code)
    }

    pub(crate) fn signal(&self) -> Option<i32> {
        self.exit.and_then(Exit::signal)
    }

    /// The command ran to its end while the lock was held, and ended with 0.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.how == Outcome::Released && self.exit == Some(Exit::Code(0))
    }

    /// The run had the lock, and its command failed or was stopped. A lock that was released with
    /// its token had no command, so no exit code.
    pub(crate) fn has_failed(&self) -> bool {
        let is_success = matches!(self.exit, None | Some(Exit::Code(0)));
        let ended_well = matches!(self.how, Outcome::Released | Outcome::Elapsed) && is_success;
        self.how.had_lock() && !ended_well
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_had_the_lock_can_fail() {
        let exit = |code| Ended { exit: Some(Exit::Code(code)), ..Ended::new(Outcome::Released) };
        assert!(!exit(0).has_failed() && exit(1).has_failed());
        assert!(!Ended::new(Outcome::Released).has_failed(), "released with its token");
        assert!(Ended::new(Outcome::expired(Renewal::Run)).has_failed());
        assert!(!Ended::new(Outcome::expired(Renewal::Nobody)).has_failed(), "as planned");
        assert!(!Ended::new(Outcome::GaveUp).has_failed());
    }
}
