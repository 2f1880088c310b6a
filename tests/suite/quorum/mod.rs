//! Locks on several servers: votes, the gate, order on real networks, failures, quarantine.

mod bounds;
mod clocks;
mod contention;
mod faults;
mod fence;
mod gate;
mod healing;
mod idle_connections;
mod late_gate;
mod lines;
mod newcomers_votes;
mod one_round;
mod order;
mod quarantine;
mod shared;
mod sick_minority;
mod slots;
mod starvation;
mod supersede;
mod timeouts;
mod unfit;
mod votes;
