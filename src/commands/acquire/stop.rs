//! `--on-lost stop` of a keeper: the watched process is told before the lease is over, as the command of a run is, so that
//! it can be gone when the next holder starts.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::child::WatchedProcess;
use crate::clock::BootTime;
use crate::lock::Lease;
use crate::report::Consequence;
use crate::settings::{AcquireSettings, DEFAULT_KILL_AFTER, OnLost};

/// What a keeper does to the process that it watches.
pub(super) struct Stop {
    watched: WatchedProcess,
    /// `None` = nothing.
    signal: Option<Signal>,
    /// When the process has to be told, unless the lease is renewed before; `None` = it was told, or there is no lease.
    at: Option<BootTime>,
    was_told: bool,
}

/// Of a lease of this length: what `run` leaves its command between the first signal and SIGKILL.
fn grace(ttl: Duration) -> Duration {
    DEFAULT_KILL_AFTER.min(ttl / 3)
}

impl Stop {
    pub(super) fn new(settings: &AcquireSettings, watched: WatchedProcess, lease: Option<Lease>) -> Self {
        let signal = match settings.on_lost {
            OnLost::Stop => Some(settings.stop_signal),
            OnLost::Warn => None,
        };
        let mut stop = Self { watched, signal, at: None, was_told: false };
        stop.renewed(lease);
        stop
    }

    pub(super) fn watched(&self) -> &WatchedProcess {
        &self.watched
    }

    /// The lock is kept until the process has ended, even if it was told.
    pub(super) fn renewed(&mut self, lease: Option<Lease>) {
        let at = lease.map(|lease| lease.deadline().minus(grace(lease.ttl())));
        (self.at, self.was_told) = (at.filter(|_| self.signal.is_some()), false);
    }

    pub(super) fn next_moment(&self) -> Option<BootTime> {
        self.at
    }

    /// Tells the process, if it is time. Returns the signal that it was sent.
    pub(super) fn advance(&mut self) -> Option<Signal> {
        self.at.take_if(|at| at.has_passed())?;
        self.tell()
    }

    fn tell(&mut self) -> Option<Signal> {
        let signal = self.signal.filter(|_| !self.was_told)?;
        self.was_told = self.watched.send(signal).is_ok();
        self.was_told.then_some(signal)
    }

    /// The lock is lost: the process is told now, unless it was before.
    pub(super) fn lost(&mut self) -> Consequence {
        let pid = self.watched.pid().as_raw();
        self.tell();
        match self.signal {
            Some(signal) if self.was_told => Consequence::Signalled(pid, signal),
            Some(_) | None => Consequence::ProcessRunsOn(pid),
        }
    }
}
