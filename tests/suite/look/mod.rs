//! `redlock status` and `redlock list`: what they show is true, and they change nothing.

mod list;
mod permissions;
mod servers;
mod status;
mod wait_free;
mod watch;

use serde_json::Value;

use crate::support::{Done, Run};

/// `redlock COMMAND --redis URL ARGS`.
fn look(command: &str, url: &str, args: &[&str]) -> Run {
    Run::bare().args(&[command, "--redis", url]).args(args)
}

/// The printed objects, one per line.
#[track_caller]
fn objects(done: &Done) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    done.stdout.lines().map(parse).collect()
}

/// `redlock status KEY --json`.
#[track_caller]
fn status(url: &str, key: &str) -> Value {
    objects(&look("status", url, &[key, "--json"]).done().expect_code(0)).remove(0)
}
