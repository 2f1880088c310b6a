//! In the foreground while the keeper-to-be asks for the lock: passes signals on to it, and prints the token.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::output::deliver;
use crate::child::signals::{Signals, suspend_self};
use crate::child::{FromWorker, Front, Printed};
use crate::exit::Exit;

pub(super) fn run(mut front: Front) -> anyhow::Result<Exit> {
    let mut signals = Signals::block()?;
    let mut is_printed = false;
    loop {
        if wait(&front, &signals) {
            match front.receive() {
                FromWorker::Print { text, deadline } => {
                    let printed = deliver(&text, deadline, &mut signals);
                    is_printed = printed == Printed::Done;
                    front.answer(printed);
                }
                FromWorker::Detached => return Ok(Exit::Code(0)),
                FromWorker::Ended => return Ok(end_as_the_worker(&front)),
            }
        }
        // What comes after the token comes too late: the lock is its bearer's.
        pass_on(&front, &mut signals, is_printed);
    }
}

/// Whether the worker has something to say.
fn wait(front: &Front, signals: &Signals) -> bool {
    let wake_fds = signals.wake_fds();
    let mut fds = vec![PollFd::new(front.as_fd(), PollFlags::POLLIN)];
    fds.extend(wake_fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
    // A failed poll is an interrupted one.
    let _ = poll(&mut fds, PollTimeout::NONE);
    fds[0].any().unwrap_or(false)
}

/// What was typed has reached the worker by itself.
fn pass_on(front: &Front, signals: &mut Signals, is_printed: bool) {
    while let Some(received) = signals.next() {
        let ends =
            matches!(received.signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT);
        if received.signal == Signal::SIGTSTP {
            suspend_self();
        } else if ends && !received.typed && !is_printed {
            front.forward(received.signal);
        }
    }
}

fn end_as_the_worker(front: &Front) -> Exit {
    match front.wait_for_end() {
        Ok(code) => Exit::Code(u8::try_from(code).unwrap_or(crate::exit::INTERNAL)),
        Err(signal) => Exit::Signal(signal),
    }
}
