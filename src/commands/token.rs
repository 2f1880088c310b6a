//! `redlock extend` and `redlock release`: a grant that is known by its token alone.

use super::backend::{open_bearer, view};
use super::exit_code;
use crate::child::local_time;
use crate::exit::{self, Exit, Failure};
use crate::lock::{BackendError, Extended, Loss, Released, State, Status};
use crate::report::{self, Verbosity};
use crate::settings::{ExtendSettings, TokenSettings};

pub(super) fn extend(settings: &ExtendSettings) -> anyhow::Result<Exit> {
    let ExtendSettings { grant, ttl } = settings;
    let mut bearer = open_bearer(&grant.location, &grant.keys, grant.token, *ttl)
        .map_err(|error| failure("look at", grant, &error))?;
    match bearer.extend() {
        Extended::Until(..) => {
            if grant.location.verbosity == Verbosity::Verbose {
                report::extended(&grant.keys, *ttl);
            }
            Ok(Exit::Code(0))
        }
        Extended::Lost(loss) => Ok(no_longer_ours(grant, &loss)),
        Extended::Unknown(error) => Err(failure("extend", grant, &error).into()),
    }
}

pub(super) fn release(grant: &TokenSettings) -> anyhow::Result<Exit> {
    let mut bearer = open_bearer(&grant.location, &grant.keys, grant.token, None)
        .map_err(|error| failure("look at", grant, &error))?;
    match bearer.release() {
        Released::Done(_) => {
            if grant.location.verbosity == Verbosity::Verbose {
                report::released(&grant.keys);
            }
            Ok(Exit::Code(0))
        }
        Released::Lost(loss) => Ok(no_longer_ours(grant, &loss)),
        Released::Unknown(error) => Err(failure("release", grant, &error).into()),
    }
}

/// The token no longer holds the lock.
fn no_longer_ours(grant: &TokenSettings, loss: &Loss) -> Exit {
    if grant.location.verbosity != Verbosity::Quiet {
        let now = if *loss == Loss::Foreign { holder_now(grant) } else { None };
        report::no_longer_ours(&grant.keys, loss, now.as_ref(), local_time);
    }
    Exit::Code(exit::LOST)
}

/// The client that holds one of the locks instead.
fn holder_now(grant: &TokenSettings) -> Option<Status> {
    let mut view = view(&grant.location);
    let held =
        |status: &Status| !matches!(status.state, State::Free | State::Kept) && status.undecided.is_none();
    grant.keys.iter().find_map(|key| view.status(key).ok().filter(held))
}

fn failure(action: &str, grant: &TokenSettings, error: &BackendError) -> Failure {
    let keys = report::key_names(&grant.keys);
    let (code, why) = match error.other_lock_count() {
        Some(error) => (exit::USAGE, report::backend_error(&error)),
        None => (exit_code(error.fault()), report::backend_error(error)),
    };
    Failure::new(code, format!("cannot {action} {keys}: {why}"))
}
