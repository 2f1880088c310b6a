//! `redlock list`: the locks that are taken.

use std::cmp::Reverse;

use super::look::{cannot_look, open_view};
use super::watch::watch;
use super::{exit_code, print};
use crate::exit::{Exit, Failure};
use crate::lock::{Detail, Status, View};
use crate::report::{LongLines, incomplete_list, list_keys, list_table, status_json};
use crate::settings::ListSettings;

pub(super) fn run(settings: &ListSettings) -> anyhow::Result<Exit> {
    let mut view = open_view(&settings.location);
    if let Some(interval) = settings.watch {
        return watch(interval, LongLines::Cut, || Ok(list(&mut *view, settings)?.text));
    }
    let Listed { text, incomplete } = list(&mut *view, settings)?;
    let done = print(&text)?;
    incomplete.map_or(Ok(done), |failure| Err(failure.into()))
}

struct Listed {
    text: String,
    /// What is missing in it.
    incomplete: Option<Failure>,
}

fn list(view: &mut dyn View, settings: &ListSettings) -> Result<Listed, Failure> {
    let detail = if settings.json { Detail::Full } else { Detail::Summary };
    let mut listing =
        view.list(settings.pattern.as_deref(), detail).map_err(|error| cannot_look("the locks", &error))?;
    listing.locks.sort_by_key(|lock| Reverse(held_for(lock)));
    let text = if settings.keys {
        list_keys(&listing)
    } else if settings.json {
        let lines: Vec<String> = listing.locks.iter().map(status_json).collect();
        lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    } else {
        list_table(&listing)
    };
    let first = listing.missing.first();
    let incomplete =
        first.map(|first| Failure::new(exit_code(first.fault()), incomplete_list(&listing.missing)));
    Ok(Listed { text, incomplete })
}

fn held_for(lock: &Status) -> Option<std::time::Duration> {
    lock.holders.iter().filter_map(|holder| holder.held_for).max()
}
