//! The promises of redlock, tested on real servers, with the real binary, real children and real
//! signals.
//!
//! - `backends`: the same on one server, on several and on this host
//! - `break_lock`: a lock is taken away from its holder
//! - `redis`: locks on servers; `quorum`: locks on several servers
//! - `sentinel`, `cluster`: servers behind Sentinels and in a Redis Cluster
//! - `host`: locks on this host; `look`: what status and list show; `history`: what is recorded of
//!   runs
//! - `network`: hosts, lines and sites that fall silent, in network namespaces
//! - `keep`: locks without a command: acquire, extend, release, the keeper
//! - `doctor`: the check-up of servers, settings and this host
//! - `tls`: servers with TLS
//! - `process`: the command, its process tree, signals, terminals
//! - `cli`: options, settings, messages, generated files
//! - `wire`: versions of redlock that share a lock
//! - `costs`: what one run costs, in things that can be counted
//! - `documents`: README.md and docs/; `packages`: installed files

#[macro_use]
mod support;

mod backends;
mod break_lock;
mod cli;
mod cluster;
mod costs;
mod doctor;
mod documents;
mod history;
mod host;
mod keep;
mod look;
mod network;
mod packages;
mod process;
mod quorum;
mod redis;
mod sentinel;
mod tls;
mod wire;
