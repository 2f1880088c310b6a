//! Which processes hold the lock and which wait: for people, without the mutex, so it may be out of date when
//! it is read.

use super::byte_map::Lane;
use super::lock_file::LockFile;
use super::request::{LocalMode, LocalRequest};
use crate::clock::BootTime;
use crate::lock::{Blocked, Blocker, Holding};

/// What is in the way of this request. `ticket` is ours, if we have queued.
pub(super) fn inspect(file: &LockFile, key: usize, request: &LocalRequest, ticket: Option<u64>) -> Blocked {
    Blocked {
        key,
        position: ticket.map(|ticket| waiters_ahead(file, request, ticket)),
        // The kernel does not show us our own lock.
        queue_length: other_waiters(file, request) + usize::from(ticket.is_some()),
        by: blocker(file, request),
    }
}

fn blocker(file: &LockFile, request: &LocalRequest) -> Blocker {
    let marks = file.locks().all_writers_in(request.usage.holders()).unwrap_or_default();
    let mut living: Vec<u64> = marks.into_iter().map(|mark| request.usage.ticket_of_mark(mark)).collect();
    living.sort_unstable();
    let mut reserved = file.reservations(&file.header());
    if let LocalMode::Shared(_) = request.mode {
        reserved.retain(|reservation| reservation.kind != request.reserves(0));
    }
    reserved.retain(|reservation| !living.contains(&reservation.ticket));
    // One free slot is enough; any other request needs all reservations to be over.
    let ends = reserved.iter().map(|reservation| reservation.until);
    let reserved_until = if request.mode == LocalMode::Slot { ends.min() } else { ends.max() };
    let has_living = !living.is_empty();
    let tickets: Vec<u64> =
        living.into_iter().chain(reserved.iter().map(|reservation| reservation.ticket)).collect();
    if tickets.is_empty() {
        return Blocker::Queue;
    }
    let record = tickets.iter().find_map(|ticket| file.record(*ticket));
    let ends = record.as_ref().filter(|_| has_living).and_then(|record| record.tenure?.until);
    let holding = Holding {
        held_for: record.as_ref().map(|record| BootTime::now().since(record.since)),
        info: record.map(|record| record.info).unwrap_or_default(),
        others: tickets.len() - 1,
        expires_in: ends.or(reserved_until.filter(|_| !has_living)).map(BootTime::remaining),
    };
    if has_living { Blocker::Holder(holding) } else { Blocker::Reservation(holding) }
}

fn other_waiters(file: &LockFile, request: &LocalRequest) -> usize {
    let lanes = [Lane::Preferred, Lane::Fair].map(|lane| request.usage.lane(lane));
    lanes.into_iter().map(|lane| file.locks().all_writers_in(lane).map_or(0, |waiters| waiters.len())).sum()
}

fn waiters_ahead(file: &LockFile, request: &LocalRequest, ticket: u64) -> usize {
    let count = |range| file.locks().all_writers_in(range).map_or(0, |waiters| waiters.len());
    let lane = request.usage.lane(request.lane);
    let preferred = match request.lane {
        Lane::Fair => count(request.usage.lane(Lane::Preferred)),
        Lane::Preferred => 0,
    };
    preferred + count(lane.start..lane.start + ticket)
}
