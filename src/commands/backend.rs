//! Servers or this host: the one place that knows how each is opened for what a command needs.

use std::fs::File;
use std::time::Duration;

use super::nesting::held_by;
use super::{exit_code, identity};
use crate::child::{self, AskedHolder, LockedByte, ask_lock_holder};
use crate::exit::Failure;
use crate::lock::{
    AncestorLock, BackendError, Bearer, Breaker, Claim, HolderInfo, HolderProcesses, HostBearer, HostBreaker,
    HostHolder, HostLock, HostView, Keys, Lock, Mount, Reason, RedisBearer, RedisBreaker, RedisLock,
    RedisView, Server, Signalled, Surroundings, Timing, View, lock_name,
};
use crate::report::{self, Report, Verbosity, backend_error};
use crate::settings::{Backend, Location, LockSettings};

/// For `run` and `acquire`. Reports where the lock is.
pub(super) fn open_lock(settings: &LockSettings, report: &mut Report) -> Result<Box<dyn Lock>, BackendError> {
    let LockSettings { keys, location, meaningless, .. } = settings;
    let Location { backend, prefix, config_files, .. } = location;
    if backend.is_unconfigured() {
        report.only_on_this_host();
    }
    match backend {
        Backend::Servers { servers, timing } => {
            if servers.len() % 2 == 0 {
                report.even_number_of_servers(servers.len());
            }
            report.location(config_files, &format_servers(servers), meaningless);
            Ok(Box::new(RedisLock::new(servers.clone(), redis_keys(servers, prefix, keys), *timing)))
        }
        Backend::Host { directory, .. } => {
            let surroundings = Surroundings {
                directory: directory.clone(),
                prefix: prefix.clone(),
                keys: keys.clone(),
                processes: Box::new(Processes),
            };
            let lock = HostLock::open(directory, &lock_names(prefix, keys))?.with_surroundings(surroundings);
            report.location(config_files, &format!("this host, {}", lock.paths().join(", ")), meaningless);
            match lock.mount() {
                Mount::OnThisHost => {}
                Mount::OverNetwork => report.directory_is_on_a_network(directory),
                Mount::PrivateToService => report.directory_is_private(directory),
            }
            Ok(Box::new(lock))
        }
    }
}

/// For `extend` and `release`. `ttl`: of an extension; `None` = forever.
pub(super) fn open_bearer(
    location: &Location,
    keys: &[Vec<u8>],
    token: Claim,
    ttl: Option<Duration>,
) -> Result<Box<dyn Bearer>, BackendError> {
    announce(location, "looking at locks");
    let (prefix, client) = (&location.prefix, identity::describe(&[], ""));
    match &location.backend {
        Backend::Servers { servers, timing } => {
            let (keys, timing) = (redis_keys(servers, prefix, keys), Timing { ttl, ..*timing });
            Ok(Box::new(RedisBearer::new(servers.clone(), keys, timing, token, client)))
        }
        Backend::Host { directory, .. } => {
            let (names, processes) = (lock_names(prefix, keys), Box::new(Processes));
            Ok(Box::new(HostBearer::open(directory, &names, (token, client), ttl, processes)?))
        }
    }
}

/// For `break`, and for `run --cancel-in-progress`.
pub(super) fn open_breaker(
    location: &Location,
    key: &[u8],
    client: HolderInfo,
    reason: Reason,
) -> Result<Box<dyn Breaker>, BackendError> {
    let prefix = &location.prefix;
    match &location.backend {
        Backend::Servers { servers, timing } => {
            let keys = Keys::new(servers, prefix, key);
            Ok(Box::new(RedisBreaker::new(servers.clone(), keys, *timing, client).with_reason(reason)))
        }
        Backend::Host { directory, .. } => {
            let breaker = HostBreaker::open(directory, &lock_name(prefix, key), client, Box::new(Processes))?;
            Ok(Box::new(breaker.with_reason(reason)))
        }
    }
}

/// For `status`, `list` and `history`. Prints what the settings give reason to.
pub(super) fn open_view(location: &Location) -> Box<dyn View> {
    announce(location, "looking at locks");
    view(location)
}

pub(super) fn view(location: &Location) -> Box<dyn View> {
    let Location { backend, prefix, .. } = location;
    match backend {
        Backend::Servers { servers, timing } => {
            Box::new(RedisView::new(servers.clone(), prefix, timing.node_timeout))
        }
        Backend::Host { directory, .. } => Box::new(HostView::new(directory.clone(), prefix.to_owned())),
    }
}

/// The failure of a command that only looks.
pub(super) fn cannot_look(what: &str, error: &BackendError) -> Failure {
    Failure::new(exit_code(error.fault()), format!("cannot look at {what}: {}", backend_error(error)))
}

/// Warnings about the settings; with -v also where the locks are. `what`: what the command does.
pub(super) fn announce(location: &Location, what: &str) {
    if location.verbosity != Verbosity::Quiet {
        location.warnings.iter().for_each(|warning| report::print(warning));
    }
    if location.backend.is_unconfigured() {
        report::only_on_this_host(what);
    }
    if location.verbosity == Verbosity::Verbose {
        let place = match &location.backend {
            Backend::Servers { servers, .. } => format_servers(servers),
            Backend::Host { directory, .. } => format!("this host, {}", directory.display()),
        };
        report::looking_at(&location.config_files, &place);
    }
}

fn format_servers(servers: &[Server]) -> String {
    let names: Vec<String> = servers.iter().map(Server::to_string).collect();
    match names.len() {
        1 => names.concat(),
        count => format!("{count} servers ({})", names.join(", ")),
    }
}

fn redis_keys(servers: &[Server], prefix: &str, keys: &[Vec<u8>]) -> Vec<Keys> {
    keys.iter().map(|key| Keys::new(servers, prefix, key)).collect()
}

fn lock_names(prefix: &str, keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| lock_name(prefix, key)).collect()
}

/// The processes of this host, through /proc.
struct Processes;

impl HolderProcesses for Processes {
    fn with_open_file(&self, link: &str) -> Vec<(i32, File)> {
        child::with_open_file(link)
    }

    fn holds(&self, pid: i32, holder: &HostHolder) -> bool {
        child::has_locked(pid, locked_byte(holder))
    }

    fn held(&self, pid: i32) -> Vec<AncestorLock> {
        held_by(pid)
    }

    fn signal(&self, holder: &HostHolder, number: Option<u32>) -> Signalled {
        match ask_lock_holder(locked_byte(holder), holder.pid, number) {
            AskedHolder::Yes(pid) => Signalled::Yes(pid),
            AskedHolder::NotFound => Signalled::NotFound,
            AskedHolder::Refused => Signalled::Refused,
            AskedHolder::TooOld => Signalled::TooOld,
        }
    }
}

fn locked_byte(holder: &HostHolder) -> LockedByte {
    let HostHolder { device, inode, offset, .. } = *holder;
    LockedByte { device, inode, offset }
}
