//! What commands that only look have in common.

use super::{exit_code, format_servers};
use crate::exit::Failure;
use crate::lock::{BackendError, HostView, RedisView, View};
use crate::report::{self, Verbosity, backend_error};
use crate::settings::{Backend, LocalReason, Location};

/// Says what there is to say about the settings.
pub(super) fn announce(location: &Location) {
    if location.verbosity != Verbosity::Quiet {
        location.warnings.iter().for_each(|warning| report::print(warning));
    }
    let place = match &location.backend {
        Backend::Servers { servers, .. } => format_servers(servers),
        Backend::Host { directory, reason } => {
            if *reason == LocalReason::NothingElseConfigured {
                report::looking_at_this_host_only();
            }
            format!("this host, {}", directory.display())
        }
    };
    if location.verbosity == Verbosity::Verbose {
        report::looking_at(&location.config_files, &place);
    }
}

/// Says what there is to say about the settings, and opens the place where the locks are.
pub(super) fn open_view(location: &Location) -> Box<dyn View> {
    announce(location);
    view(location)
}

pub(super) fn view(location: &Location) -> Box<dyn View> {
    match &location.backend {
        Backend::Servers { servers, timing } => {
            Box::new(RedisView::new(servers.clone(), &location.prefix, timing.node_timeout))
        }
        Backend::Host { directory, .. } => {
            Box::new(HostView::new(directory.clone(), location.prefix.clone()))
        }
    }
}

/// The locks cannot be looked at.
pub(super) fn cannot_look(what: &str, error: &BackendError) -> Failure {
    Failure::new(exit_code(error.fault()), format!("cannot look at {what}: {}", backend_error(error)))
}
