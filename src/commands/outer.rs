//! `--reentrant`: run under the lock of a run around this one.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::child::Attachment;
use crate::lock::{AncestorLock, Error, Grant, Lock, Observer, OuterLock, Request, Unlocked};

/// The runs that this process runs under and that we are attached to: they keep their locks for us.
#[derive(Debug, Default)]
pub(super) struct OuterRuns(Vec<OuterRun>);

#[derive(Debug)]
struct OuterRun {
    attachment: Attachment,
    /// Several, if it has several keys on this host.
    locks: Vec<AncestorLock>,
}

impl OuterRuns {
    /// Those that are still there. Before the guardian is forked, which has to be attached as well.
    pub(super) fn attach(ancestors: &[AncestorLock]) -> Self {
        let mut ids: Vec<_> = ancestors.iter().filter_map(|lock| lock.attach_id).collect();
        ids.dedup();
        let run = |id| {
            let locks = ancestors.iter().filter(|lock| lock.attach_id == Some(id)).cloned().collect();
            Some(OuterRun { attachment: Attachment::to(id)?, locks })
        };
        Self(ids.into_iter().filter_map(run).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A process that has these open keeps us attached.
    pub(super) fn files(&self) -> io::Result<Vec<Arc<File>>> {
        self.0.iter().map(|run| run.attachment.file()).collect()
    }

    /// A grant under their locks, if they have what the request asks for. Detaches from all that are not needed.
    pub(super) fn lock_for(
        self,
        lock: &mut dyn Lock,
        request: &Request,
        observer: &mut dyn Observer,
    ) -> Result<Option<Grant>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        let all: Vec<AncestorLock> = self.0.iter().flat_map(|run| run.locks.iter().cloned()).collect();
        let found = lock.find_outer(request, &all, observer)?.unwrap_or_default();
        let is_used = |run: &OuterRun| {
            run.locks.iter().any(|lock| found.iter().any(|used: &OuterLock| used.claim == lock.claim))
        };
        let (used, unused): (Vec<_>, Vec<_>) = self.0.into_iter().partition(is_used);
        for run in unused {
            run.attachment.detach();
        }
        // Attached until this process and its guardian have ended, whichever is later: one of them may be killed.
        std::mem::forget(used);
        Ok((!found.is_empty()).then(|| Unlocked::under(&found, &request.mode)))
    }
}
