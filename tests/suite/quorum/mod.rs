//! Locks on several servers: votes, the gate, failures, quarantine.

mod contention;
mod faults;
mod fence;
mod gate;
mod quarantine;
mod shared;
mod unfit;
mod votes;
