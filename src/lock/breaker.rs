//! Taking a lock away from its holders. The seam between servers and this host for `redlock break`.

use super::{BackendError, Done, Holder, HolderInfo, Loss};
use crate::clock::BootTime;
use crate::world::{Rule, follows};

pub(crate) trait Breaker {
    /// All current holders. Read-only.
    fn holders(&mut self) -> Result<Vec<Holder>, BackendError>;

    /// The mark of the last run with `--once` that has succeeded, as of the last call of
    /// [`Breaker::holders`].
    fn done(&self) -> Option<Done>;

    /// Delete that mark wherever the lock is free. An error if a server could not be reached, which may
    /// still have it.
    fn forget_done(&mut self) -> Result<(), BackendError>;

    /// Notify these holders that they must release the lock. Can be repeated. An error if too few
    /// servers can be reached to have an effect; then nothing is changed, as far as possible.
    fn notify(&mut self, holders: &[Holder], how: BreakMode) -> Result<Notified, BackendError>;

    /// Sleep until the notified holders may have changed, at most until this moment.
    fn wait(&mut self, until: BootTime);

    /// Whether the lock can be taken away from a holder that continues to run.
    fn frees_at_once(&self) -> bool;
}

/// Why a lock is taken away from its holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reason {
    #[default]
    Broken,
    /// By the bearer of its token.
    Released,
    /// By a newer run with `--cancel-in-progress`.
    Superseded,
}

impl Reason {
    /// As it is stored; empty for a break.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Broken => "",
            Self::Released => "released",
            Self::Superseded => "superseded",
        }
    }

    pub(super) fn from_name(name: &[u8]) -> Self {
        let all = [Self::Released, Self::Superseded];
        all.into_iter().find(|reason| reason.name().as_bytes() == name).unwrap_or_default()
    }

    pub(super) fn loss(self, by: HolderInfo) -> Loss {
        let by = Box::new(by);
        match self {
            Self::Broken => Loss::Broken { by },
            Self::Released => Loss::Released { by },
            Self::Superseded => Loss::Superseded { by },
        }
    }
}

/// Asks the holder of this grant to make way for a newer run. `breaker` has that reason. A later grant
/// is never meant, not even one of the same run: it may be newer than the run that asks.
pub(crate) fn cancel(breaker: &mut dyn Breaker, id: &str) -> Result<(), BackendError> {
    let mut holders = breaker.holders()?;
    holders.retain(|held| held.id == id || !follows(Rule::CancelNamesGrant));
    if holders.is_empty() {
        return Ok(());
    }
    let how = if follows(Rule::CancelWaits) { BreakMode::Gentle } else { BreakMode::Immediate };
    let notified = breaker.notify(&holders, how)?;
    notified.unreachable.into_iter().next().map_or(Ok(()), |unreachable| Err(unreachable.error))
}

/// The result of notifying holders.
#[derive(Debug)]
pub(crate) struct Notified {
    /// Those that cannot be notified although others can.
    pub unreachable: Vec<UnreachableHolder>,
    pub freed: Freed,
}

/// Whether the lock is free, regardless of what the holders do.
#[derive(Debug)]
pub(crate) enum Freed {
    Yes,
    /// Not requested, or not supported by this backend.
    No,
    /// Too few servers have freed it, with the error of one. The holders are notified and can no
    /// longer renew the lock.
    OnlyNotified(BackendError),
    /// Too few servers have confirmed that they have freed it, with the error of one.
    Unknown(BackendError),
}

/// A holder that cannot be notified, and why.
#[derive(Debug)]
pub(crate) struct UnreachableHolder {
    pub id: String,
    pub error: BackendError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakMode {
    /// The holder stops its command and releases the lock, or its lease expires.
    Gentle,
    /// The lock is free at once, and the holder finds out later. Where that is impossible, the
    /// holder's command is killed.
    Immediate,
}
