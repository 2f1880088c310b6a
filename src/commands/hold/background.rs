//! The lock of `redlock acquire` with a keeper process: held until the watched process has ended,
//! the lock is released with its token or, without a watched process, its time is over.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{End, Hold, Source, Subject, outcome_of_loss};
use crate::child::signals::{ReceivedSignal, ends};
use crate::child::{AttachPoint, WatchedProcess};
use crate::clock::BootTime;
use crate::exit::{self, Exit};
use crate::lock::{ControlFile, Ended, Extended, Grant, Lease, Loss, Outcome};
use crate::poll::Poll;
use crate::report::{Consequence, LossCause, Report};
use crate::settings::{AcquireSettings, DEFAULT_KILL_AFTER, OnLost};

pub(in crate::commands) struct Background<'a> {
    settings: &'a AcquireSettings,
    kept_for: KeptFor,
    /// Where runs attach that use the lock.
    attach_point: Option<AttachPoint>,
    /// On this host: where processes ask us to extend the lock.
    control: Option<ControlFile>,
    /// The loss of the lock was reported, or the watched process was signalled before it.
    is_lost: bool,
}

enum KeptFor {
    Process(StoppableProcess),
    /// `until`: on this host, where no server ends the lease.
    Nobody {
        until: Option<BootTime>,
    },
}

/// The watched process. With `--on-lost stop` it is signalled before the lease ends, as the command
/// of a run is, so that it can be gone when the next holder starts.
struct StoppableProcess {
    process: WatchedProcess,
    /// Sent when the lock cannot be renewed; `None` with `--on-lost warn`.
    signal: Option<Signal>,
    /// When it must be sent, unless the lease is renewed before. `None` after that, or without a
    /// lease.
    signal_at: Option<BootTime>,
    was_signalled: bool,
}

impl StoppableProcess {
    /// The lock is kept until the process has ended, even if it was signalled.
    fn renewed(&mut self, lease: Option<Lease>) {
        let at = lease.map(|lease| lease.deadline().minus(grace(lease.ttl())));
        (self.signal_at, self.was_signalled) = (at.filter(|_| self.signal.is_some()), false);
    }

    /// Returns the signal, if it was sent now.
    fn stop(&mut self) -> Option<Signal> {
        let signal = self.signal.filter(|_| !self.was_signalled)?;
        self.was_signalled = self.process.send(signal).is_ok();
        self.was_signalled.then_some(signal)
    }
}

/// What `run` leaves its command between the first signal and SIGKILL, with a lease of this length.
fn grace(ttl: Duration) -> Duration {
    DEFAULT_KILL_AFTER.min(ttl / 3)
}

impl<'a> Background<'a> {
    /// `until`: when a lock without a watched process ends by itself.
    pub(in crate::commands) fn new(
        settings: &'a AcquireSettings,
        watched: Option<WatchedProcess>,
        attach_point: Option<AttachPoint>,
        lease: Option<Lease>,
        until: Option<BootTime>,
        control: Option<ControlFile>,
    ) -> Self {
        let kept_for = match watched {
            Some(process) => {
                let signal = (settings.on_lost == OnLost::Stop).then_some(settings.stop_signal);
                let mut watched = StoppableProcess { process, signal, signal_at: None, was_signalled: false };
                watched.renewed(lease);
                KeptFor::Process(watched)
            }
            None => KeptFor::Nobody { until },
        };
        Self { settings, kept_for, attach_point, control, is_lost: false }
    }

    pub(in crate::commands) fn exit(&self) -> Exit {
        Exit::Code(if self.is_lost { exit::LOST } else { 0 })
    }

    fn extend_on_host(&mut self, hold: &mut Hold<'_>) {
        let Some(control) = &self.control else { return };
        control.on_extension(|ttl| {
            if let KeptFor::Nobody { until } = &mut self.kept_for {
                *until = ttl.map(|ttl| BootTime::now() + ttl);
                hold.change(|lock, grant| {
                    lock.set_ttl(ttl);
                    lock.extend(grant);
                });
            }
        });
    }
}

impl Subject for Background<'_> {
    fn register<'fd>(&'fd self, poll: &mut Poll<'fd, Source>) {
        match &self.kept_for {
            KeptFor::Process(watched) => {
                match self.attach_point.as_ref().and_then(AttachPoint::wake_fd) {
                    // The process has ended.
                    Some(attached) => poll.readable(attached, Source::Subject),
                    None => poll.readable(watched.process.as_fd(), Source::Subject),
                }
                poll.until(watched.signal_at);
            }
            KeptFor::Nobody { until } => poll.until(*until),
        }
    }

    fn on_renewal(&mut self, grant: &Grant) {
        if let KeptFor::Process(watched) = &mut self.kept_for {
            watched.renewed(grant.lease);
        }
    }

    fn on_loss(&mut self, cause: LossCause, _at_once: bool, hold: &mut Hold<'_>) -> Option<End> {
        if let LossCause::Reported(Loss::Released { .. }) = cause {
            // On this host it is for us to do.
            let is_done = self.control.is_none();
            let release = End::Release(Ended::new(Outcome::Released));
            return Some(if is_done { End::ReleasedElsewhere } else { release });
        }
        let consequence = match &mut self.kept_for {
            KeptFor::Nobody { .. } => Consequence::KeeperEnds,
            KeptFor::Process(watched) => {
                watched.stop();
                let pid = watched.process.pid().as_raw();
                match watched.signal {
                    Some(signal) if watched.was_signalled => Consequence::Signalled(pid, signal),
                    Some(_) | None => Consequence::ProcessRunsOn(pid),
                }
            }
        };
        self.is_lost = true;
        hold.report.lost_by_keeper(&cause, consequence);
        Some(End::Lost(Ended::new(outcome_of_loss(&cause))))
    }

    /// Continue with the new lease.
    fn on_extension(&mut self, ttl: Option<Duration>, hold: &mut Hold<'_>) -> Option<End> {
        let own = self.settings.ttl;
        let (lease, loss) = hold.change(|lock, grant| {
            // We renew it in any case, so it is shorter neither than our own nor than the last one.
            let current = grant.lease.map(|lease| lease.ttl());
            let ttl = ttl.and_then(|ttl| Some(ttl.max(own?).max(current?)));
            lock.set_ttl(ttl);
            match lock.extend(grant) {
                Extended::Until(lease, votes) => {
                    (grant.lease, grant.votes) = (Some(lease).filter(|_| ttl.is_some()), votes);
                    (grant.lease, None)
                }
                Extended::Unknown(_) => (grant.lease, None),
                Extended::Lost(loss) => (grant.lease, Some(loss)),
            }
        })?;
        if let KeptFor::Process(watched) = &mut self.kept_for {
            watched.renewed(lease);
        }
        loss.and_then(|loss| self.on_loss(LossCause::Reported(loss), false, hold))
    }

    fn on_signal(&mut self, received: ReceivedSignal) -> Option<End> {
        let exit = Some(Exit::Signal(received.signal as i32));
        ends(received.signal).then_some(End::Release(Ended { how: Outcome::Released, exit }))
    }

    fn check(&mut self, _is_ready: bool, hold: &mut Hold<'_>) -> Option<End> {
        // Before the clock: a keeper that was stopped must not miss a request.
        self.extend_on_host(hold);
        match &mut self.kept_for {
            KeptFor::Process(watched) => {
                // Runs in the background may still use the lock.
                let is_unused = |point: &mut AttachPoint| point.close();
                if watched.process.has_ended() && self.attach_point.as_mut().is_none_or(is_unused) {
                    let stopped = || End::Stopped(Ended::new(Outcome::Lost));
                    let released = || End::Release(Ended::new(Outcome::Released));
                    return Some(if self.is_lost { stopped() } else { released() });
                }
                if watched.signal_at.take_if(|at| at.has_passed()).is_some()
                    && let Some(signal) = watched.stop()
                {
                    self.is_lost = true;
                    hold.report.signalled_in_time(watched.process.pid(), signal);
                }
                None
            }
            KeptFor::Nobody { until } => {
                let is_over = until.is_some_and(BootTime::has_passed);
                is_over.then(|| End::Release(Ended::new(Outcome::Elapsed)))
            }
        }
    }

    fn gone_at_release(&self, loss: &Loss, report: &mut Report) {
        if !matches!(loss, Loss::Released { .. }) {
            report.was_lost_before_release(loss);
        }
    }
}
