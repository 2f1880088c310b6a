//! The protocol of several servers (docs/protocol.md), model-checked with stateright: 3 servers,
//! for some questions 5, and 2 to 4 clients.
//!
//! Six models, since they rest on different assumptions.
//! - `exclusion`: who holds the lock, writers and sharers. All share one clock of whole ticks. A
//!   claim on a server expires `ttl` ticks after the server executed the request; a vote counts
//!   until `ttl` ticks after its round was sent, so never longer than its claim. Clients acquire,
//!   keep votes while they wait, release and retry, renew and heal; servers restart with their
//!   data, without it, or with an old copy; clients may differ in ttl and quarantine.
//! - `fence`: which token a grant gets. There is no clock: a claim may disappear and a reply may
//!   count at any time, so that a writer may be granted the lock beside others. All tokens still
//!   differ.
//! - `turn`: who is next. There is no clock, and no server fails, but requests and releases may be
//!   arbitrarily late. Grants come in the order of arrival at the gate if all clients have the same
//!   gate; if not, every client is still served. The whole graph of states (`graph`) is checked for
//!   this: the end can be reached from each state, and a run can stay in a circle only if a step
//!   that is always possible never happens.
//! - `failover`: one server whose replica takes its place, as with Sentinel and Cluster.
//!   Replication is asynchronous, and the roles may change any number of times.
//! - `shard`: one slot of a cluster that moves between two masters, which may lose their data. A
//!   master that is known to have kept its data and its slots grants the first lock of a slot at
//!   once.
//! - `breaking`: a claim is taken away from its holder (`redlock break`), server by server, while
//!   the holder renews and heals. The next client never holds beside the old command, and the
//!   holder's current lease is its last.
//!
//! In `exclusion` and `fence` the network is as bad as possible. A server may execute any request
//! at any later time, any number of times, in any order, or never; this includes the requests of
//! attempts that were released long ago. A reply arrives at once or never or, for renewals, late: a
//! later reply could have no effect that the model cannot have without it (see `Action` in each).
//!
//! Left out, and why nothing is lost by it:
//! - In `exclusion` and `fence` the queue and the gate, apart from the gate's clock: a client may
//!   send its first request to any server, keep its votes for any time and request others at any
//!   time. Safety must not depend on them.
//! - In `turn` whatever makes a vote end by itself: leases, restarts (but see `a_vote_lapses`) and
//!   dead clients, which are like those that give up. Wake-ups and the length of the wait before
//!   yielding (200 ms): a waiter repeats its request at any time. Stamps from the future, which a
//!   server replaces by its own time: stamps of different servers are in any order anyway
//!   (`clocks_differ`).
//! - Servers that are down: all messages to them are lost; in `turn` they are not in `reach`.
//! - The 1% + 2 ms by which a deadline is early: they compensate for clocks that run differently
//!   (lease.rs); here there is one clock, and the margin is 0. For the same reason a server's
//!   quarantine is not a second longer.
//! - The marker at `lock:K` while the lock is shared: a server is shared while a sharer's entry
//!   lives, so the marker must live as long as the last of them.
//! - Groups of sharers: to all others, a sharer of another group is like a writer.
//! - In most runs of `exclusion` more can happen than in reality, since that makes fewer states:
//!   `AtWill`, `OfAnyClaim`, `Leftovers`. There are runs without these, too, and both kinds fail if
//!   a rule is left out.
//! - In `fence`, everything that raises a fence without a grant to a client of the model (a heal,
//!   the clock, a proposal, further clients, late requests of finished grants) is one action,
//!   `FenceGrows`.
//!
//! States that differ only in the names of servers or clients are one state, where these are alike.
//! `MODEL=full` explores more: the runs behind `full()` in the tests. It needs all the memory of a
//! machine, and its largest parts (`fence` with three clients, two losses of data or fences up to
//! 5; `exclusion` with three or four clients and leftovers) have never been run to completion: only
//! what the tests without it prove is claimed.

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

/// Explores all states; every property must hold.
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

/// The property does not hold; prints how it is violated. Under `symmetry` names change from line
/// to line.
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
