//! The command and its process tree: exit codes, signals, terminals, streams, the guardian.

mod exit_codes;
mod guardian;
mod hooks;
mod inheritance;
mod leaks;
mod one_request;
mod other_users;
mod signals;
mod streams;
mod terminal;
mod terminal_jobs;
mod terminal_leader;
mod tree;

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
