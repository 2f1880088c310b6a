//! `--cancel-in-progress`: the next in the queue asks the holder to make way, if it was started with
//! this option, too. Whatever becomes of that, we wait in the queue like any other waiter, and the
//! holder releases the lock when its command is gone.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::backend::open_breaker;
use super::in_thread;
use crate::clock::BootTime;
use crate::lock::{self, BackendError, Blocked, HolderInfo, Reason, Request};
use crate::report::Report;
use crate::settings::LockSettings;

/// By then one run of a circle has given up.
const DEADLOCK_IS_FOUND: Duration = Duration::from_secs(5);

pub(super) struct Canceller<'a> {
    settings: &'a LockSettings,
    /// This run.
    who: HolderInfo,
    /// Two runs inside others that wait for each other would stop each other's outer runs, so a circle is
    /// looked for first.
    asks_from: BootTime,
    /// The grant whose holder was asked.
    asked: Option<String>,
    /// Asking takes a few round trips; the wait, and its signals, go on meanwhile.
    result: Option<Receiver<Result<(), BackendError>>>,
    has_failed: bool,
}

impl<'a> Canceller<'a> {
    pub(super) fn new(settings: &'a LockSettings, request: &Request) -> Self {
        let pause = if request.ancestors.is_empty() { Duration::ZERO } else { DEADLOCK_IS_FOUND };
        Self {
            settings,
            who: request.holder.clone(),
            asks_from: BootTime::now() + pause,
            asked: None,
            result: None,
            has_failed: false,
        }
    }

    /// Called after each attempt.
    pub(super) fn on_blocked(&mut self, blocked: &Blocked, report: &mut Report) {
        if !self.is_idle(report) || !self.asks_from.has_passed() {
            return;
        }
        if let Some(holding) = blocked.to_cancel().filter(|holding| self.asked.as_ref() != Some(&holding.id))
        {
            self.asked = Some(holding.id.clone());
            report.cancels(&holding.info);
            self.ask(blocked.key, holding.id.clone());
        }
    }

    /// Whether no request is under way. A failed one is repeated, and reported once.
    fn is_idle(&mut self, report: &mut Report) -> bool {
        match self.result.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return false,
            Some(Ok(Err(error))) => {
                self.asked = None;
                if !std::mem::replace(&mut self.has_failed, true) {
                    report.cannot_cancel(&error);
                }
            }
            Some(Ok(Ok(())) | Err(TryRecvError::Disconnected)) | None => {}
        }
        self.result = None;
        true
    }

    fn ask(&mut self, key: usize, id: String) {
        let (location, who) = (self.settings.location.clone(), self.who.clone());
        let key = self.settings.keys[key].clone();
        self.result = in_thread("cancel", move || {
            lock::cancel(&mut *open_breaker(&location, &key, who, Reason::Superseded)?, &id)
        });
        // Without a thread it is asked at the next attempt.
        if self.result.is_none() {
            self.asked = None;
        }
    }
}
