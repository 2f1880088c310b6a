//! The promises of a break, and how they are violated without one of its rules.

use super::*;
use crate::{full, proves, violates};

fn breaking() -> Breaking {
    Breaking { rules: Rules::ALL, ttl: 2, losses: 1, another: false }
}

#[test]
fn a_break_holds_while_the_holder_renews_and_heals() {
    proves(breaking());
    if full() {
        proves(Breaking { ttl: 3, losses: 2, ..breaking() });
    }
}

#[test]
fn a_break_holds_while_another_client_sets_and_removes_marks() {
    proves(Breaking { another: true, losses: 0, ..breaking() });
    if full() {
        proves(Breaking { another: true, ..breaking() });
    }
}

/// It has found the marks of the other client, which then removes them.
#[test]
fn without_authors_a_reported_break_depends_on_the_marks_of_another_client() {
    let rules = Rules { marks_have_authors: false, ..Rules::ALL };
    violates(Breaking { rules, another: true, losses: 0, ..breaking() }, LAST_LEASE);
}

#[test]
fn without_the_rule_a_marked_claim_is_renewed_forever() {
    let rules = Rules { marked_is_not_renewed: false, ..Rules::ALL };
    violates(Breaking { rules, losses: 0, ..breaking() }, LAST_LEASE);
}

#[test]
fn without_the_rule_the_next_client_starts_beside_the_command() {
    let rules = Rules { freed_by_holder_or_lease: false, ..Rules::ALL };
    violates(Breaking { rules, losses: 0, ..breaking() }, EXCLUSION);
}

/// A marked server loses its data and is healed without the mark before another server is marked.
#[test]
fn without_confirmation_a_healed_server_saves_the_holder() {
    let rules = Rules { marks_are_confirmed: false, ..Rules::ALL };
    violates(Breaking { rules, ..breaking() }, LAST_LEASE);
}

/// The breaking client waits for the end of a lease that is then renewed once more.
#[test]
fn without_the_rule_a_reported_break_is_undone() {
    let rules = Rules { told_is_not_taken_back: false, ..Rules::ALL };
    violates(Breaking { rules, losses: 0, ..breaking() }, LAST_LEASE);
}
