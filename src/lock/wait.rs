//! The only place where a waiter sleeps: for descriptors, for the observer, or until a moment.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;

use super::Observer;
use crate::clock::{BootTime, jitter};
use crate::world;

/// The pause after a failed attempt: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A descriptor is ready.
    Ready,
    /// The moment has come, or the wake-up was spurious.
    Over,
    /// The observer gave up on this signal.
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
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|&(fd, flags)| PollFd::new(fd, flags)).collect();
        fds.extend(wake_fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)));
        // The observer drops our code from memory. What runs before the poll is loaded again.
        if let Some(observer) = &observer {
            observer.falls_asleep();
        }
        let ready = world::sleep(&mut fds, until);
        (ready[..watched.len()].contains(&true), ready[watched.len()..].contains(&true))
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

/// Sleep until this moment, or until the observer gives up.
pub(crate) fn sleep(until: BootTime, observer: &mut dyn Observer) -> Wait {
    while !until.has_passed() {
        if let cancelled @ Wait::Cancelled(_) = wait(&[], until, Some(&mut *observer)) {
            return cancelled;
        }
    }
    Wait::Over
}

/// A random pause that grows with each failure in a row.
pub(super) fn backoff(failures_in_a_row: u32) -> Duration {
    let (first, most) = PAUSE;
    let grown = (first * 2u32.saturating_pow(failures_in_a_row.min(10))).min(most);
    grown / 2 + jitter(grown / 2)
}

/// Whether there is something to read, or the other end is closed.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    world::sleep(&mut [PollFd::new(fd, PollFlags::POLLIN)], BootTime::now()) == [true]
}
