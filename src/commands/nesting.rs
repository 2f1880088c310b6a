//! Runs inside runs: the variables that tell a command about its lock, and `--reentrant`, which
//! runs under the lock of an outer run. `redlock acquire` is an outer run for what has its variables,
//! and for what runs below the process that its keeper watches.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use nix::unistd::getpid;

use crate::child::{Attachment, Environment, published_above, variable_of};
use crate::lock::{
    AncestorLock, BorrowedLock, Error, Grant, Lock, Observer, OuterLock, Request, memory_file,
};

const HELD: &str = "REDLOCK_HELD";
const SLOT: &str = "REDLOCK_SLOT";
const ATTEMPTS: &str = "REDLOCK_ATTEMPTS";

/// Instead of a place to attach: a lock that no process keeps. A bearer of the token may use it
/// until its time is over.
const NO_PLACE: &str = "token";

/// The name of the file in memory in which a keeper describes its locks as REDLOCK_HELD does.
const KEPT: &str = "redlock-kept";

/// The locks of outer runs, as far as the environment names them.
pub(super) fn ancestors() -> Vec<AncestorLock> {
    AncestorLock::parse_all(&std::env::var(HELD).unwrap_or_default())
}

/// The locks of outer runs that another process names in its environment.
pub(super) fn held_by(pid: i32) -> Vec<AncestorLock> {
    variable_of(pid, HELD).map(|held| AncestorLock::parse_all(&held)).unwrap_or_default()
}

/// The locks of keepers that watch this process or an ancestor of it.
pub(super) fn kept_for_ancestors() -> Vec<AncestorLock> {
    published_above(getpid(), KEPT).iter().flat_map(|held| AncestorLock::parse_all(held)).collect()
}

/// For a keeper: names its locks to [`kept_for_ancestors`] while the file is open.
pub(super) fn publish(keys: &[Vec<u8>], grant: &Grant, attach_id: Option<&str>) -> std::io::Result<File> {
    let mut file = File::from(memory_file(KEPT)?);
    let locks = held_locks(keys, grant, attach_id).map(|lock| lock.to_string() + " ");
    file.write_all(locks.collect::<String>().as_bytes())?;
    Ok(file)
}

/// The grant's locks, as runs inside need to know them.
fn held_locks(
    keys: &[Vec<u8>],
    grant: &Grant,
    attach_id: Option<&str>,
) -> impl Iterator<Item = AncestorLock> {
    // On this host there is one for each key.
    let has_one_each = grant.ancestor_locks.len() == keys.len();
    let locks = grant
        .ancestor_locks
        .iter()
        .enumerate()
        .map(move |(at, lock)| lock.clone().with_keys(if has_one_each { &keys[at..=at] } else { keys }));
    let attach_id = attach_id.map(ToOwned::to_owned);
    locks.map(move |lock| AncestorLock { attach_id: attach_id.clone(), ..lock })
}

/// For `eval` in a shell that has the token. `attach_id`: the keeper's, if there is one.
pub(super) fn shell_variables(keys: &[Vec<u8>], grant: &Grant, attach_id: Option<&str>) -> Environment {
    let mut variables = environment(keys, grant, &ancestors(), attach_id.or(Some(NO_PLACE)));
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
    let ours = held_locks(keys, grant, attach_id);
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
    /// `None` for a lock that no process keeps.
    attachment: Option<Attachment>,
    /// Several if it has several keys on this host.
    locks: Vec<AncestorLock>,
}

impl OuterRuns {
    /// Attach to those that still run. Call this before the guardian is forked: it must be attached
    /// as well.
    pub(super) fn attach(ancestors: &[AncestorLock]) -> Self {
        let mut ids: Vec<_> = ancestors.iter().filter_map(|lock| lock.attach_id.as_deref()).collect();
        let mut seen = Vec::new();
        ids.retain(|id| {
            !seen.contains(id) && {
                seen.push(*id);
                true
            }
        });
        let run = |id| {
            let locks =
                ancestors.iter().filter(|lock| lock.attach_id.as_deref() == Some(id)).cloned().collect();
            let attachment = if id == NO_PLACE { None } else { Some(Attachment::to(id)?) };
            Some(OuterRun { attachment, locks })
        };
        Self(ids.into_iter().filter_map(run).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Any process that has these files open keeps us attached.
    pub(super) fn files(&self) -> Vec<Arc<File>> {
        self.0.iter().filter_map(|run| Some(run.attachment.as_ref()?.file())).collect()
    }

    /// A grant under their locks, if these suffice for the request, and the lock that it is from then
    /// on; otherwise the lock as it was. Detaches from runs that are not needed.
    pub(super) fn lock_for(
        self,
        mut lock: Box<dyn Lock>,
        request: &Request,
        observer: &mut dyn Observer,
    ) -> (Box<dyn Lock>, Result<Option<Grant>, Error>) {
        if self.is_empty() {
            return (lock, Ok(None));
        }
        let all: Vec<AncestorLock> = self.0.iter().flat_map(|run| run.locks.iter().cloned()).collect();
        let found = match lock.find_outer(request, &all, observer) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => return (lock, Err(error)),
        };
        let is_used = |run: &OuterRun| {
            run.locks.iter().any(|lock| found.iter().any(|used: &OuterLock| used.claim == lock.claim))
        };
        let (used, unused): (Vec<_>, Vec<_>) = self.0.into_iter().partition(is_used);
        unused.into_iter().filter_map(|run| run.attachment).for_each(Attachment::detach);
        if found.is_empty() {
            return (lock, Ok(None));
        }
        let keepers = used.iter().filter_map(|run| run.attachment.as_ref()).filter(|to| to.is_to_keeper());
        let keepers = keepers.map(Attachment::file).collect();
        let locks = used.iter().flat_map(|run| run.locks.iter().cloned()).collect();
        // Stay attached until this process and its guardian have both exited: one of them may be
        // killed.
        std::mem::forget(used);
        let grant = Grant::under(&found, &request.mode);
        (Box::new(BorrowedLock::new(lock, request, locks, keepers)), Ok(Some(grant)))
    }
}
