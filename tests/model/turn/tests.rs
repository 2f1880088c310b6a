//! Order and progress.
use super::*;
use crate::graph::Graph;
use crate::{full, proves, violates};

const ALL: Set = 0b111;

fn agreed<const CLIENTS: usize>() -> Turn<3, CLIENTS> {
    Turn {
        rules: Rules::ALL,
        writers: CLIENTS,
        reach: [ALL; CLIENTS],
        gates: [0; CLIENTS],
        one_round: true,
        give_up: false,
        loops: 0,
        clocks_differ: false,
        overtaken_at_most: None,
    }
}

/// Whoever comes is served in the end, as long as every request and every release arrives some day.
fn everybody_is_served<const S: usize, const C: usize>(model: Turn<S, C>) {
    let graph = Graph::of(&model, |action| kind::<C>(action));
    if let Some(stuck) = graph.dead_end(|state| model.all_are_served(state)) {
        graph.print_way_to(stuck);
        panic!("nobody is served any more");
    }
    if let Some(circle) = graph.fair_circle() {
        graph.print_way_to(circle[0]);
        panic!("{} states in a circle", circle.len());
    }
}

fn somebody_waits_for_ever<const S: usize, const C: usize>(model: Turn<S, C>) {
    let graph = Graph::of(&model, |action| kind::<C>(action));
    let stuck = graph.dead_end(|state| model.all_are_served(state)).expect("a dead end");
    graph.print_way_to(stuck);
}

fn kind<const CLIENTS: usize>(action: &Action) -> u8 {
    let (what, server, client) = match *action {
        Action::ClientComes { .. } | Action::ClientGivesUp { .. } => return 0,
        Action::ClientReleases { client } => (0, 0, client),
        Action::ClientRenews { client, server } => (1, server, client),
        Action::ServerReplies { server, client, .. } => (2, server, client),
        Action::ServerIsLate { server, client, .. } | Action::ServerReleases { server, client } => (3, server, client),
    };
    1 + ((what * 5 + server) * CLIENTS + client) as u8
}

#[test]
fn t1() {
    proves(agreed::<2>());
     everybody_is_served(agreed::<2>());
}
#[test]
fn t2() {
    proves(agreed::<3>());
     everybody_is_served(agreed::<3>());
}
#[test]
fn t30() {
     everybody_is_served(Turn { reach: [ALL, 0b110], gates: [0, 1], clocks_differ: true, ..agreed::<2>() });
     everybody_is_served(Turn { reach: [0b011, 0b110, 0b101], gates: [0, 1, 0], clocks_differ: true, ..agreed::<3>() });
}
#[test]
fn t3() {
     everybody_is_served(Turn { reach: [ALL, ALL, 0b110], gates: [0, 0, 1], clocks_differ: true, ..agreed::<3>() });
}
#[test]
fn t4() {
    let rules = Rules { younger_yields: false, ..Rules::ALL };
    somebody_waits_for_ever(Turn { rules, reach: [0b011; 2], gates: [0, 1], ..agreed::<2>() });
     everybody_is_served(Turn { reach: [0b011; 2], gates: [0, 1], clocks_differ: true, ..agreed::<2>() });
}
#[test]
fn t5() {
    let rules = Rules { keeps_its_turn: false, ..Rules::ALL };
    violates(Turn { rules, ..agreed::<2>() }, ORDER);
}
#[test]
fn t6() {
    let rules = Rules { strays_are_released: false, ..Rules::ALL };
    somebody_waits_for_ever(Turn { rules, ..agreed::<2>() });
}
#[test]
fn t7() {
    let rules = Rules { released_do_not_count: false, ..Rules::ALL };
    violates(Turn { rules, reach: [ALL, ALL, 0b110], gates: [0, 0, 1], overtaken_at_most: Some(0), ..agreed::<3>() }, EXCLUSION);
}
