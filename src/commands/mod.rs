//! One file for each subcommand.

pub mod completions;
mod identity;
pub mod run;
mod watch;
