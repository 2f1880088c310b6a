//! How long the lock is usually held, for the wait lines.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::backend::look_for_usual;
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
    state: State,
}

enum State {
    NotAsked,
    Asked(Receiver<Option<Usual>>),
    Done,
}

impl<'a> Estimate<'a> {
    pub(super) fn new(settings: &'a LockSettings) -> Self {
        Self { settings, held_key: None, state: State::NotAsked }
    }

    pub(super) fn on_blocked(&mut self, blocked: &Blocked) {
        self.held_key = matches!(blocked.by, Blocker::Holder(_)).then_some(blocked.key);
    }

    /// Called before a wait line may be printed. `waited`: the time waited so far.
    pub(super) fn prepare(&mut self, waited: Duration, report: &mut Report) {
        let Some(key) = self.held_key.filter(|_| report.has_wait_lines(waited)) else { return };
        let (reply, at_most) = match std::mem::replace(&mut self.state, State::Done) {
            State::NotAsked => (self.ask(key), AT_MOST),
            State::Asked(reply) => (Some(reply), Duration::ZERO),
            State::Done => return,
        };
        let Some(reply) = reply else { return };
        match reply.recv_timeout(at_most) {
            Ok(usual) => report.usually(usual),
            Err(_) => self.state = State::Asked(reply),
        }
    }

    /// In a thread: a silent server must not delay the wait and its signals.
    fn ask(&self, key: usize) -> Option<Receiver<Option<Usual>>> {
        let (sender, receiver) = channel();
        let look = look_for_usual(self.settings, key);
        let started = thread::Builder::new().name("estimate".into()).spawn(move || {
            let _ = sender.send(look());
        });
        started.is_ok().then_some(receiver)
    }
}
