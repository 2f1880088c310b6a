//! `redlock extend` and `redlock release`: a grant that is known by its token alone.

use super::backend::{open_bearer, view};
use super::exit_code;
use crate::child::local_time;
use crate::exit::{self, Exit, Failure};
use crate::lock::{BackendError, Extended, Loss, Released, State, Status};
use crate::report::{self, Rest, Verbosity};
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
        Extended::Lost(loss) => Ok(no_longer_ours(grant, &loss, || Rest::Held(held(grant)))),
        Extended::Unknown(error) => Err(failure("extend", grant, &error).into()),
    }
}

pub(super) fn release(grant: &TokenSettings) -> anyhow::Result<Exit> {
    let mut bearer = open_bearer(&grant.location, &grant.keys, grant.token, None)
        .map_err(|error| failure("look at", grant, &error))?;
    match bearer.release() {
        Released::Done(_) | Released::Incomplete(_) => {
            if grant.location.verbosity == Verbosity::Verbose {
                report::released(&grant.keys);
            }
            Ok(Exit::Code(0))
        }
        Released::Lost(loss) => {
            let released = || bearer.released().into_iter().map(|key| grant.keys[key].clone()).collect();
            Ok(no_longer_ours(grant, &loss, || Rest::Released(released())))
        }
        Released::Unknown(error) => Err(failure("release", grant, &error).into()),
    }
}

/// The token no longer holds the lock, or not all of its locks.
fn no_longer_ours(grant: &TokenSettings, loss: &Loss, rest: impl FnOnce() -> Rest) -> Exit {
    if grant.location.verbosity != Verbosity::Quiet {
        let rest = rest();
        let lost: Vec<Vec<u8>> =
            grant.keys.iter().filter(|key| !rest.keys().contains(key)).cloned().collect();
        let now = if *loss == Loss::Foreign { holder_now(grant, &lost) } else { None };
        report::no_longer_ours(&lost, loss, now.as_ref(), &rest, local_time);
    }
    Exit::Code(exit::LOST)
}

/// Those of several locks that the token still holds.
fn held(grant: &TokenSettings) -> Vec<Vec<u8>> {
    if grant.keys.len() == 1 {
        return Vec::new();
    }
    let (mut view, token) = (view(&grant.location), grant.token.to_string());
    let is_ours = |key: &&Vec<u8>| {
        let status = view.status(key);
        status.and_then(|status| view.is_owner(&status, &token)).unwrap_or(false)
    };
    grant.keys.iter().filter(is_ours).cloned().collect()
}

/// The client that holds one of these locks instead.
fn holder_now(grant: &TokenSettings, lost: &[Vec<u8>]) -> Option<Status> {
    let mut view = view(&grant.location);
    let held =
        |status: &Status| !matches!(status.state, State::Free | State::Kept) && status.undecided.is_none();
    lost.iter().find_map(|key| view.status(key).ok().filter(held))
}

fn failure(action: &str, grant: &TokenSettings, error: &BackendError) -> Failure {
    let keys = report::quoted(&grant.keys);
    let (code, why) = match error.other_lock_count() {
        Some(error) => (exit::USAGE, report::backend_error(&error)),
        None => (exit_code(error.fault()), report::backend_error(error)),
    };
    Failure::new(code, format!("cannot {action} {keys}: {why}"))
}
