//! `redlock list`: all locks that are taken.

use std::cmp::Reverse;
use std::io;

use super::backend::{cannot_look, open_view};
use super::watch::watch;
use super::{exit_code, print};
use crate::child::terminal;
use crate::exit::{Exit, Failure};
use crate::lock::{BackendError, Detail, Listing, Status, View};
use crate::report::{Content, incomplete_list, list_keys, list_table, status_json};
use crate::settings::ListSettings;

pub(super) fn run(settings: &ListSettings) -> anyhow::Result<Exit> {
    let mut view = open_view(&settings.location);
    if let Some(interval) = settings.watch {
        let content = if settings.json { Content::Json } else { Content::Table };
        return watch(interval, content, || {
            look(&mut *view, settings).map(|listing| shown(&listing, settings))
        });
    }
    let listing = look(&mut *view, settings)?;
    let done = print(&shown(&listing, settings))?;
    incomplete(&listing).map_or(Ok(done), |failure| Err(failure.into()))
}

fn look(view: &mut dyn View, settings: &ListSettings) -> Result<Listing, Failure> {
    let detail = if settings.json { Detail::Full } else { Detail::Summary };
    let mut listing = view.list(settings.pattern.as_deref(), detail).map_err(|error| failure(&error))?;
    if settings.waiting {
        listing.locks.retain(|lock| lock.waiter_count > 0);
    }
    listing.locks.sort_by_key(|lock| Reverse((lock.waiter_count, held_for(lock))));
    Ok(listing)
}

fn failure(error: &BackendError) -> Failure {
    cannot_look("the locks", error)
}

/// Why the list may be incomplete.
fn incomplete(listing: &Listing) -> Option<Failure> {
    let missing = || {
        let first = listing.missing.first()?;
        Some(Failure::new(exit_code(first.fault()), incomplete_list(&listing.missing)))
    };
    listing.undecided.as_ref().map(failure).or_else(missing)
}

fn shown(listing: &Listing, settings: &ListSettings) -> String {
    if settings.keys {
        return list_keys(listing);
    }
    if !settings.json {
        return list_table(listing, terminal::width(&io::stdout()));
    }
    let lines: Vec<String> = listing.locks.iter().map(status_json).collect();
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

fn held_for(lock: &Status) -> Option<std::time::Duration> {
    lock.holders.iter().filter_map(|holder| holder.held_for).max()
}
