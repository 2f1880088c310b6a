//! `redlock run`: take the lock, run the command while it is kept alive, release it.
//!
//! The order matters. Lock files are opened before the guardian is forked, which must keep them
//! open. All descriptors are allocated before the first request, so that nothing can fail later.
//! The request is sent before the fork, so that the server works meanwhile. Threads are started
//! after the fork.

use anyhow::Context;
use nix::unistd::getpgrp;

use super::hold::{Hold, RunningCommand};
use super::identity;
use super::nesting::{OuterRuns, environment};
use super::take::{self, UngrantedLock};
use crate::child::signals::{Signals, install_noop_handler};
use crate::child::{
    AttachPoint, GuardianConfig, Limits, Preparation, ProcView, ProcessGroup, SignalState, StopPolicy,
    Supervisor, WaitFor, terminal,
};
use crate::exit::{self, Exit, Failure};
use crate::fault;
use crate::keeper::{Keeper, KeeperPipes};
use crate::lock::{Grant, HolderInfo, Lock};
use crate::report::{self, Report, command_starts};
use crate::settings::{OnLost, RunSettings, margin};

pub(super) fn run(settings: &RunSettings) -> anyhow::Result<Exit> {
    let holder = identity::describe(&settings.argv, &settings.lock.label);
    let mut report = take::new_report(&settings.lock, &holder)?;
    let result = run_under_lock(settings, holder, &mut report);
    Ok(report.ended(result))
}

fn run_under_lock(settings: &RunSettings, holder: HolderInfo, report: &mut Report) -> anyhow::Result<Exit> {
    let proc_view = check_proc(settings, report)?;
    let backend = &settings.lock.location.backend;
    if backend.ttl().is_none() && !backend.is_this_host() {
        report.never_expires();
    }
    let lock = take::open_lock(&settings.lock, report)?;

    // From here on signals wait until they are read: none is lost between two steps.
    let on_terminal = terminal::has_controlling_terminal();
    let signal_state = SignalState::remember()?;
    let mut signals = Signals::block()?;
    if let Some(signal) = take::delay_start(settings.lock.jitter, &mut signals, report) {
        return Ok(Exit::Signal(signal as i32));
    }

    let request = take::request(&settings.lock, holder);
    let outer =
        if settings.lock.reentrant { OuterRuns::attach(&request.ancestors) } else { OuterRuns::default() };
    let attach_point = AttachPoint::open().ok();
    let lock_files = lock.files().into_iter().chain(outer.files()).collect();
    let (preparation, pipes) = prepare().context("cannot start the guardian")?;
    let mut pending = UngrantedLock::new(lock);
    if outer.is_empty() {
        pending.send_ahead(&request);
    }
    let config = GuardianConfig {
        argv: settings.argv.clone(),
        group: if on_terminal { ProcessGroup::Join(getpgrp()) } else { ProcessGroup::Own },
        stop: StopPolicy { signal: settings.stop_signal, grace: settings.kill_after },
        wait_for: if settings.wait_tree { WaitFor::Tree } else { WaitFor::Command },
        signal_state,
        lock_files,
        attach_point,
        proc_view,
        release_orphan: pending.lock().release_orphan(&request),
    };
    let mut supervisor = Supervisor::start(preparation, config).context("cannot start the guardian")?;
    report::allow_threads();
    fault::panic_if_requested("asked");
    if let Some(signal) = pending.lock().interrupt_signal() {
        install_noop_handler(signal).context("cannot handle a signal")?;
    }

    let (lock, grant) = match take::acquire(pending, &request, outer, &settings.lock, &mut signals, report) {
        Ok(acquired) => acquired,
        Err(exit) => {
            supervisor.shut_down();
            return Ok(exit?);
        }
    };

    let limits = Limits {
        deadline: settings.on_lost.deadline(&grant),
        end: settings.max_hold.map(|max_hold| grant.taken_at + max_hold),
        margin: margin(&grant),
    };
    fault::panic_if_requested("granted");
    let environment = environment(&settings.lock.keys, &grant, &request.ancestors, supervisor.attach_id());
    let watch = lock.break_watch(&grant);
    let grant_bytes = grant.to_bytes();
    let keeper = new_keeper(pipes, lock, grant, settings, &supervisor);
    let started = supervisor.start_command(environment, limits, grant_bytes);
    let mut command = RunningCommand::new(settings, on_terminal, &supervisor, proc_view, limits);
    let hold = Hold::new(&settings.lock, keeper, watch, &mut signals, report);
    match started {
        Ok(()) => {
            command_starts();
            hold.run(&mut command);
        }
        Err(error) => {
            let message = format!("cannot start the command: {error}");
            let end = command.not_started(Err(Failure::new(exit::INTERNAL, message)));
            hold.release(end, &command);
        }
    }
    let result = command.into_result();
    supervisor.shut_down();
    Ok(result?)
}

/// Without /proc a descendant that has left the command's process group cannot be found, so it
/// cannot be stopped.
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

/// Allocate every descriptor before the first request, so that nothing can fail later.
fn prepare() -> std::io::Result<(Preparation, KeeperPipes)> {
    Ok((Preparation::new()?, KeeperPipes::open()?))
}

/// The refresh thread sends each new deadline to the guardian itself.
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
    Keeper::new(pipes, lock, grant, settings.lock.location.backend.ttl().unwrap_or_default(), renewed)
}
