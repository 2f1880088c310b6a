//! Reports of a wait: nothing at first, then a line that is updated in place on a terminal, or a
//! line every 30 s in a log.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::events::events;
use super::format::{GivenUp, WaitLine, gave_up, holder, quoted};
use super::{Report, Verbosity};
use crate::clock::BootTime;
use crate::duration::format;
use crate::lock::{
    BackendError, Blocked, Blocker, Deadlock, DeadlockStep, Done, HolderInfo, Holding, Outcome, Superseded,
    Usual, WaitPolicy,
};

/// A wait shorter than this is not mentioned.
pub(crate) const SILENT_WAIT: Duration = Duration::from_secs(2);
/// Between two wait lines in a log, so that it shows that the job is alive.
pub(crate) const WAIT_LINE_EVERY: Duration = Duration::from_secs(30);
/// Between two updates of the line on a terminal.
const LIVE_LINE_EVERY: Duration = Duration::from_secs(1);

/// The wait, as it was last reported.
#[derive(Default)]
pub(super) struct WaitReport {
    /// The longest wait, if it is limited.
    at_most: Option<Duration>,
    last: Option<LastObstacle>,
    /// How long the wait had lasted when it was last mentioned in a line that stays.
    mentioned_at: Option<Duration>,
    /// Whether that line named a quarantine.
    quarantine_mentioned: bool,
    painted_at: Option<BootTime>,
    /// How long the lock is usually held.
    usual: Option<Usual>,
    /// The link to the holder's job that such a line has shown.
    job_mentioned: String,
}

/// The last known obstacle.
#[derive(Clone)]
struct LastObstacle {
    obstacle: Obstacle,
    at: BootTime,
    waited: Duration,
}

#[derive(Clone)]
enum Obstacle {
    Blocked(Box<Blocked>),
    /// The servers fail, for this reason.
    Unavailable(String),
}

impl LastObstacle {
    fn waited(&self) -> Duration {
        self.waited + self.at.elapsed()
    }
}

impl Report {
    pub(crate) fn asks(&mut self, policy: WaitPolicy) {
        self.wait.at_most = match policy {
            WaitPolicy::No => None,
            WaitPolicy::Queue { at_most } | WaitPolicy::Retry { at_most, .. } => at_most,
        };
        events(super::events::Events::asks);
    }

    pub(crate) fn waiting(&mut self, blocked: &Blocked, waited: Duration) {
        let gives_up_in = self.gives_up_in(waited);
        events(|events| events.waiting(blocked, waited, gives_up_in));
        let is_first = self.wait.last.is_none();
        self.failure_printed = false;
        self.see(Obstacle::Blocked(Box::new(blocked.clone())), waited);
        if is_first && waited < SILENT_WAIT {
            let line = self.wait_line(waited).map(|line| line.text());
            self.verbose(|_| line.unwrap_or_default());
        }
        // What the last line said, a holder or a failure, is over.
        let is_news = self.wait.mentioned_at.is_some() && !self.wait.quarantine_mentioned;
        if is_news && matches!(blocked.by, Blocker::Quarantine(_)) {
            return self.mention(waited);
        }
        self.update(waited);
    }

    /// The first failure is printed at once.
    pub(crate) fn servers_unavailable(&mut self, error: &BackendError, waited: Duration) {
        let (error, gives_up_in) = (super::backend_error(error), self.gives_up_in(waited));
        events(|events| events.waiting_for_servers(&error, waited, gives_up_in));
        self.see(Obstacle::Unavailable(error), waited);
        if !self.failure_printed || self.verbosity == Verbosity::Verbose {
            self.failure_printed = true;
            self.mention(waited);
        } else {
            self.update(waited);
        }
    }

    fn see(&mut self, obstacle: Obstacle, waited: Duration) {
        self.wait.last = Some(LastObstacle { obstacle, at: BootTime::now(), waited });
    }

    /// Nothing has changed except the time.
    pub(crate) fn tick(&mut self) {
        if let Some(waited) = self.wait.last.as_ref().map(LastObstacle::waited) {
            self.update(waited);
        }
    }

    /// The time waited so far, if there is an obstacle.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.wait.last.as_ref().map(LastObstacle::waited)
    }

    /// Whether a wait of this length is mentioned.
    pub(crate) fn has_wait_lines(&self, waited: Duration) -> bool {
        self.verbosity != Verbosity::Quiet && waited >= SILENT_WAIT && !self.is_over(waited)
    }

    pub(crate) fn usually(&mut self, usual: Option<Usual>) {
        self.wait.usual = usual;
    }

    /// When [`Report::tick`] has something to do.
    pub(crate) fn next_tick(&self) -> Option<BootTime> {
        let seen = self.wait.last.as_ref().filter(|_| self.verbosity != Verbosity::Quiet)?;
        if self.is_over(seen.waited()) {
            return None;
        }
        let due = match (self.has_live_line(), self.wait.mentioned_at, self.wait.painted_at) {
            (true, _, Some(painted)) => return Some(painted + LIVE_LINE_EVERY),
            (false, Some(mentioned), _) => mentioned + WAIT_LINE_EVERY,
            (true, _, None) | (false, None, _) => SILENT_WAIT,
        };
        Some(seen.at + due.saturating_sub(seen.waited))
    }

    /// After a wait of this length: the time until the next wait line needs the current obstacle.
    pub(crate) fn next_wait_line(&self, waited: Duration) -> Duration {
        match (self.has_live_line(), self.wait.mentioned_at) {
            _ if waited < SILENT_WAIT => SILENT_WAIT.saturating_sub(waited),
            (true, _) => LIVE_LINE_EVERY,
            (false, mentioned) => (mentioned.unwrap_or(waited) + WAIT_LINE_EVERY).saturating_sub(waited),
        }
    }

    fn has_live_line(&self) -> bool {
        self.verbosity != Verbosity::Quiet && self.live_line.is_available()
    }

    /// Print or update the wait line if that is due. Not after the end of the wait, which is reported
    /// next.
    fn update(&mut self, waited: Duration) {
        if waited < SILENT_WAIT || self.is_over(waited) {
            return;
        }
        if !self.has_live_line() {
            if self.wait.mentioned_at.is_none_or(|mentioned| waited >= mentioned + WAIT_LINE_EVERY) {
                self.mention(waited);
            }
            return;
        }
        let Some(line) = self.wait_line(waited) else { return };
        // A link that does not fit is printed once, in a line that stays.
        if !self.live_line.has_room_for_job(&line) && self.wait.job_mentioned != line.job_url {
            self.mention(waited);
        }
        self.wait.painted_at = Some(BootTime::now());
        self.live_line.show(&line);
    }

    /// A line that stays.
    fn mention(&mut self, waited: Duration) {
        let Some(line) = self.wait_line(waited) else { return };
        self.wait.mentioned_at = Some(waited);
        let last = self.wait.last.as_ref().map(|last| &last.obstacle);
        self.wait.quarantine_mentioned =
            matches!(last, Some(Obstacle::Blocked(blocked)) if matches!(blocked.by, Blocker::Quarantine(_)));
        self.info(&line.text());
        self.wait.job_mentioned = line.job_url;
    }

    /// `None` before the first obstacle.
    fn wait_line(&self, waited: Duration) -> Option<WaitLine> {
        let LastObstacle { obstacle, at, .. } = self.wait.last.as_ref()?;
        Some(match obstacle {
            Obstacle::Unavailable(error) => {
                let blocker = format!("{error}; trying again");
                WaitLine { lock: self.lock(), waited, blocker, ..WaitLine::default() }
            }
            Obstacle::Blocked(blocked) => {
                let blocked = later(blocked, at.elapsed());
                let times = (self.wait.usual.as_ref(), self.gives_up_in(waited));
                WaitLine::new(&self.keys, &blocked, waited, times, self.local_time)
            }
        })
    }

    fn gives_up_in(&self, waited: Duration) -> Option<Duration> {
        self.wait.at_most.map(|at_most| at_most.saturating_sub(waited))
    }

    fn is_over(&self, waited: Duration) -> bool {
        self.gives_up_in(waited).is_some_and(|left| left.is_zero())
    }

    /// Only if the wait was mentioned.
    pub(super) fn announce_acquired(&mut self, waited: Duration) {
        if self.wait.mentioned_at.is_some() && self.verbosity != Verbosity::Verbose {
            self.info(&format!("got {} after {}", self.lock(), format(waited)));
        }
    }

    /// The lock is held, and this run waits no longer. With `exit_code` 0 that is a success.
    pub(crate) fn gave_up(&mut self, blocked: &Blocked, given_up: GivenUp, exit_code: u8) {
        events(|events| events.not_acquired(Outcome::GaveUp, Some(blocked)));
        self.skipped(&gave_up(&self.keys, blocked, given_up, self.local_time), exit_code);
    }

    fn skipped(&mut self, sentence: &str, exit_code: u8) {
        match exit_code {
            0 => self.verbose(|_| format!("skipped: {sentence}")),
            _ => self.info(sentence),
        }
    }

    /// A newer waiter has taken the place of this one.
    pub(crate) fn superseded(&mut self, superseded: &Superseded, waited: Duration, exit_code: u8) {
        let outcome = Outcome::Superseded { by: Box::new(superseded.by.clone()) };
        events(|events| events.not_acquired(outcome, None));
        let key = self.keys.get(superseded.key).map_or(&self.keys[..], std::slice::from_ref);
        let (key, by, waited) = (quoted(key), holder(&superseded.by), format(waited));
        let sentence = format!("gave up on {key} after {waited}: superseded by {by} (--supersede)");
        self.skipped(&sentence, exit_code);
    }

    /// Another run has succeeded: a success of this one, too.
    pub(crate) fn done_already(&mut self, done: &Done, once: Duration) {
        let outcome = Outcome::Done { by: Box::new(done.by.clone()) };
        events(|events| events.not_acquired(outcome, None));
        let (key, ago, by) = (self.lock(), format(done.ago), holder(&done.by));
        let was = if self.keys.len() == 1 { "was" } else { "were" };
        self.info(&format!("{key} {was} done {ago} ago by {by}; not run again (--once {})", format(once)));
    }

    /// The holder was asked to make way for this run.
    pub(crate) fn cancels(&mut self, info: &HolderInfo) {
        self.verbose(|report| format!("asking {} to stop, which holds {}", holder(info), report.lock()));
    }

    pub(crate) fn cannot_cancel(&mut self, error: &BackendError) {
        let (lock, error) = (self.lock(), super::backend_error(error));
        self.info(&format!("cannot stop the run that holds {lock}: {error}; waiting for it"));
    }

    /// Nested runs wait for each other, and this is the youngest. A mistake, so -E 0 does not hide it.
    pub(crate) fn deadlock(&mut self, deadlock: &Deadlock, waited: Duration) {
        events(|events| events.not_acquired(Outcome::GaveUp, None));
        let last = deadlock.steps.len().saturating_sub(1);
        let step = |(at, step): (usize, &DeadlockStep)| {
            let key = quoted(&[&step.key]);
            let by = match &step.holder {
                _ if at == last => "held by this run".into(),
                Some(info) => format!("held by {}", holder(info)),
                None => "where another run is ahead in the queue".into(),
            };
            format!("waits for {key}, {by}")
        };
        let circle: Vec<String> = deadlock.steps.iter().enumerate().map(step).collect();
        let (lock, waited) = (self.lock(), format(waited));
        let circle = circle.join(", which ");
        let sentence = format!("gave up on {lock} after {waited}: deadlock: this run {circle}");
        self.info(&sentence);
    }

    /// A signal has ended the wait.
    pub(crate) fn cancelled(&mut self, signal: Signal) {
        let waited = self.wait.last.as_ref().map(LastObstacle::waited).unwrap_or_default();
        let sentence = format!("stopped waiting for {} after {} ({signal})", self.lock(), format(waited));
        if self.wait.mentioned_at.is_some() {
            self.info(&sentence);
        } else {
            self.verbose(|_| sentence);
        }
    }

    /// `--jitter`.
    pub(crate) fn delays_start(&mut self, delay: Duration, at_most: Duration) {
        self.verbose(|_| format!("starting in {} (--jitter {})", format(delay), format(at_most)));
    }

    pub(crate) fn terminal_resized(&mut self, width: Option<usize>) {
        self.live_line.resize(width);
    }
}

/// The same obstacle, this much later.
fn later(blocked: &Blocked, by: Duration) -> Blocked {
    let mut blocked = blocked.clone();
    let earlier = |time: &mut Option<Duration>| {
        if let Some(time) = time {
            *time = time.saturating_sub(by);
        }
    };
    match &mut blocked.by {
        Blocker::Holder(Holding { held_for, expires_in, .. })
        | Blocker::Reservation(Holding { held_for, expires_in, .. }) => {
            *held_for = held_for.map(|held_for| held_for + by);
            earlier(expires_in);
        }
        Blocker::Foreign { expires_in } => earlier(expires_in),
        Blocker::Quarantine(servers) => {
            for (_, left) in servers {
                *left = left.saturating_sub(by);
            }
        }
        Blocker::Queue => {}
    }
    blocked
}
