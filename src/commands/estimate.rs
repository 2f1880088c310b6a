//! How long the lock is usually held, for the wait lines.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::backend::view;
use super::in_thread;
use crate::lock::{Blocked, Blocker, Usual};
use crate::report::Report;
use crate::settings::LockSettings;

/// How long the first wait line is delayed at most. A later reply is for the next line.
const AT_MOST: Duration = Duration::from_millis(300);

/// Asks once, when the first wait line is due.
pub(super) struct Estimate<'a> {
    settings: &'a LockSettings,
    /// The last obstacle was a holder of this key.
    held_key: Option<usize>,
    state: EstimateState,
}

enum EstimateState {
    NotAsked,
    Asked(Receiver<Option<Usual>>),
    Done,
}

impl<'a> Estimate<'a> {
    pub(super) fn new(settings: &'a LockSettings) -> Self {
        Self { settings, held_key: None, state: EstimateState::NotAsked }
    }

    pub(super) fn on_blocked(&mut self, blocked: &Blocked) {
        self.held_key = matches!(blocked.by, Blocker::Holder(_)).then_some(blocked.key);
    }

    /// Called before a wait line may be printed. `waited`: the time waited so far.
    pub(super) fn prepare(&mut self, waited: Duration, report: &mut Report) {
        let Some(key) = self.held_key.filter(|_| report.has_wait_lines(waited)) else { return };
        let (reply, at_most) = match std::mem::replace(&mut self.state, EstimateState::Done) {
            EstimateState::NotAsked => (self.ask(key), AT_MOST),
            EstimateState::Asked(reply) => (Some(reply), Duration::ZERO),
            EstimateState::Done => return,
        };
        let Some(reply) = reply else { return };
        match reply.recv_timeout(at_most) {
            Ok(usual) => report.usually(usual),
            Err(_) => self.state = EstimateState::Asked(reply),
        }
    }

    /// In a thread: a silent server must not delay the wait and its signals.
    fn ask(&self, key: usize) -> Option<Receiver<Option<Usual>>> {
        let (location, key) = (self.settings.location.clone(), self.settings.keys[key].clone());
        in_thread("estimate", move || view(&location).status(&key).ok()?.usual)
    }
}
