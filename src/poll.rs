//! Waiting for descriptors: each is registered with a tag that says what it means when it is ready.

use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::clock::BootTime;

pub(crate) struct Poll<'fd, T> {
    fds: Vec<PollFd<'fd>>,
    tags: Vec<T>,
    until: Option<BootTime>,
}

impl<'fd, T: Copy> Poll<'fd, T> {
    pub(crate) fn new() -> Self {
        Self { fds: Vec::new(), tags: Vec::new(), until: None }
    }

    pub(crate) fn add(&mut self, fd: BorrowedFd<'fd>, flags: PollFlags, tag: T) {
        self.fds.push(PollFd::new(fd, flags));
        self.tags.push(tag);
    }

    pub(crate) fn readable(&mut self, fd: BorrowedFd<'fd>, tag: T) {
        self.add(fd, PollFlags::POLLIN, tag);
    }

    /// Return at this moment, if it is the earliest that was given. `None` changes nothing.
    pub(crate) fn until(&mut self, moment: Option<BootTime>) {
        self.until = [self.until, moment].into_iter().flatten().min();
    }

    /// The tags of the descriptors that are ready. None are after an interrupted poll: the caller
    /// checks its clocks and polls again.
    pub(crate) fn wait(self) -> Vec<T> {
        self.wait_after(|| {})
    }

    /// The same; `last` is called immediately before the sleep.
    pub(crate) fn wait_after(mut self, last: impl FnOnce()) -> Vec<T> {
        let timeout = self.until.map_or(PollTimeout::NONE, BootTime::poll_timeout);
        last();
        match poll(&mut self.fds, timeout) {
            Ok(1..) => {}
            Ok(_) | Err(_) => return Vec::new(),
        }
        let ready = self.fds.iter().zip(self.tags).filter(|(fd, _)| fd.any().unwrap_or(false));
        ready.map(|(_, tag)| tag).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn the_tags_of_ready_descriptors_are_returned() {
        let (silent, _open) = std::io::pipe().unwrap();
        let (spoken, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"x").unwrap();
        let mut poll = Poll::new();
        poll.readable(silent.as_fd(), 1);
        poll.readable(spoken.as_fd(), 2);
        poll.add(writer.as_fd(), PollFlags::POLLOUT, 3);
        assert_eq!(poll.wait(), [2, 3]);
    }

    #[test]
    fn the_earliest_moment_ends_the_wait() {
        let (silent, _open) = std::io::pipe().unwrap();
        let soon = BootTime::now() + Duration::from_millis(10);
        let mut poll = Poll::new();
        poll.readable(silent.as_fd(), ());
        poll.until(Some(soon + Duration::from_hours(1)));
        poll.until(Some(soon));
        poll.until(None);
        assert_eq!(poll.wait(), []);
        assert!(soon.has_passed());
    }
}
