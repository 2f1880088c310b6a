//! The one place where a waiter sleeps: for descriptors, for the observer, or until a moment.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::Observer;
use crate::clock::{BootTime, jitter};

/// The pause between attempts after a failure: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A descriptor is ready.
    Ready,
    /// The moment has come, or a spurious wake-up: check again.
    Over,
    /// The observer gave up because of this signal.
    Cancelled(Signal),
}

pub(super) fn wait(
    watched: &[(BorrowedFd<'_>, PollFlags)],
    until: BootTime,
    mut observer: Option<&mut (dyn Observer + '_)>,
) -> Wait {
    let next_tick = observer.as_ref().and_then(|observer| observer.next_tick());
    let until = next_tick.map_or(until, |tick| until.min(tick));
    let (is_ready, is_woken) = {
        let wake_fds = observer.as_ref().map_or_else(Vec::new, |observer| observer.wake_on());
        let mut fds: Vec<PollFd<'_>> =
            wake_fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        fds.extend(watched.iter().map(|&(fd, flags)| PollFd::new(fd, flags)));
        if let Some(observer) = &observer {
            observer.falls_asleep();
        }
        // A failed poll is an interrupted one: no descriptor is marked.
        let _ = poll(&mut fds, until.poll_timeout());
        let (wake_fds, watched) = fds.split_at(wake_fds.len());
        (any_marked(watched), any_marked(wake_fds))
    };
    if let Some(observer) = &mut observer
        && next_tick.is_some_and(BootTime::has_passed)
    {
        observer.tick();
    }
    let signal = observer.filter(|_| is_woken).and_then(Observer::cancelled);
    match (signal, is_ready) {
        (Some(signal), _) => Wait::Cancelled(signal),
        (None, true) => Wait::Ready,
        (None, false) => Wait::Over,
    }
}

/// Ends at this moment, or when the observer gives up.
pub(crate) fn sleep(until: BootTime, observer: &mut dyn Observer) -> Wait {
    while !until.has_passed() {
        if let cancelled @ Wait::Cancelled(_) = wait(&[], until, Some(&mut *observer)) {
            return cancelled;
        }
    }
    Wait::Over
}

/// A pause that grows with each failure in a row, and differs between waiters.
pub(super) fn backoff(failures_in_a_row: u32) -> Duration {
    let (first, most) = PAUSE;
    let grown = (first * 2u32.saturating_pow(failures_in_a_row.min(10))).min(most);
    grown / 2 + jitter(grown / 2)
}

pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn any_marked(fds: &[PollFd<'_>]) -> bool {
    fds.iter().any(|fd| fd.any().unwrap_or(false))
}
