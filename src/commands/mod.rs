//! One file for each subcommand.

pub mod break_open;
pub mod completions;
mod identity;
pub mod run;
mod watch;
