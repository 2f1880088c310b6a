//! `redlock history`: the runs of one lock, or of many.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::SystemTime;
use std::{env, fs};

use super::backend::{cannot_look, open_view};
use super::print;
use crate::child::{local_time, terminal};
use crate::exit::{Exit, Failure, UNFIT};
use crate::lock::{BackendError, Detail, History, State, View};
use crate::report::{self, Rows, Style, quoted, sanitize};
use crate::settings::{Form, HistoryScope, HistorySettings};

/// Default number of runs listed: with the timeline above, they fit a terminal.
const LISTED_RUNS: usize = 10;

pub(super) fn run(settings: &HistorySettings) -> anyhow::Result<Exit> {
    let since = settings.since.map(|since| since.at(SystemTime::now(), local_time));
    let mut view = open_view(&settings.location);
    let mut histories = match &settings.scope {
        HistoryScope::One(key) => vec![look(&mut *view, key, since)?],
        HistoryScope::Matching(pattern) => look_at_all(&mut *view, pattern.as_deref(), since)?,
    };
    // After the look: the times that waiters have waited count back from then.
    let now = SystemTime::now();
    let clock = report::Clock { now, since, local_time };
    let is_picture = matches!(settings.form, Form::Text | Form::Svg(_));
    if settings.failed && !(is_picture && matches!(settings.scope, HistoryScope::One(_))) {
        histories.iter_mut().for_each(History::keep_failed);
        histories.retain(|history| !history.runs.is_empty());
    }
    if let Some(limit) = settings.limit {
        keep_last(&mut histories, limit);
    }
    let rows = Rows {
        most: settings.limit.unwrap_or(LISTED_RUNS),
        only_failed: settings.failed,
        columns: terminal::width(&io::stdout()),
    };
    match (&settings.form, &histories[..], &settings.scope) {
        (Form::Svg(path), [history], _) => write(path, &report::history_svg(history, clock)),
        (Form::Text, [history], HistoryScope::One(_)) => {
            print(&report::history_text(history, clock, style(), rows))
        }
        (Form::Text, histories, _) => print(&report::histories_text(histories, clock, rows)),
        (Form::Json | Form::Svg(_), histories, _) => print(&report::history_json(histories, now)),
    }
}

fn look(view: &mut dyn View, key: &[u8], since: Option<SystemTime>) -> Result<History, Failure> {
    view.history(key, since).map_err(|error| cannot_look(&quoted(&[key]), &error))
}

/// The histories of all matching locks that have runs in this period, sorted by their keys.
pub(super) fn look_at_all(
    view: &mut dyn View,
    pattern: Option<&[u8]>,
    since: Option<SystemTime>,
) -> Result<Vec<History>, Failure> {
    let fail = |error: BackendError| cannot_look("the locks", &error);
    let taken = view.list(pattern, Detail::Summary).map_err(fail)?;
    if let Some(error) = taken.undecided {
        return Err(fail(error));
    }
    let taken = taken.locks.into_iter().filter(|lock| lock.state != State::Foreign).map(|lock| lock.key);
    let logged = view.logged_keys(pattern).map_err(fail)?;
    let keys: BTreeSet<Vec<u8>> = logged.into_iter().chain(taken).collect();
    let mut histories = Vec::new();
    for key in keys {
        let history = look(view, &key, since)?;
        if !history.runs.is_empty() || history.status.is_taken() {
            histories.push(history);
        }
    }
    Ok(histories)
}

/// Drop all but the last finished runs of all.
fn keep_last(histories: &mut [History], most: usize) {
    let mut ends: Vec<SystemTime> =
        histories.iter().flat_map(|history| &history.runs).map(|run| run.ended_at).collect();
    ends.sort_unstable();
    if let Some(first) = ends.len().checked_sub(most).and_then(|at| ends.get(at)) {
        for history in histories {
            history.runs.retain(|run| run.ended_at >= *first);
        }
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<Exit> {
    if path == Path::new("-") {
        return print(text);
    }
    fs::write(path, text).map_err(|error| {
        let path = sanitize(path.as_os_str().as_encoded_bytes());
        Failure::new(UNFIT, format!("--svg: cannot write {path}: {error}"))
    })?;
    Ok(Exit::Code(0))
}

fn style() -> Style {
    let stdout = io::stdout();
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    Style {
        width: terminal::width(&stdout).unwrap_or(terminal::USUAL_WIDTH),
        has_colours: stdout.is_terminal() && !is_set("NO_COLOR") && !is_dumb,
        is_unicode: locale_is_unicode(|name| env::var(name).ok()),
    }
}

/// Decided as the C library does.
fn locale_is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_names_the_locale() {
        let is_unicode = |set: &[(&str, &str)]| {
            locale_is_unicode(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(
            is_unicode(&[("LANG", "de_DE.UTF-8")]) && is_unicode(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")])
        );
        assert!(!is_unicode(&[]) && !is_unicode(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
    }
}
