//! Exclusion, and how it is violated without one of the rules.

use super::state::Claim;
use super::*;
use crate::{full, proves, violates};

const OFF: Settings = Settings { ttl: 1, quarantine: 0 };
const ONE: Settings = Settings { ttl: 1, quarantine: 1 };
const TWO: Settings = Settings { ttl: 2, quarantine: 2 };
const THREE: Settings = Settings { ttl: 3, quarantine: 3 };

fn exclusion<const CLIENTS: usize>() -> Exclusion<CLIENTS> {
    Exclusion {
        rules: Rules::ALL,
        writers: CLIENTS,
        settings: [TWO; CLIENTS],
        attempts: 1,
        restarts: 0,
        renewals: true,
        late_answers: false,
        a_client_knows: false,
        healing: Healing::AtWill,
        old_copies: OldCopies::OfAnyClaim,
        leftovers: Leftovers::OfLiveWaiters,
        symmetry: true,
    }
}

/// Only claims that count.
fn bare<const CLIENTS: usize>() -> Exclusion<CLIENTS> {
    let (leftovers, healing, old_copies) = (Leftovers::None, Healing::Never, OldCopies::Never);
    Exclusion { leftovers, healing, old_copies, restarts: ANY_NUMBER, ..exclusion() }
}

mod holds {
    use super::*;

    #[test]
    fn when_servers_restart_and_holders_renew_and_heal() {
        proves(Exclusion { restarts: ANY_NUMBER, ..exclusion::<2>() });
        if full() {
            proves(Exclusion { restarts: ANY_NUMBER, settings: [THREE; 2], ..exclusion::<2>() });
        }
    }

    #[test]
    fn when_clients_retry() {
        proves(Exclusion { attempts: 2, restarts: 1, settings: [ONE; 2], ..exclusion::<2>() });
        if full() {
            proves(Exclusion { attempts: 2, restarts: 1, ..exclusion::<2>() });
            proves(Exclusion { attempts: 3, restarts: 2, settings: [ONE; 2], ..exclusion::<2>() });
        }
    }

    fn by_the_rule() -> Exclusion<2> {
        Exclusion { healing: Healing::ByTheRule, ..exclusion() }
    }

    #[test]
    fn when_healing_goes_by_the_rule() {
        proves(Exclusion { settings: [ONE; 2], restarts: 1, ..by_the_rule() });
        if full() {
            proves(Exclusion { restarts: 1, ..by_the_rule() });
        }
    }

    /// The only reduction of states is by names.
    #[test]
    fn when_any_old_request_may_still_arrive() {
        let leftovers = Leftovers::All;
        proves(Exclusion { leftovers, settings: [ONE; 2], ..by_the_rule() });
        if full() {
            proves(Exclusion { leftovers, ..by_the_rule() });
            let old_copies = OldCopies::LosingTheLastChange;
            proves(Exclusion { leftovers, old_copies, restarts: 1, ..by_the_rule() });
        }
    }

    /// Servers 0 and 1 voted, server 2 is healed in the first renewal, and 1 and 2 suffice for the
    /// second.
    #[test]
    fn and_a_healed_server_is_counted_from_the_next_round() {
        let (client, claim) = (0, Claim { client: 0, attempt: 1 });
        let answer = Answer::AtOnce(2);
        let acquires = |node| [Action::NodeAcquires { node, claim, answer }];
        let extends = |node| [Action::NodeExtends { node, claim, answer }];
        let history = [
            [Action::ClientStarts { client }],
            acquires(0),
            acquires(1),
            [Action::Tick],
            [Action::ClientRenews { client }],
            extends(0),
            extends(2), // "expired"
            extends(1),
            [Action::NodeHeals { node: 2, claim }],
            [Action::Tick],
            [Action::ClientRenews { client }],
            extends(1),
            extends(2),
        ];
        let model = Exclusion { symmetry: false, ..by_the_rule() };
        let mut state = model.init_states().remove(0);
        for action in history.concat() {
            let mut possible = vec![];
            model.actions(&state, &mut possible);
            assert!(possible.contains(&action), "{action:?} in {state:?}");
            state = model.next_state(&state, action).expect("a change");
        }
        assert!((model.property(HEALED_COUNTS).condition)(&model, &state));
    }

    /// The keeper reads replies after the majority, and heals at once.
    #[test]
    fn when_a_vote_is_late() {
        proves(Exclusion { late_answers: true, ..exclusion::<2>() });
        if full() {
            proves(Exclusion { late_answers: true, restarts: ANY_NUMBER, ..exclusion::<2>() });
            proves(Exclusion { late_answers: true, ..by_the_rule() });
            proves(Exclusion { late_answers: true, settings: [THREE; 2], ..exclusion::<2>() });
        }
    }

    /// One client has a shorter quarantine or none, the other a longer ttl.
    #[test]
    fn when_settings_differ() {
        for short in [ONE, OFF] {
            let bare = Exclusion { settings: [short, TWO], a_client_knows: true, ..bare::<2>() };
            let any_late = Exclusion { settings: [short, TWO], a_client_knows: true, ..exclusion::<2>() };
            proves(Exclusion { restarts: 1, ..bare });
            if full() {
                proves(bare);
                proves(Exclusion { settings: [short, THREE], ..bare });
                proves(Exclusion { restarts: 2, ..any_late });
            }
        }
    }

    #[test]
    fn with_three_writers() {
        proves(bare::<3>());
        if full() {
            proves(Exclusion { restarts: 1, ..exclusion::<3>() });
        }
    }

    #[test]
    fn with_a_writer_and_a_sharer() {
        proves(Exclusion { writers: 1, restarts: 1, ..exclusion::<2>() });
    }

    #[test]
    fn with_a_writer_and_two_sharers() {
        proves(Exclusion { writers: 1, settings: [ONE; 3], restarts: 1, ..exclusion::<3>() });
        proves(Exclusion { writers: 1, settings: [ONE; 3], ..bare::<3>() });
        if full() {
            proves(Exclusion { writers: 1, ..exclusion::<3>() });
            proves(Exclusion { writers: 1, ..bare::<3>() });
            proves(Exclusion { writers: 1, restarts: 1, ..exclusion::<3>() });
        }
    }

    #[test]
    fn with_two_writers_and_two_sharers() {
        proves(Exclusion { writers: 2, restarts: 0, ..bare::<4>() });
        if full() {
            proves(Exclusion { writers: 2, restarts: 1, ..bare::<4>() });
        }
    }
}

mod is_violated {
    use super::*;

    /// Only what can happen in reality, with fixed names.
    fn real<const CLIENTS: usize>() -> Exclusion<CLIENTS> {
        Exclusion {
            renewals: false,
            healing: Healing::Never,
            old_copies: OldCopies::Never,
            leftovers: Leftovers::All,
            symmetry: false,
            ..exclusion()
        }
    }

    #[test]
    fn without_the_deadline() {
        violates(Exclusion { rules: Rules { deadline: false, ..Rules::ALL }, ..real::<2>() }, EXCLUSION);
    }

    #[test]
    fn without_attempt_numbers() {
        let rules = Rules { attempt_numbers: false, ..Rules::ALL };
        violates(Exclusion { rules, attempts: 2, ..real::<2>() }, EXCLUSION);
    }

    #[test]
    fn without_quarantine() {
        let rules = Rules { quarantine: false, ..Rules::ALL };
        violates(Exclusion { rules, restarts: 1, ..real::<2>() }, EXCLUSION);
    }

    /// A replica that missed a release is promoted, and renews the old claim of a waiter that
    /// retries.
    #[test]
    fn if_a_quarantined_server_renews_a_claim_for_an_acquire() {
        let rules = Rules { rest_comes_first: false, ..Rules::ALL };
        let old_copies = OldCopies::LosingTheLastChange;
        let promoting = Exclusion { attempts: 2, restarts: 1, old_copies, ..real::<2>() };
        violates(Exclusion { rules, settings: [ONE; 2], symmetry: true, ..promoting }, EXCLUSION);
    }

    /// A server loses a vote and is healed for another client, which then no longer needs the
    /// server that prevented the first client's majority.
    #[test]
    fn if_a_healed_server_counts_while_it_is_quarantined() {
        let rules = Rules { rest_breaks_chain: false, ..Rules::ALL };
        let healing = if full() { Healing::ByTheRule } else { Healing::AtWill };
        let leftovers = Leftovers::OfLiveWaiters;
        let renewing = Exclusion { renewals: true, healing, leftovers, symmetry: true, ..real::<2>() };
        violates(Exclusion { rules, restarts: 1, ..renewing }, EXCLUSION);
    }

    #[test]
    fn where_only_claims_that_count_are_modelled_too() {
        for rules in [
            Rules { deadline: false, ..Rules::ALL },
            Rules { quarantine: false, ..Rules::ALL },
            Rules { rest_breaks_chain: false, ..Rules::ALL },
        ] {
            violates(Exclusion { rules, writers: 1, ..bare::<2>() }, EXCLUSION);
        }
    }

    /// One sharer's release, executed once too often, releases another's claim.
    #[test]
    fn if_sharers_are_only_counted() {
        let rules = Rules { own_entries: false, ..Rules::ALL };
        violates(
            Exclusion { rules, writers: 1, settings: [ONE; 3], symmetry: true, ..real::<3>() },
            EXCLUSION,
        );
    }

    /// A sharer's claim has expired on one server, which then voted for a writer, and the sharer
    /// counts this server again.
    #[test]
    fn if_an_expired_sharer_is_renewed() {
        let rules = Rules { expired_is_expired: false, ..Rules::ALL };
        violates(Exclusion { rules, writers: 1, renewals: true, ..real::<2>() }, EXCLUSION);
    }

    /// The claim was renewed by an earlier round, and expires before the deadline of the newest
    /// round.
    #[test]
    fn if_a_late_vote_counts_for_the_newest_round() {
        let rules = Rules { own_deadline: false, ..Rules::ALL };
        violates(
            Exclusion { rules, renewals: true, late_answers: true, symmetry: true, ..real::<2>() },
            EXCLUSION,
        );
    }

    fn short_and_long() -> Exclusion<2> {
        Exclusion { settings: [ONE, TWO], restarts: 1, symmetry: true, ..real() }
    }

    /// A server loses the vote for the client with the long ttl, and is quarantined only for the
    /// short time.
    #[test]
    fn if_each_client_uses_its_own_quarantine() {
        let rules = Rules { longest_counts: false, ..Rules::ALL };
        violates(Exclusion { rules, a_client_knows: true, ..short_and_long() }, EXCLUSION);
    }

    /// The documented limit: two servers have lost the longest quarantine or never received it, and
    /// the client that uses it reaches neither before the shorter one ends.
    #[test]
    fn if_no_server_of_a_client_knows_the_longest_quarantine() {
        violates(Exclusion { restarts: 2, ..short_and_long() }, EXCLUSION);
    }
}
