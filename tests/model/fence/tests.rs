//! Tokens, and how their promises are violated without one of the rules.

use super::*;
use crate::{full, proves, violates};

fn fence<const CLIENTS: usize>() -> Fence<CLIENTS> {
    Fence {
        rules: Rules::ALL,
        largest_fence: 3,
        empty_restarts: 0,
        leftovers: false,
        proposals: Proposals::Any,
        exclusive: false,
        symmetry: true,
    }
}

mod holds {
    use super::*;

    #[test]
    fn when_replies_count_at_any_time() {
        proves(fence::<2>());
        if full() {
            proves(Fence { largest_fence: 4, ..fence::<2>() });
        }
    }

    #[test]
    fn when_any_old_request_may_still_arrive() {
        proves(Fence { leftovers: true, ..fence::<2>() });
        if full() {
            proves(Fence { leftovers: true, largest_fence: 4, ..fence::<2>() });
        }
    }

    #[test]
    fn when_a_server_loses_its_data() {
        proves(Fence { empty_restarts: 1, largest_fence: 2, ..fence::<2>() });
        if full() {
            proves(Fence { empty_restarts: 1, ..fence::<2>() });
            proves(Fence { empty_restarts: 1, leftovers: true, largest_fence: 2, ..fence::<2>() });
            proves(Fence { empty_restarts: 1, leftovers: true, ..fence::<2>() });
            proves(Fence { empty_restarts: 2, ..fence::<2>() });
        }
    }

    /// Proposals are explicit and may be equal; a late one is behind all others.
    #[test]
    fn when_all_servers_receive_the_request_at_once() {
        let proposals = Proposals::Told { largest: 2 };
        proves(Fence { proposals, ..fence::<2>() });
        if full() {
            proves(Fence { proposals, leftovers: true, ..fence::<2>() });
        }
        if full() {
            proves(Fence { proposals, leftovers: true, largest_fence: 5, ..fence::<2>() });
            proves(Fence { proposals, ..fence::<3>() });
        }
    }

    /// Tokens grow in the order of grants.
    #[test]
    fn when_no_server_votes_for_two_clients() {
        let proposals = Proposals::Told { largest: 2 };
        proves(Fence { exclusive: true, proposals, ..fence::<2>() });
        proves(Fence { exclusive: true, ..fence::<2>() });
        if full() {
            proves(Fence { exclusive: true, proposals, largest_fence: 4, ..fence::<2>() });
            proves(Fence { exclusive: true, proposals, largest_fence: 4, ..fence::<3>() });
            proves(Fence { exclusive: true, leftovers: true, ..fence::<2>() });
        }
    }

    #[test]
    fn with_three_clients() {
        if full() {
            proves(fence::<3>());
            proves(Fence { leftovers: true, ..fence::<3>() });
        }
    }
}

mod is_violated {
    use super::*;

    fn named() -> Fence<2> {
        Fence { largest_fence: 2, leftovers: true, symmetry: false, ..fence() }
    }

    fn forgetful() -> Fence<2> {
        Fence { largest_fence: 2, empty_restarts: 1, ..fence() }
    }

    #[test]
    fn without_the_raise_round() {
        let rules = Rules { raise_round: false, ..Rules::ALL };
        violates(Fence { rules, ..named() }, UNIQUE);
        violates(Fence { rules, ..named() }, ORDERED);
        for exclusive in [true, false] {
            let proposals = Proposals::Told { largest: 2 };
            let told = Fence { rules, exclusive, proposals, largest_fence: 3, leftovers: false, ..named() };
            violates(told, UNIQUE);
            violates(told, ORDERED);
        }
    }

    /// The other servers do not use their clocks: a majority without the gate replies with an old
    /// token.
    #[test]
    fn without_the_gates_vote_if_a_server_loses_its_data() {
        let rules = Rules { gate_is_counted: false, ..Rules::ALL };
        violates(Fence { rules, ..forgetful() }, ORDERED);
    }

    /// A lost token is still ahead of the server's clock when the server votes again.
    #[test]
    fn if_proposals_are_further_ahead_than_the_quarantine() {
        let rules = Rules { proposals_within_quarantine: false, ..Rules::ALL };
        violates(Fence { rules, ..forgetful() }, ORDERED);
    }

    #[test]
    fn if_a_sharer_raises_to_what_another_has_set() {
        let rules = Rules { setter_only: false, ..Rules::ALL };
        violates(Fence { rules, ..named() }, UNIQUE);
    }

    /// A waiter repeats its request after a lost reply, and another sharer was granted in between.
    #[test]
    fn if_a_repeated_vote_is_not_new() {
        let rules = Rules { votes_are_new: false, ..Rules::ALL };
        violates(Fence { rules, ..named() }, UNIQUE);
        violates(Fence { rules, ..named() }, ORDERED);
    }

    #[test]
    fn without_the_clock_if_a_server_loses_its_data() {
        let rules = Rules { clock_floor: false, ..Rules::ALL };
        violates(Fence { rules, ..forgetful() }, ORDERED);
    }

    #[test]
    fn without_quarantine_if_a_server_loses_its_data() {
        let rules = Rules { quarantine: false, ..Rules::ALL };
        violates(Fence { rules, ..forgetful() }, ORDERED);
    }
}
