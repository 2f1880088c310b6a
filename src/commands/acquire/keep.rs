//! The keeper: a process in the background that holds the lock, and on servers renews it, until the watched process has
//! ended, the lock is released, or, without a watched process, its time is over.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::output::token_text;
use super::stop::Stop;
use super::{give_back, new_report, take};
use crate::child::signals::Signals;
use crate::child::{
    ControlPoint, ControlRequest, FrontLink, Printed, WatchedProcess, forget_code, heed_all_signals,
};
use crate::clock::BootTime;
use crate::commands::identity;
use crate::exit::{self, Exit, Failure};
use crate::keeper::{Keeper, KeeperEvent, KeeperPipes};
use crate::lock::{
    BreakWatch, Ended, Extended, Grant, HolderInfo, KeeperRequest, Lock, Loss, Notice, Outcome, Released,
    Renewal,
};
use crate::report::{self, Consequence, LossCause, Report};
use crate::settings::AcquireSettings;

/// In the worker, which becomes the keeper when the lock is granted.
pub(super) fn run(
    settings: &AcquireSettings,
    watched: Option<WatchedProcess>,
    link: FrontLink,
) -> anyhow::Result<Exit> {
    let holder = holder(settings, watched.as_ref());
    let mut report = new_report(settings, &holder)?;
    let result = keep(settings, holder, watched, link, &mut report);
    Ok(report.ended(result))
}

/// Waiters are told about the process that the lock is kept for.
fn holder(settings: &AcquireSettings, watched: Option<&WatchedProcess>) -> HolderInfo {
    let argv = watched.map(WatchedProcess::argv).unwrap_or_default();
    let described = identity::describe(&argv, &settings.lock.label);
    match watched {
        Some(watched) => HolderInfo {
            pid: watched.pid().to_string(),
            renewal: Renewal::Keeper(std::process::id()),
            ..described
        },
        None => HolderInfo { renewal: Renewal::Nobody, ..described },
    }
}

fn keep(
    settings: &AcquireSettings,
    holder: HolderInfo,
    watched: Option<WatchedProcess>,
    mut link: FrontLink,
    report: &mut Report,
) -> anyhow::Result<Exit> {
    let mut signals = Signals::block()?;
    signals.hang_up_with(watched.clone());
    let pipes = KeeperPipes::open().context("cannot start the keeper")?;
    let taken = take(settings, holder, &mut signals, report)?;
    let has_ended = watched.as_ref().is_some_and(WatchedProcess::has_ended);
    let (mut lock, grant) = match taken {
        Ok(taken) => taken,
        Err(_) if has_ended => {
            let pid = watched.map(|watched| watched.pid().as_raw()).unwrap_or_default();
            return Err(Failure::new(exit::USAGE, report::watched_has_ended(&report.lock(), pid)).into());
        }
        Err(exit) => return Ok(exit),
    };
    signals.hang_up_with(None);
    let files = lock.files();
    let (mut until, mut control) = (None, None);
    if !files.is_empty() {
        if watched.is_none() {
            lock.set_ttl(settings.ttl);
            lock.extend(&grant);
            until = settings.ttl.map(|ttl| grant.taken_at + ttl);
        }
        match ControlPoint::open(&grant.claim.to_string()) {
            Ok(point) => control = Some(point),
            Err(error) => {
                lock.release(&grant, &Ended::new(Outcome::NotStarted), Duration::ZERO);
                return Err(error).context("cannot start the keeper");
            }
        }
    }
    // From here on nothing is needed that may not be had.
    heed_all_signals();
    let mut signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => {
            lock.release(&grant, &Ended::new(Outcome::NotStarted), Duration::ZERO);
            return Err(error).context("cannot start the keeper");
        }
    };
    let text = token_text(settings, &grant, Some(std::process::id()));
    let printed = link.print(&text, grant.lease.map(|lease| lease.deadline()));
    if printed != Printed::Done {
        return give_back(&mut *lock, &grant, printed, report);
    }
    // What comes until we have left the caller's session was meant for a call that is over.
    report.detach();
    let title = report::keeper_title(&settings.lock.keys, watched.as_ref().map(WatchedProcess::pid));
    link.detach(title.as_bytes());
    while signals.next().is_some() {}
    let watch = lock.break_watch(&grant);
    let ttl = settings.lock.backend.ttl().unwrap_or_default();
    let stop = watched.map(|watched| Stop::new(settings, watched, grant.lease));
    Keeping {
        settings,
        keeper: Some(Keeper::new(pipes, lock, grant, ttl, |_| {})),
        watch,
        control,
        files: identities(&files),
        stop,
        until,
        signals,
        report,
    }
    .run();
    Ok(Exit::Code(0))
}

fn identities(files: &[Arc<File>]) -> Vec<(u64, u64)> {
    files.iter().filter_map(|file| file.metadata().ok()).map(|about| (about.dev(), about.ino())).collect()
}

/// Why the keeper ends.
enum End {
    /// Nobody needs the lock any more.
    NotNeeded,
    /// The token was used on the servers, which have released the lock; or it was used here, and this is to be answered.
    Released(Option<(ControlRequest, KeeperRequest)>),
    /// Asked to end by this signal.
    Told(Signal),
    /// Its time is over.
    TimeOver,
    Lost(LossCause),
}

struct Keeping<'a> {
    settings: &'a AcquireSettings,
    /// `None` only in the middle of a change.
    keeper: Option<Keeper>,
    watch: Option<Box<dyn BreakWatch>>,
    /// On this host: where we are asked to release or to extend.
    control: Option<ControlPoint>,
    /// The lock files, by device and inode.
    files: Vec<(u64, u64)>,
    /// The watched process.
    stop: Option<Stop>,
    /// On this host, without a watched process: when the time is over.
    until: Option<BootTime>,
    signals: Signals,
    report: &'a mut Report,
}

impl Keeping<'_> {
    fn run(mut self) {
        let end = loop {
            self.wait();
            if let Some(end) = self.advance() {
                break end;
            }
            report::flush();
        };
        self.end(end);
    }

    fn keeper(&self) -> &Keeper {
        self.keeper.as_ref().expect("only a change takes it out")
    }

    fn wait(&self) {
        let moments = [
            self.keeper().starts_at(),
            self.watch.as_ref().and_then(|watch| watch.next_moment()),
            self.stop.as_ref().and_then(Stop::next_moment),
            self.until,
        ];
        let (signal_fds, unwritten) = (self.signals.wake_fds(), report::unwritten());
        let watched = self.watch.as_ref().map_or_else(Vec::new, |watch| watch.poll_for());
        let readable = [self.keeper().wake_fd()]
            .into_iter()
            .chain(signal_fds.iter().map(AsFd::as_fd))
            .chain(self.stop.as_ref().map(|stop| stop.watched().as_fd()))
            .chain(self.control.as_ref().map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = readable
            .chain(watched.iter().map(|&(fd, flags)| PollFd::new(fd, flags)))
            .chain(unwritten.iter().map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLOUT)))
            .collect();
        let timeout = moments.into_iter().flatten().min().map_or(PollTimeout::NONE, BootTime::poll_timeout);
        // Until the next renewal nothing else is used.
        forget_code();
        // A failed poll is an interrupted one: we look at everything, and come back.
        let _ = poll(&mut fds, timeout);
    }

    /// Everything that may have happened. A lease that is over comes first: what was asked of us while we were stopped is
    /// asked of a lock that we may not have.
    fn advance(&mut self) -> Option<End> {
        if self.keeper().starts_at().is_some_and(BootTime::has_passed)
            && let Err(error) = self.keeper.as_mut().expect("only a change takes it out").start()
        {
            self.report.cannot_start_keeper(&error);
        }
        let events = self.keeper.as_mut().map(Keeper::take_ready_events).unwrap_or_default();
        for event in events {
            if let Some(end) = self.on_keeper_event(event) {
                return Some(end);
            }
        }
        while let Some(request) = self.control.as_ref().and_then(ControlPoint::accept) {
            match KeeperRequest::parse(&request.message, &self.files) {
                Ok(asked @ KeeperRequest::Release { .. }) => {
                    return Some(End::Released(Some((request, asked))));
                }
                Ok(asked @ KeeperRequest::Extend { ttl }) => {
                    self.extend_here(ttl);
                    request.answer(asked.done());
                }
                Err(answer) => request.answer(&answer),
            }
        }
        while let Some(received) = self.signals.next() {
            if matches!(received.signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)
            {
                return Some(End::Told(received.signal));
            }
        }
        let mut notices: Vec<Notice> =
            self.watch.as_mut().and_then(|watch| watch.advance()).into_iter().collect();
        while let Some(number) = self.signals.next_asked() {
            notices.extend(self.watch.as_mut().and_then(|watch| watch.asked(number)));
        }
        for notice in notices {
            if let Some(end) = self.on_notice(notice) {
                return Some(end);
            }
        }
        if self.stop.as_ref().is_some_and(|stop| stop.watched().has_ended()) {
            return Some(End::NotNeeded);
        }
        if let Some(stop) = &mut self.stop
            && let Some(signal) = stop.advance()
        {
            self.report.told_in_time(stop.watched().pid(), signal);
        }
        self.until.filter(|until| until.has_passed()).map(|_| End::TimeOver)
    }

    fn on_keeper_event(&mut self, event: KeeperEvent) -> Option<End> {
        match event {
            KeeperEvent::Refreshed(grant) => {
                self.on_renewal(&grant);
                self.report.refreshed(&grant);
            }
            KeeperEvent::Failed(error, lease) => {
                let left = lease.map_or(Duration::MAX, |lease| lease.deadline().remaining());
                self.report.cannot_refresh(&error, left);
            }
            KeeperEvent::Lost(Loss::Released { .. }) => return Some(End::Released(None)),
            KeeperEvent::Lost(loss) => return Some(End::Lost(LossCause::Reported(loss))),
            KeeperEvent::Overdue => return Some(End::Lost(LossCause::Overdue)),
        }
        None
    }

    fn on_renewal(&mut self, grant: &Grant) {
        if let Some(stop) = &mut self.stop {
            stop.renewed(grant.lease);
        }
    }

    fn on_notice(&mut self, notice: Notice) -> Option<End> {
        match notice {
            Notice::Broken(broken) => {
                Some(End::Lost(LossCause::Reported(Loss::Broken { by: Box::new(broken.by) })))
            }
            Notice::Released { .. } => Some(End::Released(None)),
            Notice::Extended { ttl } => self.extend_on_servers(ttl),
        }
    }

    /// On this host the lease is our own business.
    fn extend_here(&mut self, ttl: Option<Duration>) {
        if self.stop.is_some() {
            return;
        }
        self.until = ttl.map(|ttl| BootTime::now() + ttl);
        self.change(|lock, grant| {
            lock.set_ttl(ttl);
            lock.extend(grant);
            None
        });
    }

    /// The lease was set anew with the token: go on with that.
    fn extend_on_servers(&mut self, ttl: Option<Duration>) -> Option<End> {
        // Not shorter than what we were started with: we renew it in any case.
        let ttl = ttl.and_then(|ttl| Some(ttl.max(self.settings.ttl?)));
        self.change(|lock, grant| {
            lock.set_ttl(ttl);
            let before = grant.lease.take();
            match lock.extend(grant) {
                Extended::Until(lease, votes) => {
                    (grant.lease, grant.votes) = (Some(lease).filter(|_| ttl.is_some()), votes);
                    None
                }
                Extended::Unknown(_) => {
                    grant.lease = before;
                    None
                }
                Extended::Lost(Loss::Released { .. }) => Some(End::Released(None)),
                Extended::Lost(loss) => Some(End::Lost(LossCause::Reported(loss))),
            }
        })
    }

    /// With the lock and its grant, which the refresh thread has otherwise.
    fn change(&mut self, change: impl FnOnce(&mut dyn Lock, &mut Grant) -> Option<End>) -> Option<End> {
        // Without descriptors for a new keeper the old one goes on as it was.
        let pipes = KeeperPipes::open().ok()?;
        let (mut lock, mut grant) = self.keeper.take().expect("only a change takes it out").finish();
        let end = change(&mut *lock, &mut grant);
        self.on_renewal(&grant);
        let ttl = grant.lease.map(|lease| lease.ttl()).unwrap_or_default();
        self.keeper = Some(Keeper::new(pipes, lock, grant, ttl, |_| {}));
        end
    }

    fn end(mut self, end: End) {
        let (mut lock, grant) = self.keeper.take().expect("only a change takes it out").finish();
        let min_hold = self.settings.lock.min_hold;
        let (how, signal) = match &end {
            End::NotNeeded | End::Released(Some(_)) => (Outcome::Released, None),
            End::Told(signal) => (Outcome::Released, Some(*signal as i32)),
            End::TimeOver => (Outcome::Expired, None),
            End::Lost(LossCause::Reported(Loss::Broken { by })) => (Outcome::Broken { by: by.clone() }, None),
            End::Lost(LossCause::Reported(_) | LossCause::Overdue) => (Outcome::Lost, None),
            // The servers have done it, and written it down; not all of them may have been reached. What a minimum hold keeps
            // must not be deleted: a server that has not heard of it keeps its claim until the lease is over.
            End::Released(None) => {
                if self.files.is_empty() {
                    if grant.taken_at.elapsed() >= min_hold {
                        lock.abandon();
                    }
                    self.report.released(grant.taken_at.elapsed(), Some(true));
                    return report::kept();
                }
                (Outcome::Released, None)
            }
        };
        if let End::Lost(cause) = &end {
            let consequence = self.stop.as_mut().map_or(Consequence::KeeperEnds, Stop::lost);
            self.report.lost_by_keeper(cause, consequence);
        }
        let min_hold = if how.keeps_min_hold() { min_hold } else { Duration::ZERO };
        let exit = signal.map(Exit::Signal);
        let released = lock.release(&grant, &Ended { how, exit }, min_hold);
        let is_lost = matches!(end, End::Lost(_));
        let is_released = if is_lost { Some(false) } else { released.is_done() };
        self.report.released(grant.taken_at.elapsed(), is_released);
        report::kept();
        match released {
            Released::Lost(Loss::Released { .. }) | Released::Done(_) => {}
            Released::Lost(_) if is_lost => {}
            Released::Lost(loss) => self.report.was_lost_when_given_back(&loss),
            Released::Unknown(error) => {
                self.report.cannot_release(&error, self.settings.lock.backend.ttl());
            }
        }
        if let End::Released(Some((request, asked))) = end {
            request.answer(asked.done());
        }
    }
}
