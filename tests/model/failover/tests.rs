//! Exclusion across failovers, and how it is violated without one of the rules.

use super::*;
use crate::{proves, violates};

const SAFE: Failover =
    Failover { rules: Rules::ALL, ttl: 2, quarantine: 2, serves_on: 0, restarts: true, renews_by: 1 };

#[test]
fn no_two_clients_hold_over_failovers_and_restarts() {
    for (ttl, quarantine) in [(1, 1), (2, 2), (3, 3), (2, 4)] {
        proves(Failover { ttl, quarantine, ..SAFE });
    }
}

/// The purpose of min-replicas-to-write: a master without a replica refuses to grant. A longer
/// quarantine is no substitute: the promoted server renews a claim that the old master lets expire
/// and grants again.
#[test]
fn an_old_master_that_serves_on_grants_beside_the_promoted_one() {
    proves(Failover { serves_on: 1, ..SAFE });
    for quarantine in [2, 3, 4] {
        violates(Failover { serves_on: 2, quarantine, ..SAFE }, EXCLUSION);
    }
    violates(Failover { serves_on: u8::MAX, ..SAFE }, EXCLUSION);
}

/// Sentinels learn of a failover one after the other, and an old master may grant until the last
/// one knows. This is safe if holders renew early enough for their claims at the old master to
/// outlive this time, and if the quarantine of the promoted server is longer than every lease by
/// this time.
#[test]
fn an_old_master_may_serve_on_for_what_the_quarantine_is_longer_if_holders_renew_early() {
    let early = Failover { ttl: 3, serves_on: 2, renews_by: 2, restarts: false, ..SAFE };
    proves(Failover { quarantine: 5, ..early });
    violates(Failover { quarantine: 3, ..early }, EXCLUSION);
    violates(Failover { quarantine: 5, renews_by: 1, ..early }, EXCLUSION);
}

#[test]
fn without_the_quarantine_a_promoted_server_grants_what_the_old_one_has_granted() {
    let rules = Rules { quarantine: false, ..Rules::ALL };
    violates(Failover { rules, restarts: false, ..SAFE }, EXCLUSION);
}

#[test]
fn a_quarantine_that_is_shorter_than_the_lease_is_none() {
    violates(Failover { quarantine: 1, restarts: false, ..SAFE }, EXCLUSION);
}

/// A server that was demoted and is promoted again before it was synchronized still has its old
/// marker.
#[test]
fn without_the_reign_in_the_marker_a_server_that_is_promoted_again_counts_as_known() {
    let rules = Rules { marker_names_reign: false, ..Rules::ALL };
    violates(Failover { rules, restarts: false, ..SAFE }, EXCLUSION);
}
