//! `redlock status`: the state of one lock.

use std::time::Duration;

use super::backend::{cannot_look, open_view};
use super::print;
use super::watch::watch;
use crate::child::local_time;
use crate::clock::BootTime;
use crate::exit::{Exit, Failure, HELD};
use crate::lock::{BackendError, Status, View, WaitProgress};
use crate::report::{
    self, Content, SILENT_WAIT, Verbosity, WAIT_LINE_EVERY, quoted, status_json, status_text,
};
use crate::settings::{Checked, Purpose, StatusSettings};

pub(super) fn run(settings: &StatusSettings) -> anyhow::Result<Exit> {
    let mut view = open_view(&settings.location);
    match settings.purpose {
        Purpose::Show => {
            let status = look(&mut *view, settings)?;
            print(&shown(&status, settings))?;
            match status.lacks_majority() {
                Some(error) => Err(failure(error, settings).into()),
                None => Ok(Exit::Code(0)),
            }
        }
        Purpose::Watch(interval) => {
            let content = if settings.json { Content::Json } else { Content::Text };
            watch(interval, content, || look(&mut *view, settings).map(|status| shown(&status, settings)))
        }
        Purpose::Check(check) => {
            let status = look(&mut *view, settings)?;
            print_if_asked(&status, settings)?;
            decided(&status, settings)?;
            let is_true = match check {
                Checked::Held => status.is_taken(),
                Checked::Free => !status.is_taken(),
                Checked::Owned(claim) => {
                    view.is_owner(&status, &claim.to_string()).map_err(|error| failure(&error, settings))?
                }
            };
            Ok(Exit::Code(u8::from(!is_true)))
        }
        Purpose::WaitFree(at_most) => wait_until_free(&mut *view, at_most, settings),
    }
}

fn look(view: &mut dyn View, settings: &StatusSettings) -> Result<Status, Failure> {
    view.status(&settings.key).map_err(|error| failure(&error, settings))
}

fn failure(error: &BackendError, settings: &StatusSettings) -> Failure {
    cannot_look(&quoted(&[&settings.key]), error)
}

fn shown(status: &Status, settings: &StatusSettings) -> String {
    if settings.json { format!("{}\n", status_json(status)) } else { status_text(status, local_time) }
}

/// For commands whose result is the exit code.
fn print_if_asked(status: &Status, settings: &StatusSettings) -> anyhow::Result<()> {
    if settings.json || settings.location.verbosity == Verbosity::Verbose {
        print(&shown(status, settings))?;
    }
    Ok(())
}

/// Unknown is not "no".
fn decided(status: &Status, settings: &StatusSettings) -> Result<(), Failure> {
    status.undecided.as_ref().map_or(Ok(()), |error| Err(failure(error, settings)))
}

fn wait_until_free(
    view: &mut dyn View,
    at_most: Option<Duration>,
    settings: &StatusSettings,
) -> anyhow::Result<Exit> {
    let started = BootTime::now();
    let is_quiet = settings.location.verbosity == Verbosity::Quiet;
    let mut next_mention = started + SILENT_WAIT;
    let mut is_failing = false;
    let mut observer = |seen: WaitProgress<'_>| match seen {
        _ if is_quiet => {}
        WaitProgress::Failing(error) => {
            if !std::mem::replace(&mut is_failing, true) {
                report::print(&format!("{}; still waiting", failure(error, settings).message));
            }
        }
        WaitProgress::Taken(status) => {
            is_failing = false;
            if next_mention.has_passed() {
                next_mention = BootTime::now() + WAIT_LINE_EVERY;
                report::still_taken(status, started.elapsed(), local_time);
            }
        }
    };
    let until = at_most.map(|at_most| started + at_most);
    let status = view
        .wait_until_free(&settings.key, until, &mut observer)
        .map_err(|error| failure(&error, settings))?;
    print_if_asked(&status, settings)?;
    decided(&status, settings)?;
    if status.is_idle() {
        return Ok(Exit::Code(0));
    }
    if !is_quiet {
        report::print(&report::gave_up_waiting(&status, started.elapsed(), local_time));
    }
    Ok(Exit::Code(HELD))
}
