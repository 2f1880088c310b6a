//! A Redis Cluster: all names of a lock are in one slot, which may move, and whose master may be
//! replaced.

mod commands;
mod failover;
mod names;
mod resharding;
mod shard;
