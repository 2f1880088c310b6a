//! Who is in the way, for people: looked at in passing, so it may be out of date when it is told.

use super::asked::{Asked, Want};
use super::file::LockFile;
use super::layout::Lane;
use crate::lock::{BootTime, Busy};

/// The ticket is ours, if we have queued.
pub fn busy(file: &LockFile, key: usize, asked: &Asked, ticket: Option<u64>) -> Busy {
    let present = |range| file.ranges().all_present_in(range).unwrap_or_default();
    let mut living: Vec<u64> = present(asked.family.holders());
    living.iter_mut().for_each(|mark| *mark = asked.family.ticket_of_mark(*mark));
    living.sort_unstable();
    let mut kept = file.kept(&file.header());
    kept.retain(|kept| asked.want == Want::Alone || asked.want == Want::Slot || kept.what != asked.keeps(0));
    kept.retain(|kept| !living.contains(&kept.ticket));
    // For one of the slots the first to end will do, for the lock all must have ended.
    let kept_until = kept.iter().map(|kept| kept.until);
    let kept_until = if asked.want == Want::Slot { kept_until.min() } else { kept_until.max() };
    let ended = living.is_empty() && kept_until.is_some();
    let in_the_way: Vec<u64> = living.into_iter().chain(kept.iter().map(|kept| kept.ticket)).collect();
    let record = in_the_way.iter().find_map(|ticket| file.record(*ticket));
    Busy {
        key,
        place: ticket.map(|ticket| waiters_before(file, asked, ticket)),
        // Somebody is there, also if what he told of himself is gone.
        holder: (!in_the_way.is_empty()).then(Vec::new),
        held_for: record.as_ref().map(|record| BootTime::now().since(record.since)),
        who: (!in_the_way.is_empty()).then(|| record.map(|record| record.who).unwrap_or_default()),
        others: in_the_way.len().saturating_sub(1),
        ended,
        expires_in: kept_until.filter(|_| ended).map(BootTime::remaining),
        ..Busy::default()
    }
}

fn waiters_before(file: &LockFile, asked: &Asked, ticket: u64) -> usize {
    let count = |range| file.ranges().all_present_in(range).map_or(0, |waiters| waiters.len());
    let lane = asked.family.lane(asked.lane);
    let preferred = match asked.lane {
        Lane::Fair => count(asked.family.lane(Lane::Preferred)),
        Lane::Preferred => 0,
    };
    preferred + count(lane.start..lane.start + ticket)
}
