//! Locks on several servers: votes, the gate, order on real networks, failures, quarantine.

mod contention;
mod faults;
mod fence;
mod gate;
mod lines;
mod quarantine;
mod shared;
mod unfit;
mod votes;
