//! Order and progress, and how they are violated without one of the rules.

use super::*;
use crate::graph::Graph;
use crate::{full, proves, violates};

const ALL: Set = 0b111;

/// All clients have the same gate, and nothing fails.
fn agreed<const SERVERS: usize, const CLIENTS: usize>() -> Turn<SERVERS, CLIENTS> {
    Turn {
        rules: Rules::ALL,
        writers: CLIENTS,
        reach: [only(SERVERS) - 1; CLIENTS],
        gates: [0; CLIENTS],
        quarantined: 0,
        newcomers: Newcomers::AskAllAtOnce,
        give_up: false,
        loops: 0,
        clocks_differ: false,
        a_vote_lapses: false,
        overtaken_at_most: None,
    }
}

/// Order is not promised: a younger client may have its turn before an older one.
fn disagreed<const SERVERS: usize, const CLIENTS: usize>(gates: [u8; CLIENTS]) -> Turn<SERVERS, CLIENTS> {
    Turn { gates, clocks_differ: true, ..agreed() }
}

/// The last client does not reach the gate of the others.
fn one_does_not_reach_the_gate() -> Turn<3, 3> {
    Turn { reach: [ALL, ALL, 0b110], ..disagreed([0, 0, 1]) }
}

/// Every client is served eventually, provided that every request and every release arrives.
fn all_clients_are_served<const SERVERS: usize, const CLIENTS: usize>(model: Turn<SERVERS, CLIENTS>) {
    let graph = Graph::of(&model, kind::<CLIENTS>);
    if let Some(stuck) = graph.dead_end(|state| model.all_are_served(state)) {
        graph.print_way_to(stuck);
        panic!("a client starves");
    }
    if let Some(circle) = graph.fair_circle() {
        graph.print_way_to(circle[0]);
        panic!("{} states in a circle", circle.len());
    }
}

fn a_waiter_starves<const SERVERS: usize, const CLIENTS: usize>(model: Turn<SERVERS, CLIENTS>) {
    let graph = Graph::of(&model, kind::<CLIENTS>);
    let stuck = graph.dead_end(|state| model.all_are_served(state)).expect("a dead end");
    graph.print_way_to(stuck);
}

/// Steps of the same kind can be delayed, but not forever; 0 = a step that need not happen.
fn kind<const CLIENTS: usize>(action: &Action) -> u8 {
    let (what, server, client) = match *action {
        Action::ClientComes { .. } | Action::ClientGivesUp { .. } | Action::VoteLapses { .. } => return 0,
        Action::ClientReleases { client } => (0, 0, client),
        Action::ClientRenews { client, server } => (1, server, client),
        Action::ServerReplies { server, client, .. } => (2, server, client),
        Action::ServerIsLate { server, client, .. } | Action::ServerReleases { server, client } => {
            (3, server, client)
        }
    };
    1 + ((what * 5 + server) * CLIENTS + client) as u8
}

mod order_holds {
    use super::*;

    #[test]
    fn among_two_clients_in_a_loop() {
        for newcomers in [Newcomers::AskAllAtOnce, Newcomers::DoEither] {
            proves(Turn { loops: 0b11, newcomers, ..agreed::<3, 2>() });
            proves(Turn { loops: 0b11, newcomers, give_up: true, ..agreed::<3, 2>() });
        }
    }

    #[test]
    fn among_three() {
        proves(Turn { newcomers: Newcomers::AskTheGateFirst, ..agreed::<3, 3>() });
        if full() {
            proves(agreed::<3, 3>());
            proves(Turn { give_up: true, ..agreed::<3, 3>() });
        }
    }

    #[test]
    fn among_a_writer_and_readers() {
        proves(Turn { writers: 1, newcomers: Newcomers::AskTheGateFirst, ..agreed::<3, 3>() });
        if full() {
            proves(Turn { writers: 1, ..agreed::<3, 3>() });
        }
    }

    #[test]
    fn while_the_first_server_is_quarantined() {
        proves(Turn { quarantined: 0b001, newcomers: Newcomers::AskTheGateFirst, ..agreed::<3, 3>() });
    }

    #[test]
    fn on_five_servers() {
        proves(Turn { newcomers: Newcomers::AskTheGateFirst, ..agreed::<5, 2>() });
        if full() {
            proves(agreed::<5, 2>());
        }
    }
}

mod order_is_violated {
    use super::*;

    /// A newcomer's stray votes, or a release in flight, make the next client give up its turn.
    #[test]
    fn if_a_client_refused_elsewhere_gives_up_its_turn() {
        let rules = Rules { keeps_its_turn: false, ..Rules::ALL };
        violates(Turn { rules, ..agreed::<3, 2>() }, ORDER);
        violates(Turn { rules, newcomers: Newcomers::AskTheGateFirst, ..agreed::<3, 3>() }, ORDER);
    }

    /// Therefore order is promised only where all clients have the same gate.
    #[test]
    fn if_the_gates_differ() {
        violates(disagreed::<3, 2>([0, 1]), ORDER);
    }
}

mod exclusion_is_violated {
    use super::*;

    #[test]
    fn if_a_vote_that_was_released_is_counted() {
        let rules = Rules { released_do_not_count: false, ..Rules::ALL };
        violates(Turn { rules, ..one_does_not_reach_the_gate() }, EXCLUSION);
    }
}

mod all_are_served {
    use super::*;

    #[test]
    fn where_all_have_the_same_gate() {
        all_clients_are_served(agreed::<3, 2>());
        all_clients_are_served(Turn { newcomers: Newcomers::DoEither, ..agreed::<3, 2>() });
        all_clients_are_served(Turn { newcomers: Newcomers::AskTheGateFirst, ..agreed::<3, 3>() });
        all_clients_are_served(Turn {
            newcomers: Newcomers::AskTheGateFirst,
            writers: 1,
            ..agreed::<3, 3>()
        });
        if full() {
            all_clients_are_served(agreed::<3, 3>());
            all_clients_are_served(Turn { writers: 1, ..agreed::<3, 3>() });
            all_clients_are_served(agreed::<5, 2>());
        }
    }

    #[test]
    fn where_gates_differ() {
        all_clients_are_served(disagreed::<3, 2>([0, 1]));
        all_clients_are_served(Turn { newcomers: Newcomers::DoEither, ..disagreed::<3, 2>([0, 1]) });
        all_clients_are_served(Turn { reach: [ALL, 0b110], ..disagreed::<3, 2>([0, 1]) });
        all_clients_are_served(Turn {
            newcomers: Newcomers::AskTheGateFirst,
            ..one_does_not_reach_the_gate()
        });
        all_clients_are_served(Turn { reach: [0b011, 0b110, 0b101], ..disagreed::<3, 3>([0, 1, 0]) });
        if full() {
            all_clients_are_served(one_does_not_reach_the_gate());
            all_clients_are_served(disagreed::<3, 3>([0, 0, 1]));
            all_clients_are_served(Turn { reach: [0b01111; 2], ..disagreed::<5, 2>([0, 1]) });
        }
    }

    /// Server 2 is down for both.
    #[test]
    fn where_no_server_is_left_to_decide() {
        all_clients_are_served(Turn { reach: [0b011; 2], ..disagreed::<3, 2>([0, 1]) });
        all_clients_are_served(two_servers_each());
    }

    #[test]
    fn while_the_first_server_is_quarantined() {
        all_clients_are_served(Turn { quarantined: 0b001, ..agreed::<3, 2>() });
        all_clients_are_served(Turn { quarantined: 0b001, ..disagreed::<3, 2>([0, 1]) });
    }

    #[test]
    fn where_a_vote_lapses() {
        all_clients_are_served(Turn { a_vote_lapses: true, ..agreed::<3, 2>() });
        all_clients_are_served(Turn { a_vote_lapses: true, reach: [0b01101; 2], ..agreed::<5, 2>() });
    }
}

/// The first client reaches four of five servers, the second three of these: each may have two
/// votes.
fn two_servers_each() -> Turn<5, 2> {
    Turn { reach: [0b01111, 0b01110], ..disagreed([0, 1]) }
}

mod a_client_starves {
    use super::*;

    #[test]
    fn if_no_client_yields() {
        let rules = Rules { younger_yields: false, ..Rules::ALL };
        a_waiter_starves(Turn { rules, reach: [0b011; 2], ..disagreed::<3, 2>([0, 1]) });
    }

    /// The client waits there, and all others overtake it.
    #[test]
    fn if_a_quarantined_server_queues() {
        let rules = Rules { quarantined_queue_nobody: false, ..Rules::ALL };
        a_waiter_starves(Turn { rules, quarantined: 0b001, ..disagreed::<3, 2>([0, 1]) });
    }

    /// It has the votes of both other servers and waits for the gate; the client that has the
    /// gate's vote waits for these.
    #[test]
    fn if_a_newcomer_keeps_its_stray_votes() {
        let rules = Rules { strays_are_released: false, ..Rules::ALL };
        a_waiter_starves(Turn { rules, ..agreed::<3, 2>() });
    }

    /// The younger client sees only votes that were given before the older one knew its stamp.
    #[test]
    fn if_a_newcomers_votes_never_carry_its_stamp() {
        let rules = Rules { renewals_tell_the_stamp: false, ..Rules::ALL };
        a_waiter_starves(Turn { rules, ..two_servers_each() });
    }

    /// Each assumes that the other is about to release its votes, as both have the same gate.
    #[test]
    fn if_a_client_that_lost_the_gates_vote_continues() {
        let rules = Rules { lost_gate_steps_back: false, ..Rules::ALL };
        let down = Turn { reach: [0b01101; 2], ..agreed::<5, 2>() };
        a_waiter_starves(Turn { rules, a_vote_lapses: true, ..down });
    }
}

mod no_client_is_overtaken {
    use super::*;

    fn at_most(times: u8) -> Turn<3, 2> {
        Turn { loops: 0b11, overtaken_at_most: Some(times), ..agreed() }
    }

    #[test]
    fn where_all_have_the_same_gate() {
        proves(at_most(0));
    }

    /// Both clients request the lock in a loop. The bound is exact.
    #[test]
    fn more_than_twice_where_gates_differ() {
        let unreached = Turn { gates: [0, 1], reach: [ALL, 0b110], ..at_most(2) };
        for newcomers in [Newcomers::AskAllAtOnce, Newcomers::DoEither] {
            proves(Turn { newcomers, ..unreached });
        }
        violates(Turn { overtaken_at_most: Some(1), ..unreached }, OVERTAKEN);
        if full() {
            proves(Turn { gates: [0, 1], ..at_most(2) });
            // Where clocks differ, the client that arrives later may count as the older one.
            violates(Turn { gates: [0, 1], clocks_differ: true, ..at_most(3) }, OVERTAKEN);
        }
    }

    /// A waiter does not move to the holder's gate: it would be overtaken once more.
    #[test]
    fn more_than_twice_unless_the_holder_is_followed() {
        let rules = Rules { follows_the_holder: true, ..Rules::ALL };
        violates(Turn { rules, gates: [0, 1], ..at_most(2) }, OVERTAKEN);
        if full() {
            proves(Turn { rules, gates: [0, 1], ..at_most(3) });
        }
    }

    /// The waiter follows the gates of votes that are about to be released, back and forth, while
    /// others overtake it without bound: 8 is only the number tried here.
    #[test]
    fn unless_a_stray_vote_is_followed() {
        let rules = Rules { follows_the_holder: true, strays_are_not_followed: false, ..Rules::ALL };
        let unreached = Turn { gates: [0, 1], reach: [ALL, 0b110], ..at_most(8) };
        violates(Turn { rules, ..unreached }, OVERTAKEN);
    }
}
