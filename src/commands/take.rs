//! Taking the lock, for `run` and `acquire`: open it, wait for it, and report why it was not
//! acquired.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::backend;
use super::cancel::Canceller;
use super::estimate::Estimate;
use super::nesting::{OuterRuns, ancestors, kept_for_ancestors};
use crate::child::signals::{Signals, ends, suspend_self};
use crate::child::{self, HookRunner, LONG_WAIT, forget_code, local_time, terminal};
use crate::clock::{BootTime, jitter};
use crate::commands::exit_code;
use crate::duration;
use crate::exit::{self, Exit, Failure};
use crate::lock::{
    self, AncestorLock, BackendError, Blocked, Ended, Error, Fault, Grant, HolderInfo, Lock, Observer,
    Request, Unlocked, Wait, sleep,
};
use crate::report::{self, EventSink, GivenUp, Report, quoted};
use crate::settings::{LockSettings, OnUnavailable};

/// Before anything is opened, with one thread: this starts the process for hooks.
pub(super) fn new_report(settings: &LockSettings, holder: &HolderInfo) -> Result<Report, Failure> {
    let events = (settings.events.as_deref(), start_hook(settings)?);
    let (verbosity, width) = (settings.location.verbosity, terminal::width(&std::io::stderr()));
    let mut report = Report::new(verbosity, &settings.keys, events, holder, width, local_time)?;
    report.warnings(&settings.location.warnings);
    Ok(report)
}

/// Each event also goes to a shell command, which a process of its own runs.
fn start_hook(settings: &LockSettings) -> Result<Option<Box<dyn EventSink>>, Failure> {
    let Some(command) = &settings.hook else { return Ok(None) };
    let runner = HookRunner::start(command, |why| report::log(&report::hook_failed(why)));
    let runner = runner
        .map_err(|error| Failure::new(exit::INTERNAL, format!("--hook: cannot start a process: {error}")))?;
    Ok(Some(Box::new(runner)))
}

impl EventSink for HookRunner {
    fn send(&self, line: &[u8]) {
        HookRunner::send(self, line);
    }

    fn failure(&self) -> Option<String> {
        HookRunner::failure(self)
    }
}

pub(super) fn open_lock(settings: &LockSettings, report: &mut Report) -> Result<Box<dyn Lock>, Failure> {
    backend::open_lock(settings, report).map_err(|error| backend_failure(&error, Duration::ZERO, settings))
}

/// Sleep for a random part of `at_most`. `Some` if a signal ended the sleep.
pub(super) fn delay_start(at_most: Duration, signals: &mut Signals, report: &mut Report) -> Option<Signal> {
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

pub(super) fn request(settings: &LockSettings, holder: HolderInfo) -> Request {
    // Otherwise they are looked for when the request is blocked.
    let kept = if settings.reentrant { kept_for_ancestors() } else { Vec::new() };
    Request {
        mode: settings.mode.clone(),
        prefer: settings.prefer,
        wait: settings.wait,
        waits_for_backend: settings.on_unavailable == OnUnavailable::Wait,
        supersedes: settings.supersede,
        once: settings.once,
        min_hold: settings.min_hold,
        history: settings.history,
        exit_if_held: settings.conflict_exit_code,
        holder: HolderInfo { once: settings.once.is_some(), cancellable: settings.cancel, ..holder },
        ancestors: join(ancestors(), kept),
    }
}

/// Each lock once: the variables of a keeper name the locks that it names itself.
fn join(mut named: Vec<AncestorLock>, kept: Vec<AncestorLock>) -> Vec<AncestorLock> {
    named.extend(kept.into_iter().filter(|lock| !named.contains(lock)).collect::<Vec<_>>());
    named
}

/// A lock with a request that may be in flight. Unless it is granted, dropping it releases
/// everything.
pub(super) struct UngrantedLock(Option<Box<dyn Lock>>);

impl UngrantedLock {
    /// Before the first request.
    pub(super) fn new(lock: Box<dyn Lock>) -> Self {
        Self(Some(lock))
    }

    pub(super) fn send_ahead(&mut self, request: &Request) {
        if let Some(lock) = &mut self.0 {
            lock.send_ahead(request);
        }
    }

    pub(super) fn lock(&self) -> &dyn Lock {
        &**self.0.as_ref().expect("into_lock() consumes it")
    }

    /// From here on the caller must release it.
    fn into_lock(mut self) -> Box<dyn Lock> {
        self.0.take().expect("into_lock() consumes it")
    }
}

impl Drop for UngrantedLock {
    fn drop(&mut self) {
        if let Some(lock) = &mut self.0 {
            lock.abandon();
        }
    }
}

/// Returns the lock and its grant; [`Unlocked`] with `--on-unavailable run`,
/// [`BorrowedLock`](crate::lock::BorrowedLock) under an outer run's lock. Otherwise the exit of a run
/// that did not get the lock, which is reported.
pub(super) fn acquire(
    pending: UngrantedLock,
    request: &Request,
    outer: OuterRuns,
    settings: &LockSettings,
    signals: &mut Signals,
    report: &mut Report,
) -> Result<(Box<dyn Lock>, Grant), Result<Exit, Failure>> {
    report.asks(request.wait);
    let asked_at = BootTime::now();
    // On an error the lock cleans up after itself.
    let lock = pending.into_lock();
    let mut observer = WaitObserver::new(signals, report);
    observer.estimate = Some(Estimate::new(settings));
    if settings.cancel {
        observer.canceller = Some(Canceller::new(settings, request));
    }
    let (mut lock, inherited) = outer.lock_for(lock, request, &mut observer);
    let result = match inherited {
        Ok(Some(grant)) => Ok(grant),
        Ok(None) => lock::acquire(&mut *lock, request, &mut observer),
        Err(error) => Err(error),
    };
    // A signal may have arrived together with the lock: then the command is not started.
    let signal = observer.cancelled();
    report.erase_live_line();
    report::asked(lock.attempts());
    let error = match (result, signal) {
        (Ok(grant), None) => {
            report.acquired(&grant);
            return Ok((lock, grant));
        }
        (Ok(grant), Some(signal)) => {
            lock.release(&grant, &Ended::cancelled(signal), Duration::ZERO);
            Error::Cancelled(signal)
        }
        (Err(_), Some(signal)) => Error::Cancelled(signal),
        (Err(error), None) => error,
    };
    let (waited, if_held) = (asked_at.elapsed(), settings.conflict_exit_code);
    let exit = match error {
        Error::Cancelled(signal) => {
            report.cancelled(signal);
            Exit::Signal(signal as i32)
        }
        Error::Held(blocked) => {
            let given_up = GivenUp { policy: request.wait, attempts: lock.attempts(), waited };
            report.gave_up(&blocked, given_up, if_held);
            Exit::Code(if_held)
        }
        Error::Superseded(superseded) => {
            report.superseded(&superseded, waited, if_held);
            Exit::Code(if_held)
        }
        Error::Deadlock(deadlock) => {
            report.deadlock(&deadlock, waited);
            Exit::Code(if_held)
        }
        Error::Done(done) => {
            report.done_already(&done, settings.once.unwrap_or_default());
            Exit::Code(0)
        }
        Error::Nested => {
            let outer = join(request.ancestors.clone(), kept_for_ancestors());
            let usable = OuterRuns::attach(&outer);
            let (_, grant) = usable.lock_for(lock, request, &mut WaitObserver::new(signals, report));
            return Err(Err(nested(&outer, matches!(grant, Ok(Some(_))), settings)));
        }
        Error::Backend(error) => match (error.fault(), settings.on_unavailable) {
            (Fault::Unavailable, OnUnavailable::Run) => {
                report.runs_without_lock(&error);
                return Ok((Box::new(Unlocked), Unlocked::grant()));
            }
            (Fault::Unavailable, OnUnavailable::Skip) => {
                report.skips(&error);
                Exit::Code(0)
            }
            (Fault::Unavailable | Fault::Refused | Fault::Unfit, _) => {
                return Err(Err(backend_failure(&error, waited, settings)));
            }
        },
    };
    Err(Ok(exit))
}

/// Outer runs hold these locks. `is_usable`: `redlock run --reentrant` would run under them.
fn nested(outer: &[AncestorLock], is_usable: bool, settings: &LockSettings) -> Failure {
    let hint = if is_usable {
        "redlock run --reentrant runs a command under its lock"
    } else {
        "it must hold all of the keys, exclusively or in the same mode, for redlock run --reentrant to \
         run under its lock"
    };
    let is_held = |key: &&Vec<u8>| outer.iter().any(|lock| lock.keys.contains(key));
    let held: Vec<&Vec<u8>> = settings.keys.iter().filter(is_held).collect();
    // A very long key is not passed to inner runs.
    let keys = if held.is_empty() { quoted(&settings.keys) } else { quoted(&held) };
    let message = format!("an outer run already holds {keys}, and waiting for it would deadlock: {hint}");
    Failure::new(exit::USAGE, message)
}

fn backend_failure(error: &BackendError, waited: Duration, settings: &LockSettings) -> Failure {
    let (keys, error_text) = (quoted(&settings.keys), report::backend_error(error));
    let after =
        if waited.as_secs() > 0 { format!(" after {}", duration::format(waited)) } else { String::new() };
    let message = format!("cannot take {keys}{after}: {error_text}");
    Failure::new(exit_code(error.fault()), message)
}

/// Watches for signals and reports the wait while the lock is not ours yet.
pub(super) struct WaitObserver<'a> {
    signals: &'a mut Signals,
    report: &'a mut Report,
    cancelled_by: Option<Signal>,
    /// When the wait becomes a long one.
    long_from: Option<BootTime>,
    canceller: Option<Canceller<'a>>,
    estimate: Option<Estimate<'a>>,
}

impl<'a> WaitObserver<'a> {
    pub(super) fn new(signals: &'a mut Signals, report: &'a mut Report) -> Self {
        Self { signals, report, cancelled_by: None, long_from: None, canceller: None, estimate: None }
    }
}

impl Observer for WaitObserver<'_> {
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.signals.wake_fds()
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    fn cancelled(&mut self) -> Option<Signal> {
        while let Some(received) = self.signals.next() {
            match received.signal {
                signal if ends(signal) => {
                    self.cancelled_by.get_or_insert(signal);
                }
                Signal::SIGTSTP => {
                    self.report.erase_live_line();
                    suspend_self();
                }
                Signal::SIGWINCH => self.report.terminal_resized(terminal::width(&std::io::stderr())),
                Signal::SIGCHLD => child::look_after_children(),
                // For a command, and none is running yet.
                _ => {}
            }
        }
        self.cancelled_by
    }

    fn waiting(&mut self, blocked: &Blocked, waited: Duration) {
        if let Some(estimate) = &mut self.estimate {
            estimate.on_blocked(blocked);
            estimate.prepare(waited, self.report);
        }
        self.report.waiting(blocked, waited);
        if let Some(canceller) = &mut self.canceller {
            canceller.on_blocked(blocked, self.report);
        }
        self.long_from.get_or_insert_with(|| BootTime::now() + LONG_WAIT.saturating_sub(waited));
    }

    fn falls_asleep(&self) {
        if self.long_from.is_some_and(BootTime::has_passed) {
            forget_code();
        }
    }

    fn next_update_in(&self, waited: Duration) -> Duration {
        self.report.next_wait_line(waited)
    }

    fn next_tick(&self) -> Option<BootTime> {
        let becomes_long = self.long_from.filter(|from| !from.has_passed());
        self.report.next_tick().into_iter().chain(becomes_long).min()
    }

    fn tick(&mut self) {
        if let (Some(estimate), Some(waited)) = (&mut self.estimate, self.report.waited()) {
            estimate.prepare(waited, self.report);
        }
        self.report.tick();
    }

    fn kept_for_ancestors(&mut self) -> Vec<AncestorLock> {
        kept_for_ancestors()
    }

    fn on_unavailable(&mut self, error: &BackendError, waited: Duration) {
        self.report.servers_unavailable(error, waited);
    }
}
