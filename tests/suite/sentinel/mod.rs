//! Servers behind Sentinels: the master is found, and a failover does not break the lock.

mod commands;
mod discovery;
mod failover;
