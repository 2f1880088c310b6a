//! `redlock run`: take the lock, run the command while it is kept alive, release it.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::identity;
use super::watch::Watch;
use crate::child::signals::{Signals, let_interrupt, stop_self};
use crate::child::{self, Ends, Environment, Inherited, Plan, Stop, Supervisor, Until, terminal};
use crate::cli::{OnLost, OnUnavailable};
use crate::exit::{self, Exit, Failure};
use crate::keeper::Keeper;
use crate::lock::{
    BootTime, Busy, Error, Fault, Grant, Held, HostLock, Lock, Mount, NUDGE, Names, NodeError, Observer,
    Patience, Quorum, Released, Request, Unlocked, WaiterId, sleep,
};
use crate::report::{self, Report, Voice};
use crate::settings::{Asking, Choice, Place, RunSettings};

const HELD_VARIABLE: &str = "REDLOCK_HELD";
const SLOT_VARIABLE: &str = "REDLOCK_SLOT";

pub fn run(settings: &RunSettings) -> anyhow::Result<Exit> {
    let mut report =
        Report::new(settings.voice, &settings.keys, settings.events.as_deref(), terminal::width())?;

    // A lock file must be open before the guardian is forked, which is to hold it too.
    let mut lock = lock(settings, &mut report)?;

    // Whatever arrives from here on waits until we look: nothing is lost between two steps.
    let on_terminal = terminal::is_there();
    let inherited = Inherited::remember()?;
    let mut signals = Signals::block(on_terminal)?;
    if let Some(signal) = be_late(settings.asking.jitter, &mut signals, &mut report) {
        return Ok(Exit::Signal(signal as i32));
    }
    // The server thinks while we fork.
    let request = request(settings);
    lock.begin(&request);
    let plan = plan(settings, on_terminal, inherited, &*lock);
    let supervisor = Supervisor::start(plan).context("cannot start the guardian")?;
    if let Place::Host { .. } = settings.place {
        let_interrupt(NUDGE).context("cannot take a signal")?;
    }

    let grant = match take(&mut *lock, &request, &settings.asking, &mut signals, &mut report) {
        Ok(grant) => {
            report.acquired(&grant);
            grant
        }
        Err(Instead::Fail(Error::Node(error)))
            if error.fault == Fault::Unavailable && settings.on_unavailable == OnUnavailable::Run =>
        {
            report.runs_without_lock(&error);
            lock = Box::new(Unlocked);
            Unlocked::grant()
        }
        Err(instead) => {
            supervisor.dismiss();
            return not_taken(instead, settings, &mut report).map_err(Into::into);
        }
    };

    let must_be_gone_by = {
        let stop = settings.on_lost == OnLost::Stop;
        move |grant: &Grant| grant.lease.filter(|_| stop).map(|lease| lease.deadline())
    };
    let until = Until {
        deadline: must_be_gone_by(&grant),
        end: settings.max_hold.map(|max_hold| grant.taken_at + max_hold),
    };
    let environment = environment(settings, &grant, &request.ancestors);
    let orders = supervisor.orders().clone();
    let renewed =
        move |grant: &Grant| must_be_gone_by(grant).into_iter().for_each(|moment| orders.deadline(moment));
    let keeper = Keeper::new(lock, grant, settings.place.ttl().unwrap_or_default(), renewed)?;
    supervisor.start_command(environment, until);

    let mut watch = Watch::new(settings, on_terminal, &supervisor, keeper, &mut signals, &mut report);
    let ended = watch.until_the_command_has_ended();
    let (keeper, was_stopped) = watch.finish();

    let (lock, grant) = keeper.finish();
    give_back(lock, &grant, settings, was_stopped, &ended, &mut report);
    supervisor.dismiss();
    Ok(ended?)
}

fn lock(settings: &RunSettings, report: &mut Report) -> Result<Box<dyn Lock>, Failure> {
    let names: Vec<Names> = settings.keys.iter().map(|key| Names::new(&settings.prefix, key)).collect();
    match &settings.place {
        Place::Servers { servers, timing } => {
            if servers.len() % 2 == 0 {
                report.even_number_of_servers(servers.len());
            }
            if timing.ttl.is_none() {
                report.never_expires();
            }
            Ok(Box::new(Quorum::new(servers.clone(), names, *timing)))
        }
        Place::Host { folder, by } => {
            if *by == Choice::NothingElseConfigured {
                report.only_on_this_host();
            }
            let lock = HostLock::open(folder, &names).map_err(|error| not_usable(error, settings))?;
            if lock.mount() == Mount::OverNetwork {
                report.folder_is_on_a_network(folder);
            }
            Ok(Box::new(lock))
        }
    }
}

/// Sleep for a random part of this. `Some` if a signal came instead.
fn be_late(jitter: Duration, signals: &mut Signals, report: &mut Report) -> Option<Signal> {
    let mut waiting = Waiting { signals, report, cancelled_by: None };
    if !jitter.is_zero() {
        sleep(BootTime::now() + WaiterId::random().jitter(0, jitter), &mut waiting);
    }
    waiting.cancelled_by
}

fn plan(settings: &RunSettings, on_terminal: bool, inherited: Inherited, lock: &dyn Lock) -> Plan {
    Plan {
        argv: settings.argv.clone(),
        group: child::group(on_terminal),
        stop: Stop { signal: settings.stop_signal, grace: settings.kill_after, margin: settings.margin() },
        ends: if settings.wait_tree { Ends::WithItsLastDescendant } else { Ends::WithTheCommand },
        inherited,
        lock_files: lock.descriptors(),
        // As flock does it: whoever still has it open still has the lock.
        keep_open: if settings.wait_tree { lock.descriptors() } else { Vec::new() },
    }
}

/// What the runs that we run under hold.
fn ancestors() -> Vec<Held> {
    let held = std::env::var(HELD_VARIABLE).unwrap_or_default();
    held.split_ascii_whitespace().filter_map(|claim| claim.parse().ok()).collect()
}

fn request(settings: &RunSettings) -> Request {
    let Asking { mode, prefer, patience, retries, .. } = &settings.asking;
    Request {
        mode: mode.clone(),
        prefer: *prefer,
        // Whoever tries again does not queue.
        patience: if retries.is_some() { Patience::None } else { *patience },
        min_hold: settings.min_hold,
        who: identity::describe(&settings.argv[0], &settings.label),
        ancestors: ancestors(),
    }
}

/// What becomes of a run that did not get the lock.
enum Instead {
    End(Exit),
    Fail(Error),
}

fn take(
    lock: &mut dyn Lock,
    request: &Request,
    asking: &Asking,
    signals: &mut Signals,
    report: &mut Report,
) -> Result<Grant, Instead> {
    let mut waiting = Waiting { signals, report, cancelled_by: None };
    let acquired = match asking.retries {
        Some(retries) => retries.acquire(lock, request, asking.patience, &mut waiting),
        None => lock.acquire(request, &mut waiting),
    };
    // A signal may have come together with the lock: then the command need not be started.
    waiting.cancelled();
    let cancelled_by = waiting.cancelled_by;
    report.erase_live_line();
    match (acquired, cancelled_by) {
        (Ok(grant), None) => Ok(grant),
        (Ok(grant), Some(signal)) => {
            lock.release(&grant, Duration::ZERO);
            Err(Instead::End(Exit::Signal(signal as i32)))
        }
        (Err(_), Some(signal)) => Err(Instead::End(Exit::Signal(signal as i32))),
        (Err(error), None) => Err(Instead::Fail(error)),
    }
}

fn not_taken(instead: Instead, settings: &RunSettings, report: &mut Report) -> Result<Exit, Failure> {
    let error = match instead {
        Instead::End(exit) => return Ok(exit),
        Instead::Fail(error) => error,
    };
    match error {
        // "-E 0" means: that somebody else is at it is as good as doing it. And with -q the code is enough.
        Error::Held(_) if settings.conflict_exit_code == 0 || settings.voice == Voice::Quiet => {
            Ok(Exit::Code(settings.conflict_exit_code))
        }
        Error::Held(busy) => {
            let key = report::plain(&settings.keys[busy.key]);
            let message = format!("\"{key}\" is {}", report::holder(&busy));
            Err(Failure::new(settings.conflict_exit_code, message))
        }
        Error::Nested => {
            let lock = names(settings);
            let message =
                format!("this command already runs under the lock {lock}: waiting for it would never end");
            Err(Failure::new(exit::USAGE, message))
        }
        Error::Node(error)
            if error.fault == Fault::Unavailable && settings.on_unavailable == OnUnavailable::Skip =>
        {
            report.skips(&error);
            Ok(Exit::Code(0))
        }
        Error::Node(error) => Err(not_usable(error, settings)),
        Error::Cancelled => Err(Failure::new(exit::INTERNAL, "cancelled by nobody")),
    }
}

fn names(settings: &RunSettings) -> String {
    let keys: Vec<String> = settings.keys.iter().map(|key| report::plain(key)).collect();
    report::quoted(&keys)
}

fn not_usable(error: NodeError, settings: &RunSettings) -> Failure {
    Failure::new(exit::code_of(error.fault), format!("cannot take {}: {error}", names(settings)))
}

/// What the command learns about its lock, over whatever it inherits.
fn environment(settings: &RunSettings, grant: &Grant, ancestors: &[Held]) -> Environment {
    let held: Vec<String> = ancestors.iter().chain(&grant.held_as).map(Held::to_string).collect();
    let fences: Vec<String> = grant.fences.iter().map(u64::to_string).collect();
    let slots: Vec<String> = grant.slots.iter().map(u32::to_string).collect();
    let token = if grant.is_real() { grant.claim.to_string() } else { String::new() };
    let text = |name: &str, value: String| (OsStr::new(name).to_owned(), OsString::from(value));
    let mut variables = vec![
        ("REDLOCK_KEY".into(), OsString::from_vec(settings.keys.join(&b'\n'))),
        text("REDLOCK_TOKEN", token),
        text("REDLOCK_FENCE", fences.join(" ")),
        text("REDLOCK_ATTEMPTS", grant.claim.attempt.to_string()),
        text(HELD_VARIABLE, held.join(" ")),
    ];
    // Also over an outer run's, which is not of this lock.
    if !slots.is_empty() || std::env::var_os(SLOT_VARIABLE).is_some() {
        variables.push(text(SLOT_VARIABLE, slots.join(" ")));
    }
    variables
}

fn give_back(
    mut lock: Box<dyn Lock>,
    grant: &Grant,
    settings: &RunSettings,
    was_stopped: bool,
    ended: &Result<Exit, Failure>,
    report: &mut Report,
) {
    let exit = ended.as_ref().map_or_else(|failure| Exit::Code(failure.code), |exit| *exit);
    // What never ran need not be kept from running again.
    let has_run = !matches!(exit, Exit::Code(exit::CANNOT_EXECUTE | exit::NOT_FOUND) if ended.is_err());
    let min_hold = if has_run { settings.min_hold } else { Duration::ZERO };
    match lock.release(grant, min_hold) {
        Released::Done => {}
        Released::Lost(_) if was_stopped => {}
        Released::Lost(loss) => report.was_no_longer_ours(loss),
        Released::Unknown(error) => report.cannot_release(&error, settings.place.ttl()),
    }
    if grant.is_real() {
        report.released(grant, BootTime::now().since(grant.taken_at), exit);
    }
}

/// Watches for signals and tells the user while the lock is not ours yet.
struct Waiting<'a> {
    signals: &'a mut Signals,
    report: &'a mut Report,
    cancelled_by: Option<Signal>,
}

impl Observer for Waiting<'_> {
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.signals.bells()
    }

    fn cancelled(&mut self) -> bool {
        while let Some(arrived) = self.signals.next() {
            match arrived.signal {
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                    self.cancelled_by.get_or_insert(arrived.signal);
                }
                Signal::SIGTSTP => {
                    self.report.erase_live_line();
                    stop_self();
                }
                // Meant for a command that does not run yet.
                _ => {}
            }
        }
        self.cancelled_by.is_some()
    }

    fn waiting(&mut self, busy: &Busy, waited: Duration) {
        self.signals.take_interrupts();
        self.report.waiting(busy, waited);
    }

    fn next_word(&self, waited: Duration) -> Duration {
        self.report.next_wait_line(waited)
    }

    fn trouble(&mut self, error: &NodeError) {
        self.report.servers_gone(error);
    }
}
