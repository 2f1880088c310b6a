//! The mark that a run with `--once` leaves when it has succeeded.

use std::time::Duration;

use super::{Ended, HolderInfo};
use crate::world::{Rule, follows};

/// How long a mark is kept at least: a later request may ask for a longer time than the run that
/// left the mark.
const KEPT_FOR: Duration = Duration::from_hours(30 * 24);

/// A run that has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub by: HolderInfo,
    /// When the run ended, counted from the reply.
    pub ago: Duration,
}

/// How long the mark is kept that a run with `--once` leaves if it ends like this; `None` if it leaves
/// none.
pub(super) fn mark_kept_for(once: Option<Duration>, ended: &Ended) -> Option<Duration> {
    let leaves_mark = ended.has_succeeded() || !follows(Rule::OnlySuccessMarks);
    once.filter(|_| leaves_mark).map(|once| once.max(KEPT_FOR))
}
