//! The protocol of several servers (docs/protocol.md), model-checked with stateright: 3 servers (nodes), for some
//! questions 5, and 2 to 4 clients.
//!
//! Six models, since they rest on different assumptions.
//! - `exclusion`: who holds the lock, writers and sharers. There is a clock of whole ticks that all share. A
//!   claim on a node expires `ttl` ticks after the node carried out the request, a yes counts until `ttl` ticks
//!   after its round was sent: so never longer than the claim that it relies on. Clients acquire, keep votes
//!   while they wait, give back and ask anew, renew and heal; nodes restart with their memory, without it, or
//!   with an old copy; clients may differ in ttl and quarantine.
//! - `fence`: which token a grant gets. There is no clock: a claim may be gone and an answer may count at any
//!   time, so that a writer may well be granted the lock beside others. All tokens still differ.
//! - `turn`: who is next. There is no clock, and no server fails, but requests and releases take as long as they
//!   like. Grants come in the order of arrival at the gate if all have the same; if not, everybody is served
//!   all the same. That is asked of the whole graph of states (`graph`): from each there is a way to the end,
//!   and no circle that a run could stay in unless something that can be done all the time is never done.
//! - `failover`: one server whose replica takes its place, as with Sentinel and Cluster. Replication is
//!   asynchronous, and the roles may change as often as one likes.
//! - `shard`: one slot of a cluster that moves between two masters, which lose their data now and then. A master that is
//!   known to have kept its data and its slots grants the first lock of a slot at once.
//! - `breaking`: a claim is taken away from its holder (`redlock break`), server by server, while the holder renews and
//!   heals. The next client never holds beside the old command, and the lease that the holder has is its last.
//!
//! In `exclusion` and `fence` the network is as bad as can be. Whatever was once sent may be carried out by a node
//! at any later time, any number of times, in any order, or never; the request of an attempt that was given back
//! long ago too. An answer arrives at once or never, or, for renewals, late: what a later one could do, the model
//! can do without it (see `Action` in each).
//!
//! What is left out, and why nothing is lost by it:
//! - In `exclusion` and `fence` the queue and the gate, apart from the gate's clock: a client may ask any node
//!   first, keep its votes for as long as it likes and ask for others at any time. Safety must not depend on them.
//! - In `turn` what makes a vote end by itself: leases, restarts (but see `a_vote_lapses`) and dead clients, which
//!   are like those that give up. Wake-ups: a waiter asks again at any time. A stamp from the future, which a
//!   server takes for now: stamps of different servers are in any order anyway (`clocks_differ`).
//! - Nodes that are down: their messages are the lost ones; in `turn` they are not in `reach`.
//! - The 1% + 2 ms by which a deadline comes earlier: they pay for clocks that run differently (lease.rs); here
//!   all clocks are one, and the margin is 0. For the same reason a node rests for its quarantine, not a second
//!   more.
//! - The marker at `lock:K` while it is shared: a node is shared as long as a sharer's entry lives, so the marker
//!   must live as long as the last of them.
//! - Groups of sharers: to all others, one of another group is what a writer is.
//! - In most runs of `exclusion` more can happen than really can, since that makes fewer states: `AtWill`,
//!   `OfAnyClaim`, `Leftovers`. Runs without stand beside them, and a rule that is left away is missed in both.
//! - In `fence`, what raises a fence without granting anything to a client of the model (a heal, the clock, a
//!   proposal, further clients, late requests of finished grants) is one action, `FenceGrows`.
//!
//! States that differ in the names of nodes or clients only are one state, where these are alike. `MODEL=full`
//! looks further: at what stands behind `full()` in the tests. It needs the memory of a machine for itself, and its
//! largest parts (`fence` with three clients, two losses of memory or fences up to 5; `exclusion` with three or four
//! clients and leftovers) have not been run to their end: what is claimed is what the tests without it prove.

mod breaking;
mod exclusion;
mod failover;
mod fence;
mod graph;
mod names;
mod rules;
mod shard;
mod turn;

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;

fn full() -> bool {
    std::env::var("MODEL").is_ok_and(|model| model == "full")
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
