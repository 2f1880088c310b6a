//! Settings of the commands that look at locks: status, list, history, and break, which looks
//! first.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use super::backend::{Backend, Location};
use super::sources::Sources;
use super::{one_key, usage};
use crate::cli::{BreakArgs, CheckArg, HistoryArgs, KeyArgs, ListArgs, StatusArgs, WatchArgs};
use crate::exit::Failure;
use crate::lock::{BreakMode, Claim, MOST_SLOTS};
use crate::moment::Moment;
use crate::report::Verbosity;

const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const TOKEN: &str = "REDLOCK_TOKEN";

#[derive(Debug)]
pub(crate) struct StatusSettings {
    pub key: Vec<u8>,
    pub location: Location,
    pub purpose: Purpose,
    pub json: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Show,
    /// Refresh at this interval.
    Watch(Duration),
    Check(Checked),
    /// Wait until it is free, but no longer than this.
    WaitFree(Option<Duration>),
}

/// The statement that --check tests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checked {
    Held,
    Free,
    /// Held by the run with this token.
    Owned(Claim),
}

impl StatusSettings {
    pub(crate) fn resolve(args: StatusArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let StatusArgs { key, check, token, wait_free, wait, watch, look } = args;
        let key = one_key(key)?;
        if token.is_some() && check != Some(CheckArg::Owned) {
            return Err(usage("--token requires --check owned"));
        }
        if sources.was_typed("wait") && !wait_free {
            return Err(usage("--wait requires --wait-free"));
        }
        let modes = [("check", check.is_some()), ("wait_free", wait_free), ("watch", watch.watch)];
        let purpose = match (sources.one_of(&modes)?, check) {
            (Some("wait_free"), _) => Purpose::WaitFree(sources.duration("wait", wait.as_deref())?),
            (Some("watch"), _) => Purpose::Watch(interval(&watch, sources)?),
            (_, None) => Purpose::Show,
            (_, Some(CheckArg::Held)) => Purpose::Check(Checked::Held),
            (_, Some(CheckArg::Free)) => Purpose::Check(Checked::Free),
            (_, Some(CheckArg::Owned)) => Purpose::Check(Checked::Owned(claim(token)?)),
        };
        Ok(Self { key, purpose, json: look.json, location: Location::of(&look, sources)? })
    }
}

fn interval(args: &WatchArgs, sources: Sources<'_>) -> Result<Duration, Failure> {
    if sources.was_typed("interval") && !args.watch {
        return Err(usage("--interval requires --watch"));
    }
    let interval = sources.duration("interval", args.interval.as_deref())?.unwrap_or(DEFAULT_INTERVAL);
    if interval < SHORTEST_INTERVAL {
        return Err(sources.must("interval", "be at least 100ms"));
    }
    Ok(interval)
}

/// The token that was typed, or that of the outer run.
pub(super) fn claim(typed: Option<String>) -> Result<Claim, Failure> {
    let (name, text) = match typed {
        Some(text) => ("--token", text),
        None => (TOKEN, env::var(TOKEN).unwrap_or_default()),
    };
    if text.is_empty() {
        return Err(usage(format!("--token TOKEN is required, or set {TOKEN}")));
    }
    text.parse().map_err(|()| usage(format!("{name}: not a token; redlock sets {TOKEN} to one")))
}

#[derive(Debug)]
pub(crate) struct ListSettings {
    /// In the syntax of Redis.
    pub pattern: Option<Vec<u8>>,
    pub location: Location,
    pub form: ListForm,
    /// Only locks that have waiters.
    pub waiting: bool,
    /// Refresh at this interval.
    pub watch: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListForm {
    Table,
    Json,
    /// Only the keys.
    Keys,
    OpenMetrics,
}

impl ListSettings {
    pub(crate) fn resolve(args: ListArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let ListArgs { pattern, waiting, keys, openmetrics, watch, look } = args;
        let forms = [("keys", keys), ("openmetrics", openmetrics), ("json", look.json)];
        let form = match sources.one_of(&forms)? {
            Some("keys") => ListForm::Keys,
            Some("openmetrics") => ListForm::OpenMetrics,
            Some(_) => ListForm::Json,
            None => ListForm::Table,
        };
        if let Some((other, _)) = [("watch", watch.watch), ("waiting", waiting)].iter().find(|(_, set)| *set)
            && form == ListForm::OpenMetrics
        {
            return Err(sources.exclusive(other, "openmetrics"));
        }
        Ok(Self {
            pattern: pattern.map(OsStringExt::into_vec),
            form,
            waiting,
            watch: Some(interval(&watch, sources)?).filter(|_| watch.watch),
            location: Location::of(&look, sources)?,
        })
    }
}

#[derive(Debug)]
pub(crate) struct HistorySettings {
    pub scope: HistoryScope,
    /// Only runs that failed.
    pub failed: bool,
    pub location: Location,
    /// Only runs that ended after this.
    pub since: Option<Moment>,
    /// At most this many finished runs.
    pub limit: Option<usize>,
    pub form: Form,
}

/// The locks whose runs are shown.
#[derive(Debug)]
pub(crate) enum HistoryScope {
    One(Vec<u8>),
    /// Those that match; `None` is all.
    Matching(Option<Vec<u8>>),
}

/// How the runs are shown.
#[derive(Debug)]
pub(crate) enum Form {
    Text,
    Json,
    /// The file to write; `-` is stdout.
    Svg(PathBuf),
}

impl HistorySettings {
    pub(crate) fn resolve(args: HistoryArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let HistoryArgs { pattern, keys, failed, since, limit, svg, look } = args;
        let has_pattern_characters =
            |text: &OsString| text.as_encoded_bytes().iter().any(|byte| b"*?[\\".contains(byte));
        let scope = match pattern {
            None if keys.is_empty() => HistoryScope::Matching(None),
            Some(pattern) if keys.is_empty() && has_pattern_characters(&pattern) => {
                HistoryScope::Matching(Some(pattern.into_vec()))
            }
            argument => HistoryScope::One(one_key(KeyArgs { argument, options: keys })?),
        };
        if svg.is_some() && matches!(scope, HistoryScope::Matching(_)) {
            return Err(usage("--svg requires one KEY"));
        }
        let form = sources.one_of(&[("svg", svg.is_some()), ("json", look.json)])?;
        let since =
            since.map(|text| text.parse().map_err(|why: String| sources.must("since", &why))).transpose()?;
        let limit = sources.whole_number("limit", limit.as_deref(), 1, u32::MAX)?;
        Ok(Self {
            scope,
            failed,
            since,
            limit: limit.and_then(|limit| limit.try_into().ok()),
            form: match (form, svg) {
                (Some("svg"), Some(path)) => Form::Svg(path),
                (Some(_), _) => Form::Json,
                (None, _) => Form::Text,
            },
            location: Location::of(&look, sources)?,
        })
    }
}

#[derive(Debug)]
pub(crate) struct BreakSettings {
    pub key: Vec<u8>,
    pub location: Location,
    /// Do not ask.
    pub yes: bool,
    /// Break only this grant.
    pub token: Option<String>,
    /// Break only the holder of this slot.
    pub slot: Option<u32>,
    pub how: BreakMode,
    /// How long to wait for the outcome at most.
    pub wait: Option<Duration>,
}

impl BreakSettings {
    pub(crate) fn resolve(args: BreakArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let BreakArgs { key, yes, token, slot, now, wait, backend: place, help: _ } = args;
        let key = one_key(key)?;
        let backend = Backend::to_look_at(&place, sources)?;
        // An inherited --wait is meant for runs.
        let wait = wait.filter(|_| sources.was_typed("wait"));
        if token.as_ref().is_some_and(|token| token.parse::<Claim>().is_err()) {
            return Err(sources.must("token", "be the token of a grant, as in REDLOCK_TOKEN"));
        }
        Ok(Self {
            key,
            location: Location::new(backend, &place, Verbosity::Normal, sources)?,
            yes,
            token,
            slot: sources.whole_number("slot", slot.as_deref(), 0, MOST_SLOTS - 1)?,
            how: if now { BreakMode::Immediate } else { BreakMode::Gentle },
            wait: sources.duration("wait", wait.as_deref())?,
        })
    }
}
