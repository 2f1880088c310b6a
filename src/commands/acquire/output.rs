//! The token on stdout. The reader may be gone or slow: until the token is written a signal cancels
//! everything.
//!
//! With a keeper, the caller's child is the front: it stays in the foreground while its own child,
//! the future keeper, asks for the lock; it forwards signals to it and prints the token.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use nix::unistd::write;

use crate::child::signals::{Signals, ends, suspend_self};
use crate::child::{FromWorker, Front, Printed, stdout_was_closed};
use crate::clock::BootTime;
use crate::commands::nesting::shell_variables;
use crate::exit::{Exit, INTERNAL};
use crate::lock::{Grant, Lease};
use crate::poll::Poll;
use crate::report;
use crate::settings::{AcquireSettings, TokenFormat};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Worker,
    Stdout,
    Signal,
}

/// `attach_id`: where runs attach to the keeper, which is this process, if there is one.
pub(super) fn token_text(
    settings: &AcquireSettings,
    grant: &Grant,
    has_keeper: bool,
    attach_id: Option<&str>,
) -> Vec<u8> {
    let keys = &settings.lock.keys;
    match settings.format {
        TokenFormat::Plain => format!("{}\n", grant.claim).into_bytes(),
        TokenFormat::Json => {
            let keeper = has_keeper.then(std::process::id);
            let host_lease = || settings.ttl.filter(|_| settings.watched.is_none());
            let ends = grant.lease.or_else(|| host_lease().map(|ttl| Lease::new(grant.taken_at, ttl)));
            report::token_json(keys, grant, ends.map(|lease| lease.end().remaining()), keeper).into_bytes()
        }
        TokenFormat::Shell => report::shell_exports(&shell_variables(keys, grant, attach_id)),
    }
}

/// Write the token, in one piece if the kernel allows it.
pub(super) fn print_token(text: &[u8], deadline: Option<BootTime>, signals: &mut Signals) -> Printed {
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
        let mut poll = Poll::new();
        poll.add(stdout.as_fd(), PollFlags::POLLOUT, Ready::Stdout);
        signals.wake_fds().into_iter().for_each(|fd| poll.readable(fd, Ready::Signal));
        poll.until(deadline);
        if !poll.wait().contains(&Ready::Stdout) {
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

/// Ends when the worker has detached or ended.
pub(super) fn run_front(front: &Front) -> anyhow::Result<Exit> {
    let mut signals = Signals::block()?;
    let mut is_printed = false;
    loop {
        let mut poll = Poll::new();
        poll.readable(front.as_fd(), Ready::Worker);
        signals.wake_fds().into_iter().for_each(|fd| poll.readable(fd, Ready::Signal));
        if poll.wait().contains(&Ready::Worker) {
            match front.receive() {
                FromWorker::Print { text, deadline } => {
                    let printed = print_token(&text, deadline, &mut signals);
                    is_printed = printed == Printed::Done;
                    front.reply(printed);
                }
                FromWorker::Detached => return Ok(Exit::Code(0)),
                FromWorker::Ended => {
                    return Ok(match front.wait_for_end() {
                        Ok(code) => Exit::Code(u8::try_from(code).unwrap_or(INTERNAL)),
                        Err(signal) => Exit::Signal(signal),
                    });
                }
            }
        }
        // After the token a signal comes too late: the lock belongs to the bearer of the token.
        forward_signals(front, &mut signals, is_printed);
    }
}

/// A typed signal has reached the worker as well.
fn forward_signals(front: &Front, signals: &mut Signals, is_printed: bool) {
    while let Some(received) = signals.next() {
        if received.signal == Signal::SIGTSTP {
            suspend_self();
        } else if ends(received.signal) && !received.typed && !is_printed {
            front.forward(received.signal);
        }
    }
}
