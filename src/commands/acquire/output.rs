//! The token on stdout. Its reader may be gone, or not read: until it is written a signal cancels everything.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;

use crate::child::signals::Signals;
use crate::child::{Printed, stdout_was_closed};
use crate::clock::BootTime;
use crate::commands::environment::shell_variables;
use crate::lock::{Grant, Lease};
use crate::report;
use crate::settings::{AcquireSettings, TokenFormat};

/// `keeper`: the process that keeps the lock.
pub(super) fn token_text(settings: &AcquireSettings, grant: &Grant, keeper: Option<u32>) -> Vec<u8> {
    let keys = &settings.lock.keys;
    match settings.format {
        TokenFormat::Plain => format!("{}\n", grant.claim).into_bytes(),
        TokenFormat::Json => {
            let host_lease = || settings.ttl.filter(|_| settings.watched.is_none());
            let ends = grant.lease.or_else(|| host_lease().map(|ttl| Lease::new(grant.taken_at, ttl)));
            report::token_json(keys, grant, ends.map(|lease| lease.end().remaining()), keeper).into_bytes()
        }
        TokenFormat::Shell => report::shell_exports(&shell_variables(keys, grant)),
    }
}

/// Write it, in one piece if the kernel allows it.
pub(super) fn deliver(text: &[u8], deadline: Option<BootTime>, signals: &mut Signals) -> Printed {
    if stdout_was_closed() {
        return Printed::Failed(Errno::EBADF as i32);
    }
    let stdout = io::stdout();
    let mut left = text;
    while !left.is_empty() {
        if let Some(signal) = signals.next_that_ends() {
            return Printed::Cancelled(signal as i32);
        }
        if deadline.is_some_and(BootTime::has_passed) {
            return Printed::TooLate;
        }
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stdout.as_fd(), PollFlags::POLLOUT)];
        let wake_fds = signals.wake_fds();
        fds.extend(wake_fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        // A failed poll is an interrupted one.
        let _ = poll(&mut fds, deadline.map_or(PollTimeout::NONE, BootTime::poll_timeout));
        if !fds[0].any().unwrap_or(false) {
            continue;
        }
        match write(&stdout, left) {
            Ok(written) => left = &left[written..],
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(error) => return Printed::Failed(error as i32),
        }
    }
    Printed::Done
}
