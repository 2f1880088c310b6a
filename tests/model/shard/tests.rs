//! Exclusion when slots move and masters lose their data, and how it is violated if a shard marker
//! contains less.

use super::*;
use crate::{proves, violates};

const SAFE: Shard = Shard { rules: Rules::ALL, ttl: 2, quarantine: 2, returns_unused: false };

#[test]
fn no_two_clients_hold_while_a_slot_moves_and_masters_lose_their_data() {
    for (ttl, quarantine) in [(1, 1), (2, 2), (1, 3)] {
        proves(Shard { ttl, quarantine, ..SAFE });
    }
}

#[test]
fn a_quarantine_that_is_shorter_than_the_lease_is_none() {
    violates(Shard { quarantine: 1, ..SAFE }, EXCLUSION);
}

/// A known limit: a slot leaves and returns within a lease, no holder renews meanwhile, and the
/// master in between loses the claim but not the marker. The first master considers the marker its
/// own. Shard markers do not matter here.
#[test]
fn a_slot_that_comes_back_unused_counts_as_known() {
    violates(Shard { returns_unused: true, ..SAFE }, EXCLUSION);
}

/// A promoted replica has the shard marker but not the claim.
#[test]
fn without_the_reign_in_the_shard_marker_a_replica_counts_as_known() {
    let rules = Rules { shard_marker_names_reign: false, ..Rules::ALL };
    violates(Shard { rules, ..SAFE }, EXCLUSION);
}

/// A slot is taken from a master that was lost with its data.
#[test]
fn without_the_slots_in_the_shard_marker_a_slot_that_has_come_counts_as_known() {
    let rules = Rules { shard_marker_names_slots: false, shard_marker_names_epoch: false, ..Rules::ALL };
    violates(Shard { rules, ..SAFE }, EXCLUSION);
}

/// The slot has left and returned without the keys, and no client has used it in between.
#[test]
fn without_the_epoch_in_the_shard_marker_a_slot_that_has_come_back_counts_as_known() {
    let rules = Rules { shard_marker_names_epoch: false, ..Rules::ALL };
    violates(Shard { rules, ..SAFE }, EXCLUSION);
}
