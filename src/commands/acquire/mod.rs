//! `redlock acquire`: take the lock, print its token, and leave the lock taken.
//!
//! Until the token is printed everything can be undone: a signal, or a stdout that cannot be
//! written, releases the lock.

mod keep;
mod output;

use std::time::Duration;

use anyhow::Context;

use self::output::{print_token, run_front, token_text};
use super::identity;
use super::nesting::OuterRuns;
use super::take::{self, UngrantedLock};
use crate::child::signals::{Signals, install_noop_handler};
use crate::child::{self, Printed, Side, WatchedProcess};
use crate::exit::{self, Exit, Failure};
use crate::fault;
use crate::lock::{Ended, Grant, HolderInfo, Lock, Outcome, Renewal};
use crate::report::{self, Report};
use crate::settings::{AcquireSettings, OnLost, TokenFormat, Watched};

pub(super) fn run(settings: &AcquireSettings) -> anyhow::Result<Exit> {
    let result = acquire_and_keep(settings);
    if settings.format == TokenFormat::Shell {
        tell_eval(&result);
    }
    result
}

/// The exit code of a command substitution is lost in eval "$(...)": the printed text must fail as
/// well.
fn tell_eval(result: &anyhow::Result<Exit>) {
    let code = match result {
        Ok(Exit::Code(code)) => i32::from(*code),
        Ok(Exit::Signal(signal)) => 128 + signal,
        Err(error) => exit::code_of(error).into(),
    };
    if code != 0 {
        // Without a reader, or with a full disk, nothing can be done.
        let _ = super::print(&format!("(exit {code})\n"));
    }
}

fn acquire_and_keep(settings: &AcquireSettings) -> anyhow::Result<Exit> {
    let watched = watched_process(settings)?;
    // A lock on this host is held by a process.
    if watched.is_none() && !settings.lock.location.backend.is_this_host() {
        return run_without_keeper(settings);
    }
    match child::split(watched.as_ref()).context("cannot start the keeper")? {
        Side::Front(front) => run_front(&front),
        Side::Worker(link) => keep::run(settings, watched, link),
    }
}

/// Opened before the first request: the process is pinned, and its number may be reused from here
/// on.
fn watched_process(settings: &AcquireSettings) -> Result<Option<WatchedProcess>, Failure> {
    let (opened, what) = match settings.watched {
        None => return Ok(None),
        Some(Watched::Parent) => (WatchedProcess::calling_shell(), "--for-shell: the calling shell".into()),
        Some(Watched::Process(pid)) => (WatchedProcess::open(pid), format!("--watch-pid: process {pid}")),
    };
    let watched = opened.map_err(|error| Failure::new(exit::USAGE, report::cannot_watch(&what, error)))?;
    if settings.on_lost == OnLost::Stop && !watched.may_be_signalled() {
        return Err(Failure::new(exit::REFUSED, report::cannot_stop(&what)));
    }
    Ok(Some(watched))
}

fn run_without_keeper(settings: &AcquireSettings) -> anyhow::Result<Exit> {
    let holder = HolderInfo { renewal: Renewal::Nobody, ..identity::describe(&[], &settings.lock.label) };
    let mut report = take::new_report(&settings.lock, &holder)?;
    let result = acquire(settings, holder, &mut report);
    Ok(report.ended(result))
}

fn acquire(settings: &AcquireSettings, holder: HolderInfo, report: &mut Report) -> anyhow::Result<Exit> {
    let lock = open(settings, report)?;
    let mut signals = Signals::block()?;
    report::allow_threads();
    let (mut lock, grant) = match take(settings, lock, holder, &mut signals, report)? {
        Ok(taken) => taken,
        Err(exit) => return Ok(exit),
    };
    let deadline = grant.lease.map(|lease| lease.deadline());
    let printed = print_token(&token_text(settings, &grant, false, None), deadline, &mut signals);
    if printed != Printed::Done {
        return release_unprinted(&mut *lock, &grant, printed, report);
    }
    report::handed_out();
    Ok(Exit::Code(0))
}

/// Call before signals are blocked: it may take a minute if another user has a lease on the file.
fn open(settings: &AcquireSettings, report: &mut Report) -> Result<Box<dyn Lock>, Failure> {
    if settings.ttl.is_none() && settings.watched.is_none() {
        report.stays_locked();
    }
    take::open_lock(&settings.lock, report)
}

/// The lock; or the exit code if it was not acquired.
type Taken = Result<(Box<dyn Lock>, Grant), Exit>;

fn take(
    settings: &AcquireSettings,
    lock: Box<dyn Lock>,
    holder: HolderInfo,
    signals: &mut Signals,
    report: &mut Report,
) -> anyhow::Result<Taken> {
    if let Some(signal) = take::delay_start(settings.lock.jitter, signals, report) {
        return Ok(Err(Exit::Signal(signal as i32)));
    }
    let request = take::request(&settings.lock, holder);
    let mut pending = UngrantedLock::new(lock);
    pending.send_ahead(&request);
    if let Some(signal) = pending.lock().interrupt_signal() {
        install_noop_handler(signal).context("cannot handle a signal")?;
    }
    match take::acquire(pending, &request, OuterRuns::default(), &settings.lock, signals, report) {
        Ok(taken) => {
            fault::panic_if_requested("granted");
            if let (Some(ttl), true) = (settings.ttl, settings.watched.is_none() && settings.has_default_ttl)
            {
                report.nobody_renews(ttl);
            }
            Ok(Ok(taken))
        }
        Err(exit) => Ok(Err(exit?)),
    }
}

/// The token was not printed.
fn release_unprinted(
    lock: &mut dyn Lock,
    grant: &Grant,
    why: Printed,
    report: &mut Report,
) -> anyhow::Result<Exit> {
    let ended = match why {
        Printed::Cancelled(signal) => Ended { how: Outcome::Cancelled, exit: Some(Exit::Signal(signal)) },
        Printed::Done | Printed::TooLate | Printed::Failed(_) => Ended::new(Outcome::NotStarted),
    };
    let released = lock.release(grant, &ended, Duration::ZERO);
    report.released(grant.taken_at.elapsed(), released.is_done());
    match why {
        Printed::Done => Ok(Exit::Code(0)),
        Printed::Cancelled(signal) => Ok(Exit::Signal(signal)),
        Printed::TooLate => {
            Err(Failure::new(exit::LOST, report::token_printed_too_late(&report.lock())).into())
        }
        Printed::Failed(error) => {
            let error = std::io::Error::from_raw_os_error(error);
            Err(Failure::new(exit::INTERNAL, report::cannot_print_token(&report.lock(), &error)).into())
        }
    }
}
