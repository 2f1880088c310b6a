//! Runs inside runs: the variables that tell a command about its lock, and `--reentrant`, which
//! runs under the lock of an outer run.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use crate::child::{Attachment, Environment};
use crate::lock::{AncestorLock, Error, Grant, Lock, Observer, OuterLock, Request, Unlocked};

const HELD: &str = "REDLOCK_HELD";
const SLOT: &str = "REDLOCK_SLOT";
const ATTEMPTS: &str = "REDLOCK_ATTEMPTS";

/// The locks of outer runs.
pub(super) fn ancestors() -> Vec<AncestorLock> {
    let held = std::env::var(HELD).unwrap_or_default();
    held.split_ascii_whitespace().filter_map(|lock| lock.parse().ok()).collect()
}

/// For `eval` in a shell that has the token.
pub(super) fn shell_variables(keys: &[Vec<u8>], grant: &Grant) -> Environment {
    let mut variables = environment(keys, grant, &ancestors(), None);
    variables.retain(|(name, _)| name != ATTEMPTS);
    variables
}

/// Variables that override those that the command inherits. `attach_id`: where a run inside the
/// command attaches to this one.
pub(super) fn environment(
    keys: &[Vec<u8>],
    grant: &Grant,
    ancestors: &[AncestorLock],
    attach_id: Option<&str>,
) -> Environment {
    let attach_id = attach_id.map(ToOwned::to_owned);
    let ours =
        grant.ancestor_locks.iter().map(|lock| AncestorLock { attach_id: attach_id.clone(), ..lock.clone() });
    let held: Vec<String> = ancestors.iter().cloned().chain(ours).map(|lock| lock.to_string()).collect();
    let fences: Vec<String> = grant.fences.iter().map(u64::to_string).collect();
    let slots: Vec<String> = grant.slots.iter().map(u32::to_string).collect();
    // Under an outer run's lock there was no request.
    let attempts = if grant.outer.is_empty() { grant.claim.attempt } else { 0 };
    let text = |name: &str, value: String| (OsStr::new(name).to_owned(), OsString::from(value));
    let mut variables = vec![
        ("REDLOCK_KEY".into(), OsString::from_vec(keys.join(&b'\n'))),
        text("REDLOCK_TOKEN", token(grant)),
        text("REDLOCK_FENCE", fences.join(" ")),
        text(ATTEMPTS, attempts.to_string()),
        text(HELD, held.join(" ")),
    ];
    // A slot that was inherited belongs to another lock.
    if !slots.is_empty() || std::env::var_os(SLOT).is_some() {
        variables.push(text(SLOT, slots.join(" ")));
    }
    variables
}

/// One token for all keys; one for each key under the locks of several outer runs.
fn token(grant: &Grant) -> String {
    if !grant.is_locked() {
        return String::new();
    }
    if grant.outer.iter().all(|claim| *claim == grant.claim) {
        return grant.claim.to_string();
    }
    let claims: Vec<String> = grant.outer.iter().map(ToString::to_string).collect();
    claims.join(" ")
}

/// The outer runs that we are attached to: they keep their locks for us.
#[derive(Debug, Default)]
pub(super) struct OuterRuns(Vec<OuterRun>);

#[derive(Debug)]
struct OuterRun {
    attachment: Attachment,
    /// Several if it has several keys on this host.
    locks: Vec<AncestorLock>,
}

impl OuterRuns {
    /// Attach to those that still run. Call this before the guardian is forked: it must be attached
    /// as well.
    pub(super) fn attach(ancestors: &[AncestorLock]) -> Self {
        let mut ids: Vec<_> = ancestors.iter().filter_map(|lock| lock.attach_id.as_deref()).collect();
        ids.dedup();
        let run = |id| {
            let locks =
                ancestors.iter().filter(|lock| lock.attach_id.as_deref() == Some(id)).cloned().collect();
            Some(OuterRun { attachment: Attachment::to(id)?, locks })
        };
        Self(ids.into_iter().filter_map(run).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Any process that has these files open keeps us attached.
    pub(super) fn files(&self) -> Vec<Arc<File>> {
        self.0.iter().map(|run| run.attachment.file()).collect()
    }

    /// A grant under their locks, if these suffice for the request. Detaches from runs that are not
    /// needed.
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
        // Stay attached until this process and its guardian have both exited: one of them may be
        // killed.
        std::mem::forget(used);
        Ok((!found.is_empty()).then(|| Unlocked::under(&found, &request.mode)))
    }
}
