//! `redlock status` and `redlock list`: what they show is true, and they change nothing.

mod list;
mod metrics;
mod permissions;
mod servers;
mod status;
mod wait_free;
mod watch;

use serde_json::Value;

use crate::support::Run;

/// `redlock COMMAND --redis URL ARGS`.
fn look(command: &str, url: &str, args: &[&str]) -> Run {
    Run::bare().args(&[command, "--redis", url]).args(args)
}

/// `redlock status KEY --json`.
#[track_caller]
fn status(url: &str, key: &str) -> Value {
    look("status", url, &[key, "--json"]).done().expect_code(0).json()
}
