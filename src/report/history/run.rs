//! A run that has ended, holds the lock or waits for it.

use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use crate::exit::Exit;
use crate::lock::{FinishedRun, History, Holder, HolderInfo, Mode, Outcome, State, WaiterStatus};
use crate::report::format::broken_by;
use crate::report::list::short_name;
use crate::report::text::sanitize;

pub(super) struct Run<'a> {
    pub info: &'a HolderInfo,
    /// When it requested the lock; if unknown, when it got it.
    pub asked: SystemTime,
    /// How long it waited, or has been waiting.
    pub waited: Option<Duration>,
    /// When it got and released the lock; a current holder counts until now.
    pub held: Option<(SystemTime, SystemTime)>,
    pub mode: Mode,
    pub slot: Option<u32>,
    pub fence: Option<u64>,
    pub phase: Phase<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Phase<'a> {
    Ended(&'a FinishedRun),
    Running(&'a Holder),
    Waiting(&'a WaiterStatus),
}

/// All runs, sorted by their start, current waiters last.
pub(super) fn runs_of(history: &History, now: SystemTime) -> Vec<Run<'_>> {
    let mode = match history.status.state {
        State::Slots { of } => Mode::Slot { of },
        State::Shared => Mode::Shared { group: Vec::new() },
        State::Free | State::Held | State::Kept | State::Foreign => Mode::Exclusive,
    };
    let running = history.running().map(|holder| {
        let since = holder.since.unwrap_or(now);
        Run {
            info: &holder.info,
            asked: since.checked_sub(holder.waited.unwrap_or_default()).unwrap_or(since),
            waited: holder.waited,
            held: Some((since, now)),
            mode: mode.clone(),
            slot: holder.slot,
            fence: holder.fence,
            phase: Phase::Running(holder),
        }
    });
    let waiting = history.status.waiters.iter().map(|waiter| Run {
        info: &waiter.info,
        asked: now.checked_sub(waiter.waited.unwrap_or_default()).unwrap_or(now),
        waited: waiter.waited,
        held: None,
        mode: waiter.mode.clone(),
        slot: None,
        fence: None,
        phase: Phase::Waiting(waiter),
    });
    let ended = history.runs.iter().map(|run| Run {
        info: &run.info,
        asked: run.requested(),
        waited: run.waited,
        held: run.ended.how.had_lock().then(|| (run.began(), run.ended_at)),
        mode: run.mode.clone(),
        slot: run.slot,
        fence: run.fence,
        phase: Phase::Ended(run),
    });
    let mut runs: Vec<Run<'_>> = ended.chain(running).chain(waiting).collect();
    runs.sort_by_key(Run::order);
    runs
}

impl Run<'_> {
    /// By their start, current waiters last: the moments of a holder and a waiter come from different
    /// clocks.
    pub(super) fn order(&self) -> (bool, SystemTime, SystemTime) {
        (self.is_waiting(), self.started(), self.asked)
    }

    /// When it got the lock, or requested it in vain.
    pub(super) fn started(&self) -> SystemTime {
        self.held.map_or(self.asked, |(from, _)| from)
    }

    pub(super) fn ended(&self) -> Option<SystemTime> {
        match self.phase {
            Phase::Ended(run) => Some(run.ended_at),
            Phase::Running(_) | Phase::Waiting(_) => None,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(_))
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Ended(run) if run.ended.has_failed())
    }

    /// It ended without the lock.
    pub(super) fn was_turned_away(&self) -> bool {
        matches!(self.phase, Phase::Ended(run) if !run.ended.how.had_lock())
    }

    /// How long it held the lock, if known.
    pub(super) fn held_for(&self) -> Option<Duration> {
        match self.phase {
            Phase::Ended(run) => run.held.filter(|_| run.ended.how.had_lock()),
            Phase::Running(holder) => holder.held_for,
            Phase::Waiting(_) => None,
        }
    }

    /// "0", "SIGTERM", "79 lost", "79 broken by alice@bastion pid 7", "gave up", "running"
    pub(super) fn exit(&self) -> String {
        let ended = match self.phase {
            Phase::Ended(run) => &run.ended,
            Phase::Running(_) => return "running".into(),
            Phase::Waiting(_) => return "waiting".into(),
        };
        let code = ended.exit.map(|exit| match exit {
            Exit::Code(code) => code.to_string(),
            Exit::Signal(number) => signal_name(number),
        });
        let how = if let Outcome::Broken { by } = &ended.how {
            Some(broken_by(by))
        } else if let Some(by) = ended.how.by().filter(|by| !by.host.is_empty()) {
            Some(format!("{} by {}", ended.how.words(), short_name(by)))
        } else {
            (ended.how != Outcome::Released || code.is_none()).then(|| ended.how.words().to_owned())
        };
        let words: Vec<String> = [code, how].into_iter().flatten().collect();
        sanitize(words.join(" "))
    }

    /// "ci@runner-3 4711 deploy.sh  https://ci/1"
    pub(super) fn who(&self) -> String {
        let url = sanitize(&self.info.job_url);
        format!("{}  {url}", short_name(self.info)).trim_end().to_owned()
    }
}

fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}
