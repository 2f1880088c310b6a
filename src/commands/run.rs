//! `redlock run`: take the lock, run the command while it is kept alive, release it.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::identity;
use super::watch::Watch;
use crate::child::signals::{Signals, stop_self};
use crate::child::{self, Ends, Environment, Inherited, Plan, Stop, Supervisor, terminal};
use crate::cli::OnLost;
use crate::exit::{self, Exit, Failure};
use crate::keeper::Keeper;
use crate::lock::{
    BootTime, Busy, Error, Fault, Grant, Held, HostLock, Lock, Mount, Names, NodeError, Observer, Quorum,
    Released, Request,
};
use crate::report::{self, Report, Voice};
use crate::settings::{Choice, Place, RunSettings};

const HELD_VARIABLE: &str = "REDLOCK_HELD";

pub fn run(settings: &RunSettings) -> anyhow::Result<Exit> {
    let mut report =
        Report::new(settings.voice, &settings.key, settings.events.as_deref(), terminal::width())?;

    // A lock file must be open before the guardian is forked, which is to hold it too.
    let mut lock = lock(settings, &mut report)?;

    // Whatever arrives from here on waits until we look: nothing is lost between two steps.
    let on_terminal = terminal::is_there();
    let inherited = Inherited::remember()?;
    let mut signals = Signals::block(on_terminal)?;
    // The server thinks while we fork.
    let request = request(settings);
    lock.begin(&request);
    let plan = plan(settings, on_terminal, inherited, &*lock);
    let supervisor = Supervisor::start(plan).context("cannot start the guardian")?;

    let grant = match take(&mut *lock, &request, &mut signals, &mut report) {
        Ok(grant) => grant,
        Err(not_taken) => {
            supervisor.dismiss();
            return not_taken.or_else(|error| not_taken_because(error, settings)).map_err(Into::into);
        }
    };

    report.acquired(&grant);
    let must_be_gone_by = {
        let stop = settings.on_lost == OnLost::Stop;
        move |grant: &Grant| grant.lease.filter(|_| stop).map(|lease| lease.deadline())
    };
    let deadline = must_be_gone_by(&grant);
    let environment = environment(settings, &grant, &request.ancestors);
    let orders = supervisor.orders().clone();
    let renewed =
        move |grant: &Grant| must_be_gone_by(grant).into_iter().for_each(|moment| orders.deadline(moment));
    let keeper = Keeper::new(lock, grant, settings.ttl(), renewed)?;
    supervisor.start_command(environment, deadline);

    let mut watch = Watch::new(settings, on_terminal, &supervisor, keeper, &mut signals, &mut report);
    let ended = watch.until_the_command_has_ended();
    let (keeper, lost) = watch.finish();

    let (lock, grant) = keeper.finish();
    let shown = ended.as_ref().map_or_else(|failure| Exit::Code(failure.code), |exit| *exit);
    give_back(lock, &grant, settings, lost, shown, &mut report);
    supervisor.dismiss();
    Ok(ended?)
}

fn lock(settings: &RunSettings, report: &mut Report) -> Result<Box<dyn Lock>, Failure> {
    let names = Names::new(&settings.prefix, &settings.key);
    match &settings.place {
        Place::Servers { servers, timing } => {
            if servers.len() % 2 == 0 {
                report.even_number_of_servers(servers.len());
            }
            Ok(Box::new(Quorum::new(servers.clone(), names, *timing)))
        }
        Place::Host { folder, by } => {
            if *by == Choice::NothingElseConfigured {
                report.only_on_this_host();
            }
            let lock = HostLock::open(folder, &names.lock).map_err(|error| not_usable(error, settings))?;
            if lock.mount() == Mount::OverNetwork {
                report.folder_is_on_a_network(folder);
            }
            Ok(Box::new(lock))
        }
    }
}

fn plan(settings: &RunSettings, on_terminal: bool, inherited: Inherited, lock: &dyn Lock) -> Plan {
    Plan {
        argv: settings.argv.clone(),
        group: child::group(on_terminal),
        stop: Stop { signal: settings.stop_signal, grace: settings.kill_after, margin: settings.margin() },
        ends: if settings.wait_tree { Ends::WithItsLastDescendant } else { Ends::WithTheCommand },
        inherited,
        // As flock does it: whoever still has it open still has the lock.
        keep_open: lock.descriptor().filter(|_| settings.wait_tree),
    }
}

/// What the runs that we run under hold.
fn ancestors() -> Vec<Held> {
    let held = std::env::var(HELD_VARIABLE).unwrap_or_default();
    held.split_ascii_whitespace().filter_map(|claim| claim.parse().ok()).collect()
}

fn request(settings: &RunSettings) -> Request {
    Request {
        mode: settings.mode,
        patience: settings.patience,
        who: identity::describe(&settings.argv[0], &settings.label),
        ancestors: ancestors(),
    }
}

/// The lock, or how to end without it.
fn take(
    lock: &mut dyn Lock,
    request: &Request,
    signals: &mut Signals,
    report: &mut Report,
) -> Result<Grant, Result<Exit, Error>> {
    let mut waiting = Waiting { signals, report, cancelled_by: None };
    let acquired = lock.acquire(request, &mut waiting);
    // A signal may have come together with the lock: then the command need not be started.
    waiting.cancelled();
    let cancelled_by = waiting.cancelled_by;
    report.erase_live_line();
    match (acquired, cancelled_by) {
        (Ok(grant), None) => Ok(grant),
        (Ok(grant), Some(signal)) => {
            lock.release(&grant);
            Err(Ok(Exit::Signal(signal as i32)))
        }
        (Err(_), Some(signal)) => Err(Ok(Exit::Signal(signal as i32))),
        (Err(error), None) => Err(Err(error)),
    }
}

fn not_taken_because(error: Error, settings: &RunSettings) -> Result<Exit, Failure> {
    let key = report::plain(&settings.key);
    match error {
        // "-E 0" means: that somebody else is at it is as good as doing it. And with -q the code is enough.
        Error::Held(_) if settings.conflict_exit_code == 0 || settings.voice == Voice::Quiet => {
            Ok(Exit::Code(settings.conflict_exit_code))
        }
        Error::Held(busy) => {
            let message = format!("\"{key}\" is {}", report::holder(&busy));
            Err(Failure::new(settings.conflict_exit_code, message))
        }
        Error::Nested => {
            let message =
                format!("this command already runs under the lock \"{key}\": waiting for it would never end");
            Err(Failure::new(exit::USAGE, message))
        }
        Error::Node(error) => Err(not_usable(error, settings)),
        Error::Cancelled => Err(Failure::new(exit::INTERNAL, "cancelled by nobody")),
    }
}

fn not_usable(error: NodeError, settings: &RunSettings) -> Failure {
    let code = match error.fault {
        Fault::Unavailable => exit::UNAVAILABLE,
        Fault::Refused => exit::REFUSED,
        Fault::Unfit => exit::UNFIT,
    };
    Failure::new(code, format!("cannot take \"{}\": {error}", report::plain(&settings.key)))
}

/// What the command learns about its lock, over whatever it inherits.
fn environment(settings: &RunSettings, grant: &Grant, ancestors: &[Held]) -> Environment {
    let held: Vec<String> = ancestors.iter().chain([&grant.held_as]).map(Held::to_string).collect();
    let text = |name: &str, value: String| (OsStr::new(name).to_owned(), OsString::from(value));
    vec![
        ("REDLOCK_KEY".into(), OsString::from_vec(settings.key.clone())),
        text("REDLOCK_TOKEN", grant.claim.to_string()),
        text("REDLOCK_FENCE", grant.fence.to_string()),
        text("REDLOCK_ATTEMPTS", grant.claim.attempt.to_string()),
        text(HELD_VARIABLE, held.join(" ")),
    ]
}

fn give_back(
    mut lock: Box<dyn Lock>,
    grant: &Grant,
    settings: &RunSettings,
    lost: bool,
    exit: Exit,
    report: &mut Report,
) {
    match lock.release(grant) {
        Released::Done => {}
        Released::Lost(_) if lost => {}
        Released::Lost(loss) => report.was_no_longer_ours(loss),
        Released::Unknown(error) => report.cannot_release(&error, settings.ttl()),
    }
    report.released(grant, BootTime::now().since(grant.taken_at), exit);
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
