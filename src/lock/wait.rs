//! The one place where a waiter sleeps: for descriptors, for the observer, or for a moment.

use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, poll};

use super::{BootTime, Observer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A descriptor has something.
    Ready,
    /// The moment has come, or nothing worth mentioning happened: look again.
    Over,
    /// The observer gave up.
    Cancelled,
}

pub fn wait(
    watched: &[(BorrowedFd<'_>, PollFlags)],
    until: BootTime,
    observer: Option<&mut (dyn Observer + '_)>,
) -> Wait {
    let (ready, rung) = {
        let bells = observer.as_ref().map_or_else(Vec::new, |observer| observer.wake_on());
        let mut fds: Vec<PollFd<'_>> =
            bells.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        fds.extend(watched.iter().map(|&(fd, flags)| PollFd::new(fd, flags)));
        // A failed poll is an interrupted one: nothing is marked.
        let _ = poll(&mut fds, until.poll_timeout());
        let (bells, watched) = fds.split_at(bells.len());
        (any_marked(watched), any_marked(bells))
    };
    if rung && observer.is_some_and(Observer::cancelled) {
        Wait::Cancelled
    } else if ready {
        Wait::Ready
    } else {
        Wait::Over
    }
}

/// Nothing but time, or the observer, ends this.
pub fn sleep(until: BootTime, observer: &mut dyn Observer) -> Wait {
    while !until.has_passed() {
        if wait(&[], until, Some(&mut *observer)) == Wait::Cancelled {
            return Wait::Cancelled;
        }
    }
    Wait::Over
}

fn any_marked(fds: &[PollFd<'_>]) -> bool {
    fds.iter().any(|fd| fd.any().unwrap_or(false))
}
