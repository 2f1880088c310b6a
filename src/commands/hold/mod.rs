//! While the lock is held: one loop over the keeper, the break watch, signals and the subject,
//! which is what the lock is held for: a command (command.rs), a watched process or neither
//! (background.rs).

mod background;
mod command;

use std::time::Duration;

use crate::child::forget_code;
use crate::child::signals::{ReceivedSignal, Signals};
use crate::clock::BootTime;
use crate::keeper::{Keeper, KeeperEvent, KeeperPipes};
use crate::lock::{BreakWatch, Ended, Grant, Lock, Loss, Notice, Outcome, Released};
use crate::poll::Poll;
use crate::report::{LossCause, Report};
use crate::settings::LockSettings;

pub(super) use background::Background;
pub(super) use command::RunningCommand;

/// What a descriptor of the loop belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Subject,
    Keeper,
    Watch,
    Signals,
}

/// Why the lock is no longer held.
pub(super) enum End {
    /// It must be released, with this in the history.
    Release(Ended),
    /// The same, after the command was stopped and the reason reported. The lock may be gone.
    Stopped(Ended),
    /// The lock is gone, as was reported. Whatever is left of it must be released.
    Lost(Ended),
    /// Another client released it with its token, on the servers.
    ReleasedElsewhere,
}

/// What the lock is held for. Each event may end the holding.
pub(super) trait Subject {
    /// Its descriptors, and the moment of its next check.
    fn register<'fd>(&'fd self, poll: &mut Poll<'fd, Source>);

    /// Nothing is expected to happen before the next renewal, so memory can be released.
    fn is_idle(&self) -> bool {
        true
    }

    /// A descriptor of the subject is ready. Comes first.
    fn on_ready(&mut self, _hold: &mut Hold<'_>) -> Option<End> {
        None
    }

    fn on_renewal(&mut self, grant: &Grant);

    /// `at_once`: the lock must become free without notice.
    fn on_loss(&mut self, cause: LossCause, at_once: bool, hold: &mut Hold<'_>) -> Option<End>;

    /// The lease was renewed with the token; `None` = forever. Our own keeper renews it anyway.
    fn on_extension(&mut self, _ttl: Option<Duration>, _hold: &mut Hold<'_>) -> Option<End> {
        None
    }

    fn on_signal(&mut self, received: ReceivedSignal) -> Option<End>;

    /// Comes last, after every wake-up. `is_ready`: [`Subject::on_ready`] was called.
    fn check(&mut self, is_ready: bool, hold: &mut Hold<'_>) -> Option<End>;

    /// The lock turned out to be gone when it was released.
    fn gone_at_release(&self, loss: &Loss, report: &mut Report);
}

/// The lock while it is held, and the sources of events about it.
pub(super) struct Hold<'a> {
    settings: &'a LockSettings,
    /// `None` only within [`Hold::change`].
    keeper: Option<Keeper>,
    watch: Option<Box<dyn BreakWatch>>,
    signals: &'a mut Signals,
    pub(super) report: &'a mut Report,
}

impl<'a> Hold<'a> {
    pub(super) fn new(
        settings: &'a LockSettings,
        keeper: Keeper,
        watch: Option<Box<dyn BreakWatch>>,
        signals: &'a mut Signals,
        report: &'a mut Report,
    ) -> Self {
        Self { settings, keeper: Some(keeper), watch, signals, report }
    }

    /// Hold the lock for the subject, then release it.
    pub(super) fn run(mut self, subject: &mut dyn Subject) {
        let end = loop {
            let ready = self.wait(subject);
            if let Some(end) = self.advance(&ready, subject) {
                break end;
            }
        };
        self.release(end, subject);
    }

    fn wait(&self, subject: &dyn Subject) -> Vec<Source> {
        // It came before we held the lock for the subject.
        if self.signals.is_asked() {
            return vec![Source::Signals];
        }
        let mut poll = Poll::new();
        subject.register(&mut poll);
        if let Some(keeper) = &self.keeper {
            poll.readable(keeper.wake_fd(), Source::Keeper);
            poll.until(keeper.starts_at());
        }
        if let Some(watch) = &self.watch {
            watch.poll_for().into_iter().for_each(|(fd, flags)| poll.add(fd, flags, Source::Watch));
            poll.until(watch.next_moment());
        }
        self.signals.wake_fds().into_iter().for_each(|fd| poll.readable(fd, Source::Signals));
        if subject.is_idle() { poll.wait_after(forget_code) } else { poll.wait() }
    }

    fn advance(&mut self, ready: &[Source], subject: &mut dyn Subject) -> Option<End> {
        let is_ready = ready.contains(&Source::Subject);
        if is_ready && let Some(end) = subject.on_ready(self) {
            return Some(end);
        }
        if let Some(keeper) = &mut self.keeper
            && keeper.starts_at().is_some_and(BootTime::has_passed)
            && let Err(error) = keeper.start()
        {
            self.report.cannot_start_keeper(&error);
        }
        // A renewal comes before the clocks: this process may have been stopped while the lease was
        // renewed.
        if ready.contains(&Source::Keeper) {
            for event in self.keeper.as_mut().map(Keeper::take_events).unwrap_or_default() {
                if let Some(end) = self.on_keeper_event(event, subject) {
                    return Some(end);
                }
            }
        }
        let notice = self.watch.as_mut().and_then(|watch| watch.advance());
        if let Some(end) = notice.and_then(|notice| self.on_notice(notice, subject)) {
            return Some(end);
        }
        if ready.contains(&Source::Signals) {
            while let Some(received) = self.signals.next() {
                if let Some(end) = subject.on_signal(received) {
                    return Some(end);
                }
            }
            while let Some(number) = self.signals.next_asked() {
                let notice = self.watch.as_mut().and_then(|watch| watch.on_signal(number));
                if let Some(end) = notice.and_then(|notice| self.on_notice(notice, subject)) {
                    return Some(end);
                }
            }
        }
        subject.check(is_ready, self)
    }

    fn on_keeper_event(&mut self, event: KeeperEvent, subject: &mut dyn Subject) -> Option<End> {
        match event {
            KeeperEvent::Refreshed(grant) => {
                subject.on_renewal(&grant);
                self.report.refreshed(&grant);
                None
            }
            KeeperEvent::Failed(error, lease) => {
                let left = lease.map_or(Duration::MAX, |lease| lease.deadline().remaining());
                self.report.cannot_refresh(&error, left);
                None
            }
            KeeperEvent::Overdue => subject.on_loss(LossCause::Overdue, false, self),
            KeeperEvent::Lost(loss) => subject.on_loss(LossCause::Reported(loss), false, self),
        }
    }

    fn on_notice(&mut self, notice: Notice, subject: &mut dyn Subject) -> Option<End> {
        match notice {
            Notice::Lost { loss, at_once } => subject.on_loss(LossCause::Reported(loss), at_once, self),
            Notice::Extended { ttl } => subject.on_extension(ttl, self),
        }
    }

    /// Change the lock and its grant, which the keeper's thread owns otherwise.
    fn change<T>(&mut self, change: impl FnOnce(&mut dyn Lock, &mut Grant) -> T) -> Option<T> {
        // Without descriptors for a new keeper the old one continues unchanged.
        let pipes = KeeperPipes::open().ok()?;
        let (mut lock, mut grant) = self.keeper.take()?.finish();
        let result = change(&mut *lock, &mut grant);
        let ttl = grant.lease.map(|lease| lease.ttl()).unwrap_or_default();
        self.keeper = Some(Keeper::new(pipes, lock, grant, ttl, |_| {}));
        Some(result)
    }

    pub(super) fn release(self, end: End, subject: &dyn Subject) {
        let Self { settings, keeper, report, .. } = self;
        let (mut lock, grant) = keeper.expect("only change() takes it out, for a moment").finish();
        let is_lost = matches!(end, End::Lost(_));
        let (ended, is_reported) = match end {
            End::Release(ended) => (ended, false),
            End::Stopped(ended) | End::Lost(ended) => (ended, true),
            // The servers have recorded it, but not all of them may have been reached. Whatever a
            // minimum hold keeps must not be deleted: a server that was not reached keeps the claim
            // until the lease ends.
            End::ReleasedElsewhere => {
                if grant.taken_at.elapsed() >= settings.min_hold {
                    lock.abandon();
                }
                return report.released(grant.taken_at.elapsed(), Some(true));
            }
        };
        let min_hold = if ended.how.keeps_min_hold() { settings.min_hold } else { Duration::ZERO };
        let released = lock.release(&grant, &ended, min_hold);
        if grant.is_locked() && grant.outer.is_empty() {
            let is_released = if is_lost { Some(false) } else { released.is_done() };
            report.released(grant.taken_at.elapsed(), is_released);
        }
        match released {
            Released::Done(failures) => report.misconfigured_servers(&failures),
            Released::Lost(_) if is_reported => {}
            Released::Lost(loss) => subject.gone_at_release(&loss, report),
            Released::Incomplete(error) => report.incomplete_release(&error),
            Released::Unknown(error) => report.cannot_release(&error, settings.location.backend.ttl()),
        }
    }
}

/// How a lock that was lost for this reason appears in the history.
fn outcome_of_loss(cause: &LossCause) -> Outcome {
    match cause {
        LossCause::Reported(Loss::Broken { by }) => Outcome::Broken { by: by.clone() },
        LossCause::Reported(Loss::Superseded { by }) => Outcome::Replaced { by: by.clone() },
        LossCause::Reported(Loss::Expired | Loss::FileReplaced | Loss::Foreign | Loss::Released { .. })
        | LossCause::Overdue => Outcome::Lost,
    }
}
