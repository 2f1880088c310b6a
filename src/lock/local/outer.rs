//! Runs that this process runs under: do they hold the lock, and does that suffice for us?

use std::ops::Range;

use super::byte_map::{TICKETS_END, UsageMode, byte};
use super::lock_file::LockFile;
use super::ofd_lock::Kind;
use super::request::{LocalMode, LocalRequest};
use crate::lock::claim::HostTicket;
use crate::lock::{AncestorLock, OuterLock, Request};

/// The ticket of this lock, if it is on this file.
fn ticket_on<'a>(file: &LockFile, lock: &'a AncestorLock) -> Option<&'a HostTicket> {
    let ticket = lock.host_ticket.as_ref()?;
    let is_here = (ticket.device, ticket.inode) == file.identity() && ticket.ticket < TICKETS_END;
    is_here.then_some(ticket)
}

/// Whether the holder with this ticket has all that the request asks for, and if so, whether in the same mode
/// (`true`) or exclusively.
fn suffices(file: &LockFile, request: &LocalRequest, ticket: u64) -> Option<bool> {
    let holds = |marks: Range<u64>| matches!(file.locks().writer_in(byte(marks.start + ticket)), Ok(Some(_)));
    if holds(UsageMode::PLAIN.owners()) {
        return Some(false);
    }
    let is_same = match request.mode {
        LocalMode::Exclusive => false,
        LocalMode::Slot => holds(request.usage.owners()),
        // Readers of different groups never hold it at the same time.
        LocalMode::Shared(group) => {
            let readers = file.locks().conflict_in(byte(group.offset()), Kind::Write);
            holds(request.usage.sharers()) && matches!(readers, Ok(Some(_)))
        }
    };
    is_same.then_some(true)
}

/// The nearest of these locks under which the request may run.
pub(super) fn lock_on(file: &LockFile, request: &LocalRequest, locks: &[AncestorLock]) -> Option<OuterLock> {
    locks.iter().rev().find_map(|lock| {
        let ticket = ticket_on(file, lock)?;
        let slot = suffices(file, request, ticket.ticket)?.then_some(ticket.slot);
        Some(OuterLock { claim: lock.claim, fence: ticket.fence, slot: slot.unwrap_or(0) })
    })
}

/// Whether a run that this process runs under is still a holder. By its ticket, as the kernel knows it: the
/// record in the file may have been overwritten since.
pub(super) fn ancestor_holds(file: &LockFile, local: &LocalRequest, request: &Request) -> bool {
    let mut tickets = request.ancestors.iter().filter_map(|lock| ticket_on(file, lock));
    tickets.any(|HostTicket { ticket, .. }| {
        let marks = [local.usage.owners(), local.usage.sharers()].map(|marks| marks.start + ticket);
        marks.iter().any(|mark| matches!(file.locks().writer_in(byte(*mark)), Ok(Some(_))))
    })
}
