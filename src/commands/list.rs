//! `redlock list`: the locks that are taken.

use std::cmp::Reverse;

use super::look::{cannot_look, open_view};
use super::print;
use super::watch::watch;
use crate::exit::{Exit, Failure};
use crate::lock::{Detail, Status, View};
use crate::report::{LongLines, list_keys, list_table, status_json};
use crate::settings::ListSettings;

pub(super) fn run(settings: &ListSettings) -> anyhow::Result<Exit> {
    let mut view = open_view(&settings.location);
    match settings.watch {
        Some(interval) => watch(interval, LongLines::Cut, || list(&mut *view, settings)),
        None => print(&list(&mut *view, settings)?),
    }
}

fn list(view: &mut dyn View, settings: &ListSettings) -> Result<String, Failure> {
    let detail = if settings.json { Detail::Full } else { Detail::Summary };
    let mut listing =
        view.list(settings.pattern.as_deref(), detail).map_err(|error| cannot_look("the locks", &error))?;
    listing.locks.sort_by_key(|lock| Reverse(held_for(lock)));
    if settings.keys {
        return Ok(list_keys(&listing));
    }
    if !settings.json {
        return Ok(list_table(&listing));
    }
    let lines: Vec<String> = listing.locks.iter().map(status_json).collect();
    Ok(lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect())
}

fn held_for(lock: &Status) -> Option<std::time::Duration> {
    lock.holders.iter().filter_map(|holder| holder.held_for).max()
}
