//! What the command learns about its lock, and what we learn from the runs that we run under.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use crate::child::Environment;
use crate::lock::{AncestorLock, Grant};

const HELD: &str = "REDLOCK_HELD";
const SLOT: &str = "REDLOCK_SLOT";

/// The locks of the runs that this process runs under.
pub(super) fn ancestors() -> Vec<AncestorLock> {
    let held = std::env::var(HELD).unwrap_or_default();
    held.split_ascii_whitespace().filter_map(|lock| lock.parse().ok()).collect()
}

/// Overrides what the command inherits.
pub(super) fn environment(keys: &[Vec<u8>], grant: &Grant, ancestors: &[AncestorLock]) -> Environment {
    let held: Vec<String> =
        ancestors.iter().chain(&grant.ancestor_locks).map(AncestorLock::to_string).collect();
    let fences: Vec<String> = grant.fences.iter().map(u64::to_string).collect();
    let slots: Vec<String> = grant.slots.iter().map(u32::to_string).collect();
    let token = if grant.is_locked() { grant.claim.to_string() } else { String::new() };
    let text = |name: &str, value: String| (OsStr::new(name).to_owned(), OsString::from(value));
    let mut variables = vec![
        ("REDLOCK_KEY".into(), OsString::from_vec(keys.join(&b'\n'))),
        text("REDLOCK_TOKEN", token),
        text("REDLOCK_FENCE", fences.join(" ")),
        text("REDLOCK_ATTEMPTS", grant.claim.attempt.to_string()),
        text(HELD, held.join(" ")),
    ];
    // An outer run's slot is not of this lock.
    if !slots.is_empty() || std::env::var_os(SLOT).is_some() {
        variables.push(text(SLOT, slots.join(" ")));
    }
    variables
}
