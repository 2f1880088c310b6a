//! The history of runs: every ending is recorded once, never at the cost of the run; `redlock
//! history` shows it without changing anything.

mod all_keys;
mod endings;
mod hostile;
mod kept;
mod refused;
mod servers;
mod shown;
mod usual;

use serde_json::Value;

use crate::support::Backend;

/// `redlock history KEY --json`.
#[track_caller]
fn history(backend: &Backend, key: &str) -> Vec<Value> {
    backend.subcommand("history").args(&[key, "--json"]).done().expect_code(0).json_lines()
}

/// The values of this field, "" where it is missing.
fn all(runs: &[Value], field: &str) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    runs.iter().map(|run| text(&run[field])).collect()
}
