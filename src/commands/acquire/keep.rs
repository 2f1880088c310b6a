//! Starts the keeper: a background process that holds the lock, and renews it on servers, until the
//! watched process has exited, the lock is released or, without a watched process, its time is
//! over.

use std::time::Duration;

use anyhow::Context;

use super::output::token_text;
use super::{open, release_unprinted, take};
use crate::child::signals::Signals;
use crate::child::{AttachPoint, FrontLink, Printed, WatchedProcess, restore_default_signals};
use crate::commands::hold::{Background, Hold};
use crate::commands::identity;
use crate::commands::nesting::publish;
use crate::commands::take::new_report;
use crate::exit::{self, Exit, Failure};
use crate::keeper::{Keeper, KeeperPipes};
use crate::lock::{ControlFile, Ended, HolderInfo, Outcome, Renewal};
use crate::report::{self, Report};
use crate::settings::AcquireSettings;

/// Runs in the worker, which becomes the keeper when the lock is granted.
pub(super) fn run(
    settings: &AcquireSettings,
    watched: Option<WatchedProcess>,
    link: FrontLink,
) -> anyhow::Result<Exit> {
    let holder = holder(settings, watched.as_ref());
    let mut report = new_report(&settings.lock, &holder)?;
    let result = keep(settings, holder, watched, link, &mut report);
    Ok(report.ended(result))
}

/// Waiters see the process that the lock is kept for.
fn holder(settings: &AcquireSettings, watched: Option<&WatchedProcess>) -> HolderInfo {
    let argv = watched.map(WatchedProcess::argv).unwrap_or_default();
    let described = identity::describe(&argv, &settings.lock.label);
    match watched {
        Some(watched) => HolderInfo {
            pid: watched.pid().to_string(),
            renewal: Renewal::Keeper(std::process::id()),
            ..described
        },
        None => HolderInfo { renewal: Renewal::Nobody, ..described },
    }
}

fn keep(
    settings: &AcquireSettings,
    holder: HolderInfo,
    watched: Option<WatchedProcess>,
    link: FrontLink,
    report: &mut Report,
) -> anyhow::Result<Exit> {
    let lock = open(settings, report)?;
    let mut signals = Signals::block()?;
    report::allow_threads();
    signals.hang_up_with(watched.clone());
    let pipes = KeeperPipes::open().context("cannot start the keeper")?;
    let attach_point = AttachPoint::open().ok();
    let taken = take(settings, lock, holder, &mut signals, report)?;
    let has_ended = watched.as_ref().is_some_and(WatchedProcess::has_ended);
    let (mut lock, grant) = match taken {
        Ok(taken) => taken,
        Err(_) if has_ended => {
            let pid = watched.map(|watched| watched.pid().as_raw()).unwrap_or_default();
            return Err(Failure::new(exit::USAGE, report::watched_has_ended(&report.lock(), pid)).into());
        }
        Err(exit) => return Ok(exit),
    };
    signals.hang_up_with(None);
    let files = lock.files();
    let mut until = None;
    if watched.is_none() && !files.is_empty() {
        lock.set_ttl(settings.ttl);
        lock.extend(&grant);
        until = settings.ttl.map(|ttl| grant.taken_at + ttl);
    }
    let lock_files = &files[files.len().saturating_sub(settings.lock.keys.len())..];
    let prepare = || -> anyhow::Result<_> {
        let control = match lock_files {
            [] => None,
            files => Some(ControlFile::create(&grant.claim, files)?),
        };
        restore_default_signals();
        Ok((control, Signals::block()?))
    };
    // From here on nothing can fail for lack of resources.
    let (control, mut signals) = match prepare().context("cannot start the keeper") {
        Ok(prepared) => prepared,
        Err(error) => {
            lock.release(&grant, &Ended::new(Outcome::NotStarted), Duration::ZERO);
            return Err(error);
        }
    };
    let attach_id = attach_point.as_ref().and_then(AttachPoint::id_of_keeper);
    // Without the file only what has the variables knows of the lock.
    let _published = publish(&settings.lock.keys, &grant, attach_id.as_deref());
    let text = token_text(settings, &grant, true, attach_id.as_deref());
    let printed = link.print(&text, grant.lease.map(|lease| lease.deadline()));
    if printed != Printed::Done {
        return release_unprinted(&mut *lock, &grant, printed, report);
    }
    // Signals that arrive before we have left the caller's session were meant for the call, which
    // is over.
    report.detach();
    let title = report::keeper_title(&settings.lock.keys, watched.as_ref().map(WatchedProcess::pid));
    link.leave_session(title.as_bytes());
    while signals.next().is_some() {}
    link.end_front();
    let (watch, lease) = (lock.break_watch(&grant), grant.lease);
    let ttl = settings.lock.location.backend.ttl().unwrap_or_default();
    let keeper = Keeper::new(pipes, lock, grant, ttl, |_| {});
    let mut background = Background::new(settings, watched, attach_point, lease, until, control);
    Hold::new(&settings.lock, keeper, watch, &mut signals, report).run(&mut background);
    report::kept();
    Ok(background.exit())
}
