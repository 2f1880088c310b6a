//! Giving back what was asked for when the lock itself cannot be used any more: a thread has panicked, perhaps in
//! the middle of a request, and the program is about to end.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Gives the lock back without the value that holds it; it stays taken for this long. Bounded in time.
type GiveBack = Box<dyn Fn(Duration) + Send>;

/// For the panic hook, which has no other way to the lock.
static REGISTERED: Mutex<Option<LastResort>> = Mutex::new(None);

pub(crate) struct LastResort {
    min_hold: Duration,
    give_back: GiveBack,
}

impl LastResort {
    pub(super) fn new(min_hold: Duration, give_back: impl Fn(Duration) + Send + 'static) -> Self {
        Self { min_hold, give_back: Box::new(give_back) }
    }

    /// From now on, until the program ends.
    pub(crate) fn register(self) {
        *REGISTERED.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }
}

/// From the panic hook, when nothing runs under the lock any more. What cannot be given back expires by itself. A
/// command that has run keeps others out for the minimum hold.
pub(crate) fn give_back_in_emergency(has_run: bool) {
    let registered = REGISTERED.try_lock().ok().and_then(|mut registered| registered.take());
    if let Some(LastResort { min_hold, give_back }) = registered {
        give_back(if has_run { min_hold } else { Duration::ZERO });
    }
}
