//! `redlock run`: take the lock, run the command while it is kept alive, release it.
//!
//! The order matters: lock files are opened before the guardian is forked, which has to keep them open; whatever
//! can fail for want of a descriptor is obtained before the first request; that is sent before the fork, so that
//! the server works meanwhile; threads are started after it.

mod acquire;
mod environment;
mod outer;
mod start_error;
mod supervise;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use nix::unistd::getpgrp;

use self::acquire::{Asked, WaitObserver};
use self::environment::{ancestors, environment};
use self::outer::OuterRuns;
use self::supervise::{Outcome, Supervision};
use super::identity;
use crate::child::signals::{Signals, install_noop_handler};
use crate::child::{
    AttachPoint, GuardianConfig, Limits, Preparation, ProcView, ProcessGroup, SignalState, StopPolicy,
    Supervisor, WaitFor,
};
use crate::child::{local_time, terminal};
use crate::clock::{BootTime, jitter};
use crate::exit::{self, Exit, Failure};
use crate::fault;
use crate::keeper::{Keeper, KeeperPipes};
use crate::lock::{Grant, HolderInfo, Lock, Released, Request, Wait, sleep};
use crate::report::{self, Report, command_starts};
use crate::settings::{OnLost, OnUnavailable, RunSettings};

pub(super) fn run(settings: &RunSettings) -> anyhow::Result<Exit> {
    let holder = identity::describe(&settings.argv, &settings.label);
    let (events, width) = (settings.events.as_deref(), terminal::width(&std::io::stderr()));
    let mut report = Report::new(settings.verbosity, &settings.keys, events, &holder, width, local_time)?;
    report.warnings(&settings.warnings);
    let result = run_under_lock(settings, holder, &mut report);
    Ok(report.ended(result))
}

fn run_under_lock(settings: &RunSettings, holder: HolderInfo, report: &mut Report) -> anyhow::Result<Exit> {
    let proc_view = check_proc(settings, report)?;
    let lock = acquire::open_lock(settings, report)?;

    // From here on signals wait until we look: none is lost between two steps.
    let on_terminal = terminal::has_controlling_terminal();
    let signal_state = SignalState::remember()?;
    let mut signals = Signals::block(on_terminal)?;
    if let Some(signal) = delay_start(settings.jitter, &mut signals, report) {
        return Ok(Exit::Signal(signal as i32));
    }

    let request = request(settings, holder);
    let outer = if settings.reentrant { OuterRuns::attach(&request.ancestors) } else { OuterRuns::default() };
    let attach_point = AttachPoint::open().ok();
    let attach_id = attach_point.as_ref().map(AttachPoint::id);
    let lock_files = lock.files().into_iter().chain(outer.files()?).collect();
    let (preparation, pipes) = prepare().context("cannot start the guardian")?;
    let mut asked = Asked::new(lock, &request);
    if outer.is_empty() {
        asked.send_ahead(&request);
    }
    fault::panic_if_requested("asked");
    let config = guardian_config(settings, on_terminal, signal_state, proc_view, lock_files, attach_point);
    let mut supervisor = Supervisor::start(preparation, config).context("cannot start the guardian")?;
    if let Some(signal) = asked.lock().interrupt_signal() {
        install_noop_handler(signal).context("cannot handle a signal")?;
    }

    let (lock, grant) = match acquire::acquire(asked, &request, outer, settings, &mut signals, report) {
        Ok(acquired) => acquired,
        Err(not_acquired) => {
            supervisor.shut_down();
            return Ok(acquire::explain(not_acquired, settings, report)?);
        }
    };

    let limits = Limits {
        deadline: settings.on_lost.deadline(&grant),
        end: settings.max_hold.map(|max_hold| grant.taken_at + max_hold),
    };
    fault::panic_if_requested("granted");
    let environment = environment(&settings.keys, &grant, &request.ancestors, attach_id);
    let keeper = new_keeper(pipes, lock, grant, settings, &supervisor);
    let started = supervisor.start_command(environment, limits);
    let outcome = match started {
        Ok(()) => {
            command_starts();
            let (view, signals) = (proc_view, &mut signals);
            Supervision::new(settings, on_terminal, &supervisor, view, keeper, limits, signals, report).run()
        }
        Err(error) => Outcome::not_started(keeper, format!("cannot start the command: {error}")),
    };
    let result = release(outcome, settings, report);
    supervisor.shut_down();
    Ok(result?)
}

/// Without /proc a descendant that has left the command's process group cannot be found, so not be stopped.
fn check_proc(settings: &RunSettings, report: &mut Report) -> Result<ProcView, Failure> {
    let view = ProcView::check();
    match (view, settings.on_lost) {
        (ProcView::Ours, _) => {}
        (ProcView::Unusable, OnLost::Warn) => report.cannot_see_processes(),
        (ProcView::Unusable, OnLost::Stop) => {
            return Err(Failure::new(exit::UNFIT, report::cannot_see_processes()));
        }
    }
    Ok(view)
}

/// Whatever can fail for want of a descriptor, before anything is asked for.
fn prepare() -> std::io::Result<(Preparation, KeeperPipes)> {
    Ok((Preparation::new()?, KeeperPipes::open()?))
}

/// Sleep for a random part of `at_most`. `Some` if a signal came instead.
fn delay_start(at_most: Duration, signals: &mut Signals, report: &mut Report) -> Option<Signal> {
    if at_most.is_zero() {
        return None;
    }
    let delay = jitter(at_most);
    report.delays_start(delay, at_most);
    match sleep(BootTime::now() + delay, &mut WaitObserver::new(signals, report)) {
        Wait::Cancelled(signal) => Some(signal),
        Wait::Ready | Wait::Over => None,
    }
}

fn request(settings: &RunSettings, holder: HolderInfo) -> Request {
    Request {
        mode: settings.mode.clone(),
        prefer: settings.prefer,
        wait: settings.wait,
        waits_for_backend: settings.on_unavailable == OnUnavailable::Wait,
        supersedes: settings.supersede,
        min_hold: settings.min_hold,
        holder,
        ancestors: ancestors(),
    }
}

fn guardian_config(
    settings: &RunSettings,
    on_terminal: bool,
    signal_state: SignalState,
    proc_view: ProcView,
    lock_files: Vec<Arc<File>>,
    attach_point: Option<AttachPoint>,
) -> GuardianConfig {
    GuardianConfig {
        argv: settings.argv.clone(),
        group: if on_terminal { ProcessGroup::Join(getpgrp()) } else { ProcessGroup::Own },
        stop: StopPolicy {
            signal: settings.stop_signal,
            grace: settings.kill_after,
            margin: settings.margin(),
        },
        wait_for: if settings.wait_tree { WaitFor::Tree } else { WaitFor::Command },
        signal_state,
        lock_files,
        attach_point,
        proc_view,
    }
}

/// The guardian learns each new deadline from the refresh thread itself.
fn new_keeper(
    pipes: KeeperPipes,
    lock: Box<dyn Lock>,
    grant: Grant,
    settings: &RunSettings,
    supervisor: &Supervisor,
) -> Keeper {
    let (on_lost, guardian) = (settings.on_lost, supervisor.guardian().clone());
    let renewed = move |grant: &Grant| {
        if let Some(deadline) = on_lost.deadline(grant) {
            guardian.set_deadline(deadline);
        }
    };
    Keeper::new(pipes, lock, grant, settings.backend.ttl().unwrap_or_default(), renewed)
}

fn release(outcome: Outcome, settings: &RunSettings, report: &mut Report) -> Result<Exit, Failure> {
    let Outcome { result, keeper, was_stopped, has_run } = outcome;
    // A command that never ran need not be kept from running again.
    let min_hold = if has_run { settings.min_hold } else { Duration::ZERO };
    let (mut lock, grant) = keeper.finish();
    let released = lock.release(&grant, min_hold);
    if grant.is_locked() && grant.outer.is_empty() {
        report.released(grant.taken_at.elapsed(), released.is_done());
    }
    match released {
        Released::Done(failures) => report.misconfigured_servers(&failures),
        Released::Lost(_) if was_stopped => {}
        Released::Lost(loss) => report.was_no_longer_ours(loss),
        Released::Unknown(error) => report.cannot_release(&error, settings.backend.ttl()),
    }
    result
}
