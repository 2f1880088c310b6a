//! The protocol of several nodes (docs/protocol.md), model-checked with stateright: 3 nodes, 2 to 4 clients.
//!
//! Two models, since they rest on different assumptions.
//! - `exclusion`: who holds the lock, writers and sharers. There is a clock of whole ticks that all share. A
//!   claim on a node expires `ttl` ticks after the node carried out the request, a client's deadline passes `ttl`
//!   ticks after the client began: so never later than any claim that it relies on. Clients acquire, give back
//!   and ask anew, renew and heal; nodes restart with their memory, without it, or with an old copy.
//! - `fence`: which token a grant gets. There is no clock: a claim may be gone and an answer may count at any
//!   time, so that a writer may well be granted the lock beside others. All tokens still differ.
//!
//! The network is as bad as can be. Whatever was once sent may be carried out by a node at any later time, any
//! number of times, in any order, or never; the request of an attempt that was given back long ago too. An answer
//! arrives at once or never: what a later one could do, the model can do without it (see `Action` in each).
//!
//! What is left out, and why nothing is lost by it:
//! - The queue, the gate and, for tokens, what it proposes: a client may ask any node first, and a node's fence
//!   may have grown to whatever would have been proposed. Safety must not depend on them.
//! - Nodes that are down: their messages are the lost ones.
//! - The 1% + 2 ms by which a deadline comes earlier: they pay for clocks that run differently (lease.rs); here
//!   all clocks are one, and the margin is 0. For the same reason a node rests for `ttl`, not a second more.
//! - The marker at `lock:K` while it is shared: a node is shared as long as a sharer's entry lives, so the marker
//!   must live as long as the last of them.
//! - Groups of sharers: to all others, one of another group is what a writer is.
//! - In most runs more can happen than really can, since that makes fewer states: `AtWill`, `OfAnyClaim`,
//!   `Leftovers`. Runs without stand beside them, and a rule that is left away is missed in both.
//! - In `fence`, what raises a fence without granting anything to a client of the model (a heal, the clock, a
//!   proposal, further clients, late requests of finished grants) is one action, `FenceGrows`.
//!
//! States that differ in the names of nodes or clients only are one state. `MODEL=full` looks further.

mod exclusion;
mod fence;
mod graph;
mod names;
mod rules;
mod turn;

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use exclusion::{ANY_NUMBER, Action, EXCLUSION, Exclusion, HEALED_COUNTS, Healing, Leftovers, OldCopies};
use exclusion::state::Claim;
use fence::{Fence, ORDERED, UNIQUE};
use rules::Rules;
use stateright::{Checker, HasDiscoveries, Model};

const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;

fn full() -> bool {
    std::env::var("MODEL").is_ok_and(|model| model == "full")
}

fn exclusion<const CLIENTS: usize>() -> Exclusion<CLIENTS> {
    Exclusion {
        rules: Rules::ALL,
        writers: CLIENTS,
        ttl: 2,
        attempts: 1,
        restarts: 0,
        renewals: true,
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

fn fence<const CLIENTS: usize>() -> Fence<CLIENTS> {
    Fence { rules: Rules::ALL, largest_fence: 3, empty_restarts: 0, leftovers: false, symmetry: true }
}

/// Every state is looked at, and every property holds.
fn proves<M>(model: M)
where
    M: Model + Debug + Clone + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + Clone + PartialEq,
    M::Action: Debug + Clone + PartialEq,
{
    let begun = Instant::now();
    let name = format!("{model:?}");
    let finish = HasDiscoveries::AnyFailures;
    let checker = model.checker().threads(2).finish_when(finish).spawn_bfs().join();
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!("{states} states, {steps} steps, {:.1?}: {name}", begun.elapsed());
    assert!(checker.is_done());
    checker.assert_properties();
}

/// The property does not hold; prints how it is violated. Under `symmetry` names change from line to line.
fn violates<M>(model: M, property: &'static str)
where
    M: Model + Debug + Clone + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + Clone + PartialEq,
    M::Action: Debug + Clone + PartialEq,
{
    let begun = Instant::now();
    let name = format!("{model:?}");
    let finish = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(finish).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("violated after {states} states, {:.1?}: {name}", begun.elapsed());
    for action in checker.assert_any_discovery(property).into_actions() {
        println!("    {action:?}");
    }
}

mod exclusion_holds {
    use super::*;

    #[test]
    fn when_nodes_restart_and_holders_renew_and_heal() {
        proves(Exclusion { restarts: ANY_NUMBER, ..exclusion::<2>() });
        if full() {
            proves(Exclusion { restarts: ANY_NUMBER, ttl: 3, ..exclusion::<2>() });
        }
    }

    #[test]
    fn when_clients_ask_anew() {
        proves(Exclusion { attempts: 2, restarts: 1, ..exclusion::<2>() });
        if full() {
            proves(Exclusion { attempts: 3, restarts: 2, ..exclusion::<2>() });
        }
    }

    fn by_the_rule() -> Exclusion<2> {
        Exclusion { healing: Healing::ByTheRule, ..exclusion() }
    }

    #[test]
    fn when_healing_goes_by_the_rule() {
        proves(Exclusion { restarts: 1, ..by_the_rule() });
        if full() {
            proves(Exclusion { restarts: 2, ..by_the_rule() });
        }
    }

    /// Nothing that makes the states fewer but the names.
    #[test]
    fn when_all_that_was_sent_may_still_come() {
        let leftovers = Leftovers::All;
        proves(Exclusion { leftovers, ..by_the_rule() });
        if full() {
            let old_copies = OldCopies::LosingTheLastChange;
            proves(Exclusion { leftovers, old_copies, restarts: 1, ..by_the_rule() });
        }
    }

    /// Nodes 0 and 1 voted, node 2 is healed in the first renewal, and 1 and 2 are enough for the second.
    #[test]
    fn and_a_healed_node_is_counted_from_the_next_round() {
        let (client, claim) = (0, Claim { client: 0, attempt: 1 });
        let acquires = |node| [Action::NodeAcquires { node, claim, answer_is_lost: false }];
        let extends = |node| [Action::NodeExtends { node, claim }];
        let history = [
            [Action::ClientStarts { client }],
            acquires(0),
            acquires(1),
            [Action::ClientRenews { client }],
            extends(0),
            extends(2), // "expired"
            extends(1),
            [Action::NodeHeals { node: 2, claim }],
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

    #[test]
    fn with_three_writers() {
        proves(Exclusion { restarts: 1, ..exclusion::<3>() });
        proves(bare::<3>());
    }

    #[test]
    fn with_a_writer_and_a_sharer() {
        proves(Exclusion { writers: 1, restarts: 1, ..exclusion::<2>() });
    }

    #[test]
    fn with_a_writer_and_two_sharers() {
        proves(Exclusion { writers: 1, ..exclusion::<3>() });
        proves(Exclusion { writers: 1, ..bare::<3>() });
        if full() {
            proves(Exclusion { writers: 1, restarts: 1, ..exclusion::<3>() });
            proves(Exclusion { writers: 1, attempts: 2, ..exclusion::<3>() });
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

mod exclusion_is_violated {
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
        violates(Exclusion { rules, ttl: 1, symmetry: true, ..promoting }, EXCLUSION);
    }

    /// A node forgets a vote, is healed for another client, and that one drops the node which kept the
    /// first client from its majority.
    #[test]
    fn if_a_healed_node_counts_while_it_rests() {
        let rules = Rules { rest_breaks_chain: false, ..Rules::ALL };
        let healing = Healing::ByTheRule;
        let renewing = Exclusion { renewals: true, healing, symmetry: true, ..real::<2>() };
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
        violates(Exclusion { rules, writers: 1, ..real::<3>() }, EXCLUSION);
    }

    /// A sharer's claim has expired on one node, where a writer was voted for, and it counts this node again.
    #[test]
    fn if_an_expired_sharer_is_renewed() {
        let rules = Rules { expired_is_expired: false, ..Rules::ALL };
        violates(Exclusion { rules, writers: 1, renewals: true, ..real::<2>() }, EXCLUSION);
    }
}

mod fence_holds {
    use super::*;

    #[test]
    fn when_answers_count_at_any_time() {
        proves(fence::<2>());
        if full() {
            proves(Fence { largest_fence: 4, ..fence::<2>() });
        }
    }

    #[test]
    fn when_all_that_was_sent_may_still_come() {
        proves(Fence { leftovers: true, ..fence::<2>() });
        if full() {
            proves(Fence { leftovers: true, largest_fence: 4, ..fence::<2>() });
        }
    }

    #[test]
    fn when_a_node_loses_its_memory() {
        proves(Fence { empty_restarts: 1, ..fence::<2>() });
        proves(Fence { empty_restarts: 1, leftovers: true, largest_fence: 2, ..fence::<2>() });
        if full() {
            proves(Fence { empty_restarts: 1, leftovers: true, ..fence::<2>() });
            proves(Fence { empty_restarts: 2, ..fence::<2>() });
        }
    }

    #[test]
    fn with_three_clients() {
        proves(fence::<3>());
        if full() {
            proves(Fence { leftovers: true, ..fence::<3>() });
        }
    }
}

mod fence_is_violated {
    use super::*;

    fn named() -> Fence<2> {
        Fence { largest_fence: 2, leftovers: true, symmetry: false, ..fence() }
    }

    #[test]
    fn without_the_raise_round() {
        let rules = Rules { raise_round: false, ..Rules::ALL };
        violates(Fence { rules, ..named() }, UNIQUE);
        violates(Fence { rules, ..named() }, ORDERED);
    }

    #[test]
    fn if_a_sharer_raises_to_what_another_has_set() {
        let rules = Rules { setter_only: false, ..Rules::ALL };
        violates(Fence { rules, ..named() }, UNIQUE);
    }

    /// A waiter asks again after a lost answer, and another sharer was granted in between.
    #[test]
    fn if_a_repeated_vote_is_not_new() {
        let rules = Rules { votes_are_new: false, ..Rules::ALL };
        violates(Fence { rules, ..named() }, UNIQUE);
        violates(Fence { rules, ..named() }, ORDERED);
    }

    #[test]
    fn without_the_clock_if_a_node_loses_its_memory() {
        let rules = Rules { clock_floor: false, ..Rules::ALL };
        violates(Fence { rules, empty_restarts: 1, ..named() }, ORDERED);
    }

    #[test]
    fn without_quarantine_if_a_node_loses_its_memory() {
        let rules = Rules { quarantine: false, ..Rules::ALL };
        violates(Fence { rules, empty_restarts: 1, ..named() }, ORDERED);
    }
}
