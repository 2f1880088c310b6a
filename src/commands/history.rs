//! `redlock history`: the runs of one lock.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::SystemTime;
use std::{env, fs};

use super::backend::{cannot_look, open_view};
use super::print;
use crate::child::{local_time, terminal};
use crate::exit::{Exit, Failure, UNFIT};
use crate::report::{self, Style, quoted, sanitize};
use crate::settings::{Form, HistorySettings};

/// If stdout is not a terminal.
const USUAL_WIDTH: usize = 80;
/// Default number of runs listed: with the timeline above, they fit a terminal.
const LISTED_RUNS: usize = 10;

pub(super) fn run(settings: &HistorySettings) -> anyhow::Result<Exit> {
    let since = settings.since.map(|since| since.at(SystemTime::now(), local_time));
    let mut history = open_view(&settings.location)
        .history(&settings.key, since)
        .map_err(|error| cannot_look(&quoted(&[sanitize(&settings.key)]), &error))?;
    // After the look: the times that waiters have waited count back from then.
    let now = SystemTime::now();
    if let Some(limit) = settings.limit {
        history.keep_last(limit);
    }
    let clock = report::Clock { now, since, local_time };
    match &settings.form {
        Form::Text => {
            let rows = settings.limit.unwrap_or(LISTED_RUNS);
            print(&report::history_text(&history, clock, style(), rows))
        }
        Form::Json => print(&report::history_json(&history, now)),
        Form::Svg(path) => write(path, &report::history_svg(&history, clock)),
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
        width: terminal::width(&stdout).unwrap_or(USUAL_WIDTH),
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
