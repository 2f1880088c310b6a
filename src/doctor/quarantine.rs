//! Whether a server may vote, or must wait until the leases that it may have forgotten have expired.

use std::time::Duration;

use super::server::{CanVote, PERMISSIONS};
use super::{Check, Finding};
use crate::duration::{format, format_seconds, millis};
use crate::lock::checkup::{Found, Marker, ServerFacts, ServerKind};
use crate::lock::{Timing, USUAL_LEASE};
use crate::report::{problem, sanitize};

/// The scripts add this to a quarantine.
const AFTER_QUARANTINE: Duration = Duration::from_secs(1);

/// How long after its first use a server starts voting.
pub(super) fn first_quarantine(timing: &Timing) -> Duration {
    timing.quarantine.saturating_add(AFTER_QUARANTINE)
}

/// "leases of up to 2h until 1h 3m from now, requested by alice@bastion", if such leases are in force.
fn long_leases(marker: &Marker, now_ms: u64) -> Option<String> {
    let longest = Duration::from_millis(marker.longest_ms);
    let left = Duration::from_millis(marker.ends_ms.saturating_sub(now_ms));
    if longest <= USUAL_LEASE || left.is_zero() {
        return None;
    }
    let client = marker.raised_by.as_str();
    let client =
        if client.is_empty() { String::new() } else { format!(", requested by {}", sanitize(client)) };
    Some(format!("leases of up to {} for another {}{client}", format(longest), format_seconds(left)))
}

/// Computes the quarantine as lua/include/marker.lua does.
pub(super) fn quarantine(
    found: &Found,
    server: &ServerFacts,
    needs_identity: bool,
    timing: &Timing,
) -> (Option<Finding>, CanVote) {
    let check = Check::QUARANTINE;
    let info = found.info.as_ref().ok();
    let uptime = info.and_then(|info| info.uptime);
    let up = uptime.map(|uptime| format!("up {}", format_seconds(uptime)));
    let is_off = timing.quarantine.is_zero();
    let in_cluster = server.kind == ServerKind::OfCluster;
    if (in_cluster && is_off) || !needs_identity {
        return (up.map(|up| check.ok(up)), CanVote::Now);
    }
    let votes = |up: Option<String>| (Some(check.ok(up.unwrap_or_else(|| "votes".into()))), CanVote::Now);
    let reign = info.and_then(|info| Some((info.run_id.as_ref()?, info.replication_id.as_deref())));
    let reign = reign.map(|(run_id, history)| format!("{run_id}.{}", history.unwrap_or_default()));
    let now_ms = found.clock.as_ref().ok().map(|clock| clock.now_ms);
    match (&found.marker, reign.zip(now_ms)) {
        // Without the marker of all its slots there are markers of single slots, which are not
        // read.
        (Err(error), _) if in_cluster => (Some(check.unknown(Some(error))), CanVote::Now),
        (Err(error), _) => {
            let text = format!("the key lock-node cannot be read: {}", problem(&error.problem));
            let why = "lock-node proves that a server has kept its data; without it no lock can be taken";
            (Some(check.problem(text, why, PERMISSIONS)), CanVote::No)
        }
        (Ok(None), _) if is_off => votes(up),
        (Ok(None), _) => {
            let after = format_seconds(first_quarantine(timing));
            let finding = check.warning(
                format!(
                    "not used together with other servers yet: starts voting {after} after the first run"
                ),
                "it may have been emptied, and have forgotten locks",
                &format!(
                    "start one run that is allowed to wait: redlock run --key {} -- true",
                    server.first_key
                ),
            );
            (Some(finding), CanVote::AfterFirstUse)
        }
        (Ok(Some(_)), None) => {
            let error = found.clock.as_ref().err().or(found.info.as_ref().err());
            (Some(check.unknown(error)), CanVote::Now)
        }
        (Ok(Some(marker)), Some((reign, now_ms))) => match left_ms(marker, &reign, now_ms, timing) {
            0 => {
                votes(up.into_iter().chain(long_leases(marker, now_ms)).reduce(|up, more| up + "; " + &more))
            }
            left => {
                let left = format_seconds(Duration::from_millis(left.saturating_add(999)));
                let about: Vec<String> = up.into_iter().chain(long_leases(marker, now_ms)).collect();
                let up = if about.is_empty() { String::new() } else { format!(", {}", about.join("; ")) };
                let finding = check.warning(
                    format!("does not vote for another {left}{up}"),
                    "it is new, restarted or promoted, and may have forgotten locks",
                    "wait; see --quarantine",
                );
                // A slot that was used before may have an older marker.
                (Some(finding), if in_cluster { CanVote::AfterFirstUse } else { CanVote::No })
            }
        },
    }
}

fn left_ms(marker: &Marker, reign: &str, now_ms: u64, timing: &Timing) -> u64 {
    let in_force = if marker.ends_ms >= now_ms { marker.longest_ms } else { 0 };
    let longest = in_force.max(millis(timing.quarantine));
    let known_for = if marker.reign == reign { now_ms.saturating_sub(marker.since_ms) } else { 0 };
    // As LongestLease and lua/include/marker.lua decide it.
    let usual = millis(USUAL_LEASE);
    let raised_ago = if in_force > usual { now_ms.saturating_sub(marker.raised_ms) } else { 0 };
    let needed = longest.min(raised_ago.max(usual));
    if longest == 0 || known_for >= needed.saturating_add(millis(AFTER_QUARANTINE)) {
        return 0;
    }
    longest.saturating_add(millis(AFTER_QUARANTINE)).saturating_sub(known_for)
}
