//! `redlock list`: all locks that are taken.

use std::cmp::Reverse;
use std::io;

use super::backend::{cannot_look, open_view};
use super::history::look_at_all;
use super::watch::watch;
use super::{exit_code, print};
use crate::child::terminal;
use crate::exit::{Exit, Failure};
use crate::lock::{BackendError, Detail, Listing, Status, View};
use crate::report::{Content, incomplete_list, list_keys, list_table, openmetrics, status_json};
use crate::settings::{ListForm, ListSettings};

pub(super) fn run(settings: &ListSettings) -> anyhow::Result<Exit> {
    let mut view = open_view(&settings.location);
    if settings.form == ListForm::OpenMetrics {
        return metrics(&mut *view, settings);
    }
    if let Some(interval) = settings.watch {
        let content = if settings.form == ListForm::Json { Content::Json } else { Content::Table };
        return watch(interval, content, || {
            look(&mut *view, settings).map(|listing| shown(&listing, settings))
        });
    }
    let listing = look(&mut *view, settings)?;
    let done = print(&shown(&listing, settings))?;
    incomplete(&listing).map_or(Ok(done), |failure| Err(failure.into()))
}

fn look(view: &mut dyn View, settings: &ListSettings) -> Result<Listing, Failure> {
    let detail = match settings.form {
        ListForm::Json | ListForm::OpenMetrics => Detail::Full,
        ListForm::Table | ListForm::Keys => Detail::Summary,
    };
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
    match settings.form {
        ListForm::Keys => list_keys(listing),
        ListForm::Table => list_table(listing, terminal::width(&io::stdout())),
        ListForm::Json | ListForm::OpenMetrics => {
            let lines: Vec<String> = listing.locks.iter().map(status_json).collect();
            lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
        }
    }
}

/// Something is printed whatever happens: a file that is not replaced would keep its old values.
fn metrics(view: &mut dyn View, settings: &ListSettings) -> anyhow::Result<Exit> {
    let looked = look(view, settings);
    let mut failure = match &looked {
        Ok(listing) => incomplete(listing),
        Err(error) => Some(Failure::new(error.code, error.message.clone())),
    };
    let mut histories = Vec::new();
    if failure.is_none() {
        match look_at_all(view, settings.pattern.as_deref(), None) {
            Ok(found) => histories = found,
            Err(error) => failure = Some(error),
        }
    }
    let done = print(&openmetrics(looked.as_ref().ok(), &histories))?;
    failure.map_or(Ok(done), |failure| Err(failure.into()))
}

fn held_for(lock: &Status) -> Option<std::time::Duration> {
    lock.holders.iter().filter_map(|holder| holder.held_for).max()
}
