//! What the command learns about its lock, and what we learn from the runs that we run under.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use uuid::Uuid;

use crate::child::Environment;
use crate::lock::{AncestorLock, Grant};

const HELD: &str = "REDLOCK_HELD";
const SLOT: &str = "REDLOCK_SLOT";
const ATTEMPTS: &str = "REDLOCK_ATTEMPTS";

/// The locks of the runs that this process runs under.
pub(super) fn ancestors() -> Vec<AncestorLock> {
    let held = std::env::var(HELD).unwrap_or_default();
    held.split_ascii_whitespace().filter_map(|lock| lock.parse().ok()).collect()
}

/// For the eval of a shell that has the token.
pub(super) fn shell_variables(keys: &[Vec<u8>], grant: &Grant) -> Environment {
    let mut variables = environment(keys, grant, &ancestors(), None);
    variables.retain(|(name, _)| name != ATTEMPTS);
    variables
}

/// Overrides what the command inherits.
/// `attach_id`: where a run inside the command attaches to this one.
pub(super) fn environment(
    keys: &[Vec<u8>],
    grant: &Grant,
    ancestors: &[AncestorLock],
    attach_id: Option<Uuid>,
) -> Environment {
    let ours = grant.ancestor_locks.iter().map(|lock| AncestorLock { attach_id, ..lock.clone() });
    let held: Vec<String> = ancestors.iter().cloned().chain(ours).map(|lock| lock.to_string()).collect();
    let fences: Vec<String> = grant.fences.iter().map(u64::to_string).collect();
    let slots: Vec<String> = grant.slots.iter().map(u32::to_string).collect();
    // Under an outer run's lock nothing was asked for.
    let attempts = if grant.outer.is_empty() { grant.claim.attempt } else { 0 };
    let text = |name: &str, value: String| (OsStr::new(name).to_owned(), OsString::from(value));
    let mut variables = vec![
        ("REDLOCK_KEY".into(), OsString::from_vec(keys.join(&b'\n'))),
        text("REDLOCK_TOKEN", token(grant)),
        text("REDLOCK_FENCE", fences.join(" ")),
        text(ATTEMPTS, attempts.to_string()),
        text(HELD, held.join(" ")),
    ];
    // An outer run's slot is not of this lock.
    if !slots.is_empty() || std::env::var_os(SLOT).is_some() {
        variables.push(text(SLOT, slots.join(" ")));
    }
    variables
}

/// One for all keys, except under the locks of several outer runs: then one for each.
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
