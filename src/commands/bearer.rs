//! What `redlock extend` and `redlock release` have in common: a grant that is known by its token alone.

use std::time::Duration;

use super::break_lock::ask_process;
use super::{exit_code, identity, look};
use crate::child::{ControlAnswer, ask_holder, local_time};
use crate::exit::{self, Exit, Failure};
use crate::lock::{
    AskKeeper, AskProcess, BackendError, Bearer, HostBearer, KeeperAnswer, Keys, Loss, RedisBearer, State,
    Status, Timing, lock_name,
};
use crate::report::{self, Verbosity};
use crate::settings::{Backend, TokenSettings};

/// A keeper that does not answer within this time is stopped.
const KEEPER_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// `ttl`: for an extension; `None` = forever.
pub(super) fn open(settings: &TokenSettings, ttl: Option<Duration>) -> Result<Box<dyn Bearer>, Failure> {
    let TokenSettings { keys, token, location } = settings;
    let who = identity::describe(&[], "");
    look::announce(location);
    match &location.backend {
        Backend::Servers { servers, timing } => {
            let keys = keys.iter().map(|key| Keys::new(servers, &location.prefix, key)).collect();
            let timing = Timing { ttl, ..*timing };
            Ok(Box::new(RedisBearer::new(servers.clone(), keys, timing, *token, who)))
        }
        Backend::Host { directory, .. } => {
            let names: Vec<Vec<u8>> = keys.iter().map(|key| lock_name(&location.prefix, key)).collect();
            let ask: (AskKeeper, AskProcess) = (Box::new(ask_keeper), Box::new(ask_process));
            match HostBearer::open(directory, &names, (*token, who), ttl, ask) {
                Ok(bearer) => Ok(Box::new(bearer)),
                Err(error) => Err(failure("look at", settings, &error)),
            }
        }
    }
}

fn ask_keeper(name: &str, message: &[u8]) -> KeeperAnswer {
    match ask_holder(name, message, KEEPER_ANSWERS_WITHIN) {
        ControlAnswer::Said(answer) => KeeperAnswer::Said(answer),
        ControlAnswer::NotThere => KeeperAnswer::NotThere,
        ControlAnswer::Refused => KeeperAnswer::Refused,
        ControlAnswer::Silent => KeeperAnswer::Silent,
    }
}

/// The lock is not the token's any more.
pub(super) fn no_longer_ours(settings: &TokenSettings, loss: &Loss) -> Exit {
    if settings.location.verbosity != Verbosity::Quiet {
        let now = if *loss == Loss::Foreign { holder_now(settings) } else { None };
        report::no_longer_ours(&settings.keys, loss, now.as_ref(), local_time);
    }
    Exit::Code(exit::LOST)
}

/// The client that holds one of the locks instead.
fn holder_now(settings: &TokenSettings) -> Option<Status> {
    let mut view = look::view(&settings.location);
    let held =
        |status: &Status| !matches!(status.state, State::Free | State::Kept) && status.undecided.is_none();
    settings.keys.iter().find_map(|key| view.status(key).ok().filter(held))
}

/// `what` could not be done.
pub(super) fn failure(what: &str, settings: &TokenSettings, error: &BackendError) -> Failure {
    let keys = report::key_names(&settings.keys);
    let (code, why) = match error.other_lock_count() {
        Some(error) => (exit::USAGE, report::backend_error(&error)),
        None => (exit_code(error.fault()), report::backend_error(error)),
    };
    Failure::new(code, format!("cannot {what} {keys}: {why}"))
}
