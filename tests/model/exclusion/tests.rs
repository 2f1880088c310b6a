//! Who holds, and what becomes of it without one of the rules.

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
        somebody_knows: false,
        healing: Healing::AtWill,
        old_copies: OldCopies::OfAnyClaim,
        leftovers: Leftovers::OfLiveWaiters,
        symmetry: true,
    }
}

/// Claims that count, and no others.
fn bare<const CLIENTS: usize>() -> Exclusion<CLIENTS> {
    let (leftovers, healing, old_copies) = (Leftovers::None, Healing::Never, OldCopies::Never);
    Exclusion { leftovers, healing, old_copies, restarts: ANY_NUMBER, ..exclusion() }
}

mod holds {
    use super::*;

    #[test]
    fn when_nodes_restart_and_holders_renew_and_heal() {
        proves(Exclusion { restarts: ANY_NUMBER, ..exclusion::<2>() });
        if full() {
            proves(Exclusion { restarts: ANY_NUMBER, settings: [THREE; 2], ..exclusion::<2>() });
        }
    }

    #[test]
    fn when_clients_ask_anew() {
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

    /// Nothing that makes the states fewer but the names.
    #[test]
    fn when_all_that_was_sent_may_still_come() {
        let leftovers = Leftovers::All;
        proves(Exclusion { leftovers, settings: [ONE; 2], ..by_the_rule() });
        if full() {
            proves(Exclusion { leftovers, ..by_the_rule() });
            let old_copies = OldCopies::LosingTheLastChange;
            proves(Exclusion { leftovers, old_copies, restarts: 1, ..by_the_rule() });
        }
    }

    /// Nodes 0 and 1 voted, node 2 is healed in the first renewal, and 1 and 2 are enough for the second.
    #[test]
    fn and_a_healed_node_is_counted_from_the_next_round() {
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

    /// The keeper listens on after the majority, and heals at once.
    #[test]
    fn when_a_yes_comes_late() {
        proves(Exclusion { late_answers: true, ..exclusion::<2>() });
        if full() {
            proves(Exclusion { late_answers: true, restarts: ANY_NUMBER, ..exclusion::<2>() });
            proves(Exclusion { late_answers: true, ..by_the_rule() });
            proves(Exclusion { late_answers: true, settings: [THREE; 2], ..exclusion::<2>() });
        }
    }

    /// Of one with a shorter quarantine, or none, and one with a longer ttl.
    #[test]
    fn when_settings_differ() {
        for short in [ONE, OFF] {
            let bare = Exclusion { settings: [short, TWO], somebody_knows: true, ..bare::<2>() };
            let any_late = Exclusion { settings: [short, TWO], somebody_knows: true, ..exclusion::<2>() };
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

    /// No more than what really can happen, under names that stay.
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

    /// A replica that missed a release is promoted, and renews the old claim of a waiter who asks anew.
    #[test]
    fn if_a_resting_node_renews_a_claim_for_an_acquire() {
        let rules = Rules { rest_comes_first: false, ..Rules::ALL };
        let old_copies = OldCopies::LosingTheLastChange;
        let promoting = Exclusion { attempts: 2, restarts: 1, old_copies, ..real::<2>() };
        violates(Exclusion { rules, settings: [ONE; 2], symmetry: true, ..promoting }, EXCLUSION);
    }

    /// A node forgets a vote, is healed for another client, and that one drops the node which kept the
    /// first client from its majority.
    #[test]
    fn if_a_healed_node_counts_while_it_rests() {
        let rules = Rules { rest_breaks_chain: false, ..Rules::ALL };
        let healing = if full() { Healing::ByTheRule } else { Healing::AtWill };
        let leftovers = Leftovers::OfLiveWaiters;
        let renewing = Exclusion { renewals: true, healing, leftovers, symmetry: true, ..real::<2>() };
        violates(Exclusion { rules, restarts: 1, ..renewing }, EXCLUSION);
    }

    #[test]
    fn where_only_claims_that_count_are_looked_at_too() {
        for rules in [
            Rules { deadline: false, ..Rules::ALL },
            Rules { quarantine: false, ..Rules::ALL },
            Rules { rest_breaks_chain: false, ..Rules::ALL },
        ] {
            violates(Exclusion { rules, writers: 1, ..bare::<2>() }, EXCLUSION);
        }
    }

    /// One sharer's release, carried out once too often, takes another's away.
    #[test]
    fn if_sharers_are_only_counted() {
        let rules = Rules { own_entries: false, ..Rules::ALL };
        violates(
            Exclusion { rules, writers: 1, settings: [ONE; 3], symmetry: true, ..real::<3>() },
            EXCLUSION,
        );
    }

    /// A sharer's claim has expired on one node, where a writer was voted for, and it counts this node again.
    #[test]
    fn if_an_expired_sharer_is_renewed() {
        let rules = Rules { expired_is_expired: false, ..Rules::ALL };
        violates(Exclusion { rules, writers: 1, renewals: true, ..real::<2>() }, EXCLUSION);
    }

    /// The claim was renewed when its round was sent, and has expired before the newest round's deadline.
    #[test]
    fn if_a_late_yes_counts_for_the_newest_round() {
        let rules = Rules { own_deadline: false, ..Rules::ALL };
        violates(
            Exclusion { rules, renewals: true, late_answers: true, symmetry: true, ..real::<2>() },
            EXCLUSION,
        );
    }

    fn short_and_long() -> Exclusion<2> {
        Exclusion { settings: [ONE, TWO], restarts: 1, symmetry: true, ..real() }
    }

    /// A server forgets the vote of the one with the long ttl, and rests for the short quarantine only.
    #[test]
    fn if_each_goes_by_its_own_quarantine() {
        let rules = Rules { longest_counts: false, ..Rules::ALL };
        violates(Exclusion { rules, somebody_knows: true, ..short_and_long() }, EXCLUSION);
    }

    /// The stated limit: two servers have forgotten the longest quarantine, or never heard of it, and the one who
    /// uses it reaches neither before the shorter one is over.
    #[test]
    fn if_no_server_of_somebody_knows_the_longest_quarantine() {
        violates(Exclusion { restarts: 2, ..short_and_long() }, EXCLUSION);
    }
}
