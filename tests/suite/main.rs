//! The promises of redlock, tested on real servers, with the real binary, real children and real signals.
//!
//! - `backends`: the same on one server, on several and on this host
//! - `redis`: locks on servers; `quorum`: locks on several servers
//! - `host`: locks of this host
//! - `process`: the command, its process tree, signals, terminals
//! - `cli`: options, settings, messages, generated files
//! - `documents`: what README.md and docs/ say; `packages`: what is installed

#[macro_use]
mod support;

mod backends;
mod cli;
mod documents;
mod host;
mod packages;
mod process;
mod quorum;
mod redis;
