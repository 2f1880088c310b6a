//! Leaving: what a run that ends writes into the history of its locks. Never a reason for anything to fail.

use std::time::{Duration, SystemTime};

use super::HostLock;
use super::admission::{Admission, Admitted};
use super::lock_file::LockFile;
use super::record::Record;
use super::request::LocalRequest;
use super::run_log::killed;
use crate::clock::BootTime;
use crate::lock::claim::WaiterId;
use crate::lock::{Claim, Ended, Error, FinishedRun, Grant, Mode, Outcome};

/// The request that was made last, as the history tells of it.
#[derive(Clone, Debug)]
pub(super) struct LastRequest {
    pub record: Record,
    pub local: LocalRequest,
    pub is_logged: bool,
    /// If it is not granted.
    pub exit_if_held: u8,
    /// One for each file, if it was granted.
    pub admitted: Vec<Admitted>,
}

impl LastRequest {
    fn finished(&self, ended: &Ended, waited: Duration, held: Option<Duration>) -> FinishedRun {
        FinishedRun {
            ended_at: SystemTime::now(),
            waited: Some(waited),
            held,
            info: self.record.info.clone(),
            mode: self.record.mode.clone(),
            slot: None,
            token: self.record.claim.clone(),
            fence: None,
            ended: ended.clone(),
        }
    }
}

impl HostLock {
    /// Before anything is unlocked: the next holder is to find it.
    pub(super) fn log_release(&self, grant: &Grant, ended: &Ended) {
        let Some(request) = &self.last_request else { return };
        let run = request.finished(ended, grant.waited, Some(grant.taken_at.elapsed()));
        for (file, admitted) in self.files.iter().zip(&request.admitted) {
            let Admitted { ticket, fence, slot } = *admitted;
            let slot = matches!(run.mode, Mode::Slot { .. }).then_some(slot);
            self.log(file, ticket, &FinishedRun { fence: Some(fence), slot, ..run.clone() });
        }
    }

    /// Of a run that did not get the lock. `tickets`: those that it has drawn, one for each file.
    pub(super) fn log_refusal(&self, tickets: &[Option<u64>], error: &Error, started: BootTime) {
        let Some(request) = &self.last_request else { return };
        let Some(ended) = Ended::not_acquired(error, request.exit_if_held) else {
            return self.end_records(tickets);
        };
        let run = request.finished(&ended, started.elapsed(), None);
        for (file, ticket) in self.files.iter().zip(tickets) {
            let draw = || Admission::try_begin(file)?.draw_ticket(&request.local).ok();
            if let Some(ticket) = ticket.or_else(|| request.is_logged.then(draw)?) {
                self.log(file, ticket, &run);
            }
        }
    }

    /// What has been entered is left again, without a word in the history.
    pub(super) fn end_records(&self, tickets: &[Option<u64>]) {
        for (file, ticket) in self.files.iter().zip(tickets) {
            if let Some(ticket) = ticket {
                file.end_record(*ticket);
            }
        }
    }

    fn log(&self, file: &LockFile, ticket: u64, run: &FinishedRun) {
        let is_logged = self.last_request.as_ref().is_some_and(|request| request.is_logged);
        if !is_logged || !file.has_room() || file.log(ticket, run).is_err() {
            file.end_record(ticket);
        }
    }
}

/// After the death of the process with this identity, in its guardian: write that into the history if the
/// command ran, else end the reservation.
pub(super) fn end_orphan(files: &[LockFile], waiter: WaiterId, is_logged: bool, has_run: bool) {
    let is_ours = |record: &Record| record.claim.parse().is_ok_and(|claim: Claim| claim.waiter == waiter);
    for file in files {
        let Some((ticket, record)) = file.open_records().into_iter().find(|(_, record)| is_ours(record))
        else {
            continue;
        };
        let run =
            FinishedRun { ended: Ended::new(Outcome::Killed), ..killed(&record, Some(SystemTime::now())) };
        if !has_run || !is_logged || !file.has_room() || file.log_if_missing(ticket, &run).is_err() {
            file.end_record(ticket);
        }
        if !has_run && let Ok(mut admission) = Admission::begin(file, None) {
            let _ = admission.end_reservation(ticket);
        }
    }
}
