//! What a break promises, and what becomes of it without one of its rules.

use super::*;
use crate::{full, proves, violates};

fn breaking() -> Breaking {
    Breaking { rules: Rules::ALL, ttl: 2, losses: 1, another: false }
}

#[test]
fn holds_while_the_holder_renews_and_heals() {
    proves(breaking());
    if full() {
        proves(Breaking { ttl: 3, losses: 2, ..breaking() });
    }
}

#[test]
fn holds_while_another_client_marks_the_same_and_takes_it_back() {
    proves(Breaking { another: true, losses: 0, ..breaking() });
    if full() {
        proves(Breaking { another: true, ..breaking() });
    }
}

/// It has found the marks of the other client, which then takes them back.
#[test]
fn without_it_a_break_that_was_promised_rests_on_the_marks_of_another_client() {
    let rules = Rules { marks_have_authors: false, ..Rules::ALL };
    violates(Breaking { rules, another: true, losses: 0, ..breaking() }, LAST_LEASE);
}

#[test]
fn without_it_a_marked_claim_is_renewed_for_ever() {
    let rules = Rules { marked_is_not_renewed: false, ..Rules::ALL };
    violates(Breaking { rules, losses: 0, ..breaking() }, LAST_LEASE);
}

#[test]
fn without_it_the_next_one_starts_beside_the_command() {
    let rules = Rules { freed_by_holder_or_lease: false, ..Rules::ALL };
    violates(Breaking { rules, losses: 0, ..breaking() }, EXCLUSION);
}

/// A server that was marked loses its data, and gets the claim back without the mark, before another one is marked.
#[test]
fn without_it_a_healed_server_saves_the_holder() {
    let rules = Rules { marks_are_confirmed: false, ..Rules::ALL };
    violates(Breaking { rules, ..breaking() }, LAST_LEASE);
}

/// The client that breaks it waits for the end of a lease that is renewed once more.
#[test]
fn without_it_a_break_that_was_promised_is_taken_back() {
    let rules = Rules { told_is_not_taken_back: false, ..Rules::ALL };
    violates(Breaking { rules, losses: 0, ..breaking() }, LAST_LEASE);
}
